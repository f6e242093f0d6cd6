"""The processes that ranks of a job have spawned by MPI_Comm_spawn.

mpiexec starts them itself, without a launch proxy, so no supervisor ends them or reports on them.
"""

from __future__ import annotations

from gradred.launch import proc, processes, proxy, variables

# Each mpiexec sets one of these for every process of the MPI.
_OF_RANKS = tuple(rank.encode() + b"=" for rank, _ in variables.RANK_VARIABLES)


def below(launcher: int) -> list[processes.Process]:
    """Return the spawned processes of this host below an mpiexec, and their descendants.

    Those of other hosts cannot be seen. The launch proxies of the ranks must have ended, or else
    their ranks count.
    """
    found = processes.tree(launcher)[1:]
    return [one for one in found if one.alive() and _is_of_mpi(one.pid)]


def _is_of_mpi(pid: int) -> bool:
    """Return whether mpiexec has started a process, or an ancestor of it, for the MPI."""
    try:
        environment = proc.read(pid, "environ").split(b"\0")
        command = proc.read(pid, "cmdline")
    except OSError:  # it has just ended
        return False
    by_mpiexec = any(line.startswith(_OF_RANKS) for line in environment)
    return by_mpiexec and proxy.BOOTSTRAP.encode() not in command
