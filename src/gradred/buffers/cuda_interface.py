"""Read the CUDA Array Interface, of arrays on a GPU and of arrays in host memory.

An array may have this interface and still lie in host memory: some objects imitate GPU arrays, and
some libraries leave the placement to the driver. So this module asks the driver, if the process
has one.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gradred import _core
from gradred.buffers.dlpack import LEGACY_STREAM, THREADS_STREAM, Exported
from gradred.errors import DeviceError, UsageError

NO_PATH = "which gradred cannot reach"
COPY_FIRST = "Copy the array to host memory first, for example with cupy.asnumpy(x) or x.cpu()"


def is_hosts(x: Any) -> bool:
    """Return whether it is a NumPy array without a GPU interface; Numba's managed ones have one."""
    plain = type(x) is np.ndarray
    return plain or (isinstance(x, np.ndarray) and not hasattr(x, "__cuda_array_interface__"))


def is_numbas(x: Any) -> bool:
    """Return whether it is an array of `numba.cuda`; views of managed or mapped arrays are not."""
    return hasattr(x, "__cuda_ndarray__") and hasattr(x, "__cuda_array_interface__")


def read(x: Any, asked: str) -> Exported:
    """Read the interface of `x`, and ask the driver for the device that owns the memory.

    Raises:
        gradred.DeviceError: it is not memory of this process.
        gradred.UsageError: the interface is not valid, or the array has a mask.
    """
    try:
        interface = x.__cuda_array_interface__  # once, since libraries rebuild it on each access
        found, stream = _parsed(interface)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        said = f"its CUDA Array Interface makes no sense: {type(error).__name__}: {error}"
        raise UsageError(asked, said, "Pass another kind of array") from error
    if interface.get("mask") is not None:
        remedy = "Pass it with the masked elements filled, by the operation's neutral value"
        raise UsageError(asked, "the array has a mask", remedy)
    if stream is None and is_numbas(x):
        stream = _numbas_default_stream()
    memory = place(found.address, math.prod(found.shape) * found.itemsize, stream, asked)
    return found._replace(owner=x, memory=memory, stream=stream if memory else None)


def _parsed(interface: Any) -> tuple[Exported, int | None]:
    dtype = np.dtype(interface["typestr"])
    shape = tuple(int(length) for length in interface["shape"])
    address, readonly = interface["data"]
    steps = interface.get("strides")
    strides = None if steps is None else tuple(int(step) for step in steps)
    name = dtype.name if dtype.isnative else dtype.str
    stream = interface.get("stream")
    found = Exported(int(address or 0), name, shape, strides, dtype.itemsize, not readonly, None)
    return found, None if stream is None else int(stream)


def _numbas_default_stream() -> int:
    """Return the stream in which Numba works on its arrays that name no stream."""
    settings = getattr(sys.modules.get("numba"), "config", None)
    by_thread = getattr(settings, "CUDA_PER_THREAD_DEFAULT_STREAM", False)
    return THREADS_STREAM if by_thread else LEGACY_STREAM


def place(address: int, nbytes: int, stream: int | None, asked: str) -> _core.DeviceMemory | None:
    """Ask the driver for the device that owns an address; None for host memory.

    For host memory it blocks until the work of `stream` is done.

    Raises:
        gradred.DeviceError: it is not memory of this process.
    """
    said = "the array says that it is a GPU's, and its memory is"
    return _found(address, nbytes, stream, asked, said)


def place_of_buffer(address: int, nbytes: int, asked: str) -> _core.DeviceMemory | None:
    """Do as `place` for memory that the buffer protocol exports; it may be a device's.

    Programs write this for a CUDA-aware MPI: `MPI.buffer.fromaddress(address, nbytes)`. Memory that
    the host can read counts as host memory, without a question to the driver.
    """
    if _core.is_readable(address, nbytes):
        return None
    return _found(address, nbytes, None, asked, "the buffer's memory is")


def _found(
    address: int, nbytes: int, stream: int | None, asked: str, said: str
) -> _core.DeviceMemory | None:
    if address == 0 or nbytes == 0:
        return None
    kind, text, memory = _core.locate(address, nbytes, stream, libraries())
    if kind == "nowhere":
        remedy = "Pass one that is alive, in a process that sees the GPU it was made on"
        raise DeviceError(asked, f"{said} {text}", remedy)
    return memory


@functools.cache
def libraries() -> list[str]:
    """Return the paths of NVRTC, its linker and NCCL in NVIDIA's Python packages, newest first.

    Loads none of them.
    """
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(one) for one in (spec and spec.submodule_search_locations) or ()]
    patterns = ("*/lib/libnvrtc.so.*", "*/lib/libnvJitLink.so.*", "*/lib/libnccl.so.*")
    found = [file for one in folders for pattern in patterns for file in one.glob(pattern)]
    return [str(file) for file in sorted(found, key=_version, reverse=True)]


def _version(library: Path) -> tuple[int, ...]:
    """Return the version behind the library's name; names of folders give no full version."""
    numbers = library.name.partition(".so.")[2].split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())


def finish_stream(arrays: Iterable[_core._Placed | None], stream: int | None) -> None:
    """Block until a stream's work is done, if an array lies in host memory."""
    if stream is None:
        return
    for each in arrays:
        if each is not None and each.memory is None and each.address and each.nbytes:
            place(each.address, each.nbytes, stream, "stream=")
            return


def require_host(given: _core._Placed, asked: str) -> None:
    """Raise DeviceError for device memory that the MPI or the host itself would have to read."""
    if given.memory is not None:
        found = (
            f"the array is in the memory of {given.memory.name}, and the MPI carries out this "
            "call, which is given host memory alone"
        )
        raise DeviceError(asked, found, COPY_FIRST)
