"""gradred: a fast and safe allreduce for Python programs on MPI.

Importing this package neither initialises MPI nor imports `mpi4py.MPI`. The names that need MPI
initialise it when the program first uses them.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from gradred.errors import (
    DeviceError,
    Error,
    PeerLost,
    TimeoutError,  # noqa: A004
    TransportError,
    UsageError,
)

if TYPE_CHECKING:
    from gradred.buffers.device_array import DeviceArray
    from gradred.calls.blocking import Allreduce, allreduce, allreduce_many
    from gradred.calls.gathers import gather, igather, iscatter, scatter
    from gradred.calls.nonblocking import ArrayRequest, iallreduce, iallreduce_many
    from gradred.calls.parts import allgather, bcast, reduce_scatter_block
    from gradred.calls.scans import iscan, scan
    from gradred.comm import Comm
    from gradred.hashing import result_hash
    from gradred.launch.run_function import run
    from gradred.memory import empty, empty_like, zeros
    from gradred.ops import OPS, Premul, premul
    from gradred.persistent import PersistentAllreduce
    from gradred.request import Request
    from gradred.user_ops import UserOp, user_op
    from gradred.without_mpi import connect

__version__ = "0.1.0"

# The module of each name that is loaded on first use.
_LAZY = {
    "Allreduce": "calls.blocking",
    "ArrayRequest": "calls.nonblocking",
    "Comm": "comm",
    "DeviceArray": "buffers.device_array",
    "OPS": "ops",
    "PersistentAllreduce": "persistent",
    "Premul": "ops",
    "Request": "request",
    "UserOp": "user_ops",
    "allgather": "calls.parts",
    "allreduce": "calls.blocking",
    "allreduce_many": "calls.blocking",
    "bcast": "calls.parts",
    "connect": "without_mpi",
    "empty": "memory",
    "empty_like": "memory",
    "gather": "calls.gathers",
    "iallreduce": "calls.nonblocking",
    "iallreduce_many": "calls.nonblocking",
    "igather": "calls.gathers",
    "iscan": "calls.scans",
    "iscatter": "calls.gathers",
    "premul": "ops",
    "reduce_scatter_block": "calls.parts",
    "result_hash": "hashing",
    "run": "launch.run_function",
    "scan": "calls.scans",
    "scatter": "calls.gathers",
    "user_op": "user_ops",
    "zeros": "memory",
}

# The modules of this table that import mpi4py.MPI and so initialise MPI if nothing has done so.
_START_MPI = {
    *("calls.blocking", "calls.gathers", "calls.nonblocking", "calls.parts", "calls.scans"),
    *("comm", "persistent", "request"),
}

__all__ = [
    "OPS",
    "Allreduce",
    "ArrayRequest",
    "Comm",
    "DeviceArray",
    "DeviceError",
    "Error",
    "PeerLost",
    "PersistentAllreduce",
    "Premul",
    "Request",
    "TimeoutError",
    "TransportError",
    "UsageError",
    "UserOp",
    "__version__",
    "allgather",
    "allreduce",
    "allreduce_many",
    "bcast",
    "connect",
    "empty",
    "empty_like",
    "gather",
    "iallreduce",
    "iallreduce_many",
    "igather",
    "iscan",
    "iscatter",
    "premul",
    "reduce_scatter_block",
    "result_hash",
    "run",
    "scan",
    "scatter",
    "user_op",
    "zeros",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'gradred' has no attribute {name!r}")
    if _LAZY[name] in _START_MPI and "mpi4py.MPI" not in sys.modules:
        _start_mpi(name)
    value = getattr(importlib.import_module(f"gradred.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def _start_mpi(name: str) -> None:
    """Import `mpi4py.MPI`, which calls MPI_Init.

    Raises:
        UsageError: no MPI is installed, or this process must not initialise it.
    """
    _require_mpi4py(f"gradred.{name}")
    from gradred.launch import wrong_launcher

    wrong_launcher.refuse_child()
    _import_mpi(f"gradred.{name}")


def _require_mpi4py(asked: str) -> None:
    from gradred.errors import explain

    try:
        import mpi4py  # noqa: F401 (checked by itself: pip can leave it out)
    except ModuleNotFoundError as error:
        remedy = 'Install it with: pip install "mpi4py>=4.1"'
        raise UsageError(explain(asked, "there is no mpi4py", remedy)) from error


def _import_mpi(asked: str) -> None:
    """Import `mpi4py.MPI`, which needs the library of an MPI even if nothing initialises it."""
    from gradred.errors import INSTALL_MPI, explain

    _require_mpi4py(asked)
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        found = f"mpi4py finds no MPI ({' '.join(str(error).split())})"
        raise UsageError(explain(asked, found, INSTALL_MPI)) from error


def __dir__() -> list[str]:
    return sorted(__all__)
