"""Libraries of GPU arrays behind one interface (put, get, set), and the driver below them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIMULATED = ROOT / "tests" / "libsimulated_cuda.so"


class Library(NamedTuple):
    """One library. Each function blocks until it is done."""

    name: str
    version: str
    types: list[str]
    put: Callable[[Any], Any]
    get: Callable[[Any], Any]
    set: Callable[[Any, Any], None]
    address: Callable[[Any], int]
    use: Callable[[int], object]
    """Makes a device current in this thread."""


def _cupy() -> Library:
    import cupy

    def get(x: Any) -> Any:
        return cupy.asnumpy(x)

    def put(x: Any) -> Any:
        made = cupy.asarray(x)
        cupy.cuda.get_current_stream().synchronize()
        return made

    def assign(x: Any, values: Any) -> None:
        x.set(values)
        cupy.cuda.get_current_stream().synchronize()

    types = ["float32", "float64", "float16", "int32", "int64", "uint8"]
    address = lambda x: int(x.data.ptr)  # noqa: E731
    use = lambda number: cupy.cuda.Device(number).use()  # noqa: E731
    return Library("cupy", cupy.__version__, types, put, get, assign, address, use)


def _torch() -> Library:
    import torch

    if not torch.cuda.is_available():
        raise ImportError("this PyTorch has no GPU")

    def put(x: Any) -> Any:
        made = torch.from_numpy(x).cuda()
        torch.cuda.synchronize()
        return made

    def assign(x: Any, values: Any) -> None:
        x.copy_(torch.from_numpy(values))
        torch.cuda.synchronize()

    def get(x: Any) -> Any:
        return x.cpu().numpy() if isinstance(x, torch.Tensor) else x

    types = ["float32", "float64", "float16", "int32", "int64", "uint8"]
    version = str(torch.__version__)
    address = lambda x: int(x.data_ptr())  # noqa: E731
    return Library("torch", version, types, put, get, assign, address, torch.cuda.set_device)


def _numba() -> Library:
    import numba
    from numba import cuda

    if not cuda.is_available():
        raise ImportError("Numba sees no GPU")

    def assign(x: Any, values: Any) -> None:
        x.copy_to_device(values)
        cuda.synchronize()

    def get(x: Any) -> Any:
        return x.copy_to_host() if hasattr(x, "copy_to_host") else x

    def address(x: Any) -> int:
        return int(x.__cuda_array_interface__["data"][0])

    types = ["float32", "float64", "int32"]
    made = numba.__version__, types, cuda.to_device, get, assign, address
    return Library("numba", *made, cuda.select_device)


def _simulated() -> Library:
    for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL"):
        os.environ[f"GRADRED_{name}"] = str(SIMULATED)
    sys.path.insert(0, str(ROOT / "tests"))
    from gpu.simulated import DeviceArray, the_driver

    def get(x: Any) -> Any:
        return x.get() if isinstance(x, DeviceArray) else x

    def assign(x: Any, values: Any) -> None:
        x.driver.copy(x.address, np.ascontiguousarray(values).ctypes.data, values.nbytes)

    types = ["float32", "float64", "int32"]
    make = lambda x: DeviceArray(the_driver(), x)  # noqa: E731
    address = lambda x: int(x.address)  # noqa: E731
    use = lambda number: the_driver().use_in_this_thread(number)  # noqa: E731
    return Library("simulated", "-", types, make, get, assign, address, use)


_KNOWN = {"cupy": _cupy, "torch": _torch, "numba": _numba, "simulated": _simulated}


def those(names: list[str]) -> tuple[list[Library], dict[str, str]]:
    """Return the named libraries; without names all that work, of which there must be one.

    Also returns why other installed libraries do not work; a failure of one stops no section.
    """
    if names:
        return [_KNOWN[name]() for name in names], {}
    found, left_out = [], {}
    for name in ("cupy", "torch", "numba"):
        if importlib.util.find_spec(name) is None:
            continue
        try:
            library = _KNOWN[name]()
            if (np.asarray(library.get(library.put(np.ones(3, np.float32)))) != 1).any():
                raise AssertionError("it does not give back what it was given")
            found.append(library)
        except Exception as error:
            left_out[name] = f"{type(error).__name__}: {error}"
    if not found:
        sys.exit(f"there is no CuPy, PyTorch or Numba with a GPU here: {left_out}")
    return found, left_out


def driver() -> Any:
    """Return the driver that the libraries have loaded and initialised."""
    name = os.environ.get("GRADRED_LIBCUDA", "libcuda.so.1")
    return ctypes.CDLL(name)
