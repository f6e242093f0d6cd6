"""Whether a rank has begun to initialise its MPI, as its supervisor sees it.

MPICH and its family talk to mpiexec over a socket that mpiexec has left open, PMI. The supervisor
passes on what comes and goes there. Open MPI connects to a server of mpiexec's.
"""

from __future__ import annotations

import contextlib
import os
import socket

from gradred.launch import proc

TYPE_CHECKING = False
if TYPE_CHECKING:  # protocol.py says why `typing` is not imported
    from collections.abc import Mapping

_PMI = "PMI_FD"
_PMIX = "PMIX_SERVER_URI"  # the beginning of names; values end in tcp4://127.0.0.1:PORT
_READ = 1 << 16
_ESTABLISHED = "01"


class PmiRelay:
    """Passes PMI messages on between a rank and mpiexec; `used` says whether the rank sent any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._place = int(environment[_PMI])  # where the rank expects its end
        self._launcher = os.dup(self._place)
        ours, rank_end = socket.socketpair()
        self._ours, self._rank_end = ours.detach(), rank_end.detach()
        self._other = {self._ours: self._launcher, self._launcher: self._ours}
        self.used = False

    def enter_rank(self) -> None:
        """Give this process, which becomes the rank, its end."""
        os.dup2(self._rank_end, self._place)

    def leave_rank(self) -> None:
        """Close the rank's end in the supervisor."""
        os.close(self._rank_end)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors from which messages come."""
        return list(self._other)

    def pass_on(self, descriptor: int) -> None:
        """Pass on what has come from one side; stop after that side has closed."""
        try:
            data = os.read(descriptor, _READ)
            self.used = self.used or (descriptor == self._ours and bool(data))
            sent = 0
            while sent < len(data):
                sent += os.write(self._other[descriptor], data[sent:])
        except OSError:  # the other side has ended
            data = b""
        if not data:
            del self._other[descriptor]
            if descriptor == self._launcher:
                self._other.clear()
                os.close(self._ours)  # the rank sees that mpiexec has gone


def relay(environment: Mapping[str, str]) -> PmiRelay | None:
    """Return a relay; None if mpiexec has left no socket for PMI."""
    return PmiRelay(environment) if environment.get(_PMI, "").isdecimal() else None


def is_client(pid: int, environment: Mapping[str, str]) -> bool:
    """Return whether a process or a descendant is connected to the server of Open MPI's mpiexec."""
    servers = {
        value.rpartition(":")[2] for name, value in environment.items() if name.startswith(_PMIX)
    }
    connections: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}") as file:
            rows = [line.split() for line in file][1:]
            connections |= {
                f"socket:[{row[9]}]"
                for row in rows
                if row[3] == _ESTABLISHED and str(int(row[2].rpartition(":")[2], 16)) in servers
            }
    return any(not connections.isdisjoint(proc.opened(one)) for one in proc.tree(pid))
