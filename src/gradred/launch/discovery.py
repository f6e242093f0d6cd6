"""The hosts that an elastic job may use: a fixed list, or a script's output, read each second."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, TypeAlias

from gradred._util import clock
from gradred.errors import UsageError
from gradred.launch import hostfile, hosts

_EVERY = 1.0  # seconds between two runs of the script
_LONGEST = 60.0  # seconds that one run of the script may take

Discovery: TypeAlias = "FixedHosts | DiscoveryScript"
"""A source of hosts: `first` may block, `now` does not."""


class FixedHosts:
    """A fixed list of hosts."""

    def __init__(self, found: Sequence[hosts.Host]) -> None:
        self._found = found

    def first(self) -> Sequence[hosts.Host]:
        """Return the hosts."""
        return self._found

    now = first

    def close(self) -> None:
        """Do nothing: there is no process."""


class DiscoveryScript:
    """The hosts that an executable prints, one per line: `h1`, `h1:2` or `h1 slots=2`.

    It runs once a second. If it fails, takes more than a minute, or prints no list of hosts, the
    last list applies; in the first run this is an error.

    `slots` are those of a host for which it prints none.
    """

    def __init__(self, path: str, slots: int) -> None:
        self._path, self._slots = path, slots
        self._found: Sequence[hosts.Host] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self._began = 0.0

    def first(self) -> Sequence[hosts.Host]:
        """Return the hosts that it prints in the first run.

        Raises:
            UsageError: it cannot be run, fails, or prints no list of hosts.
        """
        self._start()
        assert self._running is not None
        try:
            self._running.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            self.close()
            raise self._error(f"it has not ended after {_LONGEST:g} s") from None
        self._found = self._read()
        return self._found

    def now(self) -> Sequence[hosts.Host]:
        """Return the hosts that it has printed last."""
        if self._running is None:
            if clock.now() > self._began + _EVERY:
                self._start()
        elif self._running.poll() is not None:
            with contextlib.suppress(UsageError):  # after an error the last list applies
                self._found = self._read()
        elif clock.now() > self._began + _LONGEST:
            self.close()
        return self._found

    def close(self) -> None:
        """End the script if it runs."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _start(self) -> None:
        self._began = clock.now()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (open until the script has ended)
        try:
            self._running = subprocess.Popen(
                [self._path], stdin=subprocess.DEVNULL, stdout=self._printed
            )
        except OSError as error:
            self.close()
            if not self._found:
                raise self._error(f"it cannot be run ({error.strerror})") from None

    def _read(self) -> Sequence[hosts.Host]:
        assert self._running is not None
        assert self._printed is not None
        status = self._running.returncode
        self._printed.seek(0)
        text = self._printed.read().decode(errors="replace")
        self.close()
        if status:
            raise self._error(f"it ended with status {status}")
        found = hostfile.parse_lines(text, f"--host-discovery-script {self._path}")
        return [hosts.Host(one.name, one.slots or self._slots) for one in found]

    def _error(self, found: str) -> UsageError:
        remedy = "Name an executable that prints a host, or host:slots, in each line"
        return UsageError(f"--host-discovery-script {self._path}", found, remedy)
