"""Ranks of this machine that gradred treats as ranks of several hosts; without a network.

Each rank gets the host name of its own host before gradred reads it. The launcher gives the MPI the
real layout, and the ranks of all hosts would share memory if gradred asked for it. So these tests
are fast, and data between hosts go by the MPI's transport inside one. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

_NEW_UTS = 0x04000000
VARIABLE = "TEST_HOSTS"  # the host of each rank, as in 0,0,0,1


def rank() -> int:
    """The rank as launchers report it, before MPI is initialised."""
    return int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))


def stand_on(host: int) -> None:
    """Give this process its own host name. Call this before gradred is imported."""
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_UTS) != 0:
        raise OSError(ctypes.get_errno(), "a host name of its own, which takes root")
    socket.sethostname(f"host{host}")


def fake_hosts() -> list[int]:
    """Apply the variable to this rank; returns the hosts of all ranks."""
    layout = [int(host) for host in os.environ.get(VARIABLE, "").split(",") if host]
    if layout:
        stand_on(layout[rank()])
    return layout


if __name__ == "__main__":  # faked.py PROGRAM ARGUMENTS...
    fake_hosts()
    os.execv(sys.argv[1], sys.argv[1:])
