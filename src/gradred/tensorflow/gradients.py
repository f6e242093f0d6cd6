"""Reduction of the gradients of a step over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gradred.errors import explain
from gradred.horovod.basics import Average
from gradred.horovod.process_sets import ProcessSet
from gradred.horovod.util import split_list
from gradred.tensorflow.collectives import Reduction, reduce_group, size_op
from gradred.tensorflow.structures import structure_of
from gradred.tensorflow.util import identities_of, identity_of


@dataclass(frozen=True)
class How:
    """Settings of the reduction; see the arguments of `DistributedGradientTape`."""

    compression: Any
    op: int
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    groups: Any
    scale_local: bool


def checked_groups(num_groups: int, groups: Any) -> Any:
    """The groups that the arguments `num_groups` (deprecated) and `groups` select.

    Raises:
        ValueError: `groups` is neither a positive number nor lists of variables.
    """
    if num_groups:
        groups = num_groups if groups is None else groups
    if groups is None or (isinstance(groups, int) and groups > 0):
        return groups
    if isinstance(groups, int) or not all(isinstance(one, (list, tuple)) for one in groups):
        remedy = "Pass a positive number, or lists of variables"
        raise ValueError(explain("groups", f"got {groups}", remedy))
    return groups


class GradientReduction:
    """Reduces the gradients of a step.

    All dense gradients form one call, or one for each of the `groups`. Gradients that are
    IndexedSlices are gathered one by one.

    Raises:
        ValueError: the settings contradict each other, init() has not been called, or the process
            set is not registered.
    """

    def __init__(self, how: How) -> None:
        if how.predivide_factor != 1.0 and how.op != Average:
            found = "gradient_predivide_factor goes with Average"
            raise ValueError(explain(f"op={how.op}", found, "Use op=Average"))
        how.process_set.takes_part()  # raises where init() was forgotten: at the wrap already
        self.how = how
        self._local: set[int] = set()

    def keep_local(self, variables: Sequence[Any]) -> None:
        """Reduce the gradients of these variables no more."""
        self._local |= identities_of(variables)

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], structure: str | None = None
    ) -> list[Any]:
        """The reduced gradients. Gradients that are None stay None, and are so on all ranks.

        They are in the same order on all ranks. `structure` describes the nest whose leaves they
        are. None: they are a list.
        """
        structure = structure_of(list(gradients)) if structure is None else structure
        made = list(gradients)
        if not self.how.process_set.takes_part():
            return made
        numbered = [number for number, one in enumerate(made) if one is not None]
        local = [number for number in numbered if identity_of(variables[number]) in self._local]
        for number in local if self.how.scale_local else ():
            ranks = size_op(self.how.process_set.process_set_id or 0)
            made[number] = _divided(made[number], ranks)
        if self.how.sparse_as_dense:
            made = [tf.convert_to_tensor(x) if isinstance(x, tf.IndexedSlices) else x for x in made]
        shared = [number for number in numbered if number not in local]
        for group in self._groups_of(shared, variables):
            reduced = self._reduce_group([made[number] for number in group], structure)
            for number, one in zip(group, reduced, strict=True):
                made[number] = one
        return made

    def _groups_of(self, numbers: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """The gradients that are reduced together, each by its number."""
        asked = self.how.groups
        if asked is None:
            return [numbers]
        if isinstance(asked, int):
            return [list(part) for part in split_list(numbers, asked)]
        lists = [identities_of(group) for group in asked]
        found = [
            [number for number in numbers if identity_of(variables[number]) in group]
            for group in lists
        ]
        grouped = {number for group in found for number in group}
        return [*found, [number for number in numbers if number not in grouped]]

    def _reduce_group(self, gradients: Sequence[Any], structure: str) -> list[Any]:
        """Reduce the gradients of a group. IndexedSlices are gathered, and so need no factors."""
        how, factor = self.how, self.how.predivide_factor
        made = list(gradients)
        is_sparse = [isinstance(one, tf.IndexedSlices) for one in made]
        for sparse, factors in ((True, (1.0, 1.0)), (False, (1.0 / factor, factor))):
            numbers = [number for number, one in enumerate(is_sparse) if one == sparse]
            group = [made[number] for number in numbers]
            asked = Reduction(how.compression, how.op, factors, None, how.process_set)
            reduced = reduce_group(group, asked._replace(structure=structure))
            for number, one in zip(numbers, reduced, strict=True):
                made[number] = one
        return made


def _divided(gradient: Any, ranks: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = _divided(gradient.values, ranks)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(ranks, gradient.dtype)
