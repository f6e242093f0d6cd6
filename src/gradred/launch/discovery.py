"""The hosts that an elastic job may use now: a fixed list, or what a script prints each second."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, Protocol

from gradred._util import clock
from gradred.errors import UsageError, explain
from gradred.launch import hosts

_EVERY = 1.0  # seconds between two runs of the script
_LONGEST = 60.0  # seconds that it may take


class Discovery(Protocol):
    """Where hosts are found."""

    def first(self) -> Sequence[hosts.Host]:
        """The hosts at the beginning. May block."""

    def now(self) -> Sequence[hosts.Host]:
        """The hosts as last heard. Does not block."""

    def close(self) -> None:
        """End what still runs."""


class FixedHosts:
    """The same hosts at all times."""

    def __init__(self, found: Sequence[hosts.Host]) -> None:
        self._found = found

    def first(self) -> Sequence[hosts.Host]:
        """The hosts."""
        return self._found

    def now(self) -> Sequence[hosts.Host]:
        """The hosts."""
        return self._found

    def close(self) -> None:
        """Nothing runs."""


class DiscoveryScript:
    """What an executable prints: a line per host, `h1`, `h1:2` or `h1 slots=2`.

    It runs once a second. Where it fails, takes more than a minute, or prints what is no list of
    hosts, the last list counts; the first time that is an error.

    Args:
        path: of the executable.
        slots: of a host for which the script prints none.
    """

    def __init__(self, path: str, slots: int) -> None:
        self._path, self._slots = path, slots
        self._found: Sequence[hosts.Host] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._printed: IO[bytes] | None = None
        self._began = 0.0

    def first(self) -> Sequence[hosts.Host]:
        """What it prints at the beginning.

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
        """What it has printed last."""
        if self._running is None:
            if clock.now() > self._began + _EVERY:
                self._start()
        elif self._running.poll() is not None:
            with contextlib.suppress(UsageError):  # then as before
                self._found = self._read()
        elif clock.now() > self._began + _LONGEST:
            self.close()
        return self._found

    def close(self) -> None:
        """End it where it runs."""
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None
        if self._printed is not None:
            self._printed.close()
            self._printed = None

    def _start(self) -> None:
        self._began = clock.now()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (open until it has ended)
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
        found = hosts.parse_lines(text, f"--host-discovery-script {self._path}")
        return [hosts.Host(one.name, one.slots or self._slots) for one in found]

    def _error(self, found: str) -> UsageError:
        remedy = "Name an executable that prints a host, or host:slots, in each line"
        return UsageError(explain(f"--host-discovery-script {self._path}", found, remedy))
