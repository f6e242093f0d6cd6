"""Horovod's nonblocking operations over the tensors of one front end.

Each method returns a handle for `poll` and `synchronize` (`gradred.horovod.operations`). A front
end adds the blocking forms, gradients, and types for its own users.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gradred.errors import Error, UsageError, explain
from gradred.horovod import adasum
from gradred.horovod.basics import Adasum, Average, Sum, rank
from gradred.horovod.errors import HorovodInternalError, internal_error
from gradred.horovod.front_end import FrontEnd, splits_of, with_rows
from gradred.horovod.operations import engine_of, reducing, reduction, submit
from gradred.horovod.state import state
from gradred.tensors import described, even_splits

if TYPE_CHECKING:
    from gradred.horovod.process_sets import ProcessSet
    from gradred.named import NamedRequest

TensorT = TypeVar("TensorT")


def group_of(tensors: Sequence[TensorT], asked: str) -> list[TensorT]:
    """The tensors of a grouped operation.

    Raises:
        ValueError: there is none, or it is not a list.
    """
    if not isinstance(tensors, (list, tuple)) or not tensors:
        remedy = "Pass a list of tensors"
        raise ValueError(explain(asked, "there is no tensor in the group", remedy))
    return list(tensors)


def _group(name: str | None) -> str | None:
    return None if name is None else f"group.{name}"


class Collectives(Generic[TensorT]):
    """Starts operations over the tensors of one front end.

    Arguments that several methods have: `name` matches the call with the calls of the other ranks,
    None counts the calls; `op` is one of Average, Sum, Min, Max, Product and Adasum; `prescale` and
    `postscale` are factors of inputs and results; the ranks of `process_set` take part; operations
    that all ranks have submitted run by `priority`, the highest first; `wire` is the form of
    float32 between hosts. Wrong arguments are a ValueError of this rank alone; where the ranks'
    calls differ, `synchronize` raises HorovodInternalError on all of them.
    """

    def __init__(self, front_end: FrontEnd[TensorT]) -> None:
        self._front_end = front_end

    def allreduce(
        self,
        tensor: TensorT,
        out: TensorT,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        priority: int = 0,
        wire: str = "",
    ) -> int:
        """Start a reduction. Its result is `out`; `tensor` itself: in place."""
        engine, how = engine_of(process_set), (op, prescale, postscale, priority)
        if name is None and not wire:
            name = engine.next_name("allreduce")
            handle = state.handles.start_allreduce(engine, tensor, out, name, *how)
            if handle is not None:
                return handle
        asked = (prescale, postscale, process_set, out, priority, wire)
        try:
            return self._reduce([tensor], [out], name, op, *asked)
        except UsageError:
            raise
        except Error as error:
            raise internal_error(error) from error

    def grouped_allreduce(
        self,
        tensors: Sequence[TensorT],
        outputs: Sequence[TensorT] | None,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        priority: int = 0,
        wire: str = "",
    ) -> int:
        """Start one reduction of several tensors. Its result is a tuple of `outputs`.

        `outputs` are tensors for the results; `tensors` itself: in place; None: new tensors.
        """
        inputs = group_of(tensors, "grouped_allreduce")
        if outputs is None:
            outputs = [self._front_end.empty_like(x, "grouped_allreduce") for x in inputs]
        results = inputs if outputs is tensors else outputs
        asked = (prescale, postscale, process_set, tuple(results), priority, wire)
        return self._reduce(inputs, results, _group(name), op, *asked)

    def _reduce(
        self,
        inputs: Sequence[TensorT],
        outputs: Sequence[TensorT],
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        result: Any,
        priority: int,
        wire: str,
    ) -> int:
        engine = engine_of(process_set)
        if op == Adasum:
            how = (name, prescale, postscale, process_set, result)
            return adasum.start(self._front_end, inputs, outputs, *how)
        operation = reducing(op)
        pairs = zip(inputs, outputs, strict=True)
        return submit(
            engine,
            "allreduce",
            name,
            [described(self._front_end, x, y, "allreduce") for x, y in pairs],
            lambda _: result,
            (inputs, outputs),
            op=operation,
            prescale=prescale,
            postscale=postscale,
            priority=priority,
            wire=wire,
        )

    def allgather(self, tensor: TensorT, name: str | None, process_set: ProcessSet) -> int:
        """Start an allgather along the first axis. The ranks' lengths may differ."""
        return self._gather("allgather", [tensor], name, process_set, grouped=False)

    def grouped_allgather(
        self, tensors: Sequence[TensorT], name: str | None, process_set: ProcessSet
    ) -> int:
        """Start one allgather of several tensors. Its result is a tuple."""
        inputs = group_of(tensors, "grouped_allgather")
        return self._gather("allgather", inputs, _group(name), process_set, grouped=True)

    def sparse_allreduce(
        self, parts: Sequence[TensorT], name: str | None, process_set: ProcessSet
    ) -> int:
        """Start an allgather of a sparse tensor's parts, as indices and values. A tuple."""
        # Named as an allreduce: where another rank's tensor is dense, all ranks get an error.
        return self._gather("allgather", parts, name, process_set, grouped=True, prefix="allreduce")

    def reducescatter(
        self,
        tensor: TensorT,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
    ) -> int:
        """Start an average or a sum of which each rank receives some rows.

        If n rows do not divide evenly among p ranks, the first n mod p ranks get one row more.
        """
        how = _scattered(op, process_set, prescale, postscale)
        return self._gather("reducescatter", [tensor], name, process_set, grouped=False, **how)

    def grouped_reducescatter(
        self,
        tensors: Sequence[TensorT],
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale: float,
        postscale: float,
    ) -> int:
        """Start one reduce-scatter of several tensors. Its result is a tuple."""
        inputs = group_of(tensors, "grouped_reducescatter")
        how = _scattered(op, process_set, prescale, postscale)
        return self._gather("reducescatter", inputs, _group(name), process_set, grouped=True, **how)

    def _gather(
        self,
        kind: str,
        tensors: Sequence[TensorT],
        name: str | None,
        process_set: ProcessSet,
        *,
        grouped: bool,
        **how: Any,
    ) -> int:
        """Start an operation whose results have rows of their own number."""
        front_end, engine = self._front_end, engine_of(process_set)
        place = process_set.place_of(rank())
        sent = [with_rows(front_end, x, kind) for x in tensors]

        def finish(request: NamedRequest) -> Any:
            made = [
                x.of(front_end, out, sum(rows) if kind == "allgather" else rows[place])
                for out, x, rows in zip(request.outputs, sent, request.rows, strict=True)
            ]
            return tuple(made) if grouped else made[0]

        arrays = [described(front_end, x.tensor, None, kind) for x in sent]
        return submit(engine, kind, name, arrays, finish, sent, **how)

    def broadcast(
        self,
        tensor: TensorT,
        out: TensorT | None,
        root_rank: int,
        name: str | None,
        process_set: ProcessSet,
    ) -> int:
        """Start a broadcast from `root_rank`, a global rank.

        `out` is the tensor for the result; `tensor` itself: in place; None: a new tensor.
        """
        result = self._front_end.empty_like(tensor, "broadcast") if out is None else out
        engine = engine_of(process_set)
        root = process_set.place_of(root_rank)
        array = described(self._front_end, tensor, result, "broadcast")
        held = (tensor, result)
        return submit(engine, "broadcast", name, [array], lambda _: result, held, root=root)

    def alltoall(
        self, tensor: TensorT, splits: Any, name: str | None, process_set: ProcessSet
    ) -> int:
        """Start an alltoall of rows. Its result is a pair: a tensor, and the rows per rank.

        The rows for rank 0 come first in `tensor`, then those for rank 1, and so on. `splits` has
        the number of rows for each rank. None: the same number for all ranks.
        """
        front_end, engine = self._front_end, engine_of(process_set)
        sent = with_rows(front_end, tensor, "alltoall")
        array = described(front_end, sent.tensor, None, "alltoall")
        like: TensorT | None = None
        if splits is None:
            rows = even_splits(array[3][0], process_set.size() or 1, "alltoall")
        else:
            rows, like = splits_of(front_end, splits)

        def finish(request: NamedRequest) -> tuple[TensorT, TensorT]:
            received = request.rows[0]
            made = sent.of(front_end, request.outputs[0], sum(received))
            numbers = np.array(received, np.int32).view(np.uint8)
            return made, front_end.of_memory(numbers, "int32", [len(received)], like)

        return submit(engine, "alltoall", name, [array], finish, sent, splits=rows)


def _scattered(
    op: int, process_set: ProcessSet, prescale: float, postscale: float
) -> dict[str, Any]:
    """Arguments of a reduce-scatter for the engine. Checks those of the user."""
    if reduction(op, None) not in (Average, Sum):
        found = "it averages or sums"
        raise HorovodInternalError(explain(f"reducescatter(op={op})", found, "Use Average or Sum"))
    engine_of(process_set)
    return {"op": reducing(op), "prescale": prescale, "postscale": postscale}
