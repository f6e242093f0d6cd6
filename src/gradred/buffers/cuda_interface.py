"""Reading the CUDA Array Interface of arrays that lie in host memory.

An array may have it wherever it lies: objects that pretend to be a GPU's, and libraries that leave
the place to the driver. So the driver is asked, if this process has one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradred import _core
from gradred.buffers.dlpack import Exported
from gradred.errors import DeviceError, UsageError, explain

NO_GPU_PATH = "which this build of gradred cannot reach: it has no GPU support"
COPY_FIRST = "Copy the array to host memory first, for example with cupy.asnumpy(x) or x.cpu()"


def read(x: Any, asked: str) -> Exported:
    """What `x` says about its memory, which is the host's.

    Raises:
        gradred.DeviceError: it is a GPU's, or no memory of this process at all.
        gradred.UsageError: the interface makes no sense, or has a mask.
    """
    try:
        found, stream = _parsed(x.__cuda_array_interface__)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        said = f"its CUDA Array Interface makes no sense: {type(error).__name__}: {error}"
        raise UsageError(explain(asked, said, "Pass another kind of array")) from error
    if x.__cuda_array_interface__.get("mask") is not None:
        remedy = "Pass it with the masked elements filled, by the operation's neutral value"
        raise UsageError(explain(asked, "the array has a mask", remedy))
    _require_host(found, stream, asked)
    return found._replace(owner=x)


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


def _require_host(found: Exported, stream: int | None, asked: str) -> None:
    nbytes = math.prod(found.shape) * found.itemsize
    if found.address == 0 or nbytes == 0:
        return
    place, text = _core.locate(found.address, nbytes, stream)
    if place == "device":
        raise DeviceError(explain(asked, f"the array is in {text}, {NO_GPU_PATH}", COPY_FIRST))
    if place == "nowhere":
        said = f"the array has the CUDA Array Interface, and its memory is {text}"
        remedy = "Pass one that is alive, in a process that sees the GPU it was made on"
        raise DeviceError(explain(asked, said, remedy))
