"""`gradred.connect`: a communicator of processes that MPI did not start.

For example processes of torchrun, multiprocessing or the user's own launcher.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradred.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradred.comm import Comm


def connect(rank: int, size: int, allgather: Callable[[bytes], Sequence[bytes]]) -> Comm:
    """Make a communicator of processes that no mpiexec has started. Blocking and collective.

    The processes find each other by `allgather`, which may use anything that all of them can
    reach: a key-value store, pipes, files.

    On one host they need no MPI: after that all communication goes through shared memory. The
    communicator supports the calls that `Comm.shrink` lists, and `NamedOperations`. If a rank ends,
    the others raise `PeerLost`. A process that was not started by MPI does not initialise MPI here.

    On several hosts the processes initialise MPI, without mpiexec, and the communicator has the
    ranks of MPI_COMM_WORLD. This works once in a process, and with MPICH or an MPI of its family.

    Args:
        rank: the number of this process, from 0.
        size: the number of processes.
        allgather: a function that takes this rank's bytes and returns those of all ranks, by rank.
            It is called a few times, on all ranks alike. Its exceptions propagate to the caller.

    Raises:
        gradred.UsageError: The processes share no memory (they are on several hosts, or in
            containers with memory of their own, or `GRADRED_SHM=0`), and the MPI of one of them
            needs its own mpiexec or was initialised before.
        gradred.PeerLost: A process ended before MPI was initialised on all of them.
        gradred.TimeoutError: MPI was not initialised on all within `GRADRED_TIMEOUT`, or 60 s.

    Example:
        >>> import gradred, numpy
        >>> comm = gradred.connect(0, 1, lambda mine: [mine])
        >>> gradred.allreduce(numpy.ones(2), comm=comm)
        array([1., 1.])
    """
    if not 0 <= rank < size:
        raise UsageError("gradred.connect", f"rank {rank} of {size}", "Ranks count from 0")
    made = by_memory(rank, size, allgather)
    return by_mpi(rank, size, allgather, made) if isinstance(made, str) else made


def by_memory(rank: int, size: int, allgather: Callable[[bytes], Sequence[bytes]]) -> Comm | str:
    """Make the communicator of `connect` in shared memory.

    Returns:
        The communicator; or, on all ranks, why they share no memory.
    """
    leave_mpi_alone()
    from gradred import _core, _rank
    from gradred.memory_comm import MemoryComm

    _rank.configure()
    state = _core.connect(rank, size, allgather)
    if isinstance(state, str):
        return f"they share no memory ({state})"
    made = MemoryComm.of(*state)
    _rank.shown()
    return made


def by_mpi(rank: int, size: int, allgather: Callable[[bytes], Sequence[bytes]], why: str) -> Comm:
    """Make the communicator of `connect` by initializing MPI; `why`: for errors."""
    from mpi4py import MPI

    from gradred import _rank
    from gradred.comm import Comm
    from gradred.launch import pmi

    pmi.begin_mpi(rank, size, allgather, why, _rank.begin_mpi)
    _rank.finalize_at_exit()
    return Comm(MPI.COMM_WORLD)


def leave_mpi_alone() -> None:
    """Keep mpi4py from initialising MPI at import, unless an MPI launcher started this process.

    Such an MPI would have one rank. It might also take settings in the environment, which are
    meant for other processes, for its own.
    """
    if "mpi4py.MPI" in sys.modules:
        return
    import mpi4py

    from gradred.launch import wrong_launcher

    if not wrong_launcher.is_rank_of_mpi():
        mpi4py.rc.initialize = False
