"""Tensors as a group's operations take them: dense, as bytes, and where results go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradred.errors import UsageError, explain
from gradred.torch.operations import DTYPES
from gradred.torch.placed import SERVED, placement_of

if TYPE_CHECKING:
    from gradred.named import Described

Tensor: TypeAlias = torch.Tensor


class DenseCopy:
    """A tensor that is moved: where it lies if it can be, else a copy that is put back."""

    def __init__(self, tensor: Tensor, asked: str) -> None:
        self.tensor = dense(tensor, asked)
        self.dense = self.tensor.contiguous()

    def described(self) -> Described:
        """For the engine."""
        data, dtype = as_moved(self.dense.reshape(-1))
        return ResultPlace(data).of(data, dtype, tuple(data.shape), "broadcast")

    def put_back(self) -> None:
        """After the end."""
        if self.dense.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.dense)


class ResultPlace:
    """Where the engine may put a result: in a tensor that can take it as it is, or nowhere.

    Args:
        target: the tensor; None: there is none.
        dtype: of the result; None: the tensor's.
    """

    def __init__(self, target: Tensor | None, dtype: torch.dtype | None = None) -> None:
        fits = target is not None and target.dtype is (dtype or target.dtype)
        self.target = target if target is not None and fits and target.is_contiguous() else None

    def of(self, data: Tensor, dtype: str, shape: tuple[int, ...], asked: str) -> Described:
        """An input, for the engine."""
        to, nbytes = 0, 0
        if self.target is not None:
            to, nbytes = self.target.data_ptr(), self.target.numel() * self.target.itemsize
        array = (data.data_ptr(), to, dtype, shape, nbytes)
        if data.device.type == "cpu":
            return array
        return (*array, placement_of(data, self.target, asked))


def put_back(parts: Sequence[DenseCopy]) -> None:
    """Each of them, after the end."""
    for part in parts:
        part.put_back()


def require_one_for_each(tensors: Sequence[Tensor], ranks: int, asked: str) -> None:
    """UsageError unless there is a tensor for each rank."""
    if len(tensors) != ranks:
        found = f"the list has {len(tensors)} tensors, and the group {ranks} ranks"
        raise UsageError(explain(asked, found, "Pass one for each rank"))


def require_fit(whole: Tensor, part: Tensor, times: int, asked: str) -> None:
    """UsageError unless one has so many times the elements of the other, of one type."""
    if whole.dtype is not part.dtype:
        found = f"a tensor is of {whole.dtype}, another one of {part.dtype}"
        raise UsageError(explain(asked, found, "Pass tensors of one type"))
    if whole.numel() != times * part.numel():
        found = f"a tensor has {whole.numel()} elements, another one {part.numel()}"
        if times > 1:
            found = f"{whole.numel()} elements are not {times} times {part.numel()}"
        raise UsageError(explain(asked, found, "Pass an output of the result's size"))


def require_rows(expected: Sequence[int], found: Sequence[int], asked: str) -> None:
    """UsageError unless so many rows came from each rank; none expected: that was not said."""
    if expected and list(expected) != list(found):
        rows = f"the ranks have sent {list(found)}, and {list(expected)} were expected of them"
        raise UsageError(explain(asked, rows, "Expect what the other ranks send"))


def put(part: Tensor, target: Tensor) -> None:
    """As many elements to where they belong."""
    if part.numel() != target.numel():
        found = f"{part.numel()} elements have come for a tensor of {target.numel()}"
        remedy = "Pass a tensor that has room for all, and no more"
        raise UsageError(explain("the result", found, remedy))
    target.copy_(part.view(target.shape))


def put_behind(whole: Tensor, targets: Sequence[Tensor]) -> None:
    """All that lies behind each other, to where its parts belong."""
    parts = whole.split([target.numel() for target in targets])  # checked by the callers
    for part, target in zip(parts, targets, strict=True):
        put(part, target)


def dense(tensor: Tensor, asked: str) -> Tensor:
    """The same, apart from what autograd knows of it: others write to it, or read its bytes."""
    if tensor.layout is torch.strided and tensor.device.type in SERVED:
        return tensor.detach()
    if tensor.layout is not torch.strided:
        found = f"the tensor is sparse ({tensor.layout})"
        raise UsageError(explain(asked, found, "Pass a dense one"))
    found = f"the tensor is on {tensor.device}"
    remedy = "Make a group for such tensors, of another backend: new_group(backend=...)"
    raise UsageError(explain(asked, found, remedy))


def reducible(tensor: Tensor, asked: str) -> Tensor:
    """Likewise, of a type of which the engine knows sums."""
    view = dense(tensor, asked)
    if view.dtype not in DTYPES:
        found = f"gradred does not reduce {view.dtype}"
        raise UsageError(explain(asked, found, "Convert it first"))
    return torch.view_as_real(view) if view.is_complex() else view


def as_bytes(flat: Tensor) -> Tensor:
    """The memory of elements that lie behind each other."""
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def as_moved(tensor: Tensor) -> tuple[Tensor, str]:
    """What an operation that only moves elements is given, and of which type.

    Of a type that gradred has no name for, bytes. The tensor is contiguous; its first axes stay.
    """
    dtype = DTYPES.get(tensor.dtype)
    if dtype is not None:
        return tensor, dtype
    shape = (*tensor.shape[:-1], tensor.shape[-1] * tensor.itemsize)
    return as_bytes(tensor.reshape(-1)).reshape(shape), "uint8"


def as_list(tensors: Any) -> list[Tensor]:
    """Of one tensor or of several."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
