"""Division of gradients into the operations of `DistributedOptimizer(groups=...)`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence

import torch

from gradred.errors import explain

MOST_ARRAYS = 16
"""The maximum number of arrays in one operation.

Ranks that have joined learn the lengths of at most that many arrays. This is kMostParts of
csrc/named/submission.h."""


def members_by_parameter(
    groups: Sequence[Sequence[torch.nn.Parameter]], reduced: Collection[torch.nn.Parameter]
) -> dict[torch.nn.Parameter, list[torch.nn.Parameter]]:
    """For each parameter, the parameters whose gradients are reduced in the same operation.

    Args:
        groups: groups that the user or `DistributedOptimizer` has defined.
        reduced: parameters with gradients. Other parameters in a group, such as frozen ones, are
            ignored.

    Raises:
        ValueError: a group contains something else, or a parameter is in two groups.
    """
    asked, seen = "DistributedOptimizer(groups=...)", set()
    for parameter in itertools.chain.from_iterable(groups):
        if not isinstance(parameter, torch.Tensor):
            remedy = "Pass lists of parameters"
            raise ValueError(explain(asked, "a group has something else in it", remedy))
        if parameter in seen:
            remedy = "Put each into one group"
            raise ValueError(explain(asked, "a parameter is in two groups", remedy))
        seen.add(parameter)
    return {
        parameter: members
        for group in groups
        for members in _operations_of([one for one in group if one in reduced])
        for parameter in members
    }


def _operations_of(group: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    """Divide a group into operations of one element type.

    Each operation has at most MOST_ARRAYS arrays, so a rank that has joined can learn all lengths.
    """
    # The second array describes a layout.
    return runs_of(group, lambda x: x.dtype, lambda x: 1 if x.is_contiguous() else 2, MOST_ARRAYS)


def runs_of(
    parameters: Iterable[torch.nn.Parameter],
    kind: Callable[[torch.nn.Parameter], Hashable],
    weight: Callable[[torch.nn.Parameter], int],
    most: int,
) -> Iterator[list[torch.nn.Parameter]]:
    """Divide parameters into lists of one kind each, whose weights add up to `most` at most.

    A parameter that weighs more has a list of its own.
    """
    open_ones: dict[Hashable, tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in parameters:
        more, of = weight(parameter), kind(parameter)
        members, total = open_ones.pop(of, ([], 0))
        if members and total + more > most:
            yield members
            members, total = [], 0
        members.append(parameter)
        open_ones[of] = (members, total + more)
    for members, _ in open_ones.values():
        yield members
