"""Sums of sparse tensors in process groups: each rank gathers all elements and adds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gradred.errors import UsageError
from gradred.torch_tensors import described, tensor_of

if TYPE_CHECKING:
    from gradred.named import Described

Tensor: TypeAlias = torch.Tensor


class SparseSum:
    """The sum of sparse tensors of one shape, in place. Ranks may have different elements."""

    def __init__(self, tensor: Tensor, op: str) -> None:
        if op not in ("sum", "avg"):
            found = f"the tensor is sparse, and the operation {op}"
            raise UsageError("all_reduce", found, "Use SUM or AVG, or a dense tensor")
        self._tensor, self._op = tensor, op
        given = tensor.detach().coalesce()
        form = torch.tensor([[given.sparse_dim(), *given.shape]], device=given.device)
        indices = given.indices().transpose(0, 1).contiguous()
        self.parts = [form, indices, given.values().contiguous()]

    def described(self) -> list[Described]:
        """Describe the parts of the tensor for the engine's allgather."""
        return [described(part, None, "all_reduce") for part in self.parts]

    def put(self, outputs: Sequence[Any], rows: Sequence[Sequence[int]]) -> None:
        """Add the gathered elements, and store the sum in the tensor."""
        pairs = zip(outputs, self.parts, rows, strict=True)
        forms, indices, values = (
            tensor_of(out, part.dtype, (sum(each), *part.shape[1:]), part)
            for out, part, each in pairs
        )
        if not torch.equal(forms, self.parts[0].expand_as(forms)):
            found = (
                f"by rank they are {forms[:, 1:].tolist()}, the first {forms[:, 0].tolist()} sparse"
            )
            raise UsageError(
                "all_reduce of sparse tensors", f"sizes differ: {found}", "Pass one shape"
            )
        made = (indices.transpose(0, 1), values, self._tensor.shape)
        total = torch.sparse_coo_tensor(*made, check_invariants=False).coalesce()
        if self._op == "avg":
            is_exact = not (total.is_floating_point() or total.is_complex())
            total = torch.div(total, len(forms), rounding_mode="trunc" if is_exact else None)
        with torch.no_grad():
            self._tensor.copy_(total)
