"""The launch proxy: what mpiexec starts for each rank, as `python -I -S -c` with `BOOTSTRAP`.

The *proxy* is the process that mpiexec knows: it keeps mpiexec's descriptors, hands mpiexec's
signals on and ends when the supervisor does, so that mpiexec sees no rank end before all have. It
forks the *supervisor*, which has a session of its own, starts the rank in another session, and is
connected to `gradred run`: it sends the rank's output and its end, and carries out orders. If the
proxy or the connection is lost, the supervisor ends the rank; if the supervisor is killed, the
kernel does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time

from gradred._util import clock
from gradred.launch import authentication, protocol, supervisor, variables

TYPE_CHECKING = False
if TYPE_CHECKING:  # see protocol
    from collections.abc import Iterable
    from typing import Any

# Imports this module without the `__init__` of gradred and of this package, which would load more
# than a rank's start needs. On one line, for `gradred run --dry-run` shows it.
BOOTSTRAP = (
    'import sys; package = type(sys); whole = sys.modules["gradred"] = package("gradred"); '
    'launch = sys.modules["gradred.launch"] = package("gradred.launch"); '
    'whole.__path__ = [sys.argv[1]]; launch.__path__ = [sys.argv[1] + "/launch"]; '
    "from gradred.launch.proxy import main; main()"
)

_CONNECT = 20.0  # seconds to reach the launcher
_PROVE = 5.0  # seconds for who answers at one of its addresses to prove that it is the launcher
_AGAIN = 0.1  # seconds until a launcher that was too busy with other callers is asked again
_PR_SET_CHILD_SUBREAPER = 36


def _connect(secret: bytes, addresses: Iterable[str]) -> socket.socket:
    """A connection to the launcher at the first of its addresses where it proves to be it.

    Who has not proved that is told nothing of this job.
    """
    deadline = clock.now() + _CONNECT
    while True:
        reasons, again = [], False
        for address in addresses:
            try:
                return _convinced(secret, address, deadline)
            except authentication.AuthenticationError as error:
                reasons.append(f"{address}: {error}")
            except ConnectionResetError as error:  # it lets only so many callers wait
                reasons.append(f"{address}: {error.strerror or error}")
                again = True
            except OSError as error:
                reasons.append(f"{address}: {error.strerror or error}")
        if not again or clock.now() > deadline:
            break
        time.sleep(_AGAIN)
    raise SystemExit(
        f"gradred run: {os.uname().nodename} cannot reach the launcher ({', '.join(reasons)})"
    )


def _convinced(secret: bytes, address: str, deadline: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    left = max(0.1, deadline - clock.now())
    connection = socket.create_connection((host, int(port)), timeout=left)
    try:
        authentication.convince(connection, secret, min(deadline, clock.now() + _PROVE))
    except BaseException:
        connection.close()
        raise
    return connection


def _supervise(job: str, from_proxy: int, prctl: Any) -> int:
    secret, *addresses = job.split()
    channel = protocol.ControlChannel(_connect(secret.encode(), addresses))
    rank = next(int(os.environ[name]) for name, _ in variables.RANK_VARIABLES if name in os.environ)
    hello = {"rank": rank, "host": os.uname().nodename}
    channel.send(protocol.HELLO, protocol.encode(hello))
    return supervisor.Supervisor(channel, from_proxy, prctl).run()


def main() -> None:
    """Entry point of a launch proxy."""
    prctl = ctypes.CDLL(None).prctl
    from_proxy, to_supervisor = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SIGNALS)
    child = os.fork()
    if child == 0:
        os.setsid()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.close(to_supervisor)
        for number in supervisor.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)
        sys.exit(_supervise(os.environ[protocol.JOB], from_proxy, prctl))
    os.close(from_proxy)

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended: so does this process
            os.write(to_supervisor, bytes([number]))

    for number in supervisor.SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)
    status = os.waitpid(child, 0)[1]
    sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
