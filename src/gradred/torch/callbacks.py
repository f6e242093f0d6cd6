"""Callbacks of futures, in which programs start further operations, as DDP's PowerSGD hook does.

Ranks come to callbacks at moments of their own, and operations of a group meet by their numbers. So
what a callback starts is counted apart, as part of the operation whose callback it is: it meets its
like whatever else has been started meanwhile, and in whichever thread it runs. A callback that is
added after the end runs at once, in the thread that adds it, and is one like others.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Submitted = TypeVar("_Submitted")


class Numbers:
    """Counts operations in the order in which a rank starts them.

    Args:
        of_callback: whose these are; empty: a group's own.
    """

    def __init__(self, of_callback: str = "") -> None:
        self._of_callback = of_callback
        self._lock = threading.Lock()
        self.taken = 0

    def submit(self, submit: Callable[[str], _Submitted], group: str) -> _Submitted:
        """What `submit` makes of the next name; None, or an error: its number is still free."""
        with self._lock:
            counted = self._of_callback or f"group {group}"
            made = submit(f"operation {self.taken + 1} of {counted}")
            self.taken += made is not None
            return made


class _Running(threading.local):
    """What runs in this thread."""

    numbers: Numbers | None = None  # of the callback


_running = _Running()


def numbers_here(of_group: Numbers) -> Numbers:
    """Those of the callback in which this thread is; else the group's."""
    return _running.numbers or of_group


class _Callbacks:
    """Counts the callbacks of a future, and gives each numbers of its own.

    Args:
        title: what the future is of.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._added = 0

    def add(self, callback: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], _Callbacks]:
        """The callback as it is to be called, and the callbacks of what comes of it."""
        with self._lock:
            self._added += 1
            title = f"callback {self._added} of {self._title}"
        numbers = Numbers(title)

        def call(future: Any) -> Any:
            before, _running.numbers = _running.numbers, numbers
            try:
                return callback(future)
            finally:
                _running.numbers = before

        return call, _Callbacks(title)


_callbacks_of: weakref.WeakKeyDictionary[Any, _Callbacks] = weakref.WeakKeyDictionary()


def count_callbacks(future: Any, title: str) -> None:
    """Have operations that callbacks of `future` start counted as theirs, and so on."""
    _callbacks_of[future] = _Callbacks(title)


def serve_futures() -> None:
    """Have torch's futures take callbacks as above where they are a group's of gradred; once."""
    kind: Any = torch._C.Future
    torchs_then, torchs_add_done_callback = kind.then, kind.add_done_callback
    if hasattr(torchs_then, "__wrapped__"):
        return

    @functools.wraps(torchs_then)
    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        callbacks = _callbacks_of.get(self)
        if callbacks is None:
            return torchs_then(self, callback)
        call, of_the_next = callbacks.add(callback)
        following = torchs_then(self, call)
        _callbacks_of[following] = of_the_next
        return following

    @functools.wraps(torchs_add_done_callback)
    def add_done_callback(self: Any, callback: Callable[[Any], Any]) -> None:
        callbacks = _callbacks_of.get(self)
        call = callback if callbacks is None else callbacks.add(callback)[0]
        torchs_add_done_callback(self, call)

    kind.then, kind.add_done_callback = then, add_done_callback
