"""This process as one of the ranks of JAX programs, from `init` to its exit."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import jax
import jaxlib

from gradred import _core
from gradred.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.named import NamedOperations

ffi: Any = jax.ffi if hasattr(jax, "ffi") else importlib.import_module("jax.extend.ffi")
"""JAX's module for foreign functions, which JAX 0.5 has moved."""

TARGET = "gradred_collective"
"""The name by which XLA knows the handler."""


class _Ranks:
    """The named operations of this process's JAX programs; None before the first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: NamedOperations | None = None


_ranks = _Ranks()


def init(comm: MPI.Intracomm | None = None) -> None:
    """Choose the ranks that take part in the collectives. Blocking and collective.

    Without it the first collective of a program calls it, for all ranks of COMM_WORLD.

    Args:
        comm: any intracommunicator of mpi4py, or what `gradred.connect` returns; None is
            COMM_WORLD. The collectives use a duplicate.

    Raises:
        gradred.UsageError: it was called before; JAX is older than 0.4.35; or the MPI allows no
            calls from other threads.
    """
    with _ranks.lock:
        if _ranks.engine is not None:
            found = "the collectives of this process have their ranks already"
            raise UsageError("gradred.jax.init", found, "Call it once, before the first collective")
        _ranks.engine = _begin(comm)


def engine() -> NamedOperations:
    """The named operations that carry out the collectives, made at the first call."""
    with _ranks.lock:
        if _ranks.engine is None:
            _ranks.engine = _begin(None)
        return _ranks.engine


def rank() -> int:
    """Return the number of this process, from 0. Blocking and collective if `init` was not called.

    It is the same while a program is traced: a Python number.
    """
    return engine().rank


def size() -> int:
    """Return the number of ranks. Blocking and collective if `init` was not called."""
    return engine().size


def _begin(comm: MPI.Intracomm | None) -> NamedOperations:
    import gradred
    from gradred.named import NamedOperations

    futures_at = _futures_at()
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    ranks = comm if isinstance(comm, gradred.Comm) else gradred.Comm(comm)
    made = NamedOperations(ranks, title="JAX programs")
    _core.serve_jax(made, futures_at)
    on_host, on_device = _core.jax_handlers()
    ffi.register_ffi_target(TARGET, on_host, platform="cpu")
    for platform in ("CUDA", "ROCM"):
        ffi.register_ffi_target(TARGET, on_device, platform=platform)
    atexit.register(_finish, os.getpid())
    return made


def _futures_at() -> int:
    """Return the number of XLA's first function for futures in its table.

    Raises:
        gradred.UsageError: jaxlib is older than 0.4.35.
    """
    version = tuple(int(part) for part in jaxlib.__version__.split(".")[:3])
    if version < (0, 4, 35):
        found = f"jaxlib is {jaxlib.__version__}"
        raise UsageError("gradred.jax", found, "Install jax 0.4.35 or newer")
    return 12 if version < (0, 4, 38) else 13


def _finish(process: int) -> None:
    """Wait at exit for the collectives of programs that JAX has dispatched, as peers need them.

    Programs that one thread dispatches to a CPU run in their order, so it waits for one more. After
    an exception nothing is waited for: this rank leaves, and its peers get an error. In a notebook
    or a prompt, the last exception was that of a cell or a line.
    """
    is_prompt = hasattr(sys, "ps1")
    has_failed = getattr(sys, "last_value", None) is not None and not is_prompt
    if os.getpid() == process and not has_failed:
        jax.block_until_ready(jax.jit(lambda x: x + 1)(0.0))
