"""Test what CUDA IPC does with memory that a program frees while peers have it open.

Part of section `machine` of h200.py. gradred relies on this behaviour, since it reads programs' own
allocations directly.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import gradred

Record = dict[str, Any]
SMALL, LARGE = 5000, 40 << 20
BUFFER_ID = 7


class Handle(ctypes.Structure):
    """The driver's CUipcMemHandle."""

    _fields_ = (("bytes", ctypes.c_char * 64),)


class Memory:
    """Allocations of this process, and those of the other process that it opens."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def must(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: code {code}")

    def allocate(self, nbytes: int, content: int) -> int:
        address = ctypes.c_uint64()
        self.must("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(nbytes))
        word = np.array([content], np.uint32)
        there = ctypes.c_uint64(address.value)
        source = ctypes.c_void_p(word.ctypes.data)
        self.must("cuMemcpyHtoD_v2", there, source, ctypes.c_size_t(4))
        return address.value

    def free(self, address: int) -> None:
        self.must("cuMemFree_v2", ctypes.c_uint64(address))

    def export(self, address: int) -> bytes:
        handle = Handle()
        self.must("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(address))
        return bytes(handle)

    def id_of(self, address: int) -> int:
        found = ctypes.c_ulonglong()
        names, values = (
            (ctypes.c_int * 1)(BUFFER_ID),
            (ctypes.c_void_p * 1)(ctypes.addressof(found)),
        )
        self.must("cuPointerGetAttributes", 1, names, values, ctypes.c_uint64(address))
        return found.value

    def open(self, handle: bytes) -> int:
        address = ctypes.c_uint64()
        theirs = Handle.from_buffer_copy(handle)
        self.must("cuIpcOpenMemHandle_v2", ctypes.byref(address), theirs, 1)
        return address.value

    def close(self, address: int) -> None:
        self.must("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def read(self, address: int) -> int:
        word = np.zeros(1, np.uint32)
        target = ctypes.c_void_p(word.ctypes.data)
        self.must("cuMemcpyDtoH_v2", target, ctypes.c_uint64(address), ctypes.c_size_t(4))
        return int(word[0])


def note(record: Record, name: str, look: Callable[[], Any]) -> Any:
    """Record a result or an error; an error must not stop, since the other rank waits."""
    try:
        record[name] = look()
    except RuntimeError as error:
        record[name] = str(error)
    return record[name]


def opens(memory: Memory, handles: list[bytes], record: Record) -> list[int]:
    """Open rank 0's first allocations, which stay open."""
    begin = time.perf_counter()
    opened = [memory.open(one) for one in handles]
    record["opening three us"] = round((time.perf_counter() - begin) * 1e6, 1)
    record["read where they begin"] = [memory.read(one) for one in opened] == [1, 2, 3]
    again = memory.open(handles[2])
    record["opened twice at one address"] = again == opened[2]
    memory.close(again)
    record["closed once it stays open"] = memory.read(opened[2]) == 3
    return opened


def looks_anew(memory: Memory, opened: list[int], handles: list[bytes], record: Record) -> None:
    """Read the old allocations, which rank 0 has freed, and the new; close the old, read again."""
    note(record, "what was freed reads", lambda: [memory.read(one) for one in opened[1:]])
    others: list[int] = []

    def read_new() -> list[int]:
        if not others:
            others.extend([memory.open(one) for one in handles])
        return [memory.read(one) for one in others]

    note(record, "new ones read", read_new)
    note(record, "closing", lambda: [memory.close(one) for one in opened[1:]].count(None))
    note(record, "new ones read when the old ones are closed", read_new)


def measure(comm: gradred.Comm, cuda: Any) -> Record:
    """Rank 0 allocates, frees and allocates again, while rank 1 has the memory open."""
    memory, sent = Memory(cuda), {}
    mine: list[int] = []
    if comm.rank == 0:
        mine = [memory.allocate(SMALL, 1), memory.allocate(SMALL, 2), memory.allocate(LARGE, 3)]
        sent = {"handles": [memory.export(one) for one in mine], "at": mine}
    sent = comm.bcast(sent)
    record: Record = {}
    opened: Any = None
    if comm.rank == 1:
        opened = note(record, "opened", lambda: opens(memory, sent["handles"], record))
    comm.Barrier()
    if comm.rank == 0:
        ids = [memory.id_of(one) for one in mine]
        for one in mine[1:]:
            memory.free(one)
        new = [memory.allocate(SMALL, 4), memory.allocate(LARGE, 5)]
        sent = {"handles": [memory.export(one) for one in new]}
        sent["same addresses"] = new == mine[1:]
        sent["other buffer ids"] = not {memory.id_of(one) for one in new} & set(ids)
    sent = comm.bcast(sent)
    if comm.rank == 1:
        record |= {name: sent[name] for name in ("same addresses", "other buffer ids")}
        looks_anew(memory, opened if isinstance(opened, list) else [], sent["handles"], record)
    return comm.bcast(record, 1)
