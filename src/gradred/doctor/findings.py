"""The findings of `gradred doctor`, and the threads in which its checks run."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

from gradred._util import cpu

Status = Literal["ok", "warn", "fail"]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Finding:
    """The finding of one check; `fix` is the remedy unless the status is ok."""

    status: Status
    found: str
    fix: str = ""


class NotKnown(Exception):  # noqa: N818 (more an answer than an error)
    """A check could not run; the text is the reason, `fix` is the remedy."""

    def __init__(self, reason: str, fix: str = "Mend what that line says first") -> None:
        super().__init__(reason)
        self.fix = fix


def ok(found: str) -> Finding:
    """Make a finding without a problem."""
    return Finding("ok", found)


def warn(found: str, fix: str) -> Finding:
    """Make a finding for programs that run, but slower or with less than they could have."""
    return Finding("warn", found, fix)


def fail(found: str, fix: str) -> Finding:
    """Make a finding for programs that will not run or will give wrong results."""
    return Finding("fail", found, fix)


def late(found: str, fix: str, load: float) -> Finding:
    """Make a finding for a check that has not ended in time: a failure, or a warning if busy.

    `load` is that of this host, measured before the checks began; `fix` the remedy on an idle one.
    """
    busy = cpu.busy(load)
    if busy is None:
        return fail(found, fix)
    fix = "Try again when less runs here, or with a longer --timeout"
    return warn(f"slow: {busy}: {found}", fix)


def in_background(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call a function in a daemon thread, which the program does not wait for at its end."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # raised where the result is requested
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
