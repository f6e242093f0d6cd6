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

from gradred import _inherit, _keeper, _wire

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
_PR_SET_CHILD_SUBREAPER = 36


def _connect(addresses: Iterable[str]) -> socket.socket:
    """A connection to the launcher at the first of its addresses that answers."""
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            return socket.create_connection((host, int(port)), timeout=_CONNECT)
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise SystemExit(
        f"gradred run: {os.uname().nodename} cannot reach the launcher ({', '.join(reasons)})"
    )


def _keep(job: str, lifeline: int, prctl: Any) -> int:
    secret, *addresses = job.split()
    wire = _wire.Wire(_connect(addresses))
    rank = next(int(os.environ[name]) for name, _ in _inherit.RANK_VARIABLES if name in os.environ)
    hello = {"secret": secret, "rank": rank, "host": os.uname().nodename}
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
