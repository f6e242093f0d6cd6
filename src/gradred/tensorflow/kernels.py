"""gradred's operations in TensorFlow's graphs, and their gradients.

`_tensorflow_ops.so` registers two operations with TensorFlow: GradredReduce, whose results have the
shapes of its inputs, and GradredRows, whose results have rows of their own number.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gradred import _core
from gradred.errors import explain
from gradred.horovod.process_sets import ProcessSet, registered

LIBRARY = Path(__file__).with_name("_tensorflow_ops.so")


@dataclass(frozen=True)
class Name:
    """What matches an operation with those of the other ranks.

    Attributes:
        text: the name. Empty: calls are counted.
        of_node: it is the name of a node of the graph that is built. The kernel uses the node's
            name in the graph that TensorFlow executes, where called functions have been put in.
    """

    text: str = ""
    of_node: bool = False

    def part(self, number: int) -> Name:
        """The name of one of several operations."""
        return replace(self, text=f"{self.text}.{number}") if self.text else self


@dataclass(frozen=True)
class Call:
    """An operation on tensors.

    Attributes:
        kind: "allreduce", "broadcast", "allgather", "alltoall" or "reducescatter".
        process_set: number of the process set.
        name: matches the call with those of the other ranks.
        op: gradred's name of the reduction.
        prescale: factor of the inputs.
        postscale: factor of the results.
        root: index in the set of the rank whose tensors a broadcast sends.
        structure: describes the nest whose leaves the tensors are. The ranks compare it.
        wire: what float32 travels in between hosts. Empty: as it is.
    """

    kind: str
    process_set: int
    name: Name = Name()
    op: str = "sum"
    prescale: float = 1.0
    postscale: float = 1.0
    root: int = 0
    structure: str = ""
    wire: str = ""

    @property
    def set(self) -> ProcessSet:
        """The process set."""
        return registered(self.process_set)

    def named_like(self, tensor: Any) -> Call:
        """Return this call under another name, for the gradient of `tensor`."""
        return replace(self, name=node_name(self.kind, None, tensor))


def node_name(kind: str, name: str | None, like: Any, ignore_name_scope: bool = False) -> Name:
    """The name of an operation.

    Eager calls without a name are counted, which is the empty name here. In a graph they are named
    after their tensor, as ranks may trace a function in different orders.

    `ignore_name_scope` uses the given name as it is, also within a `tf.name_scope` or a function
    that another one calls.

    Raises:
        ValueError: XLA compiles the function that calls this.
    """
    if tf.executing_eagerly():
        return Name(name or "")
    graph = tf.compat.v1.get_default_graph()
    _refuse_xla(kind, graph)
    if name is None:
        name = re.sub(r"\W", "_", f"{kind}_{getattr(like, 'name', 'tensor')}")
    elif ignore_name_scope:
        return Name(name)
    return Name(str(graph.unique_name(_valid_in_graph(name, kind))), of_node=True)


def _valid_in_graph(name: str, kind: str) -> str:
    """The name with the characters that TensorFlow allows in names of nodes."""
    name = re.sub(r"[^\w.\-/]", "_", name, flags=re.ASCII).strip("/")
    return name if re.match("[A-Za-z0-9.]", name) else f"{kind}{name}"


def _refuse_xla(kind: str, graph: Any) -> None:
    from tensorflow.python.ops import control_flow_util

    if control_flow_util.GraphOrParentsInXlaContext(graph):
        found = "XLA compiles this function, and cannot wait for other ranks"
        remedy = "Leave jit_compile out, or set jit_compile=False"
        # AutoGraph passes on the classes of Python's own errors alone.
        raise ValueError(explain(f"{kind} in tf.function(jit_compile=True)", found, remedy))


def reduce(call: Call, tensors: Sequence[Any]) -> list[Any]:
    """Carry out an allreduce or a broadcast: one result per tensor, of its shape and type."""
    if not tensors:
        return []
    return list(_operations().gradred_reduce(tensors, **_attributes(call)))


def rows(call: Call, tensors: Sequence[Any], splits: Any = None) -> tuple[list[Any], Any]:
    """Carry out an allgather, an alltoall or a reduce-scatter.

    The tensors have at least one axis. `splits` are rows for each rank of an alltoall, a tensor of
    int64. None: the same for all ranks.

    Returns:
        One result per tensor, and the rows that `NamedRequest.rows` has: a tensor of int32 and of
        shape (tensors, ranks).
    """
    splits = tf.zeros([0], tf.int64) if splits is None else splits
    made = _operations().gradred_rows(tensors, splits, **_attributes(call))
    results, counts = list(made.results), made.rows
    if not tf.executing_eagerly():
        for result, tensor in zip(results, tensors, strict=True):
            if tensor.shape.rank:
                result.set_shape(tf.TensorShape([None]).concatenate(tensor.shape[1:]))
        counts.set_shape([len(results), None])
    return results, counts


def later(function: Callable[[], int]) -> Any:
    """The number that a function returns; in a graph, each time that the graph is executed."""
    if tf.executing_eagerly():
        return tf.constant(function(), tf.int32)
    made = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, stateful=True)
    made.set_shape([])
    return made


def _attributes(call: Call) -> dict[str, Any]:
    return {
        # With a slash TensorFlow takes the name as it is.
        "name": f"{call.name.text}/" if call.name.of_node else None,
        "kind": call.kind,
        "tensor_name": "" if call.name.of_node else call.name.text,
        "op": call.op,
        "prescale": float(call.prescale).hex(),
        "postscale": float(call.postscale).hex(),
        "root": call.root,
        "structure": call.structure,
        "wire": call.wire,
        "process_set": call.process_set,
        # An eager call is waited for in any case, and by this thread at the least cost.
        "waits": tf.executing_eagerly(),
    }


def _call_of(operation: Any) -> Call:
    """The call that a node carries out."""

    def text(name: str) -> str:
        return str(tf.compat.as_str(operation.get_attr(name)))

    return Call(
        text("kind"),
        int(operation.get_attr("process_set")),
        Name(text("tensor_name")),
        text("op"),
        float.fromhex(text("prescale")),
        float.fromhex(text("postscale")),
        int(operation.get_attr("root")),
        text("structure"),
        text("wire"),
    )


# ---- the library --------------------------------------------------------------------------------


_AGAIN = "Install gradred again: python -m pip install --force-reinstall gradred"


@functools.cache
def _load() -> tuple[Any, ctypes.CDLL]:
    """Load the library into TensorFlow. Returns its operations, and its other functions."""
    try:
        operations = tf.load_op_library(str(LIBRARY))
    except tf.errors.NotFoundError as error:
        found = f"TensorFlow cannot load {LIBRARY} ({error.message})"
        raise ImportError(explain("import gradred.tensorflow", found, _AGAIN)) from error
    library = ctypes.CDLL(str(LIBRARY))
    library.gradred_tensorflow_missing.restype = ctypes.c_char_p
    library.gradred_tensorflow_use.restype = ctypes.c_bool
    library.gradred_tensorflow_use.argtypes = [ctypes.c_void_p]
    library.gradred_tensorflow_waits.restype = ctypes.c_bool
    asked, missing = "import gradred.tensorflow", library.gradred_tensorflow_missing()
    if missing is not None:
        found = f"TensorFlow {tf.__version__} lacks {missing.decode()}"
        raise ImportError(explain(asked, found, "Install TensorFlow 2.16 or newer"))
    if not library.gradred_tensorflow_use(_core.kernel_calls()):
        found = f"{LIBRARY} belongs to another version of gradred"
        raise ImportError(explain(asked, found, _AGAIN))
    _leave_unordered("GradredReduce", "GradredRows")
    return operations, library


def _leave_unordered(*operations: str) -> None:
    """Let `tf.function` execute these operations in any order, and also if nothing uses a result.

    Otherwise it would execute them one after the other, as it does with operations that have a
    state. They are marked as such, or TensorFlow would merge equal ones, and execute those on
    constants only once.
    """
    from tensorflow.python.framework import auto_control_deps

    known = auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = known | frozenset(operations)


def _operations() -> Any:
    return _load()[0]


def kernels_wait() -> bool:
    """Whether kernels have found that they have to wait, and occupy a thread of TensorFlow's."""
    return bool(_load()[1].gradred_tensorflow_waits())


def _gradients_of_reduce(call: Call, gradients: Sequence[Any]) -> list[Any]:
    """The gradients of the inputs of `reduce`, as Horovod defines them.

    Of an allreduce: the allreduce of the gradients. Of a broadcast: on the root their average, on
    other ranks zeros.

    Raises:
        ValueError: it is an allreduce that neither sums nor averages.
    """
    given = [None if one is None else tf.convert_to_tensor(one) for one in gradients]
    kept = [one for one in given if one is not None]
    if not kept:
        return given
    if call.kind == "allreduce" and call.op not in ("sum", "avg"):
        asked = f"the gradient of an allreduce with {call.op}"
        remedy = "Differentiate a sum or an average, or apply tf.stop_gradient to the result"
        raise ValueError(explain(asked, "there is none", remedy))
    if call.kind == "broadcast":
        back = Call("allreduce", call.process_set, op="avg").named_like(kept[0])
        is_root = tf.equal(later(lambda: call.set.rank() or 0), call.root)
        made = [tf.where(is_root, one, tf.zeros_like(one)) for one in reduce(back, kept)]
    else:
        made = reduce(call.named_like(kept[0]), kept)
    found = iter(made)
    return [None if one is None else next(found) for one in given]


def _gradients_of_rows(call: Call, counts: Any, gradients: Sequence[Any]) -> list[Any]:
    """The gradients of the tensors of `rows`, as Horovod defines them.

    Of an allgather: this rank's rows of the average. Of an alltoall: the rows sent back. Of a
    reduce-scatter: the allgather, times the number of ranks after a sum.
    """
    made: list[Any] = []
    for number, gradient in enumerate(gradients):
        if gradient is None:
            made.append(None)
            continue
        gradient = tf.convert_to_tensor(gradient)
        if call.kind == "allgather":
            back = Call("allreduce", call.process_set, op="avg").named_like(gradient)
            (reduced,) = reduce(back, [gradient])
            place = later(lambda: call.set.rank() or 0)
            begin = tf.reduce_sum(counts[number, :place])
            made.append(reduced[begin : begin + counts[number, place]])
        elif call.kind == "alltoall":
            back = Call("alltoall", call.process_set).named_like(gradient)
            (returned,), _ = rows(back, [gradient], tf.cast(counts[0], tf.int64))
            made.append(returned)
        else:
            ranks = tf.shape(counts)[1] if call.op == "sum" else 1
            factor = tf.cast(ranks, tf.float64) * (call.prescale * call.postscale)
            back = Call("allgather", call.process_set).named_like(gradient)
            (gathered,), _ = rows(back, [gradient * tf.cast(factor, gradient.dtype)])
            made.append(gathered)
    return made


tf.RegisterGradient("GradredReduce")(
    lambda operation, *gradients: _gradients_of_reduce(_call_of(operation), gradients)
)
tf.RegisterGradient("GradredRows")(
    lambda operation, *gradients: [
        *_gradients_of_rows(_call_of(operation), operation.outputs[-1], gradients[:-1]),
        None,  # of the splits
    ]
)
