"""The launch proxy, which mpiexec starts for each rank as `python -I -S -c` with `BOOTSTRAP`.

The *proxy* is the process that mpiexec knows. It keeps mpiexec's descriptors open and passes
mpiexec's signals on. It ends when the supervisor ends, so mpiexec sees no rank end before all have
ended.

The proxy forks the *supervisor*, which has a session of its own and starts the rank in another
session. The supervisor is connected to `gradred run`: it sends the rank's output and its end, and
carries out orders. If the proxy or the connection is lost, the supervisor ends the rank. If the
supervisor is killed, the kernel ends the rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

from gradred._util import clock
from gradred.launch import authentication, protocol, supervisor, variables

TYPE_CHECKING = False
if TYPE_CHECKING:  # protocol.py says why `typing` is not imported
    from typing import Any

BOOTSTRAP = protocol.bootstrap("proxy")

_CONNECT = 20.0  # seconds to reach the launcher
_PR_SET_CHILD_SUBREAPER = 36


def _supervise(job: str, from_proxy: int, prctl: Any) -> int:
    secret, *addresses = job.split()
    try:
        deadline = clock.now() + _CONNECT
        connection = authentication.connect_to_any(secret.encode(), addresses, deadline)
    except ConnectionError as error:
        text = f"{os.uname().nodename} cannot reach the launcher ({error})"
        raise SystemExit(f"gradred run: {text}") from None
    channel = protocol.ControlChannel(connection)
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
        with contextlib.suppress(OSError):  # the supervisor has ended, so this process ends too
            os.write(to_supervisor, bytes([number]))

    for number in supervisor.SIGNALS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, supervisor.SIGNALS)
    status = os.waitpid(child, 0)[1]
    sys.exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
