"""gradred.Comm keeps mpi4py's contract: buffers in any form, types, requests, communicators."""

from __future__ import annotations

import array
import ast
import gc
import time
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import mpi4py
import numpy as np
import numpy.typing as npt
import pytest
from mpi4py import MPI

import gradred
import gradred.comm
from gradred import DeviceError, UsageError, _core

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TOTAL = SIZE * (SIZE + 1) // 2

# Below it the MPI carries on what it can itself, by its own rules and errors.
needs_thread_multiple = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the operation is the MPI's own"
)

# Forms in which a rank may write four float32.
FORMS: list[Callable[[npt.NDArray[Any]], Any]] = [
    lambda x: x,
    lambda x: [x, MPI.FLOAT],
    lambda x: (x, "f"),
    lambda x: [x, x.size],
    lambda x: [x, x.size, MPI.FLOAT],
    lambda x: (x, (x.size, 0)),
    lambda x: [x, (x.size, 0), MPI.FLOAT],
    lambda x: [x, x.size, 0, "f4"],
    lambda x: memoryview(x),
    lambda x: [memoryview(x).cast("B"), MPI.FLOAT],
    lambda x: x.reshape(2, 2),
    lambda x: x.reshape(2, 2).T,
]


@pytest.mark.parametrize("form", range(len(FORMS)))
def test_every_form_of_a_buffer_means_the_same(form: int) -> None:
    """Each rank writes its buffers in a form of its own."""
    x, y = np.full(4, RANK + 1, "float32"), np.zeros(4, "float32")
    send, recv = FORMS[(form + RANK) % len(FORMS)], FORMS[(form + 2 * RANK + 1) % len(FORMS)]
    COMM.Allreduce(send(x), recv(y))
    assert y.tolist() == [TOTAL] * 4
    assert x.tolist() == [RANK + 1] * 4


@pytest.mark.parametrize("in_place", [None, MPI.IN_PLACE])
def test_in_place(in_place: Any) -> None:
    y = np.full(3, RANK + 1)
    COMM.Allreduce(in_place, y)
    assert y.tolist() == [TOTAL] * 3


def test_count_and_displacement_select_a_part() -> None:
    x, y = np.arange(6.0), np.full(6, -1.0)
    COMM.Allreduce([x, (2, 3)], [y, 2, 1, MPI.DOUBLE])
    assert y.tolist() == [-1, 3 * SIZE, 4 * SIZE, -1, -1, -1]


def test_objects_with_the_buffer_protocol() -> None:
    x, y = array.array("i", [RANK + 1, 2]), array.array("i", [0, 0])
    COMM.Allreduce(x, y)
    assert list(y) == [TOTAL, 2 * SIZE]
    z = bytearray(b"\x01\x02")
    COMM.Allreduce(MPI.IN_PLACE, z, op=MPI.MAX)
    assert z == b"\x01\x02"


def test_nothing_is_reduced_to_nothing() -> None:
    for empty in (np.zeros(0), np.zeros((3, 0)), bytearray(), [None, 0, MPI.INT], [None, "i"]):
        COMM.Allreduce(MPI.IN_PLACE, empty)


OPS = [MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX, MPI.LAND, MPI.LOR, MPI.LXOR]
OPS += [MPI.BAND, MPI.BOR, MPI.BXOR]


@pytest.mark.parametrize("code", "?bhilqBHILQfdFD")
@pytest.mark.parametrize("op", OPS, ids=_core.op_name)
def test_results_equal_those_of_the_mpi(code: str, op: MPI.Op) -> None:
    x = (np.arange(5) % 3 + RANK % 2).astype(code)
    y, z = np.zeros_like(x), np.zeros_like(x)
    name = x.dtype.name
    if not _core.has_reduction(str(_core.op_name(op)), name):
        with pytest.raises(UsageError, match=f"{name} has no '{_core.op_name(op)}'"):
            COMM.Allreduce(x, y, op)
        return
    COMM.Allreduce(x, y, op)
    try:
        MPI.COMM_WORLD.Allreduce(x, z, op)
    except MPI.Exception:  # an operation that MPI does not define for this type
        return
    np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats(kind: Any) -> None:
    x = np.full(5, RANK + 1, kind)
    y = np.zeros_like(x)
    COMM.Allreduce(x, y)
    assert y.astype(float).tolist() == [TOTAL] * 5
    y[:] = 0
    COMM.Iallreduce(x, y).Wait()
    assert y.astype(float).tolist() == [TOTAL] * 5


def test_float16_is_one_type_however_it_is_written() -> None:
    x = np.full(4, RANK + 1, np.float16)
    form = [x, "e"] if RANK % 2 else x
    COMM.Allreduce(MPI.IN_PLACE, form)
    assert x.tolist() == [TOTAL] * 4


def test_operations_by_name_and_with_a_factor() -> None:
    x, y = np.full(2, 2 * RANK, "float64"), np.zeros(2)
    COMM.Allreduce(x, y, op="avg")
    assert y.tolist() == [SIZE - 1] * 2
    COMM.Allreduce(x, y, op=gradred.premul(0.5))
    assert y.tolist() == [TOTAL - SIZE] * 2
    COMM.Allreduce(x, y, "max")
    assert y.tolist() == [2 * SIZE - 2] * 2


# ---- what is left to the MPI ------------------------------------------------------------------


def test_pair_types_are_the_mpis() -> None:
    pair = np.dtype([("value", "f4"), ("index", "i4")])
    x, y = np.array([(5 - RANK, RANK)], pair), np.zeros(1, pair)
    COMM.Allreduce([x, MPI.FLOAT_INT], [y, MPI.FLOAT_INT], op=MPI.MINLOC)
    assert y[0].tolist() == (6 - SIZE, SIZE - 1)


def keep_larger(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    left, right = np.frombuffer(a, "i4"), np.frombuffer(b, "i4")
    np.maximum(left, right, out=right)


def test_operations_of_the_user_are_the_mpis() -> None:
    op = MPI.Op.Create(keep_larger, commute=True)
    x, y = np.array([RANK, -RANK], "i4"), np.zeros(2, "i4")
    COMM.Allreduce(x, y, op)
    assert y.tolist() == [SIZE - 1, 0]
    COMM.Iallreduce(x, y, op).Wait()
    assert y.tolist() == [SIZE - 1, 0]
    assert gradred.allreduce(x, op, comm=COMM).tolist() == [SIZE - 1, 0]
    op.Free()


def test_persistent_operations_of_the_user_are_the_mpis() -> None:
    op = MPI.Op.Create(keep_larger, commute=True)
    x, y = np.array([RANK, -RANK], "i4"), np.zeros(2, "i4")
    try:
        request = COMM.Allreduce_init(x, y, op)
    except NotImplementedError:  # Open MPI 5 has them, though its version says 3.1
        pytest.skip("mpi4py finds none in this MPI")
    request()
    request.Free()
    assert y.tolist() == [SIZE - 1, 0]
    op.Free()


def test_long_double_is_the_mpis() -> None:
    x, y = np.full(2, RANK + 1, "longdouble"), np.zeros(2, "longdouble")
    COMM.Allreduce(x, y, op="sum")
    assert y.tolist() == [TOTAL] * 2
    with pytest.raises(UsageError, match="the type is known to the MPI alone"):
        COMM.Allreduce(x, y, op="avg")


# ---- errors -----------------------------------------------------------------------------------


class OnGpu:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 10, 0

    def __dlpack__(self, **options: Any) -> Any:
        raise AssertionError("nobody asks for its memory")


class SaysGpu:
    """An array in host memory with the CUDA Array Interface, as mpi4py's own tests have them."""

    def __init__(self, data: npt.NDArray[Any]) -> None:
        self.data = data
        self.__cuda_array_interface__ = data.__array_interface__


def read_only() -> npt.NDArray[Any]:
    x = np.zeros(4)
    x.flags.writeable = False
    return x


WHOLE = np.zeros(8)
WRONG: list[tuple[Any, Any, str]] = [
    (np.zeros(4), read_only(), "llreduce.*'s recvbuf: the memory is read-only"),
    (np.zeros(4), b"12345678", "llreduce.*'s recvbuf: the memory is read-only"),
    (WHOLE[:4], WHOLE[2:6], r"overlap\. Pass MPI\.IN_PLACE"),
    (WHOLE, WHOLE, r"overlap\. Pass MPI\.IN_PLACE"),
    (np.zeros(4), np.zeros(3), "sendbuf has 4 elements, recvbuf 3"),
    (np.zeros(4), np.zeros(4, "int64"), "sendbuf has float64, recvbuf int64"),
    (np.zeros(4), None, "None is no buffer"),
    (np.zeros(4), 3.0, "a float is no buffer|read-only"),
    ("text", np.zeros(4), "a str is no buffer"),
    (np.zeros(4), np.zeros((4, 2))[:, 0], "not contiguous"),
    (MPI.IN_PLACE, np.array([1, None]), "holds Python objects"),
    (MPI.IN_PLACE, np.zeros(2, ">f8"), "another order of bytes"),
    (MPI.IN_PLACE, np.zeros(2, "f4,i4"), "no MPI type stands for"),
    (MPI.IN_PLACE, [np.zeros(4), 5, MPI.DOUBLE], "5 elements of 8 bytes exceed the 32 bytes"),
    (MPI.IN_PLACE, [np.zeros(4), -1, MPI.DOUBLE], "negative count -1"),
    (MPI.IN_PLACE, [np.zeros(4), (1, 5), MPI.DOUBLE], "displacement 5 lies outside"),
    (MPI.IN_PLACE, [np.zeros(4), 1, 0, MPI.DOUBLE, 0], "a specification of 5 items"),
    (MPI.IN_PLACE, [bytearray(7), MPI.INT], "7 bytes hold no whole number"),
    (MPI.IN_PLACE, [None, 1, MPI.INT], "count 1 of no buffer"),
    (MPI.IN_PLACE, [np.zeros(4), 2.5, MPI.INT], "count 2.5"),
    (MPI.IN_PLACE, np.zeros(2, "bool"), "bool has no 'sum'; |bool has no 'sum'"),
]


@pytest.mark.parametrize(("send", "recv", "message"), WRONG)
def test_wrong_arguments_raise_before_anything_is_sent(send: Any, recv: Any, message: str) -> None:
    for call in (COMM.Allreduce, COMM.Iallreduce, COMM.Allreduce_init):
        with pytest.raises(UsageError, match=message):
            call(send, recv)
    y = np.ones(1)
    COMM.Allreduce(MPI.IN_PLACE, y)  # the communicator works on
    assert y.tolist() == [SIZE]


@pytest.mark.parametrize("wrong", [None, 3.0, {"a": 1}, np.array([1, "a"], object)])
def test_where_mpi4py_raises_type_error_so_does_gradred(wrong: Any) -> None:
    with pytest.raises(TypeError):
        COMM.Allreduce(np.zeros(4), wrong)
    with pytest.raises(TypeError, match="is no operation"):
        COMM.Allreduce(np.zeros(4), np.zeros(4), op=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        COMM.Allreduce(np.zeros(4))  # type: ignore[call-arg]


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x, 4, MPI.FLOAT]])
def test_gpu_arrays_raise_device_error(form: Callable[[Any], Any]) -> None:
    host = np.zeros(4, "float32")
    for call in (COMM.Allreduce, COMM.Iallreduce, COMM.Reduce_scatter_block):
        with pytest.raises(DeviceError, match="gradred cannot reach"):
            call(form(OnGpu()), host)
    with pytest.raises(DeviceError, match="gradred cannot reach"):
        COMM.Allreduce(host, form(OnGpu()))
    for call in (COMM.Bcast, gradred.allreduce):
        with pytest.raises(DeviceError, match="gradred cannot reach"):
            call(form(OnGpu())) if call == COMM.Bcast else call(OnGpu())


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x, 4, MPI.FLOAT]])
def test_host_arrays_with_the_cuda_array_interface_are_served(form: Callable[[Any], Any]) -> None:
    x, y = np.full(4, RANK + 1, "float32"), np.zeros(4, "float32")
    send, recv = form(SaysGpu(x)), form(SaysGpu(y))
    COMM.Allreduce(send, recv)
    assert y.tolist() == [TOTAL] * 4
    y[:] = 0
    COMM.Iallreduce(send, recv).Wait()
    assert y.tolist() == [TOTAL] * 4
    COMM.Bcast(form(SaysGpu(y)))
    assert gradred.allreduce(SaysGpu(x), out=SaysGpu(y)).data is y
    assert y.tolist() == [TOTAL] * 4
    dead = SaysGpu(x)
    dead.__cuda_array_interface__ = {**x.__array_interface__, "data": (0x1000, False)}
    with pytest.raises(DeviceError, match="no memory of this process"):
        COMM.Allreduce(form(dead), y)


# ---- the other collectives ----------------------------------------------------------------------


@pytest.mark.parametrize("starts", [False, True])
def test_reduce_scatter_block(starts: bool) -> None:
    def call(send: Any, recv: Any) -> None:
        if starts:
            COMM.Ireduce_scatter_block(send, recv).Wait()
        else:
            COMM.Reduce_scatter_block(send, recv)

    x, y = np.arange(2.0 * SIZE) + RANK, np.zeros(2)
    expected = [SIZE * (2 * RANK + i) + TOTAL - SIZE for i in range(2)]
    call(x, y)
    assert y.tolist() == expected
    call(MPI.IN_PLACE, x)
    assert x[:2].tolist() == expected
    with pytest.raises(UsageError, match="overlap"):
        call(x, x[:2])
    if SIZE > 1:
        with pytest.raises(UsageError, match=f"do not make {SIZE} equal blocks"):
            call(np.zeros(2 * SIZE + 1), y)


def test_allgather() -> None:
    y = np.zeros((SIZE, 2))
    COMM.Allgather(np.full(2, float(RANK)), y)
    assert y.tolist() == [[rank] * 2 for rank in range(SIZE)]
    y[:] = -1
    y[RANK] = RANK
    COMM.Allgather(MPI.IN_PLACE, y)
    assert y.tolist() == [[rank] * 2 for rank in range(SIZE)]
    with pytest.raises(UsageError, match="sendbuf has 3 float64, a block of recvbuf 2 float64"):
        COMM.Allgather(np.zeros(3), y)
    with pytest.raises(UsageError, match="overlap"):
        COMM.Allgather(y[0], y)


def test_allgather_of_columns() -> None:
    """A derived type on one side, plain elements on the other."""
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    x = np.full((3, 4), -1.0)
    x[:, 1] = [RANK, RANK + 1, RANK + 2]
    y = np.zeros((SIZE, 3))
    COMM.Allgather([x.reshape(-1)[1:], 1, column], y)
    assert y.tolist() == [[rank, rank + 1, rank + 2] for rank in range(SIZE)]
    column.Free()


def test_allgather_into_columns() -> None:
    column = MPI.DOUBLE.Create_vector(2, 1, SIZE).Create_resized(0, 8).Commit()
    y = np.full((2, SIZE), -1.0)
    COMM.Allgather(np.array([RANK, 10.0 * RANK]), [y, 1, column])
    assert y.tolist() == [[float(rank) for rank in range(SIZE)], [10.0 * r for r in range(SIZE)]]
    column.Free()


@pytest.mark.parametrize("root", range(SIZE))
def test_bcast(root: int) -> None:
    x = np.arange(4) + RANK
    COMM.Bcast(x, root)
    assert x.tolist() == [root, root + 1, root + 2, root + 3]
    y = np.full(3, RANK, "longdouble")
    COMM.Bcast([y, 2, MPI.LONG_DOUBLE], root=root)
    assert y.tolist() == [root, root, RANK]
    z = np.full(2, RANK, ml_dtypes.bfloat16)
    COMM.Bcast(z, root)
    assert z.astype(int).tolist() == [root, root]


@pytest.mark.parametrize("root", range(SIZE))
def test_bcast_of_a_column_to_rows(root: int) -> None:
    column = MPI.INT.Create_vector(3, 1, 3).Commit()
    x = np.arange(9, dtype="i4").reshape(3, 3) * (1 if root == RANK else -1)
    if root == RANK:
        COMM.Bcast([x, 1, column], root)
    else:
        COMM.Bcast([x, 3, MPI.INT], root)
        assert x.reshape(-1).tolist() == [0, 3, 6, -3, -4, -5, -6, -7, -8]
    y = x.copy()
    COMM.Bcast([y.reshape(-1)[1:], 1, column] if root != RANK else y[0], root)
    assert y[:, 1].tolist() == (x[:, 1].tolist() if root == RANK else [0, 1, 2])
    column.Free()


def test_bcast_from_absolute_addresses() -> None:
    x = np.full(3, RANK, "i4")
    there = MPI.INT.Create_hindexed([3], [MPI.Get_address(x)]).Commit()
    COMM.Bcast([MPI.BOTTOM, 1, there])
    assert x.tolist() == [0, 0, 0]
    there.Free()


def test_bcast_root_must_be_a_rank() -> None:
    with pytest.raises(UsageError, match=f"root={SIZE}: the communicator has {SIZE} ranks"):
        COMM.Bcast(np.zeros(1), SIZE)


# ---- requests -----------------------------------------------------------------------------------


def test_iallreduce_is_an_mpi_request() -> None:
    x, y = np.full(3, RANK + 1), np.zeros(3, int)
    request = COMM.Iallreduce(x, y)
    assert isinstance(request, MPI.Request)
    assert request.Wait()
    assert y.tolist() == [TOTAL] * 3
    assert request.Wait()  # a request that is done is null, as in MPI
    assert request.Test()


@pytest.mark.parametrize("wait_all", [MPI.Request.Waitall, gradred.Request.Waitall])
def test_requests_mix_with_those_of_the_mpi(wait_all: Callable[[Any], Any]) -> None:
    results = [np.zeros(3, int) for _ in range(4)]
    mine, theirs = np.array([RANK]), np.zeros(1, int)
    requests: list[MPI.Request] = [COMM.Iallreduce(np.full(3, RANK + 1), y) for y in results]
    requests.insert(1, COMM.Isend(mine, (RANK + 1) % SIZE))
    requests.append(COMM.Irecv(theirs, (RANK - 1) % SIZE))
    requests.append(COMM.Ibarrier())
    wait_all(requests)
    assert [y.tolist() for y in results] == [[TOTAL] * 3] * 4
    assert theirs[0] == (RANK - 1) % SIZE
    assert all(request == MPI.REQUEST_NULL for request in requests)


def test_test_becomes_true() -> None:
    y = np.full(3, RANK + 1)
    request = COMM.Iallreduce(MPI.IN_PLACE, y)
    while not request.Test():
        pass
    assert y.tolist() == [TOTAL] * 3


def test_buffers_outlive_a_forgotten_request() -> None:
    y = np.full(1000, RANK + 1)
    COMM.Iallreduce(np.full(1000, RANK + 1), y)
    COMM.Barrier()
    COMM.Iallreduce(np.zeros(1), np.zeros(1)).Wait()
    while _core.in_flight():
        COMM.Iprobe()
    assert y.tolist() == [TOTAL] * 1000


def test_requests_may_be_dropped_in_flight_while_garbage_is_collected() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)  # in any allocation of Python's own
    try:
        for _ in range(100):
            COMM.Iallreduce(MPI.IN_PLACE, np.ones(300))
            [[] for _ in range(3)]
    finally:
        gc.set_threshold(*thresholds)
    COMM.Allreduce(MPI.IN_PLACE, np.ones(1))


def test_memory_of_a_dropped_request_goes_once_others_have_been_started() -> None:
    x = np.ones(200_000)
    kept = weakref.ref(x)
    COMM.Iallreduce(MPI.IN_PLACE, x)
    del x
    COMM.Allreduce(MPI.IN_PLACE, np.ones(1))
    while _core.in_flight():  # the thread that has ended it may not have said so yet
        time.sleep(0.001)
    for _ in range(5):
        COMM.Iallreduce(MPI.IN_PLACE, np.ones(1)).Wait()
    assert kept() is None


@pytest.mark.parametrize("status", [5, MPI.COMM_WORLD, MPI.INT])
def test_status_of_a_request_is_a_status(status: Any) -> None:
    request = COMM.Iallreduce(MPI.IN_PLACE, np.full(300_000, 1.0))
    if RANK == 0 and request:  # in flight
        with pytest.raises(TypeError):
            request.Wait(status)
    request.Wait(MPI.Status())


def test_calls_from_two_communicators_may_be_in_flight_together() -> None:
    other = COMM.Dup()
    a, b = np.full(2, RANK), np.full(2, RANK + 1)
    first, second = COMM.Iallreduce(MPI.IN_PLACE, a), other.Iallreduce(MPI.IN_PLACE, b)
    (first, second)[RANK % 2].Wait()
    (second, first)[RANK % 2].Wait()
    assert (a[0], b[0]) == (TOTAL - SIZE, TOTAL)
    other.Free()


@needs_thread_multiple
def test_persistent_allreduce_is_started_again_and_again() -> None:
    x, y = np.zeros(3), np.zeros(3)
    p = COMM.Allreduce_init(x, y)
    assert isinstance(p, gradred.PersistentAllreduce)
    assert isinstance(p, MPI.Prequest)
    assert p.Test()  # not started
    for i in range(6):
        x[:] = i
        if (i + RANK) % 2:
            p()
        else:
            p.Start()
            p.Wait()
        assert y.tolist() == [i * SIZE] * 3
    p.Free()
    with pytest.raises(UsageError, match="the request is freed"):
        p.Start()


def test_persistent_allreduce_completes_in_the_mpis_functions() -> None:
    x, y = np.full(3, RANK), np.zeros(3, int)
    p = COMM.Allreduce_init(x, y, op="max")
    for _ in range(3):
        y[:] = -1
        p.Start()
        MPI.Request.Waitall([p, COMM.Ibarrier()])
        assert y.tolist() == [SIZE - 1] * 3
    p.Free()


@needs_thread_multiple
def test_startall_starts_in_order() -> None:
    results = [np.zeros(2), np.zeros(2)]
    ps = [COMM.Allreduce_init(np.full(2, float(i)), y) for i, y in enumerate(results)]
    gradred.PersistentAllreduce.Startall(ps)  # type: ignore[arg-type]
    MPI.Request.Waitall(ps)
    assert [y[0] for y in results] == [0, SIZE]
    with pytest.raises(MPI.Exception):
        MPI.Prequest.Startall(ps)  # type: ignore[arg-type]
    for p in ps:
        p.Free()


@needs_thread_multiple
def test_persistent_allreduce_is_not_started_twice() -> None:
    p = COMM.Allreduce_init(MPI.IN_PLACE, np.zeros(2))
    p.Start()
    with pytest.raises(UsageError, match="started already"):
        p.Start()
    p.Wait()
    p.Free()


# ---- communicators ------------------------------------------------------------------------------


def test_comm_shares_the_handle_and_keeps_nothing_in_python() -> None:
    assert COMM == MPI.COMM_WORLD
    assert COMM.handle == MPI.COMM_WORLD.handle
    assert isinstance(COMM, MPI.Intracomm)
    assert not hasattr(COMM, "__dict__")
    with pytest.raises(TypeError):
        gradred.Comm(3)  # type: ignore[arg-type]


NEW: dict[str, Callable[[gradred.Comm], Any]] = {
    "Dup": lambda c: c.Dup(),
    "Clone": lambda c: c.Clone(),
    "Dup_with_info": lambda c: c.Dup_with_info(MPI.INFO_NULL),
    "Split": lambda c: c.Split(c.rank % 2, -c.rank),
    "Split_type": lambda c: c.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda c: c.Create(c.group),
    "Create_group": lambda c: c.Create_group(c.group),
    "Create_from_group": lambda c: gradred.Comm.Create_from_group(c.group),
    "Create_cart": lambda c: c.Create_cart([c.size]),
    "Sub": lambda c: c.Create_cart([c.size, 1]).Sub([True, False]),
    "Create_graph": lambda c: c.Create_graph([], []) if c.size < 0 else ring_graph(c),
    "Create_dist_graph": lambda c: c.Create_dist_graph([c.rank], [1], [(c.rank + 1) % c.size]),
    "Create_dist_graph_adjacent": lambda c: c.Create_dist_graph_adjacent([c.rank], [c.rank]),
}


def ring_graph(comm: gradred.Comm) -> gradred.comm.GraphComm:
    edges = [(rank + 1) % comm.size for rank in range(comm.size)]
    return comm.Create_graph(list(range(1, comm.size + 1)), edges)


@pytest.mark.parametrize("name", NEW)
def test_new_communicators_are_gradreds(name: str) -> None:
    try:
        new = NEW[name](COMM)
    except NotImplementedError:
        pytest.skip(f"this MPI has no {name}")
    assert isinstance(new, gradred.Comm)
    y = np.full(2, 1, ml_dtypes.bfloat16)  # which the MPI itself cannot reduce
    new.Allreduce(MPI.IN_PLACE, y)
    assert y.astype(int).tolist() == [new.size] * 2
    new.Free()
    assert new == MPI.COMM_NULL


def test_idup_keeps_the_type() -> None:
    new, request = COMM.Idup()
    request.Wait()
    assert type(new) is gradred.Comm
    new.Free()


def test_split_may_give_no_communicator() -> None:
    new = COMM.Split(MPI.UNDEFINED if RANK else 0)
    assert (new == MPI.COMM_NULL) == (RANK > 0)
    if RANK == 0:
        new.Free()


def test_cart_keeps_the_methods_of_both() -> None:
    cart = COMM.Create_cart([SIZE], [True])
    assert (cart.dims, type(cart.Dup())) == ([SIZE], gradred.comm.CartComm)
    y = np.ones(1)
    cart.Allreduce(MPI.IN_PLACE, y)
    assert y[0] == SIZE
    cart.Free()


def test_merged_intercommunicators_are_gradreds() -> None:
    if SIZE < 2:
        pytest.skip("an intercommunicator needs two ranks")
    half = COMM.Split(RANK % 2)
    inter = half.Create_intercomm(0, COMM, 1 - RANK % 2)
    merged = inter.Merge()
    assert type(merged) is gradred.Comm
    assert merged.size == SIZE
    for comm in (merged, inter, half):
        comm.Free()


def returns(function: ast.FunctionDef) -> set[str]:
    names = ast.walk(function.returns) if function.returns else ()
    return {node.id for node in names if isinstance(node, ast.Name)}


def test_every_method_that_makes_an_intracommunicator_is_overridden() -> None:
    """mpi4py's stub says which they are; those that give the class itself need no override."""
    stub = ast.parse(Path(mpi4py.__file__).with_name("MPI.pyi").read_text())
    makers = {"Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm"}
    classes = {"Comm": "Comm", "Intracomm": "Comm", "Cartcomm": "CartComm"}
    classes |= {"Topocomm": "CartComm", "Graphcomm": "GraphComm", "Distgraphcomm": "DistGraphComm"}
    missing = []
    for node in stub.body:
        if not isinstance(node, ast.ClassDef) or node.name not in classes:
            continue
        ours = getattr(gradred.comm, classes[node.name])
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and returns(method) & makers:
                owner = next(c for c in ours.__mro__ if method.name in vars(c))
                if not owner.__module__.startswith("gradred"):
                    missing.append(f"{node.name}.{method.name}")
    assert missing == []


def test_pickling_allreduce_warns_once_of_large_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradred.comm, "_warned_of_pickling", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert COMM.allreduce(2) == 2 * SIZE
        COMM.allreduce(np.zeros((1 << 20) // 8 - 1))
    large = np.ones((1 << 20) // 8)
    with pytest.warns(UserWarning, match=r"gradred\.allreduce\(x, comm=comm\)"):
        assert COMM.allreduce(large).sum() == large.size * SIZE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        COMM.allreduce(large)


def test_drop_in_function_takes_any_communicator() -> None:
    y = np.ones(2)
    gradred.Allreduce(MPI.IN_PLACE, y)
    gradred.Allreduce(MPI.IN_PLACE, y, MPI.SUM, MPI.COMM_WORLD)
    gradred.Allreduce(MPI.IN_PLACE, y, comm=COMM)
    assert y.tolist() == [SIZE**3] * 2
    with pytest.raises(TypeError, match=r"Pass an MPI\.Intracomm"):
        gradred.Allreduce(MPI.IN_PLACE, y, comm=3)  # type: ignore[arg-type]
