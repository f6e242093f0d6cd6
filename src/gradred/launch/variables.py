"""The environment of a rank: the launching shell's variables, mpiexec's, and its host's."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # protocol.py says why `typing` is not imported
    from collections.abc import Mapping
    from typing import Any

# The variables by which each kind of launcher announces (rank, size) to a process.
OPEN_MPI_RANK = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
PMI_RANK = ("PMI_RANK", "PMI_SIZE")
RANK_VARIABLES = (OPEN_MPI_RANK, PMI_RANK)
HYDRA_RANKS = "MPI_LOCALNRANKS"  # set by the mpiexec of MPICH and Intel MPI alone
# The steps of a Slurm job in which srun has started no ranks: batch, extern, interactive, pending.
SLURM_SHELLS = {
    *("batch", "extern", "interactive", "pending"),
    *(str(2**32 - back) for back in (3, 4, 5, 6)),
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_RANK_ON_HOST = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
_RANKS_OF_HOST = ("OMPI_COMM_WORLD_LOCAL_SIZE", HYDRA_RANKS, "PMI_LOCAL_SIZE")
# mpiexec sets these for each rank, so the launching shell's values must not replace them.
_OF_MPIEXEC = ("PMI", "OMPI_", "PRTE_", "OPAL_", "HYD", "MPI_LOCAL", "I_MPI_")
# Variables that are valid on one host only.
_OF_HOST = ("HOSTNAME", "HOST", "SLURMD_NODENAME", "SHLVL", "_", "OLDPWD", "XDG_RUNTIME_DIR")
_OF_LOGIN = ("SSH_", "DBUS_", "XDG_SESSION_")


def place_in(names: tuple[str, str], environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rank and size that a kind of launcher has set for a process; None if it is not a rank.

    A shell that `srun` has started may get size 1 over PMI; it is not a rank.

    Args:
        names: the variables of rank and size.
        environment: the variables of the process.
    """
    rank, size = (environment.get(name, "") for name in names)
    if not (rank.isdecimal() and size.isdecimal()):
        return None
    by_srun = names == PMI_RANK and HYDRA_RANKS not in environment
    return None if by_srun and int(size) == 1 else (int(rank), int(size))


def rank_environment(order: Mapping[str, Any], own: Mapping[str, str]) -> dict[str, str]:
    """Return a rank's variables: the launching shell's, and those that mpiexec set for this rank.

    Args:
        order: the values of the START message.
        own: this process's variables.
    """
    here = order["host"] == os.uname().nodename
    environment = dict(own)
    for name, value in order["environment"].items():
        of_host = name in _OF_HOST or name.startswith(_OF_LOGIN)
        of_host = of_host or (name == "TMPDIR" and name in own)
        if not (name in own and name.startswith(_OF_MPIEXEC)) and (here or not of_host):
            environment[name] = value
    environment.update(order["set"])
    if "TMPDIR" in environment and not os.path.isdir(environment["TMPDIR"]):
        del environment["TMPDIR"]  # it exists on the launching host only
    for name in THREAD_VARIABLES:
        environment.setdefault(name, str(_share(order, own, here)))
    return environment | _for_torch(own)


def _for_torch(own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torch.distributed: a rank's number in the job and on its host.

    Args:
        own: the rank's variables.
    """
    place = next((found for names in RANK_VARIABLES if (found := place_in(names, own))), None)
    if place is None:
        return {}
    made = {"RANK": str(place[0]), "WORLD_SIZE": str(place[1])}
    local = next((own[name] for name in _RANK_ON_HOST if own.get(name, "").isdecimal()), None)
    if local is not None:
        made |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": str(ranks_on_host(own) or 1)}
    return made


def ranks_on_host(own: Mapping[str, str]) -> int:
    """Return the number of ranks that mpiexec has started on this host; 0 if unknown.

    Args:
        own: a rank's variables.
    """
    return next((int(own[name]) for name in _RANKS_OF_HOST if own.get(name, "").isdecimal()), 0)


def _share(order: Mapping[str, Any], own: Mapping[str, str], here: bool) -> int:
    """Return the number of cores for each thread pool of this rank."""
    cores = len(os.sched_getaffinity(0))
    on_host = cores
    if order["bound"]:  # this rank sees only its own cores, which other ranks may share
        on_host = os.cpu_count() or cores
    if here:
        on_host = min(on_host, order["cores"])
    ranks = ranks_on_host(own) or order["ranks"]
    return int(max(1, min(cores, on_host // ranks)))
