"""Ranks of this machine that gradred takes for ranks of several hosts; without a network.

Each rank gets a host name of its own host's before gradred looks at it. The MPI knows better, since
its launcher tells it, and the ranks of all hosts would share memory if gradred asked for it: so
these tests are quick, and what goes between hosts goes by the MPI's way inside one. Takes root.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

_NEW_UTS = 0x04000000
VARIABLE = "TEST_HOSTS"  # the host of each rank, as in 0,0,0,1


def rank() -> int:
    """As launchers tell it, before MPI is initialised."""
    return int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def stand_on(host: int) -> None:
    """Give this process a host name of its own. Before gradred is imported."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_UTS) != 0:
        raise OSError(ctypes.get_errno(), "a host name of its own, which takes root")
    socket.sethostname(f"host{host}")


def stand_as_told() -> list[int]:
    """What the variable says of this rank; the hosts of all ranks."""
    layout = [int(host) for host in os.environ.get(VARIABLE, "").split(",") if host]
    if layout:
        stand_on(layout[rank()])
    return layout


if __name__ == "__main__":  # faked.py PROGRAM ARGUMENTS...
    stand_as_told()
    os.execv(sys.argv[1], sys.argv[1:])
