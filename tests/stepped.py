"""The clock that limits waits, stepped by tests: docs/design/engine.md.

A file of 8 bytes holds what is added to the clock. Every process of a job maps it, so a step takes
effect for its launcher, its supervisors and its ranks at once.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from gradred import _core
from gradred._util import clock

VARIABLE = clock.VARIABLE
_PATIENCE = 20  # real seconds for everything that follows a step


class SteppedClock:
    """The steps that one file adds to the clock.

    Only one process steps at a time.
    """

    def __init__(self, path: str | None = None) -> None:
        if path is None:
            with tempfile.NamedTemporaryFile(prefix="gradred-clock-", delete=False) as file:
                path = file.name
                file.write(bytes(8))
        self.path = path
        with open(path, "r+b") as file:
            self._steps = mmap.mmap(file.fileno(), 8)

    def step(self, seconds: float) -> None:
        """Let this much time pass at once, for all processes that map the file."""
        (before,) = struct.unpack("q", self._steps)
        self._steps[:] = struct.pack("q", before + round(seconds * 1e9))

    @contextlib.contextmanager
    def passing(self, seconds: float = 1.0) -> Iterator[None]:
        """Step repeatedly while the block waits for something that only needs time."""
        over = threading.Event()

        def go_on() -> None:
            while not over.wait(0.01):
                self.step(seconds)

        stepping = threading.Thread(target=go_on)
        stepping.start()
        try:
            yield
        finally:
            over.set()
            stepping.join()

    def pass_while(self, waiting: Callable[[], object], seconds: float = 0.5) -> None:
        """Step repeatedly in this thread while `waiting` is true."""
        deadline = time.monotonic() + _PATIENCE
        while waiting() and time.monotonic() < deadline:
            self.step(seconds)
            time.sleep(0.02)

    def take(self) -> None:
        """Make this process use it, too: Python, gradred's core, and the core of the tests."""
        import core_testing

        clock.take_steps_from(self.path)
        _core.take_clock_steps_from(self.path)
        core_testing.take_clock_steps_from(self.path)

    def remove(self) -> None:
        """Remove the file; processes that have mapped it keep its content."""
        pathlib.Path(self.path).unlink(missing_ok=True)


def of_job() -> SteppedClock:
    """The clock of this rank's job."""
    return SteppedClock(os.environ[VARIABLE])


def let_pass(seconds: float, *, ranks: int, of: float | None = None) -> None:
    """Let this time pass at once when so many other ranks of this rank's job wait.

    Ranks publish a wait soon after they have begun it.

    Args:
        seconds: how much time passes.
        ranks: how many ranks have to wait.
        of: counts ranks that have waited less than this, by the clock; default `seconds`.

    Raises:
        TimeoutError: too few ranks wait.
    """
    limit = of or seconds
    from gradred.observe import status

    deadline = time.monotonic() + _PATIENCE
    launcher = _core.launcher_of(os.getpid())

    def waiting() -> int:
        shown = status.ranks(stacks=False, of=launcher)
        return sum(one.waits_s is not None and one.waits_s < limit for one in shown)

    while waiting() < ranks:
        if time.monotonic() > deadline:
            raise TimeoutError(f"fewer than {ranks} ranks wait")
        time.sleep(0.01)
    of_job().step(seconds)


def await_end_of_others() -> None:
    """Sleep until no other rank of this rank's job is left."""
    from gradred.observe import status

    launcher = _core.launcher_of(os.getpid())
    while len(status.ranks(stacks=False, of=launcher)) > 1:
        time.sleep(0.05)


def end_grace() -> None:
    """Step the clock until the launcher ends this process, after the grace period.

    The grace period passes when the other ranks have ended.
    """
    await_end_of_others()
    steps = of_job()
    while True:
        steps.step(1.0)
        time.sleep(0.1)
