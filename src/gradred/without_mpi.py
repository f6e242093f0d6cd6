"""Ranks that no MPI connects: processes of torchrun, multiprocessing or a launcher of one's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradred.errors import UsageError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gradred.comm import Comm


def connect(rank: int, size: int, allgather: Callable[[bytes], Sequence[bytes]]) -> Comm:
    """A communicator of processes of one host that need no MPI. Blocking and collective.

    They find each other by `allgather`, which can be anything that all of them reach: a key-value
    store, pipes, files. After that everything goes through shared memory. It serves what
    `Comm.shrink` says that such a communicator serves, `NamedOperations` too, and a rank that ends
    is `PeerLost`. A process that no MPI has started does not begin one.

    Args:
        rank: of this process.
        size: how many there are.
        allgather: takes this rank's bytes and returns those of all ranks, by rank. It is called a
            few times, on all ranks alike; what it raises comes out of this function.

    Raises:
        gradred.UsageError: the processes share no memory: they are on several hosts, or in
            containers that have their own, or `GRADRED_SHM=0`.

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
    """Do not begin MPI by importing mpi4py, unless a launcher of MPI has started this process.

    It would be of one rank, and may take what it finds in the environment for its own.
    """
    if "mpi4py.MPI" in sys.modules:
        return
    import mpi4py

    from gradred.launch import wrong_launcher

    if not wrong_launcher.is_rank_of_mpi():
        mpi4py.rc.initialize = False
