"""What mpiexec starts for each rank, as `python -I -S -c` with `BOOTSTRAP`: a shim and a keeper.

The *shim* is the process that mpiexec knows: it keeps mpiexec's descriptors, hands mpiexec's
signals on and ends when the keeper does, so that mpiexec sees no rank end before all have. The
*keeper*, in a session of its own, starts the rank in another session, and is connected to
`gradred run`: it sends the rank's output and its end, and carries out orders. If shim or connection
are lost, the keeper ends the rank; if the keeper is killed, the kernel does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time

from gradred import _inherit, _keeper, _proof, _wire

TYPE_CHECKING = False
if TYPE_CHECKING:  # see _wire
    from collections.abc import Iterable
    from typing import Any

# Imports this module without gradred's own `__init__`, which would load NumPy and the extension.
# On one line, for `gradred run --dry-run` shows it.
BOOTSTRAP = (
    'import sys; gradred = type(sys)("gradred"); gradred.__path__ = [sys.argv[1]]; '
    'sys.modules["gradred"] = gradred; from gradred._shim import main; main()'
)

_CONNECT = 20.0  # seconds to reach the launcher
_PROVE = 5.0  # seconds for who answers at one of its addresses to prove that it is the launcher
_AGAIN = 0.1  # seconds until a launcher that was too busy with strangers is asked again
_PR_SET_CHILD_SUBREAPER = 36


def _connect(secret: bytes, addresses: Iterable[str]) -> socket.socket:
    """A connection to the launcher at the first of its addresses where it proves to be it.

    Who has not proved that is told nothing of this job.
    """
    deadline = time.monotonic() + _CONNECT
    while True:
        reasons, again = [], False
        for address in addresses:
            try:
                return _convinced(secret, address, deadline)
            except _proof.StrangerError as error:
                reasons.append(f"{address}: {error}")
            except ConnectionResetError as error:  # it lets only so many strangers wait
                reasons.append(f"{address}: {error.strerror or error}")
                again = True
            except OSError as error:
                reasons.append(f"{address}: {error.strerror or error}")
        if not again or time.monotonic() > deadline:
            break
        time.sleep(_AGAIN)
    raise SystemExit(
        f"gradred run: {os.uname().nodename} cannot reach the launcher ({', '.join(reasons)})"
    )


def _convinced(secret: bytes, address: str, deadline: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    left = max(0.1, deadline - time.monotonic())
    connection = socket.create_connection((host, int(port)), timeout=left)
    try:
        _proof.convince(connection, secret, min(deadline, time.monotonic() + _PROVE))
    except BaseException:
        connection.close()
        raise
    return connection


def _keep(job: str, lifeline: int, prctl: Any) -> int:
    secret, *addresses = job.split()
    wire = _wire.Wire(_connect(secret.encode(), addresses))
    rank = next(int(os.environ[name]) for name, _ in _inherit.RANK_VARIABLES if name in os.environ)
    hello = {"rank": rank, "host": os.uname().nodename}
    wire.send(_wire.HELLO, _wire.encode(hello))
    return _keeper.Keeper(wire, lifeline, prctl).run()


def main() -> None:
    """Entry point of a shim."""
    prctl = ctypes.CDLL(None).prctl
    lifeline, voice = os.pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, _keeper.SIGNALS)
    keeper = os.fork()
    if keeper == 0:
        os.setsid()
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.close(voice)
        for number in _keeper.SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _keeper.SIGNALS)
        sys.exit(_keep(os.environ[_wire.JOB], lifeline, prctl))
    os.close(lifeline)

    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(OSError):  # the keeper has ended: so does this process
            os.write(voice, bytes([number]))

    for number in _keeper.SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _keeper.SIGNALS)
    status = os.waitpid(keeper, 0)[1]
    sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
