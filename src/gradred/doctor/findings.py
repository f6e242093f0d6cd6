"""The words of `gradred doctor`: what a check has found, and who looks."""

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
    """What one look has found; `fix` says what to do unless all is well."""

    status: Status
    found: str
    fix: str = ""


class NotKnown(Exception):  # noqa: N818 (an answer more than an error)
    """A check could not look; its text says why, `fix` what to do."""

    def __init__(self, reason: str, fix: str = "Mend what that line says first") -> None:
        super().__init__(reason)
        self.fix = fix


def ok(found: str) -> Finding:
    """All is well."""
    return Finding("ok", found)


def warn(found: str, fix: str) -> Finding:
    """Programs run, but slower or with less than they could have."""
    return Finding("warn", found, fix)


def fail(found: str, fix: str) -> Finding:
    """Programs will not run, or give wrong results."""
    return Finding("fail", found, fix)


def late(found: str, fix: str, load: float) -> Finding:
    """Something had not ended in time: a failure, unless this host had no core for it.

    Args:
        found: what had not ended.
        fix: what to do about it on an idle host.
        load: of this host, from before the doctor began.
    """
    busy = cpu.busy(load)
    if busy is None:
        return fail(found, fix)
    fix = "Try again when less runs here, or with a longer --timeout"
    return warn(f"slow: {busy}: {found}", fix)


def in_background(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Call a function in a thread that the end of the program does not wait for."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
