"""Run as a rank of a section of h200.py: `gradred run -np 2 python ranks.py arrays cupy torch`.

Rank 0 prints the section's record as one line of JSON at the end.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from timeit import Timer
from typing import Any

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))  # blocks.py is there

import ipc
import libraries
import numpy as np
from blocks import agree, block_length, interleave, microseconds
from libraries import Library
from mpi4py import MPI
from telling import so_far

import gradred
from gradred import _core
from gradred.bench.timing import ratio
from gradred.buffers import cuda_interface

Record = dict[str, Any]
LEGACY = 1  # the legacy default stream, after which the libraries' own copies come
WORLD = MPI.COMM_WORLD
SIZES = [8, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 23, 1 << 26, 1 << 28, 1 << 29]
LONG_S = 0.3  # calls that take longer are timed in fewer rounds


# ---- machine ------------------------------------------------------------------------------------


def machine(comm: gradred.Comm, found: list[Library]) -> Record:
    """Record facts of driver and system, and whether two processes can share a device's memory."""
    kept = [library.put(np.zeros(1)) for library in found]  # initialises the driver
    cuda = libraries.driver()
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, 256, 0)
    record: Record = {
        "driver": version.value,
        "device": name.value.decode(),
        "libraries": {library.name: library.version for library in found},
        "mpi": MPI.Get_library_version().splitlines()[0],
        "arrays": len(kept),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": os.uname().release,
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in os.environ or pathlib.Path("/tmp/nvidia-mps").exists(),
        "memfd": _tried(lambda: os.close(os.memfd_create("probe"))),
        "pidfd": _tried(lambda: os.close(os.pidfd_open(os.getpid()))),
    }
    if hasattr(cuda, "cuDeviceGetAttribute"):
        wanted = {"compute_major": 75, "compute_minor": 76, "unified_addressing": 41}
        wanted |= {"stream_values_of_64_bits": 122, "multiprocessors": 16, "pools": 115}
        for key, attribute in wanted.items():
            value = ctypes.c_int()
            code = cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0)
            record[key] = value.value if code == 0 else f"code {code}"
    record["stream_memory_operations"] = _stream_values(cuda)
    record["ipc"] = _ipc(comm, cuda)
    try:
        record["ipc of programs' memory"] = ipc.measure(comm, cuda)
    except RuntimeError as error:
        record["ipc of programs' memory"] = str(error)
    return record


def _stream_values(cuda: Any) -> str:
    """Test whether the device can write a host word and wait for it, in a stream."""
    page, stream = ctypes.c_void_p(), ctypes.c_void_p()
    try:
        write, wait = cuda.cuStreamWriteValue32_v2, cuda.cuStreamWaitValue32_v2
    except AttributeError as missing:
        return str(missing)
    codes = [cuda.cuMemHostAlloc(ctypes.byref(page), ctypes.c_size_t(4096), 0)]
    codes.append(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    at, value = ctypes.c_uint64(page.value or 0), ctypes.c_uint32(7)
    for action in (write, wait):
        codes.append(action(stream, at, value, 0))
    codes.append(cuda.cuStreamSynchronize(stream))
    if any(codes):
        return f"codes {codes}"
    found = ctypes.c_uint32.from_address(at.value).value
    cuda.cuStreamDestroy_v2(stream)
    cuda.cuMemFreeHost(page)
    return "ok" if found == 7 else f"the host finds {found}"


def _tried(action: Callable[[], object]) -> str:
    try:
        action()
    except (OSError, AttributeError) as error:
        return str(error)
    return "ok"


def _ipc(comm: gradred.Comm, cuda: Any) -> str:
    """Let rank 0 export memory, and rank 1 read a pattern in it."""
    handle, address = ipc.Handle(), ctypes.c_uint64()
    if comm.rank == 0:
        codes = [cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20))]
        pattern = np.arange(64, dtype=np.uint8)
        codes.append(_copy(cuda, address.value, pattern.ctypes.data, 64))
        codes.append(cuda.cuIpcGetMemHandle(ctypes.byref(handle), address))
    said = comm.bcast(bytes(handle) if comm.rank == 0 else b"", root=0)
    if comm.rank == 1:
        theirs = ipc.Handle.from_buffer_copy(said)
        codes = [cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), theirs, 1)]
        values = np.zeros(64, np.uint8)
        if codes[0] == 0:
            codes.append(_copy(cuda, values.ctypes.data, address.value, 64))
            codes.append(cuda.cuIpcCloseMemHandle(address))
        codes.append(0 if (values == np.arange(64)).all() else -1)
    all_codes = comm.allgather(codes)  # mpi4py's own method, for objects
    if comm.rank == 0:
        cuda.cuMemFree_v2(address)
    return "ok" if not any(map(any, all_codes)) else f"codes {all_codes}"


def _copy(cuda: Any, target: int, source: int, nbytes: int) -> int:
    to, of = ctypes.c_uint64(target), ctypes.c_uint64(source)
    code = cuda.cuMemcpyAsync(to, of, ctypes.c_size_t(nbytes), ctypes.c_void_p(0))
    return int(code or cuda.cuStreamSynchronize(ctypes.c_void_p(0)))


# ---- arrays -------------------------------------------------------------------------------------


CALLS: list[Callable[[gradred.Comm, Any, Any], object]] = [
    lambda comm, x, y: comm.Allreduce(x, y),
    lambda comm, x, y: comm.Iallreduce(x, y).Wait(),
    lambda comm, x, y: gradred.allreduce(x, out=y, comm=comm),
    lambda comm, x, y: gradred.iallreduce(x, out=y, comm=comm).wait(),
    lambda comm, x, y: gradred.allreduce_many([x], out=[y], comm=comm),
    lambda comm, x, y: gradred.iallreduce(x, out=y, comm=comm, stream=LEGACY).wait(),
    lambda comm, x, y: gradred.iallreduce(x, out=y, comm=comm, stream=LEGACY).wait_stream(LEGACY),
]


def arrays(comm: gradred.Comm, found: list[Library]) -> Record:
    """Make every kind of call; the sums are exact in any order."""
    checks: Record = {}
    total = comm.size * (comm.size + 1) // 2
    for library in found:
        done = 0
        for dtype in library.types:
            for count in (1, 13, 1009, 70_001, 3_000_001):
                mine = np.full(count, comm.rank + 1, dtype)
                x, y = library.put(mine), library.put(np.zeros(count, dtype))
                for call in CALLS:
                    call(comm, x, y)
                    _expect(library.get(y), total, library.name)
                    done += 1
                new = gradred.allreduce(x, comm=comm)
                if type(new) is not type(x):
                    raise AssertionError(f"{library.name}: a {type(new).__name__}")
                _expect(library.get(new), total, library.name)
                average = gradred.allreduce(x, gradred.premul(2.0), comm=comm)
                _expect(library.get(average), 2 * total, library.name)
                comm.Allreduce(MPI.IN_PLACE, x)
                _expect(library.get(x), total, library.name)
                done += 3
        # Mixed: the arrays of even ranks are on the host.
        one = np.full(5000, comm.rank + 1.0)
        mixed = library.put(one) if comm.rank % 2 else one
        _expect(np.asarray(library.get(gradred.allreduce(mixed, comm=comm))), total, "mixed")
        checks[library.name] = done + 1
    return {"checks": checks}


def _expect(values: Any, wanted: float, what: str) -> None:
    if not (np.asarray(values) == wanted).all():
        raise AssertionError(f"{what}: {values[:4]} is not {wanted}")


# ---- kernels ------------------------------------------------------------------------------------


def kernels(comm: gradred.Comm, found: list[Library], most: int) -> Record:
    """Measure on rank 0, after gradred's calls have compiled the kernels."""
    import kernels as measuring

    library = found[0]
    begin = time.monotonic()
    for dtype in library.types:
        gradred.allreduce(library.put(np.ones(1 << 20, dtype)), comm=comm)
    for dtype in measuring.IN_BITS:
        _reduce_in_bits(comm, library, dtype, 1 << 20)
    compiled = time.monotonic() - begin
    sizes = [size for size in (1 << 20, 1 << 24, 1 << 26, 1 << 28, 1 << 29) if size <= most]
    folder = pathlib.Path(os.environ["XDG_CACHE_HOME"])
    rows = measuring.measure(library, folder, sizes) if comm.rank == 0 else []
    WORLD.barrier()
    record: Record = {"library": library.name, "first_calls_s": round(compiled, 2), "rows": rows}
    record["user_op"] = _user_op(comm, library, min(most, 1 << 26))
    return record


def _user_op(comm: gradred.Comm, library: Library, nbytes: int) -> Record:
    """Time an operation of the program's own, and the sum of the same arrays."""
    try:
        op = gradred.user_op(lambda a, b: a if abs(a) > abs(b) else b)
    except gradred.UsageError as error:  # Numba is not installed
        return {"not_measured": str(error)}
    count = nbytes // 4
    x = library.put(np.full(count, -(comm.rank + 1), np.float32))
    y = library.put(np.zeros(count, np.float32))
    comm.Allreduce(x, y, op=op)
    _expect(library.get(y), -comm.size, "a user's operation")
    path = comm.device_path
    timers = [Timer(lambda op=op: comm.Allreduce(x, y, op=op)) for op in ("sum", op)]
    times = interleave(timers, 9, 3, WORLD)
    middle, low, high = ratio(times[:, 1], times[:, 0])
    record: Record = {"bytes": nbytes, "path": path, "sum_us": microseconds(times[:, 0])}
    record |= {"user_op_us": microseconds(times[:, 1])}
    return record | {"over_sum": middle, "p10": low, "p90": high}


def _reduce_in_bits(comm: gradred.Comm, library: Library, dtype: str, count: int) -> None:
    """Make a call on elements of a type that the library may not have."""
    import kernels as measuring

    x = library.put(measuring.filled(dtype, count, 1))
    y = library.put(measuring.filled(dtype, count, 0))
    addresses = [library.address(one) for one in (x, y)]
    nbytes = count * measuring.BYTES[dtype]
    memory = cuda_interface.place(addresses[0], nbytes, LEGACY, "h200.py")
    placement = (
        None if memory is None else _core.Placement(memory, memory, [(memory, LEGACY)], None)
    )
    _core.run(comm, _core.Call("allreduce", *addresses, count, dtype, placement=placement))
    sums = measuring.filled(dtype, count, comm.size)
    if not (np.asarray(library.get(y)) == sums).all():
        raise AssertionError(f"{dtype}: not the sum")


# ---- allreduce ----------------------------------------------------------------------------------


def way_of(ipc_bytes: int | str, ipc_arrays: str = "all") -> gradred.Comm:
    """Make a communicator whose calls go between devices; "none": through host memory.

    With `ipc_arrays="own"` arrays of the library are copied into a workspace.
    """
    gradred.config.set("ipc_bytes", ipc_bytes)
    gradred.config.set("ipc_arrays", ipc_arrays)
    made = gradred.Comm(WORLD.Dup())
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    gradred.config.reset("ipc_bytes")
    gradred.config.reset("ipc_arrays")
    return made


class Own:
    """An array of `gradred.empty`, which the driver fills and reads."""

    def __init__(self, values: Any) -> None:
        self.array = gradred.empty(values.shape, values.dtype, device="cuda")
        self.address = self.array.__cuda_array_interface__["data"][0]
        self.set(values)

    def set(self, values: Any) -> None:
        if _copy(libraries.driver(), self.address, values.ctypes.data, values.nbytes) != 0:
            raise AssertionError("the driver copies nothing there")

    def get(self) -> Any:
        values = np.zeros(self.array.shape, self.array.dtype)
        if _copy(libraries.driver(), values.ctypes.data, self.address, values.nbytes) != 0:
            raise AssertionError("the driver copies nothing from there")
        return values


def allreduce(comm: gradred.Comm, found: list[Library], most: int) -> Record:
    """Time all plans of gradred's, and the MPI on host copies, alternating; results checked."""
    library = found[0]
    world = WORLD.Dup()
    ways = {
        "devices": way_of(1 << 25),
        "workspace": way_of(1 << 25, "own"),
        "host": way_of("none"),
    }
    total = comm.size * (comm.size + 1) // 2
    rows = []
    for nbytes in [size for size in SIZES if size <= most]:
        count = nbytes // 4
        x = library.put(np.full(count, comm.rank + 1, np.float32))
        y = library.put(np.zeros(count, np.float32))
        pageable = np.empty(count, np.float32)

        def by_hand(x: Any = x, y: Any = y, pageable: Any = pageable) -> None:
            sent = library.get(x)
            MPI.Intracomm.Allreduce(world, sent, pageable)
            library.set(y, pageable)

        def by(way: gradred.Comm, x: Any = x, y: Any = y) -> Callable[[], object]:
            return lambda: way.Allreduce(x, y)

        own_x, own_y = Own(np.full(count, comm.rank + 1, np.float32)), Own(np.zeros(count, "f4"))
        calls = {"by hand": by_hand} | {name: by(way) for name, way in ways.items()}
        calls["gradred.empty"] = by(ways["devices"], own_x.array, own_y.array)
        for name, call in calls.items():
            library.set(y, np.zeros(count, np.float32))
            call()
            sums = own_y.get() if name == "gradred.empty" else library.get(y)
            _expect(sums, total, f"{name}: {nbytes} bytes")
        timers = [Timer(call) for call in calls.values()]
        begin = time.monotonic()
        block = min(block_length(timer, 0.02, world) for timer in timers)
        rounds = 9 if agree(time.monotonic() - begin, world) < len(timers) * LONG_S else 3
        times = interleave(timers, rounds, block, world)
        row: Record = {"bytes": nbytes, "calls": block}
        for place, name in enumerate(calls):
            middle, low, high = ratio(times[:, 0], times[:, place])
            row[name] = {"us": microseconds(times[:, place]), "by_hand_over_it": middle}
            row[name] |= {"p10": low, "p90": high}
        rows.append(row)
        so_far(comm.rank, rows)
    return {"library": library.name, "rows": rows}


# ---- order --------------------------------------------------------------------------------------


def order(comm: gradred.Comm, found: list[Library], most: int) -> Record:
    """Run calls in stream order, on the first library's arrays."""
    import order as measuring

    return measuring.measure(comm, found[0], libraries.driver(), most)


def handover(comm: gradred.Comm, found: list[Library]) -> Record:
    """Measure the microseconds between host and device."""
    import handover as measuring

    return measuring.measure(comm, found[0], libraries.driver())


def staging(comm: gradred.Comm, found: list[Library], most: int) -> Record:
    """Compare calls through host memory with the longest of their parts."""
    import handover as measuring

    return measuring.staging(comm, found[0], libraries.driver(), most)


def nccl(comm: gradred.Comm, found: list[Library], most: int) -> Record:
    """Test NCCL, also in a CUDA graph."""
    import nccl as measuring

    kept = found[0].put(np.zeros(1))  # initialises the driver
    record = measuring.measure(comm, found[0], libraries.driver(), most)
    return record | {"arrays": int(kept is not None)}


def crowd(comm: gradred.Comm, found: list[Library], seconds: int) -> Record:
    """Make all kinds of calls for so many seconds."""
    import crowd as measuring

    return measuring.run(comm, found[0], libraries.driver(), seconds)


def death(comm: gradred.Comm, found: list[Library]) -> Record:
    """Kill a rank."""
    import crowd as measuring

    kept = found[0].put(np.zeros(1))  # initialises the driver
    record = measuring.death(comm, found[0], libraries.driver())
    return record | {"arrays": int(kept is not None)}


def training(comm: gradred.Comm, found: list[Library], most: int) -> Record:
    """Test PyTorch's tensors with the front ends."""
    import training as measuring

    return measuring.measure(comm, found[0], most)


SIZED = {
    "training": training,
    "allreduce": allreduce,
    "kernels": kernels,
    "order": order,
    "staging": staging,
    "nccl": nccl,
    "crowd": crowd,
}
PLAIN = {
    "machine": machine,
    "arrays": arrays,
    "handover": handover,
    "death": death,
}


def main() -> None:
    section, *more = sys.argv[1:]
    most = 0
    if section in SIZED:
        unit = {"k": 1 << 10, "m": 1 << 20, "s": 1}
        most = int(more[0][:-1]) * unit[more[0][-1]]
        del more[0]
    comm = gradred.Comm(WORLD)
    found, left_out = libraries.those(more)
    begin = time.monotonic()
    sized = section in SIZED
    record = SIZED[section](comm, found, most) if sized else PLAIN[section](comm, found)
    if left_out:
        record["libraries_left_out"] = left_out
    record["job_seconds"] = round(time.monotonic() - begin, 1)
    if comm.rank == 0:
        print(json.dumps(record), flush=True)
    if section == "death":
        os._exit(0)  # a peer has ended, so MPI_Finalize would hang


if __name__ == "__main__":
    main()
