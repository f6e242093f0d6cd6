"""Conversion of tensors for a process group's operations: dense views, bytes, result memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradred._util.text import ranks_text
from gradred.errors import UsageError
from gradred.torch_tensors import DTYPES, SERVED, placement_of, require_memory, require_tensor

if TYPE_CHECKING:
    from gradred.named import Described

Tensor: TypeAlias = torch.Tensor


class DenseCopy:
    """A tensor to move: the tensor itself if it is contiguous, else a copy that is copied back."""

    def __init__(self, tensor: Tensor, asked: str, *, is_written: bool = True) -> None:
        self.tensor = (dense if is_written else readable)(tensor, asked)
        self.dense = self.tensor.contiguous()

    def described(self) -> Described:
        """Describe the tensor for the engine."""
        data, dtype = as_moved(self.dense.reshape(-1))
        return ResultPlace(data).of(data, dtype, tuple(data.shape), "broadcast")

    def put_back(self) -> None:
        """Copy the result to the tensor after the operation."""
        if self.dense.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.dense)


class ResultPlace:
    """Where the engine stores a result: in the target if possible, else in its own memory.

    `dtype` is that of the result. None: that of the target.
    """

    def __init__(self, target: Tensor | None, dtype: torch.dtype | None = None) -> None:
        fits = target is not None and target.dtype is (dtype or target.dtype)
        self.target = target if target is not None and fits and target.is_contiguous() else None

    def of(self, data: Tensor, dtype: str, shape: tuple[int, ...], asked: str) -> Described:
        """Describe an input and the memory of its result for the engine."""
        to, nbytes = 0, 0
        if self.target is not None:
            to, nbytes = self.target.data_ptr(), self.target.numel() * self.target.itemsize
        array = (data.data_ptr(), to, dtype, shape, nbytes)
        if data.device.type == "cpu":
            return array
        into = None if self.target is None else as_bytes(self.target.reshape(-1))
        return (*array, placement_of(data, into, asked))


def put_back(parts: Sequence[DenseCopy]) -> None:
    """Copy the results to all of the tensors after the operation."""
    for part in parts:
        part.put_back()


def require_one_for_each(tensors: Sequence[Tensor], ranks: int, asked: str) -> None:
    """Raise UsageError unless there is one tensor for each rank."""
    if len(tensors) != ranks:
        found = f"the list has {len(tensors)} tensors, and the group {ranks} ranks"
        raise UsageError(asked, found, "Pass one for each rank")


def require_fit(whole: Tensor, part: Tensor, times: int, asked: str) -> None:
    """Raise UsageError unless `whole` has the type and `times` times the elements of `part`."""
    if whole.dtype is not part.dtype:
        found = f"a tensor is of {whole.dtype}, another one of {part.dtype}"
        raise UsageError(asked, found, "Pass tensors of one type")
    if whole.numel() != times * part.numel():
        found = f"a tensor has {whole.numel()} elements, another one {part.numel()}"
        if times > 1:
            found = f"{whole.numel()} elements are not {times} times {part.numel()}"
        raise UsageError(asked, found, "Pass an output of the result's size")


def require_rows(expected: Sequence[int], found: Sequence[int], asked: str) -> None:
    """Raise UsageError unless the expected rows came from each rank. Empty: any number may come."""
    if expected and list(expected) != list(found):
        rows = f"the ranks have sent {list(found)}, and {list(expected)} were expected of them"
        raise UsageError(asked, rows, "Expect what the other ranks send")


def require_one_root(
    expected: Sequence[int], found: Sequence[int], ranks: Sequence[int], asked: str
) -> None:
    """Raise UsageError if the rows show that some ranks named another root than this one.

    `expected` are the rows from each rank if all name the root of this one, `found` those that
    came. `ranks` are their numbers in messages.
    """
    rows = zip(ranks, expected, found, strict=True)
    others = [number for number, wanted, came in rows if wanted != came]
    if others:
        text = f"{ranks_text(others)} named another root than this rank"
        raise UsageError(asked, text, "Name one root on all ranks")


def put(part: Tensor, target: Tensor) -> None:
    """Copy a result to its target, which has the same number of elements."""
    if part.numel() != target.numel():
        found = f"{part.numel()} elements have come for a tensor of {target.numel()}"
        raise UsageError("the result", found, "Pass a tensor that has room for all, and no more")
    target.copy_(part.view(target.shape))


def put_behind(whole: Tensor, targets: Sequence[Tensor]) -> None:
    """Copy consecutive parts of a result to the targets."""
    parts = whole.split([target.numel() for target in targets])  # the callers check the sizes
    for part, target in zip(parts, targets, strict=True):
        put(part, target)


def dense(tensor: Tensor, asked: str) -> Tensor:
    """The tensor detached from autograd, whose elements are those in memory.

    Raises UsageError if it is sparse, on another device, more than its numbers, or a view that
    conjugates or negates what is in memory.
    """
    found = _strided(tensor, asked)
    if tensor.is_conj() or tensor.is_neg():
        what = "the tensor is a conjugated or negated view, in which no result can be written"
        raise UsageError(asked, what, "Pass x.resolve_conj().resolve_neg()")
    return found


def readable(tensor: Tensor, asked: str) -> Tensor:
    """Like `dense`, for an input: of a conjugated or negated view it returns a copy."""
    return _strided(tensor, asked).resolve_conj().resolve_neg()


def _strided(tensor: Tensor, asked: str) -> Tensor:
    require_tensor(tensor, asked)
    if tensor.layout is torch.strided and tensor.device.type in SERVED:
        require_memory(tensor, asked)
        return tensor.detach()
    if tensor.layout is not torch.strided:
        raise UsageError(asked, f"the tensor is sparse ({tensor.layout})", "Pass a dense one")
    remedy = "Make a group for such tensors, of another backend: new_group(backend=...)"
    raise UsageError(asked, f"the tensor is on {tensor.device}", remedy)


def reducible(tensor: Tensor, op: str, asked: str) -> Tensor:
    """Like `dense`; also raises UsageError if the engine cannot reduce the type.

    Complex numbers are added part by part, as GPUs have no reduction of complex types.
    """
    view = dense(tensor, asked)
    if view.dtype not in DTYPES:
        raise UsageError(asked, f"gradred does not reduce {view.dtype}", "Convert it first")
    return torch.view_as_real(view) if view.is_complex() and op in ("sum", "avg") else view


def as_bytes(flat: Tensor) -> Tensor:
    """The memory of a contiguous tensor as bytes."""
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def as_moved(tensor: Tensor) -> tuple[Tensor, str]:
    """The tensor and element type for an operation that only moves elements.

    Elements of a type without a name in gradred are moved as bytes. The tensor has to be
    contiguous. All axes but the last one stay the same.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is not None:
        return tensor, dtype
    shape = (*tensor.shape[:-1], tensor.shape[-1] * tensor.itemsize)
    return as_bytes(tensor.reshape(-1)).reshape(shape), "uint8"


def as_list(tensors: Any) -> list[Tensor]:
    """A list of one tensor or of several."""
    if isinstance(tensors, list):  # asking this first is quicker
        return list(tensors)
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
