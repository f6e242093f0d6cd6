"""Gradients that `DistributedOptimizer(groups=...)` reduces together."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence

import torch

from gradred.errors import explain

MOST_ARRAYS = 16
"""Of an operation of which ranks that have joined know all lengths: kMostParts of
csrc/coordinator/submission.h."""


def members_by_parameter(
    groups: Sequence[Sequence[torch.nn.Parameter]], reduced: Collection[torch.nn.Parameter]
) -> dict[torch.nn.Parameter, list[torch.nn.Parameter]]:
    """By parameter, those whose gradients one operation reduces with its own.

    Args:
        groups: as the user gave them, or as `DistributedOptimizer` has cut them.
        reduced: parameters that get gradients; a group's others (frozen ones) count as absent.

    Raises:
        ValueError: there is something else in a group, or a parameter is in two.
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
    """Parts of one type, so small that a rank that has joined can learn all lengths of each."""
    open_ones: dict[torch.dtype, tuple[list[torch.nn.Parameter], int]] = {}
    for parameter in group:
        members, arrays = open_ones.pop(parameter.dtype, ([], 0))
        more = 1 if parameter.is_contiguous() else 2  # the second tells its layout
        if arrays + more > MOST_ARRAYS:
            yield members
            members, arrays = [], 0
        open_ones[parameter.dtype] = ([*members, parameter], arrays + more)
    for members, _ in open_ones.values():
        yield members
