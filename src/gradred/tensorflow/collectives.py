"""Collective operations on tensors, with Horovod's names and meaning.

They work eagerly and in `tf.function`, and gradients flow through them. Operations are matched by
kind and name, so ranks may reach them in any order. An operation without a name is named after its
tensor in a graph. Eager ones are matched by order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gradred.errors import explain
from gradred.horovod import adasum, basics
from gradred.horovod.basics import Adasum, Average, Sum
from gradred.horovod.errors import HorovodInternalError
from gradred.horovod.operations import barrier as _barrier
from gradred.horovod.operations import join as _join
from gradred.horovod.operations import reducing, reduction
from gradred.horovod.process_sets import (
    ProcessSet,
    global_process_set,
    ids_and_ranks,
    registered,
)
from gradred.horovod.wires import wire_of
from gradred.tensorflow import kernels
from gradred.tensorflow.compression import Compression
from gradred.tensorflow.kernels import Call, Name, later, node_name

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]

_world = global_process_set


def _number(process_set: ProcessSet) -> int:
    try:
        process_set.engine()
    except ValueError as error:
        if process_set.process_set_id in ids_and_ranks():  # this rank is not in it
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from None
        raise
    assert process_set.process_set_id is not None
    return process_set.process_set_id


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = _world,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks, and return the result. Eager calls block.

    Args:
        tensor: a tensor, a variable, or `tf.IndexedSlices`, which are gathered.
        average: deprecated; True means `op=Average`, False means `op=Sum`.
        device_dense: no effect.
        device_sparse: no effect.
        compression: what is sent, see `Compression`.
        op: Average (the default), Sum, Min, Max, Product or Adasum.
        prescale_factor: factor applied to each input.
        postscale_factor: factor applied to the result.
        name: matches this call with the calls of the other ranks.
        process_set: the ranks that take part.
        ignore_name_scope: use `name` as it is, also within a `tf.name_scope`.

    Raises:
        ValueError: the arguments are invalid.
        tf.errors.FailedPreconditionError: the ranks' calls differ. All ranks raise it.
        tf.errors.AbortedError: the process of a rank has ended.
        tf.errors.UnknownError: a rank has left.
        NotImplementedError: IndexedSlices are to be scaled, or reduced by another `op`.
    """
    scales = (prescale_factor, postscale_factor)
    op = reduction(op, average)
    how = Reduction(compression, op, scales, name, process_set, ignore_name_scope)
    if isinstance(tensor, tf.IndexedSlices):
        return _sparse_allreduce(tensor, how, name)
    (made,) = _reduced([tensor], how)
    return made


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = _world,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors as one operation, and return the results. Eager calls block.

    Each `tf.IndexedSlices` among them is gathered by an operation of its own.
    """
    scales = (prescale_factor, postscale_factor)
    op = reduction(op, average)
    return reduce_group(
        tensors, Reduction(compression, op, scales, name, process_set, ignore_name_scope)
    )


class Reduction(NamedTuple):
    """All of an allreduce but its tensors."""

    compression: Any
    op: int
    scales: tuple[float, float]
    """The factors of inputs and of results."""
    name: str | None
    process_set: ProcessSet
    ignore_name_scope: bool = False
    structure: str = ""
    """Describes the nest that the tensors are from, see `gradred.tensorflow.structures`."""


def reduce_group(tensors: Sequence[Any], how: Reduction) -> list[Any]:
    """`grouped_allreduce` of the leaves of a nest, whose structure the ranks compare."""
    made = list(tensors)
    sparse = [number for number, one in enumerate(made) if isinstance(one, tf.IndexedSlices)]
    for number in sparse:
        called = None if how.name is None else f"{how.name}.{number}"
        made[number] = _sparse_allreduce(made[number], how, called)
    dense = [number for number in range(len(made)) if number not in sparse]
    reduced = _reduced([made[number] for number in dense], how)
    for number, one in zip(dense, reduced, strict=True):
        made[number] = one
    return made


def _reduced(tensors: Sequence[Any], how: Reduction) -> list[Any]:
    compression, op, scales, name, process_set, ignore_name_scope, structure = how
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(one)) for one in tensors]
    sent = [one for one, _ in pairs]
    called = node_name("allreduce", name, sent[0], ignore_name_scope)
    if op == Adasum:
        adasum.check(process_set)
        factor = scales[0] * scales[1]
        made = [
            _adasum(one, called.part(number), factor, process_set, structure)
            for number, one in enumerate(sent)
        ]
    else:
        said = (*scales, 0, structure, wire_of(compression))
        call = Call("allreduce", _number(process_set), called, reducing(op), *said)
        made = kernels.reduce(call, sent)
    return [compression.decompress(x, c) for x, (_, c) in zip(made, pairs, strict=True)]


def _adasum(
    tensor: Any, name: Name, factor: float, process_set: ProcessSet, structure: str = ""
) -> Any:
    """The Adasum of all ranks' tensors, times a factor; see `gradred.horovod.adasum`."""
    if not tensor.dtype.is_floating:
        found = f"{tensor.dtype.name} is not supported"
        raise ValueError(explain("op=Adasum", found, "Convert it, or use op=Sum"))
    number = _number(process_set)

    def operation(x: Any) -> Any:
        call = Call("allgather", number, name, structure=structure)
        gathered, _ = kernels.rows(call, [tf.reshape(x, [1, -1])])
        vectors = tf.cast(gathered[0], tf.float64)
        products = tf.matmul(vectors, vectors, transpose_b=True)
        weights = tf.numpy_function(adasum.weights_of, [products], tf.float64)
        combined = tf.linalg.matvec(vectors, tf.ensure_shape(weights, [None]), transpose_a=True)
        made = tf.reshape(tf.cast(combined * factor, x.dtype), tf.shape(x))

        def gradient(back: Any) -> Any:
            return _adasum(back, node_name("allreduce", None, back), factor, process_set)

        return made, gradient

    return tf.custom_gradient(operation)(tensor)


def _sparse_allreduce(slices: Any, how: Reduction, name: str | None) -> Any:
    """The IndexedSlices of all ranks; of an average, divided by the number of ranks."""
    if how.scales != (1.0, 1.0):
        found = "IndexedSlices cannot be scaled"
        raise NotImplementedError(explain("allreduce", found, "Pass tf.convert_to_tensor(x)"))
    if how.op not in (Average, Sum):
        found = "IndexedSlices are averaged or summed"
        raise NotImplementedError(explain(f"allreduce(op={how.op})", found, "Use Average or Sum"))
    called = node_name("allgather", name, slices.values, how.ignore_name_scope)
    call = Call("allgather", _number(how.process_set), called, structure=how.structure)
    (values, indices), counts = kernels.rows(call, [slices.values, slices.indices])
    if how.op == Average:
        values = values / tf.cast(tf.shape(counts)[1], values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _world,
) -> Any:
    """Concatenate all ranks' tensors along the first axis, whose lengths may differ."""
    (made,) = grouped_allgather([tensor], name, ignore_name_scope, process_set)
    return made


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _world,
) -> list[Any]:
    """Allgather several tensors as one operation."""
    if not tensors:
        return []
    given = [tf.convert_to_tensor(one) for one in tensors]
    called = node_name("allgather", name, given[0], ignore_name_scope)
    return kernels.rows(Call("allgather", _number(process_set), called), given)[0]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _world,
) -> Any:
    """Return the tensor of `root_rank`, a global rank."""
    given = tf.convert_to_tensor(tensor)
    called = node_name("broadcast", name, given, ignore_name_scope)
    number = _number(process_set)
    call = Call("broadcast", number, called, root=process_set.place_of(root_rank))
    (made,) = kernels.reduce(call, [given])
    return made


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = _world,
) -> list[Any]:
    """Assign to variables, of TensorFlow or Keras, their values on `root_rank`, a global rank.

    Returns:
        The variables' new values. In a graph, the assignments take place when it is executed.
    """
    if not variables:
        return []
    values = [tf.convert_to_tensor(one) for one in variables]
    called = node_name("broadcast", name, values[0])
    number = _number(process_set)
    call = Call("broadcast", number, called, root=process_set.place_of(root_rank))
    received = kernels.reduce(call, values)
    assigned = [v.assign(value) for v, value in zip(variables, received, strict=True)]
    if tf.executing_eagerly():
        return received
    after = [one.op for one in assigned if hasattr(one, "op")]
    with tf.control_dependencies(after):
        return [tf.identity(value) for value in received]


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = _world,
) -> Any:
    """Send rows to each rank, and receive the rows that the ranks send to this one.

    Args:
        tensor: the rows to send, those for rank 0 first, then those for rank 1, and so on.
        splits: number of rows for each rank. None: the same number for all ranks.
        name: matches this call with the calls of the other ranks.
        ignore_name_scope: use `name` as it is, also within a `tf.name_scope`.
        process_set: the ranks that take part.

    Returns:
        The received rows in rank order. If `splits` is given, a pair: these rows, and the number of
        rows received from each rank, in int32.
    """
    given = tf.convert_to_tensor(tensor)
    called = node_name("alltoall", name, given, ignore_name_scope)
    call = Call("alltoall", _number(process_set), called)
    wanted = None if splits is None else tf.cast(tf.convert_to_tensor(splits), tf.int64)
    (made,), counts = kernels.rows(call, [given], wanted)
    return made if splits is None else (made, counts[0])


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = _world,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce over all ranks, and return this rank's rows of the result.

    If n rows do not divide evenly among p ranks, the first n mod p ranks get one row more.
    """
    scales = (prescale_factor, postscale_factor)
    how = Reduction(compression, op, scales, name, process_set, ignore_name_scope)
    (made,) = _scattered([tensor], how)
    return made


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = _world,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce-scatter several tensors as one operation."""
    scales = (prescale_factor, postscale_factor)
    return _scattered(tensors, Reduction(compression, op, scales, None, process_set))


def _scattered(tensors: Sequence[Any], how: Reduction) -> list[Any]:
    compression, op, scales, name, process_set, ignore_name_scope, _ = how
    if op not in (Average, Sum):
        found = "it averages or sums"
        raise HorovodInternalError(explain(f"reducescatter(op={op})", found, "Use Average or Sum"))
    if not tensors:
        return []
    pairs = [compression.compress(tf.convert_to_tensor(one)) for one in tensors]
    sent = [one for one, _ in pairs]
    called = node_name("reducescatter", name, sent[0], ignore_name_scope)
    call = Call("reducescatter", _number(process_set), called, reducing(op), *scales)
    made, _ = kernels.rows(call, sent)
    return [compression.decompress(x, c) for x, (_, c) in zip(made, pairs, strict=True)]


# ---- questions, also in graphs ------------------------------------------------------------------


def join() -> Any:
    """Declare that this rank has no more batches. Waits until all ranks have joined.

    While it waits, this rank contributes zeros to the other ranks' sums and averages.

    Returns:
        The rank that joined last, as a tensor.
    """
    return later(_join)


def barrier(process_set: ProcessSet = _world) -> None:
    """Block until all ranks have called this; an eager call."""
    _barrier(process_set)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The number of ranks of a process set when the graph is executed, as a tensor."""
    return later(lambda: registered(process_set_id).size() or 0)


def rank_op(name: str | None = None) -> Any:
    """This process's rank when the graph is executed, as a tensor."""
    return later(basics.rank)


def local_size_op(name: str | None = None) -> Any:
    """The number of ranks on this host when the graph is executed, as a tensor."""
    return later(basics.local_size)


def local_rank_op(name: str | None = None) -> Any:
    """This process's rank on its host when the graph is executed, as a tensor."""
    return later(basics.local_rank)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 if this rank is in the process set when the graph is executed, else 0, as a tensor."""
    return later(lambda: int(bool(registered(process_set_id).included())))
