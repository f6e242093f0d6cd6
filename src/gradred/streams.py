"""CUDA streams: the values of `stream=`, and operations that streams wait for."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Final

from gradred import _core
from gradred.errors import UsageError, UsageTypeError, type_of

StreamLike = Any
"""An integer as in the array API (1: the legacy default stream, 2: the calling thread's own
default stream, else the driver's handle), or a stream of CuPy, PyTorch, Numba or cuda.core."""

LEGACY_DEFAULT: Final = 1
"""The stream that synchronises with all other streams, unless they were made non-blocking."""

_REMEDY = "Pass a stream of CuPy, PyTorch, Numba or cuda.core, its handle, or None"
_warned: set[str] = set()


def handle_of(stream: StreamLike, asked: str) -> int:
    """Return the CUDA driver's handle of a stream.

    Raises:
        gradred.UsageError: `stream` is not a stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream == 0:
            found = "0 may mean the legacy default stream or the calling thread's own"
            remedy = "Pass 1 for the legacy default stream, 2 for the calling thread's own"
            raise UsageError(f"{asked} with stream=0", found, remedy)
        handle: Any = stream
    else:
        handle = _handle_inside(stream)
    if not isinstance(handle, int) or isinstance(handle, bool):
        found = f"{type_of(stream)} is not a CUDA stream"
        raise UsageTypeError(f"{asked} with stream={stream!r}", found, _REMEDY)
    if handle < 0:
        found = "no stream has a handle below zero"
        raise UsageError(f"{asked} with stream={stream!r}", found, _REMEDY)
    return handle or LEGACY_DEFAULT  # libraries use the null handle for the legacy default stream


def _handle_inside(stream: Any) -> Any:
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
        return handle
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba
        handle = getattr(stream, name, None)
        if handle is not None:
            value = getattr(handle, "value", handle)  # ctypes gives None for a null pointer
            return 0 if value is None else value
    return None


def warn_if_host_waits(operation: _core.Operation) -> None:
    """Warn, once for each reason, that the host waits although the program has given a stream."""
    why = operation.why_host_waits
    if why and why not in _warned:
        _warned.add(why)
        frame, level = sys._getframe(), 1
        while frame.f_back and str(frame.f_globals.get("__name__")).startswith("gradred."):
            frame, level = frame.f_back, level + 1
        warnings.warn(
            f"stream=: the host waits for results in the order of a stream: {why}",
            RuntimeWarning,
            stacklevel=level,  # the program's line
        )


def make_wait(operation: _core.Operation, stream: int) -> None:
    """Make a stream wait for the result; blocks if the operation is not in stream order."""
    if operation.in_stream_order:
        operation.wait_stream(stream)
    else:
        operation.wait()
