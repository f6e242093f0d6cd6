"""Mistakes of callers: every public call refuses them, before any memory is touched.

All ranks make each mistake, and one rank alone makes it, whose peers must not wait for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from dlpack_tensor import tensor_in
from mpi import sizes
from mpi4py import MPI

import gradred
from gradred import UsageError, _core

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
N = 12

pytestmark = sizes.up_to_three_ranks


@dataclasses.dataclass
class Arguments:
    """Arguments for any of the calls, correct unless a mistake is applied."""

    x: Any
    y: Any
    op: Any = "sum"
    comm: Any = dataclasses.field(default_factory=lambda: COMM)
    root: Any = 0
    plan: Any = None

    @classmethod
    def of(cls, call: Call) -> Arguments:
        send, recv = (SIZE if blocks else 1 for blocks in (call.scatters, call.gathers))
        x = np.arange(N * send, dtype="float64") + RANK
        return cls(x, x if call.y is None else np.full(N * recv, -1.0))


@dataclasses.dataclass(frozen=True)
class Call:
    """A public function or method, and which arguments it has."""

    name: str
    run: Callable[[Arguments], Any]
    is_method: bool = False
    reduces: bool = True
    scatters: bool = False
    gathers: bool = False
    y: str | None = "out"
    has_root: bool = False
    has_plan: bool = False
    names_type: bool = False


OWN = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
PAIR = MPI.DOUBLE.Create_contiguous(2).Commit()


def of_pairs(x: Any) -> Any:
    """A specification that only the MPI understands; other objects than arrays stay unchanged."""
    return [x, PAIR] if is_array(x) else x


CALLS = {
    call.name: call
    for call in (
        Call(
            "allreduce",
            lambda a: gradred.allreduce(a.x, a.op, out=a.y, comm=a.comm, plan=a.plan),
            has_plan=True,
        ),
        Call(
            "allreduce_many",
            lambda a: gradred.allreduce_many(
                [np.ones(3), a.x], a.op, out=[np.ones(3), a.y], comm=a.comm, plan=a.plan
            ),
            has_plan=True,
        ),
        Call(
            "reduce_scatter_block",
            lambda a: gradred.reduce_scatter_block(a.x, a.op, out=a.y, comm=a.comm, plan=a.plan),
            scatters=True,
            has_plan=True,
        ),
        Call(
            "allgather",
            lambda a: gradred.allgather(a.x, out=a.y, comm=a.comm, plan=a.plan),
            reduces=False,
            gathers=True,
            has_plan=True,
        ),
        Call(
            "bcast",
            lambda a: gradred.bcast(a.x, a.root, out=a.y, comm=a.comm, plan=a.plan),
            reduces=False,
            has_root=True,
            has_plan=True,
        ),
        Call(
            "scan",
            lambda a: gradred.scan(a.x, a.op, out=a.y, comm=a.comm, plan=a.plan),
            has_plan=True,
        ),
        Call(
            "iscan",
            lambda a: gradred.iscan(
                a.x, a.op, exclusive=True, out=a.y, comm=a.comm, plan=a.plan
            ).wait(),
            has_plan=True,
        ),
        Call("comm.Exscan", lambda a: a.comm.Exscan(a.x, a.y, a.op), is_method=True),
        Call("comm.Iscan", lambda a: a.comm.Iscan(a.x, a.y, a.op).Wait(), is_method=True),
        Call("Allreduce", lambda a: gradred.Allreduce(a.x, a.y, a.op, a.comm)),
        Call("comm.Allreduce", lambda a: a.comm.Allreduce(a.x, a.y, a.op), is_method=True),
        Call("comm.Iallreduce", lambda a: a.comm.Iallreduce(a.x, a.y, a.op).Wait(), is_method=True),
        Call(
            "comm.Allreduce_init",
            lambda a: a.comm.Allreduce_init(a.x, a.y, a.op).Free(),
            is_method=True,
        ),
        Call(
            "comm.Reduce_scatter_block",
            lambda a: a.comm.Reduce_scatter_block(a.x, a.y, a.op),
            is_method=True,
            scatters=True,
        ),
        Call(
            "comm.Ireduce_scatter_block",
            lambda a: a.comm.Ireduce_scatter_block(a.x, a.y, a.op).Wait(),
            is_method=True,
            scatters=True,
        ),
        Call(
            "comm.Allreduce by an own operation",
            lambda a: a.comm.Allreduce(a.x, a.y, OWN),
            is_method=True,
            reduces=False,
        ),
        Call(
            "comm.Allreduce of a derived type",
            lambda a: a.comm.Allreduce(of_pairs(a.x), of_pairs(a.y), OWN),
            is_method=True,
            reduces=False,
            names_type=True,
        ),
        Call(
            "comm.Allreduce_init by an own operation",
            lambda a: a.comm.Allreduce_init(a.x, a.y, OWN).Free(),
            is_method=True,
            reduces=False,
        ),
        Call(
            "comm.Reduce_scatter_block by an own operation",
            lambda a: a.comm.Reduce_scatter_block(a.x, a.y, OWN),
            is_method=True,
            reduces=False,
            scatters=True,
        ),
        Call(
            "allreduce by an own operation",
            lambda a: gradred.allreduce(a.x, OWN, out=a.y, comm=a.comm),
            reduces=False,
        ),
        Call(
            "comm.Allgather",
            lambda a: a.comm.Allgather(a.x, a.y),
            is_method=True,
            reduces=False,
            gathers=True,
        ),
        Call(
            "comm.Bcast",
            lambda a: a.comm.Bcast(a.x, a.root),
            is_method=True,
            reduces=False,
            y=None,
            has_root=True,
        ),
    )
}


def every(_: Call) -> bool:
    return True


def function(call: Call) -> bool:
    return not call.is_method


def on_arrays(call: Call) -> bool:
    """Calls that take any array, and no buffer specification of mpi4py."""
    return function(call) and call.name != "Allreduce"


def on_buffers(call: Call) -> bool:
    return not on_arrays(call)


def reduces(call: Call) -> bool:
    return call.reduces


def has_result(call: Call) -> bool:
    return call.y is not None


def handles_are_checked(_: Call) -> bool:
    """Open MPI's handles are pointers: it crashes in any call on a freed one."""
    return _core.mpi_family() != "Open MPI"


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake in the arguments; the message contains `says`."""

    make: Callable[[Arguments], dict[str, Any]]
    applies: Callable[[Call], bool] = every
    says: str = ""
    alone: bool = True
    """Whether the peers of a rank that makes it can be notified."""


def both(*conditions: Callable[[Call], bool]) -> Callable[[Call], bool]:
    return lambda call: all(condition(call) for condition in conditions)


def read_only(x: Any) -> Any:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def spread(x: Any) -> Any:
    """The same numbers with gaps between them."""
    return np.repeat(x, 2)[::2]


class Nowhere:
    """An array with elements but no memory, according to DLPack, like a FakeTensor."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._x.__dlpack__()
        tensor_in(capsule).data = None
        return capsule


class WithUnit(np.ndarray):
    """As in libraries for units: its own sums differ from NumPy's."""

    __array_ufunc__ = None


def overlapping(a: Arguments) -> dict[str, Any]:
    memory = np.zeros(a.x.size + a.y.size)
    return {"x": memory[: a.x.size], "y": memory[a.x.size - 1 :][: a.y.size]}


def freed(_: Arguments) -> dict[str, Any]:
    comm = gradred.Comm(MPI.COMM_SELF.Dup())
    comm.Free()
    return {"comm": comm}


def freed_elsewhere(_: Arguments) -> dict[str, Any]:
    plain = MPI.COMM_SELF.Dup()
    comm = gradred.Comm(plain)
    comm.Allreduce(MPI.IN_PLACE, np.ones(1))
    plain.Free()
    return {"comm": comm}


MISTAKES = {
    "read-only result": Mistake(
        lambda a: {"y": read_only(a.y)}, applies=has_result, says="read-only"
    ),
    "result overlaps the input": Mistake(overlapping, applies=has_result, says="over"),
    "result too long": Mistake(lambda a: {"y": np.zeros(a.y.size + SIZE)}, applies=has_result),
    "result too short": Mistake(lambda a: {"y": a.y[:-SIZE].copy()}, applies=has_result),
    "result of another shape": Mistake(
        lambda a: {"y": a.y.reshape(2, -1)}, applies=both(on_arrays, has_result), says="shape"
    ),
    "result of another type": Mistake(lambda a: {"y": a.y.astype("float32")}, applies=has_result),
    "result with gaps": Mistake(lambda a: {"y": spread(a.y)}, applies=has_result),
    "result in place of itself": Mistake(lambda a: {"y": MPI.IN_PLACE}, applies=has_result),
    "result of objects": Mistake(lambda a: {"y": a.y.astype(object)}, applies=has_result),
    "result that is None": Mistake(
        lambda a: {"y": None}, applies=both(on_buffers, has_result), says="None"
    ),
    "result that is not an array": Mistake(lambda a: {"y": [1.0, 2.0]}, applies=has_result),
    "input without memory": Mistake(lambda a: {"x": Nowhere(a.x)}, says="no memory"),
    "result without memory": Mistake(
        lambda a: {"y": Nowhere(a.y)}, applies=has_result, says="no memory"
    ),
    "input with gaps": Mistake(lambda a: {"x": spread(a.x)}),
    "input of objects": Mistake(lambda a: {"x": a.x.astype(object)}),
    "input of text": Mistake(lambda a: {"x": a.x.astype("U8")}),
    "input of foreign bytes": Mistake(
        lambda a: {"x": a.x.astype(">f8")}, applies=lambda call: not call.names_type
    ),
    "input that is None": Mistake(lambda a: {"x": None}, applies=on_arrays, says="None"),
    "input that is not an array": Mistake(lambda a: {"x": 3.0}, says="float"),
    "input of tuples": Mistake(lambda a: {"x": [(1, 2), (3, 4)]}),
    "input with a mask": Mistake(lambda a: {"x": np.ma.masked_array(a.x)}, says="a mask"),
    "result with a mask": Mistake(
        lambda a: {"y": np.ma.masked_array(a.y)}, applies=has_result, says="a mask"
    ),
    "input with a unit": Mistake(lambda a: {"x": a.x.view(WithUnit)}, says="WithUnit"),
    "result with a unit": Mistake(
        lambda a: {"y": a.y.view(WithUnit)}, applies=has_result, says="WithUnit"
    ),
    "input with a unit in a specification": Mistake(
        lambda a: {"x": [a.x.view(WithUnit), a.x.size, MPI.DOUBLE]},
        applies=on_buffers,
        says="WithUnit",
    ),
    "input of unequal blocks": Mistake(
        lambda a: {"x": a.x[:-1].copy()}, applies=lambda call: call.scatters and SIZE > 1
    ),
    "unknown operation": Mistake(lambda a: {"op": "sun"}, applies=reduces, says="'sum'"),
    "operation that is None": Mistake(lambda a: {"op": None}, applies=reduces, says="None"),
    "operation that is a function": Mistake(lambda a: {"op": max}, applies=reduces, says="max"),
    "operation that is null": Mistake(lambda a: {"op": MPI.OP_NULL}, applies=reduces),
    "operation that the type lacks": Mistake(
        lambda a: {"op": "band"}, applies=reduces, says="float64"
    ),
    "MPI's operation that the type lacks": Mistake(
        lambda a: {"op": MPI.BXOR}, applies=reduces, says="float64"
    ),
    "freed communicator": Mistake(freed, says="freed", alone=False),
    "communicator freed by another name": Mistake(
        freed_elsewhere, applies=handles_are_checked, says="freed", alone=False
    ),
    "null communicator": Mistake(
        lambda a: {"comm": MPI.COMM_NULL}, applies=function, says="null", alone=False
    ),
    "no communicator": Mistake(
        lambda a: {"comm": "world"}, applies=function, says="str", alone=False
    ),
    "root that is not a rank": Mistake(
        lambda a: {"root": SIZE}, applies=lambda call: call.has_root, says="root"
    ),
    "negative root": Mistake(
        lambda a: {"root": -1}, applies=lambda call: call.has_root, says="root"
    ),
    "root that is not a number": Mistake(
        lambda a: {"root": "0"}, applies=lambda call: call.has_root, says="root"
    ),
    "root that is None": Mistake(
        lambda a: {"root": None}, applies=lambda call: call.has_root, says="root"
    ),
    "unknown plan": Mistake(
        lambda a: {"plan": "rings"}, applies=lambda call: call.has_plan, says="rings"
    ),
    "plan that is not a plan": Mistake(
        lambda a: {"plan": 3}, applies=lambda call: call.has_plan, says="3"
    ),
    "count beyond the memory": Mistake(
        lambda a: {"x": [a.x, a.x.size + 1, MPI.DOUBLE]}, applies=on_buffers
    ),
    "negative count": Mistake(
        lambda a: {"x": [a.x, -1, MPI.DOUBLE]}, applies=on_buffers, says="-1"
    ),
    "count that is not a number": Mistake(
        lambda a: {"x": [a.x, 1.5, MPI.DOUBLE]}, applies=on_buffers, says="1.5"
    ),
    "count and displacement of three": Mistake(
        lambda a: {"x": [a.x, (1, 2, 3), MPI.DOUBLE]}, applies=on_buffers
    ),
    "type that is not a type": Mistake(
        lambda a: {"x": [a.x, a.x.size, 5]}, applies=on_buffers, says="5"
    ),
    "type that is a list": Mistake(lambda a: {"x": [a.x, a.x.size, [5]]}, applies=on_buffers),
    "type that is null": Mistake(
        lambda a: {"x": [a.x, a.x.size, MPI.DATATYPE_NULL]}, applies=on_buffers
    ),
    "specification of five": Mistake(
        lambda a: {"x": [a.x, 1, 0, MPI.DOUBLE, 7]}, applies=on_buffers
    ),
    "empty specification": Mistake(lambda a: {"x": []}, applies=on_buffers),
}


def mistakes_of(call: Call) -> dict[str, Mistake]:
    return {name: mistake for name, mistake in MISTAKES.items() if mistake.applies(call)}


each_call = pytest.mark.parametrize("name", CALLS)


@pytest.fixture(autouse=True)
def communicator_stays_usable() -> Iterator[None]:
    yield
    assert_usable()


def assert_usable() -> None:
    y = np.full(5, RANK, "int64")
    COMM.Allreduce(MPI.IN_PLACE, y)
    assert (y == SIZE * (SIZE - 1) // 2).all()


def refused(call: Call, arguments: Arguments, mistake: str) -> UsageError:
    """The error of a call; asserts that the arrays are unchanged."""
    before = [np.array(array, copy=True) for array in (arguments.x, arguments.y) if is_array(array)]
    try:
        call.run(arguments)
    except UsageError as error:
        caught = error
    else:
        pytest.fail(f"{call.name} takes {mistake}")
    after = [array for array in (arguments.x, arguments.y) if is_array(array)]
    for old, new in zip(before, after, strict=True):
        assert (old == np.asarray(new)).all(), mistake
    return caught


def is_array(x: Any) -> bool:
    return isinstance(x, np.ndarray)


@each_call
def test_mistake_of_all_ranks_is_refused_with_what_to_do(name: str) -> None:
    call = CALLS[name]
    for what, mistake in mistakes_of(call).items():
        arguments = Arguments.of(call)
        arguments = dataclasses.replace(arguments, **mistake.make(arguments))
        message = str(refused(call, arguments, what))
        asked, _, rest = message.partition(": ")
        found, _, remedy = rest.partition(". ")
        assert asked, (what, message)
        assert found, (what, message)
        assert remedy.endswith((".", "?")), (what, message)
        assert mistake.says in message, what
        assert_usable()


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@each_call
def test_mistake_of_one_rank_ends_the_call_of_all(name: str) -> None:
    call = CALLS[name]
    for what, mistake in mistakes_of(call).items():
        if not mistake.alone:
            continue
        arguments = Arguments.of(call)
        if RANK == SIZE - 1:
            refused(call, dataclasses.replace(arguments, **mistake.make(arguments)), what)
        else:
            with pytest.raises(UsageError, match=f"rank {SIZE - 1}"):
                call.run(arguments)
        assert_usable()


def test_lists_of_arrays_that_do_not_fit_are_refused() -> None:
    x, y = np.arange(4.0), np.full(4, -1.0)
    both = np.arange(8.0)
    mistakes: dict[str, tuple[Any, Any]] = {
        "NoneType": (None, None),
        "int": (3, None),
        "array 1": ([x, None], None),
        "2 arrays, but 1": ([x, x], [y]),
        "1 arrays, but 2": ([x], [y, y]),
        "generator": ([x], (each for each in [y])),
        "results of arrays 0 and 1": ([x, x + 1], [y, y]),
        "result of array 0": ([both[:4], both[4:]], [both[4:], y]),
        "result of array 1": ([both[:4], x], [y, both[3:7]]),
    }
    for says, (given, out) in mistakes.items():
        with pytest.raises(UsageError, match=says):
            gradred.allreduce_many(given, out=out, comm=COMM)
        assert (x == np.arange(4.0)).all()
        assert (y == -1).all()
        assert (both == np.arange(8.0)).all()
    in_place = gradred.allreduce_many([both[:4], both[4:]], out=[both[:4], both[4:]], comm=COMM)
    assert (np.concatenate(in_place) == np.arange(8.0) * SIZE).all()


@pytest.mark.skipif(SIZE == 1, reason="with one rank nothing stays in flight")
@pytest.mark.parametrize("count", [4, 100_000])
def test_arrays_in_flight_refuse_to_be_resized_and_outlive_their_names(count: int) -> None:
    if RANK == 0:  # the others' operations wait for this rank's
        for peer in range(1, SIZE):
            COMM.recv(source=peer)
    y, memory = np.full(count, RANK + 1.0), bytearray(count)
    requests = [
        COMM.Iallreduce(MPI.IN_PLACE, y),
        COMM.Iallreduce(MPI.IN_PLACE, memory, MPI.MAX),
        # no other reference to these arrays exists
        COMM.Iallreduce(np.full(count, RANK + 1.0), np.empty(count)),
    ]
    if RANK > 0:
        with pytest.raises(ValueError, match="resize"):
            y.resize(2 * count)
        with pytest.raises(BufferError):
            memory.extend(b"more")
        COMM.send(None, dest=0)
    for request in requests:
        request.Wait()
    assert (y == SIZE * (SIZE + 1) / 2).all()


@pytest.mark.skipif(SIZE == 1, reason="the root's own array is not written to")
def test_read_only_result_of_a_broadcast_is_refused_where_it_would_be_written() -> None:
    call = CALLS["comm.Bcast"]
    arguments = Arguments.of(call)
    arguments.x = read_only(arguments.x)
    assert "read-only" in str(refused(call, arguments, "a read-only result"))
