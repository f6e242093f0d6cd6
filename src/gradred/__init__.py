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
    from gradred.calls.array_request import ArrayRequest
    from gradred.calls.exact import exact_sum
    from gradred.calls.functions import (
        Allreduce,
        allgather,
        allreduce,
        allreduce_many,
        bcast,
        gather,
        iallreduce,
        iallreduce_many,
        igather,
        iscan,
        iscatter,
        reduce_scatter_block,
        scan,
        scatter,
    )
    from gradred.comm import Comm
    from gradred.hashing import result_hash
    from gradred.launch.run_function import run
    from gradred.memory import empty, empty_like, zeros
    from gradred.ops import OPS, Premul, premul
    from gradred.persistent import PersistentAllreduce
    from gradred.request import Request
    from gradred.user_ops import UserOp, user_op
    from gradred.wire import WIRES
    from gradred.without_mpi import connect

__version__ = "0.1.0"

# The names that are loaded on first use, by module.
_LAZY = {
    name: module
    for module, names in {
        "buffers.device_array": "DeviceArray",
        "calls.array_request": "ArrayRequest",
        "calls.exact": "exact_sum",
        "calls.functions": (
            "Allreduce allgather allreduce allreduce_many bcast gather iallreduce iallreduce_many "
            "igather iscan iscatter reduce_scatter_block scan scatter"
        ),
        "comm": "Comm",
        "calls.of_leaves": "leaves_of_job",
        "hashing": "result_hash",
        "launch.run_function": "run",
        "memory": "empty empty_like zeros",
        "ops": "OPS Premul premul",
        "wire": "WIRES",
        "persistent": "PersistentAllreduce",
        "request": "Request",
        "user_ops": "UserOp user_op",
        "without_mpi": "connect",
    }.items()
    for name in names.split()
}

# The modules of this table that import mpi4py.MPI and so initialise MPI if nothing has done so.
_START_MPI = {
    "calls.array_request",
    "calls.exact",
    "calls.functions",
    "calls.of_leaves",
    "comm",
    "persistent",
    "request",
}

__all__ = [
    "OPS",
    "WIRES",
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
    "exact_sum",
    "gather",
    "iallreduce",
    "iallreduce_many",
    "igather",
    "iscan",
    "iscatter",
    "leaves_of_job",
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
    try:
        import mpi4py  # noqa: F401 (checked by itself: pip can leave it out)
    except ModuleNotFoundError as error:
        remedy = 'Install it with: pip install "mpi4py>=4"'
        raise UsageError(asked, "there is no mpi4py", remedy) from error


def _import_mpi(asked: str) -> None:
    """Import `mpi4py.MPI`, which needs the library of an MPI even if nothing initialises it."""
    from gradred.errors import INSTALL_MPI

    _require_mpi4py(asked)
    try:
        from mpi4py import MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        found = f"mpi4py finds no MPI ({' '.join(str(error).split())})"
        raise UsageError(asked, found, INSTALL_MPI) from error


def __dir__() -> list[str]:
    return sorted(__all__)
