"""Arrays that the extension reads itself (_core.plain_array), compared with the Python reader."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from gpu.simulated import DeviceArray, Driver
from mpi4py import MPI

import gradred
from gradred import _core, config
from gradred.buffers import arrays, cuda_interface, messages
from gradred.comm import _CLOSER_LOOKS
from gradred.element_types import ELEMENT_TYPES, numpy_dtype

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2
COUNT = 24


@pytest.fixture
def comm(device: Driver) -> Iterator[gradred.Comm]:
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = DeviceArray(device, np.ones(COUNT, "float32"))
    # the first array of a type goes through the Python reader
    for given in (x, Described(x), Numbas(x)):
        made.Allreduce(MPI.IN_PLACE, given)
    yield made
    made.Free()


class Described:
    """An array whose interface reports other values."""

    def __init__(self, array: DeviceArray, **said: Any) -> None:
        self.array, self.said, self.looks = array, said, 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.looks += 1
        found = {**self.array.__cuda_array_interface__, **self.said}
        if "raises" in found:
            raise found["raises"]("nothing to see")
        return {name: value for name, value in found.items() if value is not Missing}


class Missing:
    """Marks a key that an interface lacks."""


class Numbas(Described):
    """As Numba's arrays: without a stream they are in its default stream."""

    __cuda_ndarray__ = True


class Case(NamedTuple):
    """The values that an array reports, and whether the extension reads it itself."""

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
    "longer than its memory": Case({"shape": (1 << 40,)}, plain=False),
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
    "error": Case({"raises": ValueError}, plain=False),
    "no such interface": Case({"raises": AttributeError}, plain=False),
    "Numba's": Case({}, plain=False, kind=Numbas),
    "Numba's with a stream": Case({"stream": 1}, kind=Numbas),
}


class Pair:
    """Memory for an input and a result, described as a case says."""

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
        mock.patch.object(_core, "plain_reduction", return_value=None),
        mock.patch.object(_core, "plain_array", return_value=None),
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


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_look_is_as_good_as_a_closer_one(comm: gradred.Comm, pair: Pair, case: Case) -> None:
    usual = CASES["vector"]
    for of, (name, make) in itertools.product(["input", "result", "both"], CALLS.items()):
        x = pair.described(case if of != "result" else usual, pair.sent)
        y = pair.described(case if of != "input" else usual, pair.got)
        method = name.removesuffix(" in place")
        found = outcome(pair, functools.partial(make, getattr(comm, method), x, y))
        with closer_looks_alone():
            closer = functools.partial(_CLOSER_LOOKS[method], comm)
            expected = outcome(pair, functools.partial(make, closer, x, y))
        assert found == expected, (of, name)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_one_look_sees(comm: gradred.Comm, pair: Pair, case: Case) -> None:
    x = pair.described(case, pair.sent)
    found = _core.plain_array(x)
    assert (found is not None) == case.plain
    if found is None:
        return
    described = arrays.describe(x, "")
    with closer_looks_alone():
        closer = cuda_interface.read(x, "")
        assert described == dataclasses.replace(arrays.describe(x, ""), owner=x)
    assert found == closer._replace(strides=None, owner=x)


def is_closer(call: Callable[[], object]) -> bool:
    """Whether a call uses the Python reader."""
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
    with pytest.raises(gradred.UsageError):
        comm.Allreduce(x.part(0, 60), x.part(59, 119))
    assert not is_closer(lambda: comm.Allreduce(x.part(0, 50), x.part(50, 100)))
    np.testing.assert_array_equal(x.get(), [1] * 50 + [SIZE] * 50)


def test_an_array_given_twice_is_reduced_in_place(comm: gradred.Comm, device: Driver) -> None:
    x = DeviceArray(device, np.ones(100, "float32"))
    comm.Allreduce(x, x)
    np.testing.assert_array_equal(x.get(), [SIZE] * 100)


def test_first_look_at_a_type_is_a_closer_one(comm: gradred.Comm, pair: Pair) -> None:
    new = type("New", (Described,), {})
    looks = [is_closer(lambda: comm.Allreduce(new(pair.sent), new(pair.got))) for _ in range(2)]
    assert looks == [True, False]
    assert _core.plain_array(new(pair.sent)) is not None
    assert _core.plain_array(type("Derived", (new,), {})(pair.sent)) is None


@pytest.mark.parametrize("base", [list, tuple, np.ndarray])
def test_kinds_that_mean_something_else_are_never_known(pair: Pair, comm: Any, base: type) -> None:
    held = property(lambda _: pair.sent.__cuda_array_interface__)
    kind = type("Kind", (base,), {"__cuda_array_interface__": held})
    x = kind() if base is not np.ndarray else np.zeros(1).view(kind)
    _core.know_device_arrays(kind)
    assert _core.plain_array(x) is None


def test_new_result_on_the_device_takes_no_python_code(comm: gradred.Comm, device: Driver) -> None:
    given = np.arange(SIZE * 6, dtype="f4").reshape(SIZE, 6)
    x = DeviceArray(device, given + RANK)
    for turn in range(2):
        with mock.patch.object(arrays, "describe", side_effect=arrays.describe) as described:
            made = [
                gradred.allreduce(x, comm=comm),
                gradred.reduce_scatter_block(x, comm=comm),
                gradred.allgather(x, comm=comm),
            ]
        assert turn == 0 or not described.called
        summed = given * SIZE + SIZE * (SIZE - 1) // 2
        wanted = [summed, summed[RANK], np.concatenate([given + rank for rank in range(SIZE)])]
        for one, values in zip(made, wanted, strict=True):
            assert isinstance(one, DeviceArray)
            np.testing.assert_array_equal(one.get().ravel(), values.ravel())


def test_interruption_is_no_closer_look(comm: gradred.Comm, pair: Pair) -> None:
    x = Described(pair.sent, raises=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        comm.Allreduce(MPI.IN_PLACE, x)
    assert x.looks == 1
    comm.Allreduce(pair.sent, pair.got)


def test_options_that_have_changed_take_a_closer_look(comm: gradred.Comm, pair: Pair) -> None:
    call = lambda: comm.Allreduce(pair.sent, pair.got)  # noqa: E731
    gradred.config.set("libnccl", "libnone.so")
    assert [is_closer(call) for _ in range(2)] == [True, False]
    gradred.config.reset("libnccl")
    assert [is_closer(call) for _ in range(2)] == [True, False]


def test_what_differs_is_shown_with_what_was_passed(comm: gradred.Comm, pair: Pair) -> None:
    if SIZE == 1:
        pytest.skip("takes two ranks")
    x, y = (Described(each, shape=(COUNT - RANK,)) for each in (pair.sent, pair.got))
    with pytest.raises(gradred.UsageError, match=rf"passed float32 of shape \({COUNT - RANK},\)"):
        comm.Allreduce(x, y)
    comm.Allreduce(pair.sent, pair.got)


def test_hash_of_a_result_is_that_of_its_bytes_wherever_they_lie(
    device: Driver, tmp_path: Path
) -> None:
    """Compare by `gradred.result_hash`, and in the file of GRADRED_RESULT_HASH."""
    config.set("result_hash", str(tmp_path / "{rank}.txt"))
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    config.reset("result_hash")
    x = DeviceArray(device, np.arange(COUNT, dtype="float32"))
    comm.Allreduce(MPI.IN_PLACE, x)
    first = gradred.result_hash(x)
    comm.Iallreduce(MPI.IN_PLACE, x).Wait()
    second = gradred.result_hash(x)
    expected = np.arange(COUNT, dtype="float32") * SIZE
    assert first == gradred.result_hash(expected)
    assert second == gradred.result_hash(expected * SIZE)
    lines = (tmp_path / f"{RANK}.txt").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == [f"{one:016x}" for one in (first, second)]
    comm.Free()
