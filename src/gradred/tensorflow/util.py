"""Small helpers that scripts written for Horovod import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from gradred.errors import explain
from gradred.horovod.util import num_rank_is_power_2


def _executing_eagerly() -> bool:
    return bool(tf.executing_eagerly())


def vars_to_refs(variables: Any) -> Any:
    """Return hashable references of variables; for a list or a tuple of variables, a tuple."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(one) for one in variables)
    return variables.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables of such references."""
    if isinstance(refs, (list, tuple)):
        return tuple(refs_to_vars(one) for one in refs)
    return refs.deref()


def check_num_rank_power_of_2(num_rank: int) -> None:
    """Raise ValueError unless the number is a power of two."""
    if not num_rank_is_power_2(num_rank):
        found = f"{num_rank} ranks are no power of two"
        raise ValueError(explain("Adasum", found, "Use 2, 4, 8, ... ranks, or op=Average"))


def identity_of(variable: Any) -> int:
    """A number by which a variable is known, in Keras's form and in TensorFlow's."""
    return id(getattr(variable, "_value", variable))


def identities_of(variables: Iterable[Any]) -> set[int]:
    """The numbers by which variables are known."""
    return {identity_of(one) for one in variables}
