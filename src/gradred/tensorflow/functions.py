"""Broadcast variables and objects; allgather objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gradred.errors import explain
from gradred.horovod import objects
from gradred.horovod.operations import in_turn
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.tensorflow.collectives import broadcast_


def broadcast_variables(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign to variables, of TensorFlow or Keras, their values on `root_rank`.

    Eager calls block.

    Args:
        variables: the variables, the same ones on all ranks and in one order.
        root_rank: the global rank whose values are sent.
        process_set: the ranks that take part.
        inplace: no effect.

    Returns:
        In a graph an operation that depends on the assignments, else None.
    """
    with in_turn("broadcast_variables", process_set):
        received = broadcast_(list(variables), root_rank, "variables", process_set)
    return None if tf.executing_eagerly() else tf.group(*received)


def broadcast_global_variables(root_rank: int) -> Any:
    """Make an operation that broadcasts all variables of a graph of `tf.compat.v1`.

    Raises:
        RuntimeError: it was called eagerly, where TensorFlow keeps no list of variables.
    """
    if tf.executing_eagerly():
        found = "TensorFlow keeps no list of variables"
        remedy = "Call broadcast_variables(model.weights, root_rank=0)"
        raise RuntimeError(explain("broadcast_global_variables", found, remedy))
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Broadcast a picklable object of `root_rank`, and return it on all ranks. Blocks."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """A function of an object that broadcasts it; see `broadcast_object`."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return a list of all ranks' picklable objects in rank order. Blocks."""
    return objects.allgather_object(obj, name, process_set)
