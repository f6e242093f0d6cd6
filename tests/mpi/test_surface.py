"""Allreduce of Comm as of mpi4py: forms of buffers, types, operations, errors."""

from __future__ import annotations

import array
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from mpi4py import MPI

import gradred
import gradred.comm
from gradred import DeviceError, UsageError, _core, _rank

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TOTAL = SIZE * (SIZE + 1) // 2


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
    """Each rank writes its buffers in a different form."""
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


LOGICAL = [MPI.LAND, MPI.LOR, MPI.LXOR]
OPS = [MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX, *LOGICAL, MPI.BAND, MPI.BOR, MPI.BXOR]


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
    except MPI.Exception:  # MPI does not define the operation for this type
        return
    if SIZE == 1 and op in LOGICAL:  # the MPI copies the input; gradred's results are 0 or 1
        z = (z != 0).astype(code)
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


# ---- calls for the MPI ------------------------------------------------------------------------


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
    except NotImplementedError:  # Open MPI 5 has them, although it reports version 3.1
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
    """An array in host memory with the CUDA Array Interface, as in mpi4py's own tests."""

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
    (np.zeros(4), np.zeros(3), "sendbuf has 4 elements, recvbuf 3"),
    (np.zeros(4), np.zeros(4, "int64"), "sendbuf has float64, recvbuf int64"),
    (np.zeros(4), None, "None is not a buffer"),
    (np.zeros(4), 3.0, "a float is not a buffer|read-only"),
    ("text", np.zeros(4), "a str is not a buffer"),
    (np.zeros(4), np.zeros((4, 2))[:, 0], "not dense"),
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


@pytest.mark.parametrize("form", [lambda x: x, memoryview, lambda x: [x, MPI.DOUBLE]])
def test_reduction_of_a_buffer_into_itself_is_in_place(form: Callable[[Any], Any]) -> None:
    """As in mpi4py from 4.2 on; with `form` the C++ code or the Python code reads the buffers."""
    calls: dict[str, Callable[..., object]] = {
        "Allreduce": COMM.Allreduce,
        "Iallreduce": lambda x, y, op=MPI.SUM: COMM.Iallreduce(x, y, op).Wait(),
        "Allreduce_init": lambda x, y, op=MPI.SUM: COMM.Allreduce_init(x, y, op)(),
        "Scan": COMM.Scan,
    }

    def add(a: Any, b: Any, _: MPI.Datatype) -> None:
        np.frombuffer(b)[:] += np.frombuffer(a)

    own = MPI.Op.Create(add, commute=True)  # the MPI carries it out
    for name, call in calls.items():
        for op in (MPI.SUM, "sum", own) if name != "Allreduce_init" else (MPI.SUM,):
            x = np.full(4, RANK + 1.0)
            call(form(x), form(x), op)
            last = RANK if name == "Scan" else SIZE - 1
            assert x.tolist() == [(last + 1) * (last + 2) / 2] * 4, (name, op)
    own.Free()
    x = np.ones(SIZE)
    COMM.Reduce_scatter_block(form(x), form(x[:1]))
    assert x[0] == SIZE


@pytest.mark.parametrize(("send", "recv", "message"), WRONG)
def test_wrong_arguments_raise_before_anything_is_sent(send: Any, recv: Any, message: str) -> None:
    for call in (COMM.Allreduce, COMM.Iallreduce, COMM.Allreduce_init):
        with pytest.raises(UsageError, match=message):
            call(send, recv)
    y = np.ones(1)
    COMM.Allreduce(MPI.IN_PLACE, y)  # the communicator remains usable
    assert y.tolist() == [SIZE]


@pytest.mark.parametrize("wrong", [None, 3.0, {"a": 1}, np.array([1, "a"], object)])
def test_where_mpi4py_raises_type_error_so_does_gradred(wrong: Any) -> None:
    with pytest.raises(TypeError):
        COMM.Allreduce(np.zeros(4), wrong)
    with pytest.raises(TypeError, match="is not an operation"):
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


def test_a_loss_is_found_behind_other_errors_and_chains_may_be_circles() -> None:
    lost = RuntimeError("PeerLost: rank 1 has left the program")
    other = ValueError("another one")
    assert not _rank._reports_loss(other)
    other.__context__ = KeyError("a third one")
    other.__context__.__context__ = other
    assert not _rank._reports_loss(other)
    other.__cause__ = lost
    assert _rank._reports_loss(other)
