"""Tensors on a GPU that are read by DLPack's interface for C, with the values of PyTorch's.

PyTorch's own need a build with CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dlpack_tensor import Tensor as DlpackTensor
from gpu.simulated import DeviceArray, Driver
from gpu.test_plain_arrays import COUNT, RANK, SIZE, Pair, comm, pair
from mpi4py import MPI

import gradred
from gradred import _core
from gradred.buffers import torch_versions

__all__ = ["comm", "pair"]  # fixtures of this module


class Storage:
    """A tensor's storage."""

    def __init__(self, held: int) -> None:
        self.held = held

    def nbytes(self) -> int:
        return self.held


class Tensor:
    """The attributes of a PyTorch tensor that gradred reads.

    Args:
        array: its memory.
        offset: the index of its first element there.
        said: other values that it reports, by the names in `DlpackTensor` and of its attributes.
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
        return Storage(self.held)

    def storage_offset(self) -> int:
        return self.offset

    def element_size(self) -> int:
        return 4

    def look(self, found: DlpackTensor) -> None:
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
    """The other type that gradred knows."""


class OfAProgram(Tensor):
    """A type that gradred does not know."""


_LOOK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlpackTensor))
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
    assert _core.know_tensors(Tensor, Parameter, list)
    yield
    _current[0] = 0
    with contextlib.suppress(ImportError):
        import torch

        torch_versions.know.__wrapped__(torch)


@pytest.mark.parametrize("kind", [Tensor, Parameter])
def test_tensors_are_reduced_in_the_order_of_the_current_stream(
    comm: gradred.Comm, tensors: None, device: Driver, kind: type[Tensor]
) -> None:
    stream = device.stream()
    for current in (stream, 0):
        _current[0] = current
        device.set("least_delay", 2_000_000)
        x = DeviceArray(device, np.arange(COUNT, dtype="float32") + RANK, stream=current or None)
        y = DeviceArray(device, np.zeros(COUNT, "float32"))
        device.set("least_delay", 0)
        found = _core.plain_array(kind(x))
        assert found is not None
        assert found[:6] == (x.address, "float32", (COUNT,), None, 4, True)
        assert found[-1] == (current or 1)
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
    assert _core.plain_array(Tensor(pair.sent)) is not None
    assert _core.plain_array(Tensor(pair.sent, **said)) is None


def test_other_types_of_tensors_take_a_closer_look(
    comm: gradred.Comm, tensors: None, pair: Pair
) -> None:
    assert _core.plain_array(OfAProgram(pair.sent)) is None


@pytest.mark.parametrize("in_place", [False, True])
def test_named_allreduces_of_tensors_need_no_closer_look(
    comm: gradred.Comm, tensors: None, device: Driver, in_place: bool
) -> None:
    engine = _core.NamedOperations(comm, 1 << 20)
    handles = _core.Handles(lambda error: error, lambda error: error)
    _current[0] = stream = device.stream()
    for turn in range(3):
        device.set("least_delay", 2_000_000)
        given = np.arange(COUNT, dtype="float32") + RANK
        x = Tensor(DeviceArray(device, given, stream=stream))
        y = x if in_place else Tensor(DeviceArray(device, given, stream=stream))
        device.set("least_delay", 0)
        handle = handles.start_allreduce(engine, x, y, f"{turn}", 1, 1.0, 1.0, 0)
        assert handle is not None
        assert handles.wait(handle) is y
        expected = SIZE * np.arange(COUNT) + SIZE * (SIZE - 1) // 2
        np.testing.assert_array_equal(y.array.get(), expected)
    on_host = Tensor(x.array, device=1, data=given.ctypes.data)
    assert handles.start_allreduce(engine, x, on_host, "both", 1, 1.0, 1.0, 0) is None
    engine.leave()
    device.destroy(stream)
