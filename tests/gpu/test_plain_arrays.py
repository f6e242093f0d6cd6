"""Arrays that are read by one look (_core.device_array): as a closer look reads them, or not."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from gpu.simulated import DeviceArray, Driver
from mpi4py import MPI

import gradred
from gradred import _core
from gradred.buffers import cuda_interface, messages
from gradred.comm import _CLOSER_LOOKS
from gradred.element_types import ELEMENT_TYPES, numpy_dtype

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2
COUNT = 24


@pytest.fixture
def comm(device: Driver) -> Iterator[gradred.Comm]:
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = DeviceArray(device, np.ones(COUNT, "float32"))
    for given in (x, Described(x), Numbas(x)):  # a first look is a closer one
        made.Allreduce(MPI.IN_PLACE, given)
    yield made
    made.Free()


class Described:
    """An array whose interface says something else of it."""

    def __init__(self, array: DeviceArray, **said: Any) -> None:
        self.array, self.said, self.looks = array, said, 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.looks += 1
        found = {**self.array.__cuda_array_interface__, **self.said}
        if isinstance(error := found.get("raises"), BaseException):
            raise error
        return {name: value for name, value in found.items() if value is not Missing}


class Missing:
    """What an interface does not say."""


class Numbas(Described):
    """As Numba's are: without a stream they are in its default one."""

    __cuda_ndarray__ = True


class Case(NamedTuple):
    """What an array says of itself, and whether one look is enough."""

    said: dict[str, Any]
    plain: bool = True
    kind: type[Described] = Described


OTHER = -1  # stands for an address or a stream that the test knows
CASES = {
    "vector": Case({}),
    "matrix": Case({"shape": (4, 6)}),
    "matrix of other shape": Case({"shape": (6, 4)}),
    "eight axes": Case({"shape": (2, 3, 4, 1, 1, 1, 1, 1)}),
    "nine axes": Case({"shape": (2, 3, 4, 1, 1, 1, 1, 1, 1)}, plain=False),
    "strides of rows": Case({"shape": (4, 6), "strides": (24, 4)}),
    "strides of axes of length 1": Case({"shape": (1, 24, 1), "strides": (7, 4, 999)}),
    "no word of strides": Case({"strides": Missing}),
    "strides of columns": Case({"shape": (4, 6), "strides": (4, 16)}, plain=False),
    "other order of axes": Case({"shape": (2, 3, 4), "strides": (4, 32, 8)}, plain=False),
    "gaps": Case({"shape": (12,), "strides": (8,)}, plain=False),
    "strides of another number": Case({"shape": (4, 6), "strides": (4,)}, plain=False),
    "fewer elements": Case({"shape": (23,)}),
    "shape in a list": Case({"shape": [24]}, plain=False),
    "NumPy's integers": Case({"shape": (np.int64(24),)}, plain=False),
    "negative length": Case({"shape": (-24,)}, plain=False),
    "no elements": Case({"shape": (0,)}, plain=False),
    "no axes": Case({"shape": ()}),
    "read-only": Case({"data": (OTHER, True)}),
    "a number for read-only": Case({"data": (OTHER, 0)}, plain=False),
    "address 0": Case({"data": (0, False)}, plain=False),
    "no address": Case({"data": (None, False)}, plain=False),
    "nowhere": Case({"data": (0x1000, False)}, plain=False),
    "longer than its memory": Case({"shape": (1 << 20,)}, plain=False),
    "mask": Case({"mask": "anything"}, plain=False),
    "no word of a mask": Case({"mask": Missing}),
    "other type": Case({"typestr": "<i4"}),
    "complex": Case({"typestr": "<c8", "shape": (12,)}),
    "16 bits": Case({"typestr": "<f2", "shape": (48,)}),
    "bytes": Case({"typestr": "|u1", "shape": (96,)}),
    "booleans": Case({"typestr": "|b1", "shape": (96,)}),
    "other order of bytes": Case({"typestr": ">f4"}, plain=False),
    "bytes in an order": Case({"typestr": "<u1", "shape": (96,)}, plain=False),
    "type without an order": Case({"typestr": "f4"}, plain=False),
    "type of no number": Case({"typestr": "<V4"}, plain=False),
    "type that nobody knows": Case({"typestr": "<f16", "shape": (6,)}, plain=False),
    "no type": Case({"typestr": Missing}, plain=False),
    "legacy stream": Case({"stream": 1}),
    "thread's stream": Case({"stream": 2}),
    "own stream": Case({"stream": OTHER}),
    "no word of a stream": Case({"stream": Missing}),
    "stream of another type": Case({"stream": np.int64(1)}, plain=False),
    "negative stream": Case({"stream": -2}, plain=False),
    "error": Case({"raises": ValueError("nothing to see")}, plain=False),
    "no such interface": Case({"raises": AttributeError("nothing to see")}, plain=False),
    "Numba's": Case({}, plain=False, kind=Numbas),
    "Numba's with a stream": Case({"stream": 1}, kind=Numbas),
}


class Pair:
    """Memory for an input and a result, and how cases describe it."""

    def __init__(self, device: Driver) -> None:
        self.stream = device.stream()
        self.sent = DeviceArray(device, (np.arange(COUNT) % 3 + RANK).astype("float32"))
        self.got = DeviceArray(device, np.full(COUNT, 99, "float32"))

    def described(self, case: Case, array: DeviceArray) -> Described:
        said = dict(case.said)
        if said.get("data", (0,))[0] == OTHER:
            said["data"] = (array.address, said["data"][1])
        if said.get("stream") is OTHER:
            said["stream"] = self.stream
        return case.kind(array, **said)

    def clear(self) -> None:
        given = np.full(COUNT, 99, "float32")
        self.got.driver.copy(self.got.address, given.ctypes.data, given.nbytes)


@pytest.fixture
def pair(device: Driver) -> Iterator[Pair]:
    made = Pair(device)
    yield made
    device.destroy(made.stream)


@contextlib.contextmanager
def closer_looks_alone() -> Iterator[None]:
    with (
        mock.patch.object(_core, "plain_allreduce", return_value=None),
        mock.patch.object(_core, "device_array", return_value=None),
        mock.patch.object(_core, "know_device_arrays"),
    ):
        yield


def outcome(pair: Pair, call: Callable[[], object]) -> tuple[str, bytes]:
    """The error, if any, and the bits of the result."""
    pair.clear()
    try:
        call()
        error = ""
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return error, pair.got.get().tobytes()


CALLS: dict[str, Callable[..., object]] = {
    "Allreduce": lambda method, x, y: method(x, y),
    "Allreduce in place": lambda method, _, y: method(MPI.IN_PLACE, y),
    "Iallreduce": lambda method, x, y: method(x, y).Wait(),
    "Reduce_scatter_block": lambda method, x, y: method(x, y),
    "Allgather": lambda method, x, y: method(x, y),
    "Bcast": lambda method, _, y: method(y),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("of", ["input", "result", "both"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_look_is_as_good_as_a_closer_one(
    comm: gradred.Comm, pair: Pair, case: Case, of: str, name: str
) -> None:
    usual = CASES["vector"]
    x = pair.described(case if of != "result" else usual, pair.sent)
    y = pair.described(case if of != "input" else usual, pair.got)
    method = name.removesuffix(" in place")
    found = outcome(pair, lambda: CALLS[name](getattr(comm, method), x, y))
    with closer_looks_alone():
        closer = _CLOSER_LOOKS[method]
        expected = outcome(pair, lambda: CALLS[name](lambda *both: closer(comm, *both), x, y))
    assert found == expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_one_look_sees(comm: gradred.Comm, pair: Pair, case: Case) -> None:
    x = pair.described(case, pair.sent)
    found = _core.device_array(x)
    assert (found is not None) == case.plain
    if found is None:
        return
    with closer_looks_alone():
        closer = cuda_interface.read(x, "")
    seen = (closer.address, closer.dtype, closer.shape, closer.writable, closer.memory)
    assert found == (*seen, closer.stream)


def is_closer(call: Callable[[], object]) -> bool:
    """Whether a call on messages takes a closer look."""
    with mock.patch.object(messages, "read", side_effect=messages.read) as read:
        call()
    return bool(read.called)


@pytest.mark.parametrize("name", CALLS)
def test_each_array_is_asked_once_in_a_call(comm: gradred.Comm, pair: Pair, name: str) -> None:
    blocks = {"Reduce_scatter_block": (COUNT // SIZE * SIZE, COUNT // SIZE)}
    blocks["Allgather"] = (COUNT // SIZE, COUNT // SIZE * SIZE)
    sent, got = blocks.get(name, (COUNT, COUNT))
    x, y = Described(pair.sent, shape=(sent,)), Described(pair.got, shape=(got,))
    method = getattr(comm, name.removesuffix(" in place"))
    assert not is_closer(lambda: CALLS[name](method, x, y))
    assert (x.looks, y.looks) == (int("in place" not in name and name != "Bcast"), 1)


@pytest.mark.parametrize("op", ["sum", "avg", "max", "bor", MPI.SUM, MPI.PROD, MPI.LAND])
@pytest.mark.parametrize("dtype", [name for name in ELEMENT_TYPES if ELEMENT_TYPES[name].is_numpys])
def test_types_and_operations(comm: gradred.Comm, device: Driver, dtype: str, op: Any) -> None:
    given = (np.arange(9) % 3 + RANK).astype(numpy_dtype(dtype))
    both = [(given.copy(), np.zeros_like(given)) for _ in range(2)]
    x, y = (DeviceArray(device, each) for each in both[0])
    on_host = on_device = ""
    try:
        comm.Allreduce(*both[1], op)
    except gradred.UsageError as error:
        on_host = str(error)
    closer = None
    try:
        closer = is_closer(lambda: comm.Allreduce(x, y, op))
    except gradred.UsageError as error:
        on_device = str(error)
    assert (on_device, closer) == (on_host, None if on_host else False)
    np.testing.assert_array_equal(y.get(), both[1][1])


def test_memory_of_both_kinds(comm: gradred.Comm, pair: Pair) -> None:
    on_host = np.full(COUNT, 99, "float32")
    expected = np.sum([np.arange(COUNT) % 3 + rank for rank in range(SIZE)], axis=0)
    assert not is_closer(lambda: comm.Allreduce(pair.sent, on_host))
    np.testing.assert_array_equal(on_host, expected)
    given = (np.arange(COUNT) % 3 + RANK).astype("float32")
    assert not is_closer(lambda: comm.Allreduce(given, pair.got))
    np.testing.assert_array_equal(pair.got.get(), expected)
    pretends = Described(pair.got, data=(on_host.ctypes.data, False))
    comm.Allreduce(pair.sent, pretends)
    np.testing.assert_array_equal(on_host, expected)


def test_arrays_that_share_memory_are_refused(comm: gradred.Comm, device: Driver) -> None:
    x = DeviceArray(device, np.ones(100, "float32"))
    for sent, got in ((x, x), (x.part(0, 60), x.part(59, 119))):
        with pytest.raises(gradred.UsageError):
            comm.Allreduce(sent, got)
    assert not is_closer(lambda: comm.Allreduce(x.part(0, 50), x.part(50, 100)))
    np.testing.assert_array_equal(x.get(), [1] * 50 + [SIZE] * 50)


def test_first_look_at_a_type_is_a_closer_one(comm: gradred.Comm, pair: Pair) -> None:
    new = type("New", (Described,), {})
    looks = [is_closer(lambda: comm.Allreduce(new(pair.sent), new(pair.got))) for _ in range(2)]
    assert looks == [True, False]
    assert _core.device_array(new(pair.sent)) is not None
    assert _core.device_array(type("Derived", (new,), {})(pair.sent)) is None


@pytest.mark.parametrize("base", [list, tuple, np.ndarray])
def test_kinds_that_mean_something_else_are_never_known(pair: Pair, comm: Any, base: type) -> None:
    held = property(lambda _: pair.sent.__cuda_array_interface__)
    kind = type("Kind", (base,), {"__cuda_array_interface__": held})
    x = kind() if base is not np.ndarray else np.zeros(1).view(kind)
    _core.know_device_arrays(kind)
    assert _core.device_array(x) is None


def test_interruption_is_no_closer_look(comm: gradred.Comm, pair: Pair) -> None:
    x = Described(pair.sent, raises=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        comm.Allreduce(MPI.IN_PLACE, x)
    assert x.looks == 1
    comm.Allreduce(pair.sent, pair.got)


def test_options_that_have_changed_take_a_closer_look(comm: gradred.Comm, pair: Pair) -> None:
    call = lambda: comm.Allreduce(pair.sent, pair.got)  # noqa: E731
    gradred.config.set("audit_pointers", True)
    assert [is_closer(call) for _ in range(2)] == [True, True]
    gradred.config.reset("audit_pointers")
    assert [is_closer(call) for _ in range(2)] == [True, False]


def test_what_differs_is_told_with_what_was_passed(comm: gradred.Comm, pair: Pair) -> None:
    if SIZE == 1:
        pytest.skip("takes two ranks")
    x, y = (Described(each, shape=(COUNT - RANK,)) for each in (pair.sent, pair.got))
    with pytest.raises(gradred.UsageError, match=rf"passed float32 of shape \({COUNT - RANK},\)"):
        comm.Allreduce(x, y)
    comm.Allreduce(pair.sent, pair.got)


# ---- tensors, by DLPack's interface for C --------------------------------------------------------


class Look(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Tensor:
    """What is asked of a tensor of PyTorch's.

    Args:
        array: its memory.
        offset: its first element there.
        said: what it says of itself otherwise, by the names in `Look` and of its attributes.
    """

    def __init__(self, array: DeviceArray, offset: int = 0, **said: Any) -> None:
        self.array, self.offset = array, offset
        self.shape = said.pop("shape", (COUNT - offset,))
        self.strides = said.pop("strides", None)
        self.requires_grad = said.pop("requires_grad", False)
        self.neg = said.pop("neg", False)
        self.held = said.pop("held", array.nbytes)
        self.raises, self.said = said.pop("raises", False), said

    def is_neg(self) -> bool:
        return bool(self.neg)

    def untyped_storage(self) -> Any:
        return mock.Mock(nbytes=lambda: self.held)

    def storage_offset(self) -> int:
        return self.offset

    def element_size(self) -> int:
        return 4

    def look(self, found: Look) -> None:
        if self.raises:
            raise BufferError("it does not lend it")
        lengths = ctypes.c_int64 * len(self.shape)
        self.kept = lengths(*self.shape), self.strides and lengths(*self.strides)
        found.data, found.device, found.device_id = self.array.address, 2, 0
        found.axes, found.code, found.bits, found.lanes = len(self.shape), 2, 32, 1
        found.shape = self.kept[0]
        found.strides = self.kept[1] or None
        found.byte_offset = 4 * self.offset
        for name, value in self.said.items():
            setattr(found, name, value)


class Parameter(Tensor):
    """The other type that is known."""


class OfAProgram(Tensor):
    """One that is not."""


_LOOK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Look))
_STREAM = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class Api(ctypes.Structure):
    """DLPackExchangeAPI of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("unused", ctypes.c_void_p * 3),
        ("look", _LOOK),
        ("stream", _STREAM),
    )


_current: list[int] = [0]


@_LOOK
def _look(tensor: Tensor, found: Any) -> int:
    try:
        tensor.look(found.contents)
    except BufferError:
        return -1
    return 0


@_STREAM
def _stream(device: int, number: int, found: Any) -> int:
    assert (device, number) == (2, 0)
    found[0] = _current[0]
    return 0


_API = Api(1, 3, None, (None,) * 3, _look, _stream)


@pytest.fixture
def tensors(comm: gradred.Comm) -> Iterator[None]:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
    )
    capsule = new(ctypes.addressof(_API), b"dlpack_exchange_api", None)
    Tensor.__dlpack_c_exchange_api__ = capsule  # type: ignore[attr-defined]
    assert _core.know_tensors(Tensor, Parameter)
    yield
    _current[0] = 0
    with contextlib.suppress(ImportError):
        import torch

        _core.know_tensors(torch.Tensor, torch.nn.Parameter)


@pytest.mark.parametrize("kind", [Tensor, Parameter])
def test_tensors_are_reduced_in_the_order_of_the_current_stream(
    comm: gradred.Comm, tensors: None, device: Driver, kind: type[Tensor]
) -> None:
    """PyTorch's needs a build with CUDA: these are asked the same."""
    stream = device.stream()
    for current in (stream, 0):
        _current[0] = current
        device.set("least_delay", 2_000_000)
        x = DeviceArray(device, np.arange(COUNT, dtype="float32") + RANK, stream=current or None)
        y = DeviceArray(device, np.zeros(COUNT, "float32"))
        device.set("least_delay", 0)
        found = _core.device_array(kind(x))
        assert found is not None
        assert found[:4] == (x.address, "float32", (COUNT,), True)
        assert found[5] == (current or 1)
        comm.Allreduce(kind(x), kind(y))
        expected = SIZE * np.arange(COUNT) + SIZE * (SIZE - 1) // 2
        np.testing.assert_array_equal(y.get(), expected)
        comm.Iallreduce(MPI.IN_PLACE, kind(x, 5)).Wait()
        np.testing.assert_array_equal(x.get()[5:], expected[5:])
        np.testing.assert_array_equal(x.get()[:5], np.arange(5) + RANK)
    device.destroy(stream)


@pytest.mark.parametrize(
    "said",
    [
        {"requires_grad": True},
        {"neg": True},
        {"held": 4 * COUNT - 1},
        {"offset": 3, "shape": (COUNT,), "held": 4 * COUNT},
        {"raises": True},
        {"device": 10},
        {"code": 5, "bits": 64, "shape": (12,)},
        {"lanes": 2},
        {"bits": 128},
        {"shape": (4, 6), "strides": (1, 4)},
        {"shape": (12,), "strides": (2,)},
        {"shape": (0,)},
        {"data": None},
    ],
    ids=str,
)
def test_tensors_that_take_a_closer_look(
    comm: gradred.Comm, tensors: None, pair: Pair, said: dict[str, Any]
) -> None:
    assert _core.device_array(Tensor(pair.sent)) is not None
    assert _core.device_array(Tensor(pair.sent, **said)) is None


def test_other_types_of_tensors_take_a_closer_look(
    comm: gradred.Comm, tensors: None, pair: Pair
) -> None:
    assert _core.device_array(OfAProgram(pair.sent)) is None
