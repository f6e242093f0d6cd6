"""Training with the same bits on any number of ranks: the gradient of each micro-batch is a leaf.

    ddp.register_comm_hook(torch_leaves.Leaves(per_rank, optimizer), torch_leaves.sum_leaves)

A fixed binary tree adds up the leaves, those of rank 0 first, as `gradred.allreduce(leaves=)` does.
This module works with process groups of any backend, and on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradred.errors import UsageError
from gradred.leaves import Split, split_of

if TYPE_CHECKING:
    Exchange = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]
    Gather = Callable[[torch.Tensor], torch.Tensor]


_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # from 2.13 on


class Tree:
    """Sums of consecutive leaves, each of the largest nodes of the tree that are complete.

    Args:
        leaves: the number of leaves of all ranks.
        first: the first leaf that is added.
    """

    def __init__(self, leaves: int, first: int = 0) -> None:
        self._leaves, self._end = leaves, first
        self._nodes: list[tuple[int, int, torch.Tensor]] = []  # first leaf, width and sum

    def add(self, total: torch.Tensor, width: int = 1) -> None:
        """Add the sum of the next `width` leaves, a tensor that this object may write to."""
        self._nodes.append((self._end, width, total))
        self._end = min(self._end + width, self._leaves)
        while len(self._nodes) > 1 and self._completes(*self._nodes[-2:]):
            (begin, left, total), (_, _, right) = self._nodes[-2:]
            self._nodes[-2:] = [(begin, 2 * left, total.add_(right))]

    def _completes(self, left: tuple[int, int, Any], right: tuple[int, int, Any]) -> bool:
        """Whether two nodes are the halves of one; where the list ends, a half may be shorter."""
        is_whole = right[1] == left[1] or self._end == self._leaves
        return left[0] % (2 * left[1]) == 0 and is_whole

    def parts(self) -> list[tuple[int, torch.Tensor]]:
        """The width and the sum of each node."""
        return [(width, total) for _, width, total in self._nodes]


def sum_parts(
    split: Split, rank: int, parts: Sequence[torch.Tensor], exchange: Exchange, gather: Gather
) -> torch.Tensor:
    """Add up the parts of all ranks.

    Args:
        split: how the leaves are split among ranks.
        rank: the number of this rank.
        parts: this rank's parts, flat and of one length.
        exchange: an all-to-all of a flat tensor, with the numbers of elements for and from ranks.
        gather: an allgather of a flat tensor of one length.
    """
    size, numbers = len(split.leaves), split.parts
    if size == 1:
        return parts[0]
    count = parts[0].numel()
    chunk = -(-count // size)
    sent = parts[0].new_zeros(size, numbers[rank], chunk)
    for number, part in enumerate(parts):
        for owner, piece in enumerate(part.split(chunk)):
            sent[owner, number, : piece.numel()] = piece
    given, gotten = [numbers[rank] * chunk] * size, [number * chunk for number in numbers]
    received = exchange(sent.flatten(), given, gotten).view(sum(numbers), chunk)
    tree = Tree(sum(split.leaves))
    for width, part in zip(split.widths, received.unbind(), strict=True):
        tree.add(part, width)
    ((_, total),) = tree.parts()
    return gather(total)[:count]


class Leaves:
    """The state of `sum_leaves`: the gradients of the micro-batches since the last step.

    Blocking and collective over the group: the ranks compare their numbers.

    Args:
        leaves: the number of micro-batches of each rank before a step, the same on all ranks, as
            each backward pass of DistributedDataParallel is collective.
        optimizer: the optimizer of the model. Its `step` raises a UsageError after another number
            of backward passes.
        group: the process group of the model; None is the default group.
        average: whether the sum is divided by the number of leaves of all ranks.

    Raises:
        gradred.UsageError: `leaves` is no number of at least 1, or the ranks' numbers differ.

    Example:
        Twelve micro-batches give the same model, bit for bit, on 1, 2, 3, 4, 6 or 12 ranks:

            ddp = DistributedDataParallel(model)
            per_rank = 12 // dist.get_world_size()
            ddp.register_comm_hook(Leaves(per_rank, optimizer), sum_leaves)
            for micro_batches in batches:  # `per_rank` of them, without no_sync
                for micro_batch in micro_batches:
                    loss(ddp(micro_batch)).backward()
                optimizer.step()
                optimizer.zero_grad()
    """

    def __init__(
        self,
        leaves: int,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None = None,
        *,
        average: bool = True,
    ) -> None:
        self.group = dist.group.WORLD if group is None else group
        size, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        everyone: list[Any] = [None] * size
        dist.all_gather_object(everyone, leaves, group=self.group)
        require_alike(everyone, "Leaves")
        self.split = split_of(leaves, size, "Leaves")
        if len({*self.split.leaves}) > 1:
            found = f"leaves={leaves!r}, and each backward pass is collective"
            raise UsageError("Leaves", found, "Pass one number for all ranks")
        self.average = average
        self._trees: dict[torch.nn.Parameter, tuple[int, Tree | None]] = {}
        optimizer.register_step_pre_hook(lambda *_: self._require_complete())

    def reset(self) -> None:
        """Discard the gradients since the last step, as after an exception in a pass."""
        self._trees.clear()

    def _require_complete(self) -> None:
        if self._trees:
            passes, each = next(iter(self._trees.values()))[0], self.split.leaves[self.rank]
            found = f"{passes} of {each} backward passes since the last sum, without no_sync"
            remedy = "Make as many passes as leaves before each step, or reset() after an exception"
            raise UsageError("a step with sum_leaves", found, remedy)

    def take(self, parameter: torch.nn.Parameter, gradient: torch.Tensor) -> Tree | None:
        """Add the gradient of a micro-batch. Returns this rank's sums after the last one."""
        begun = self._trees.pop(parameter, (0, None))
        count, tree = begun[0], begun[1] or new_tree(self.split, self.rank)
        tree.add(as_leaf(gradient))
        if count + 1 == self.split.leaves[self.rank]:
            return tree
        self._trees[parameter] = count + 1, tree
        return None

    def sum_parts(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add up the parts of all ranks. Blocking and collective."""

        def exchange(sent: torch.Tensor, given: list[int], gotten: list[int]) -> torch.Tensor:
            received = sent.new_empty(sum(gotten))
            dist.all_to_all_single(received, sent, gotten, given, group=self.group)
            return received

        def gather(chunk: torch.Tensor) -> torch.Tensor:
            whole = chunk.new_empty(chunk.numel() * len(self.split.leaves))
            _all_gather(whole, chunk, group=self.group)
            return whole

        total = sum_parts(self.split, self.rank, parts, exchange, gather)
        return total.div_(sum(self.split.leaves)) if self.average else total


def sum_leaves(state: Leaves, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sum the gradients of micro-batches by one tree: a hook of DistributedDataParallel.

    Each backward pass is a micro-batch, and the loop does not use `no_sync`. Before the last pass
    of a step the gradients are taken away: they become zeros. In the last pass the hook blocks
    until all ranks' leaves have been added up, and the gradients become the sum or average. The
    buckets do not matter for the bits. Memory: a gradient for each level of the tree.

    Args:
        state: the leaves of this model since its last step.
        bucket: torch's bucket.
    """
    buffer = bucket.buffer()
    if buffer.is_sparse:
        remedy = "Make the layer without sparse=True"
        raise UsageError("sum_leaves", "a gradient is sparse, and leaves are dense", remedy)
    taken = [
        (parameter, gradient, state.take(parameter, gradient))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]
    finished = [(one, gradient, tree) for one, gradient, tree in taken if tree is not None]
    if len(finished) == len(taken):
        columns = [[part for _, part in tree.parts()] for _, _, tree in finished]
        parts = [torch.cat([one.flatten() for one in row]) for row in zip(*columns, strict=True)]
        total = state.sum_parts(parts)
        sizes = [gradient.numel() for _, gradient, _ in finished]
        for (one, gradient, _), piece in zip(finished, total.split(sizes), strict=True):
            gradient.copy_(piece.view_as(gradient))
            # DDP leaves a gradient alone that no rank's last pass has used.
            if one.grad is not None:
                one.grad.copy_(gradient)
            elif bool(gradient.count_nonzero()):
                one.grad = gradient.clone()
    elif finished:
        found = "some parameters of a bucket have had more backward passes than others"
        raise UsageError("sum_leaves", found, "Register it before the first backward pass")
    else:
        buffer.zero_()
    ended: torch.futures.Future[torch.Tensor] = torch.futures.Future(
        devices=[buffer.device] if buffer.is_cuda else []
    )
    ended.set_result(buffer)
    return ended


# torch compares a hook's annotations, if there are any, with its classes, not with texts.
sum_leaves.__annotations__ = {}


def new_tree(split: Split, rank: int) -> Tree:
    """A tree for the leaves of one rank."""
    return Tree(sum(split.leaves), sum(split.leaves[:rank]))


def as_leaf(gradient: torch.Tensor) -> torch.Tensor:
    """A copy without zeros of negative sign, which the first of several gradients could have."""
    return gradient + 0.0


def require_alike(everyone: Sequence[Any], asked: str, name: str = "leaves") -> None:
    """Raise UsageError unless all ranks have passed the same argument of this name."""
    for rank, one in enumerate(everyone):
        if one != everyone[0]:
            found = f"rank 0 has {name}={everyone[0]!r}, rank {rank} {name}={one!r}"
            raise UsageError(asked, found, "Pass the same on all ranks")
