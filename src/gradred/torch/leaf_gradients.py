"""Sums of the gradients of micro-batches by one tree, for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from gradred import leaves, torch_leaves
from gradred.errors import UsageError
from gradred.horovod import basics
from gradred.horovod.objects import allgather_object
from gradred.torch.gradients import GradientReduction, How, Parameter, ParamGroups
from gradred.torch.groups import runs_of
from gradred.torch.mpi_ops import allgather_async, alltoall_async, synchronize
from gradred.torch_leaves import Tree

if TYPE_CHECKING:
    from gradred.leaves import Split


_ASKED = "DistributedOptimizer(leaves=...)"
_MOST_ELEMENTS = 8 << 20  # of a vector, unless a parameter has more


class LeafReduction(GradientReduction):
    """Adds up the gradients of all micro-batches of all ranks before a step, by a fixed tree.

    The hook of a parameter takes the gradient of each backward pass away. `synchronize` adds up
    those of all ranks.
    """

    def __init__(
        self,
        param_groups: ParamGroups,
        named: Iterable[tuple[str, Parameter]] | None,
        passes: int,
        groups: Any,
        how: How,
    ) -> None:
        self._how = how  # the constructor of the base sets it too
        self._split, self._rank = self._split_now()
        if how.process_set.takes_part():
            everyone = allgather_object(how.leaves, "optimizer.leaves", how.process_set)
            torch_leaves.require_alike(everyone, _ASKED)
        if self._split.leaves[self._rank] == 0:
            found = f"rank {self._rank} has no micro-batch, with leaves={how.leaves!r}"
            raise UsageError(_ASKED, found, "Give each rank one or more")
        self._trees: dict[Parameter, Tree] = {}
        super().__init__(param_groups, named, self._split.leaves[self._rank], groups, how)

    def _split_now(self) -> tuple[Split, int]:
        """How the leaves are split among the ranks that there are now, and this rank's number."""
        process_set = self._how.process_set
        if not process_set.takes_part():
            return leaves.split_of(1, 1, _ASKED), 0
        size, each = process_set.size(), self._how.leaves
        assert size is not None
        assert each is not None
        return leaves.split_of(each, size, _ASKED), process_set.rank() or 0

    @property
    def _copies(self) -> bool:
        return True

    def _hook(self, parameter: Parameter) -> None:
        if self._left[parameter] <= 0:
            super()._hook(parameter)  # this raises an error
        if not self._trees:  # elastic jobs change the number of ranks between steps
            self._split, self._rank = self._split_now()
        gradient = parameter.grad
        if gradient is None:
            found = f"another optimizer has taken the gradient of {self.names[parameter]!r}"
            raise UsageError(f"a backward pass for {self}", found, "Wrap one of them with leaves=")
        if gradient.is_sparse:
            if not self._how.sparse_as_dense:
                found = f"the gradient of {self.names[parameter]!r} is sparse, and leaves are dense"
                raise UsageError(_ASKED, found, "Pass sparse_as_dense=True")
            gradient = gradient.to_dense()
        if parameter not in self._trees:
            self._claim(parameter)
            self._handles[parameter] = None  # the gradient is not complete before the step
            self._trees[parameter] = torch_leaves.new_tree(self._split, self._rank)
        self._left[parameter] -= 1
        self._trees[parameter].add(torch_leaves.as_leaf(gradient))
        parameter.grad = None

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Gradients that this rank lacks count as zeros."""
        self._synchronized = True
        if not self._reduces:
            return
        for alike in self._vectors():
            columns = [self._parts_of(one) for one in alike]
            parts = [
                torch.cat([one.flatten() for one in row]) for row in zip(*columns, strict=True)
            ]
            total = self._sum(parts, f"leaves.{self.names[alike[0]]}")
            for one, piece in zip(alike, total.split([p.numel() for p in alike]), strict=True):
                if one.requires_grad or one in self._trees:  # zeros would move it by weight decay
                    one.grad = piece.view_as(one).clone()
        self._begin_anew()

    def step(self, make: Callable[[Any], Any], closure: Any) -> Any:
        """Make a step, after `synchronize` unless that has been called since the last pass."""
        if self._synchronized and not self._trees and closure is None:
            with self.skip_synchronize():
                return super().step(make, closure)
        return super().step(make, closure)

    def _vectors(self) -> Iterator[list[Parameter]]:
        """Runs of parameters of one type whose gradients go into one vector; alike on all ranks."""
        parameters = sorted(self._left, key=self.names.__getitem__)
        return runs_of(
            parameters, lambda x: (x.dtype, x.device), torch.Tensor.numel, _MOST_ELEMENTS
        )

    def _parts_of(self, parameter: Parameter) -> list[torch.Tensor]:
        tree = self._trees.get(parameter)
        if tree is None and parameter.grad is not None and parameter.requires_grad:
            found = f"{self.names[parameter]!r} has a gradient that no backward pass has made"
            raise UsageError(
                f"a step of {self}", found, "Set it to None, or set it after synchronize()"
            )
        if tree is None:
            tree = torch_leaves.new_tree(self._split, self._rank)
            for _ in range(self.passes):
                tree.add(torch.zeros_like(parameter))
        elif self._left[parameter] > 0:
            done = self.passes - self._left[parameter]
            found = f"{self.names[parameter]!r} had {done} of {self.passes} backward passes"
            remedy = "Make a backward pass for each leaf before the step"
            raise UsageError(f"a step of {self}", found, remedy)
        return [part for _, part in tree.parts()]

    def _sum(self, parts: list[torch.Tensor], name: str) -> torch.Tensor:
        process_set = self._how.process_set

        def exchange(sent: torch.Tensor, given: list[int], _: list[int]) -> torch.Tensor:
            handle = alltoall_async(
                sent, torch.tensor(given, dtype=torch.int32), f"{name}.parts", process_set
            )
            received: torch.Tensor = synchronize(handle)[0]
            return received

        def gather(chunk: torch.Tensor) -> torch.Tensor:
            whole: torch.Tensor = synchronize(allgather_async(chunk, f"{name}.sums", process_set))
            return whole

        total = torch_leaves.sum_parts(self._split, self._rank, parts, exchange, gather)
        return total.div_(sum(self._split.leaves)) if self._how.op == basics.Average else total

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._trees.clear()

    def set_passes(self, passes: int) -> None:
        """Raise UsageError: the number of backward passes is that of the leaves."""
        if passes != self.passes:
            found = f"each rank's leaves are {self._split.leaves}"
            raise UsageError("backward_passes_per_step", found, "Wrap the optimizer with others")
