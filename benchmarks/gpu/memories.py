"""Memory that CUDA IPC does not support: pools and mapped chunks. Section `memories` of h200.py."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred.bench import pointers
from gradred.bench.vectors import Device

Record = dict[str, Any]
COUNT = pointers._BYTES // 8


class Array:
    """Memory at an address."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (COUNT,),
            "typestr": "<f4",
            "data": (address, False),
            "strides": None,
            "stream": 1,
            "version": 3,
        }


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


def measure(comm: gradred.Comm, cuda: Any) -> Record:
    """Check sums of such arrays, and record the driver's answer to an export of each."""
    device = Device("cuda", None, "h200.py")
    stream = ctypes.c_void_p(0)
    kinds = {
        "device": lambda: pointers._allocated(device, "cuMemAlloc_v2"),
        "pool": lambda: pointers._allocated(device, "cuMemAllocAsync", stream),
        "mapped": lambda: pointers._mapped(device) - pointers._CHUNK // 16,  # in two chunks
        "managed": lambda: pointers._allocated(device, "cuMemAllocManaged", 1),
    }
    total = comm.size * (comm.size + 1) // 2
    record: Record = {}
    for name, make in kinds.items():
        given, handle = np.full(COUNT, comm.rank + 1, np.float32), _Handle()
        address = make()
        exported = cuda.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address))
        _copy(cuda, address, given.ctypes.data, given.nbytes)
        x = Array(address)
        comm.Allreduce(MPI.IN_PLACE, x)
        _copy(cuda, given.ctypes.data, address, given.nbytes)
        if not (given == total).all():
            raise AssertionError(f"{name}: {given[:4]} is not {total}")
        record[name] = {"cuIpcGetMemHandle": exported, "path": comm.device_path}
    return record


def _copy(cuda: Any, target: int, source: int, nbytes: int) -> None:
    to, of = ctypes.c_uint64(target), ctypes.c_uint64(source)
    code = cuda.cuMemcpyAsync(to, of, ctypes.c_size_t(nbytes), ctypes.c_void_p(0))
    code = code or cuda.cuStreamSynchronize(ctypes.c_void_p(0))
    if code != 0:
        raise RuntimeError(f"a copy: code {code}")
