"""Collectives of JAX programs over several processes: `lax.psum`, `pjit`, `shard_map` by gradred.

XLA's CPU client uses gloo for them, or an MPI. Here gradred takes the place of that MPI
(docs/jax.md). This module does not import JAX, whose library looks for the MPI when it is loaded.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gradred import _core
from gradred.errors import UsageError

if TYPE_CHECKING:
    from mpi4py import MPI

    from gradred.comm import Comm

Processes: TypeAlias = "tuple[Comm, Comm, _core.Mailboxes | None]"
"""A communicator for calls, one for messages, and the messages' memory."""


_one_at_a_time = threading.Lock()
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"


def serve(comm: MPI.Intracomm | None = None) -> None:
    """Let gradred carry out the collectives of JAX programs over several processes. Local.

    Call it before `import jax`. Then `jax.distributed.initialize` connects the processes as always,
    and their collectives are gradred's. JAX before 0.5 also needs the line
    `jax.config.update("jax_cpu_collectives_implementation", "mpi")`.

    Args:
        comm: has the processes as its ranks: an intracommunicator of mpi4py, or what
            `gradred.connect` returns. None is COMM_WORLD. The collectives use duplicates, which are
            made when JAX makes its CPU client.

    Raises:
        gradred.UsageError: JAX has been imported, or the environment asks for gloo.

    Example:
        >>> from gradred import jax_stand_in  # doctest: +SKIP
        >>> jax_stand_in.serve()  # doctest: +SKIP
        >>> import jax  # doctest: +SKIP
        >>> jax.distributed.initialize(cluster_detection_method="mpi4py")  # doctest: +SKIP
    """
    asked = "gradred.jax_stand_in.serve"
    if "jaxlib" in sys.modules:
        found = "JAX has been imported, and looks for an MPI only then"
        raise UsageError(asked, found, "Call it before import jax")
    if (chosen := os.environ.get(_IMPLEMENTATION, "mpi")) != "mpi":
        raise UsageError(asked, f"{_IMPLEMENTATION} is {chosen!r}", "Unset it, or set it to mpi")
    os.environ[_IMPLEMENTATION] = "mpi"
    os.environ["MPITRAMPOLINE_LIB"] = str(_core.__file__)
    ranks = functools.cache(lambda: _duplicate(comm))
    _core.serve_jax_processes(
        lambda: _processes(ranks()), lambda color, key: _processes(_group(ranks(), color, key))
    )


def _duplicate(comm: MPI.Intracomm | None) -> Comm:
    """Duplicate the communicator of all processes. Blocking and collective."""
    import gradred

    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    return (comm if isinstance(comm, gradred.Comm) else gradred.Comm(comm)).Dup()


def _processes(comm: Comm) -> Processes:
    """Add what messages between the processes need. Blocking and collective."""
    messages = comm.Dup()
    return comm, messages, _core.mailboxes(messages, range(comm.size))


def _group(world: Comm, color: int, key: int) -> Comm:
    """Make the communicator of the processes that pass this color, in the order of their keys.

    All processes call it at the same time. It compares what they pass first, with the time limit
    and the reports of a collective of gradred's.
    """
    with _one_at_a_time:  # of several devices, each has a thread
        return _group_of(world, color, key)


def _group_of(world: Comm, color: int, key: int) -> Comm:
    passed = np.empty((world.size, 2), np.int64)
    world.Allgather(np.array([color, key], np.int64), passed)
    members = [rank for rank in range(world.size) if passed[rank, 0] == color]
    keys = sorted(int(passed[rank, 1]) for rank in members)
    if keys != list(range(len(members))):
        found = "a process has several CPU devices in a group that spans processes"
        remedy = "Use one CPU device in each process, or gloo"
        raise UsageError("a collective of JAX", found, remedy)
    in_order = [passed[rank, 1] for rank in range(world.size)] == list(range(world.size))
    return world.Dup() if in_order else world.Split(color, key)
