"""Compare the reduction kernels with the device's own copies, timed by events of one stream."""

from __future__ import annotations

import ctypes
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

import libraries
import numpy as np
from libraries import Library
from telling import so_far

Record = dict[str, Any]
HASH_BYTES = 8  # at the beginning of a file of compiled code
MOST_INPUTS, THREADS = 32, 256
LAUNCHES, ROUNDS = 10, 7
PART = 1 << 18  # bytes that are checked at a time
BYTES = {"float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint8": 1}
# Types that array libraries may not have, with the bits of 1, 2, 4 and 8.
IN_BITS = {
    "bfloat16": ("uint16", {1: 0x3F80, 2: 0x4000, 4: 0x4080, 8: 0x4100}),
    "float8_e4m3fn": ("uint8", {1: 0x38, 2: 0x40, 4: 0x48, 8: 0x50}),
    "float8_e5m2": ("uint8", {1: 0x3C, 2: 0x40, 4: 0x44, 8: 0x48}),
}
BYTES |= {"bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


class Arguments(ctypes.Structure):
    """The kernels' arguments, as in csrc/device/kernels/arguments.h."""

    _fields_ = (
        ("targets", ctypes.c_uint64 * MOST_INPUTS),
        ("inputs", ctypes.c_uint64 * MOST_INPUTS),
        ("count", ctypes.c_uint64),
        ("factor", ctypes.c_double),
        ("written", ctypes.c_uint),
        ("k", ctypes.c_uint),
        ("divide", ctypes.c_uint),
    )


def filled(dtype: str, count: int, value: int) -> Any:
    """Return so many elements of one value, as bytes."""
    stored, bits = IN_BITS.get(dtype, (dtype, {}))
    return np.full(count, bits.get(value, value), stored).view(np.uint8)


def must(code: int) -> None:
    if code != 0:
        raise AssertionError(f"the driver says {code}")


class Kernels:
    """The kernels of a type, from the compiled code that gradred has cached in a folder."""

    def __init__(self, cuda: Any, folder: pathlib.Path, dtype: str) -> None:
        files = (folder / "gradred" / "kernels").glob(f"{dtype}-sm_*")
        file = max(files, key=lambda one: one.stat().st_mtime)  # the driver rejected older files
        code = ctypes.create_string_buffer(file.read_bytes()[HASH_BYTES:])
        self.cuda, self.dtype, self.module = cuda, dtype, ctypes.c_void_p()
        must(cuda.cuModuleLoadData(ctypes.byref(self.module), code))
        units = ctypes.c_int()
        must(cuda.cuDeviceGetAttribute(ctypes.byref(units), 16, 0))
        self.most_blocks = 8 * units.value

    def launch(self, target: int, inputs: list[int], count: int) -> Callable[[], None]:
        """Return a function that launches a sum, without waiting for it."""
        function = ctypes.c_void_p()
        name = f"gradred_{self.dtype}_sum_{len(inputs)}".encode()
        must(self.cuda.cuModuleGetFunction(ctypes.byref(function), self.module, name))
        call = Arguments(count=count, written=1, k=len(inputs), factor=1.0)
        call.targets[0] = target
        call.inputs[: len(inputs)] = inputs
        given = (ctypes.c_void_p * 1)(ctypes.addressof(call))
        vectors = -(-count * BYTES[self.dtype] // (16 * THREADS))
        blocks = max(1, min(vectors, self.most_blocks))

        def action() -> None:
            _ = call  # keeps the arguments alive as long as this function
            where = (blocks, 1, 1, THREADS, 1, 1, 0, ctypes.c_void_p(0))
            must(self.cuda.cuLaunchKernel(function, *where, given, None))

        return action


def microseconds(cuda: Any, action: Callable[[], None]) -> float:
    """Return the median time of one call over the rounds; 0 if the driver measures no time."""
    action()
    must(cuda.cuStreamSynchronize(ctypes.c_void_p(0)))
    if not hasattr(cuda, "cuEventElapsedTime"):
        return 0.0
    events = [ctypes.c_void_p(), ctypes.c_void_p()]
    for event in events:
        must(cuda.cuEventCreate(ctypes.byref(event), 0))
    times = []
    for _ in range(ROUNDS):
        must(cuda.cuEventRecord(events[0], ctypes.c_void_p(0)))
        for _ in range(LAUNCHES):
            action()
        must(cuda.cuEventRecord(events[1], ctypes.c_void_p(0)))
        must(cuda.cuEventSynchronize(events[1]))
        took = ctypes.c_float()
        must(cuda.cuEventElapsedTime(ctypes.byref(took), *events))
        times.append(took.value * 1000 / LAUNCHES)
    for event in events:
        cuda.cuEventDestroy_v2(event)
    return statistics.median(times)


def copy(cuda: Any, to: int, of: int, nbytes: int) -> None:
    where = ctypes.c_uint64(to), ctypes.c_uint64(of), ctypes.c_size_t(nbytes)
    must(cuda.cuMemcpyAsync(*where, ctypes.c_void_p(0)))


def check(cuda: Any, address: int, nbytes: int, wanted: Any) -> None:
    """Check parts as long as `wanted`: the first, the last, and some between."""
    part = len(wanted)
    found = np.zeros(part, np.uint8)
    for begin in sorted({nbytes // 7 * i // part * part for i in range(7)} | {nbytes - part}):
        copy(cuda, found.ctypes.data, address + begin, part)
        must(cuda.cuStreamSynchronize(ctypes.c_void_p(0)))
        if not (found == wanted).all():
            raise AssertionError(f"wrong sums from byte {begin} of {nbytes}")


def measure(library: Library, folder: pathlib.Path, sizes: list[int]) -> list[Record]:
    """Return the bytes moved per second by kernels and by copies of the same length, checked."""
    cuda = libraries.driver()
    rows: list[Record] = []
    arrays = [library.put(np.zeros(max(sizes), np.uint8)) for _ in range(9)]
    to, *at = [library.address(one) for one in arrays]
    for dtype in [*library.types, *IN_BITS]:
        kernels = Kernels(cuda, folder, dtype)
        library.set(arrays[1], filled(dtype, max(sizes) // BYTES[dtype], 1))
        for one in at[1:]:
            copy(cuda, one, at[0], max(sizes))
        for nbytes in sizes:
            count = nbytes // BYTES[dtype]
            # The copy leaves ones in the target of the sums.
            copied = microseconds(cuda, lambda n=nbytes: copy(cuda, to, at[0], n))
            for k in (2, 4, 8):
                took = microseconds(cuda, kernels.launch(to, at[:k], count))
                check(cuda, to, nbytes, filled(dtype, PART // BYTES[dtype], k))
                row: Record = {"type": dtype, "bytes": nbytes, "inputs": k, "us": round(took, 2)}
                if took:
                    row["GB_per_s"] = round((k + 1) * nbytes / took / 1e3, 1)
                    row["copy_GB_per_s"] = round(2 * nbytes / copied / 1e3, 1)
                    row["of_copy"] = round(row["GB_per_s"] / row["copy_GB_per_s"], 3)
                rows.append(row)
                so_far(0, rows)
    return rows
