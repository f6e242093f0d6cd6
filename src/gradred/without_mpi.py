"""`gradred.connect`: a communicator of processes that MPI did not start.

For example processes of torchrun, multiprocessing or the user's own launcher.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradred.errors import UsageError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradred.comm import Comm


def connect(rank: int, size: int, allgather: Callable[[bytes], Sequence[bytes]]) -> Comm:
    """Make a communicator of processes of one host, without MPI. Blocking and collective.

    The processes find each other by `allgather`, which may use anything that all of them can
    reach: a key-value store, pipes, files. After that all communication goes through shared
    memory. The communicator supports the calls that `Comm.shrink` lists, and `NamedOperations`.
    If a rank ends, the others raise `PeerLost`. A process that was not started by MPI does not
    initialise MPI here.

    Args:
        rank: the number of this process, from 0.
        size: the number of processes.
        allgather: a function that takes this rank's bytes and returns those of all ranks, by rank.
            It is called a few times, on all ranks alike. Its exceptions propagate to the caller.

    Raises:
        gradred.UsageError: the processes share no memory: they are on several hosts or in
            containers with separate memory, or `GRADRED_SHM=0`.

    Example:
        >>> import gradred, numpy
        >>> comm = gradred.connect(0, 1, lambda mine: [mine])
        >>> gradred.allreduce(numpy.ones(2), comm=comm)
        array([1., 1.])
    """
    if not 0 <= rank < size:
        found = f"rank {rank} of {size}"
        raise UsageError(explain("gradred.connect", found, "Ranks count from 0"))
    leave_mpi_alone()
    from gradred import _core, _rank
    from gradred.memory_comm import MemoryComm

    _rank.configure()
    made = MemoryComm.of(*_core.connect(rank, size, allgather))
    _rank.shown()
    return made


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
