"""Callbacks of futures, in which programs start further operations, as DDP's PowerSGD hook does.

Ranks come to callbacks at moments of their own, and operations of a group meet by their numbers. So
what a callback starts is counted apart, as part of the operation whose callback it is: it meets its
like whatever else has been started meanwhile, and in whichever thread it runs. A callback that is
added after the end runs at once, in the thread that adds it, and is one like others.

Callbacks of other futures (a program's own, `torch.futures.collect_all`) count as what has added
them: the group's operations, or those of the callback in which that was.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Submitted = TypeVar("_Submitted")

_LONGEST_TITLE = 100  # characters: callbacks of callbacks of callbacks have longer ones


class Numbers:
    """Counts operations of a group in the order in which a rank starts them.

    Args:
        of_callback: whose these are; empty: those that are no callback's.
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


class _Callback:
    """One that runs, or will.

    Args:
        title: for the names of what it starts.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._numbers: weakref.WeakKeyDictionary[Any, Numbers] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def numbers_of(self, group: Any) -> Numbers:
        """Its operations of a group: ranks of one group may be in no other."""
        with self._lock:
            if group not in self._numbers:
                self._numbers[group] = Numbers(self._title)
            return self._numbers[group]


class _Running(threading.local):
    """What runs in this thread."""

    callback: _Callback | None = None


_running = _Running()


def numbers_here(group: Any, own: Numbers) -> Numbers:
    """A group's in the callback in which this thread is; in none its own."""
    callback = _running.callback
    return own if callback is None else callback.numbers_of(group)


def _call_as(callback: _Callback | None, function: Callable[[Any], Any], future: Any) -> Any:
    before, _running.callback = _running.callback, callback
    try:
        return function(future)
    finally:
        _running.callback = before


class _Callbacks:
    """Counts those of a future.

    Args:
        title: what the future is of.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._added = 0

    def add(self, function: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], _Callbacks]:
        """The function as it is to be called, and the callbacks of what comes of it."""
        with self._lock:
            self._added += 1
            title = _shortened(f"callback {self._added} of {self._title}")
        callback = _Callback(title)

        def call(future: Any) -> Any:
            _callbacks_of[future] = self  # it may be another object for the same future
            return _call_as(callback, function, future)

        return call, _Callbacks(title)


def _shortened(title: str) -> str:
    if len(title) <= _LONGEST_TITLE:
        return title
    digest = hashlib.blake2b(title.encode(), digest_size=8).hexdigest()
    return f"{title[: _LONGEST_TITLE // 2]}... {digest}"


_callbacks_of: weakref.WeakKeyDictionary[Any, _Callbacks] = weakref.WeakKeyDictionary()


def count_callbacks(future: Any, title: str) -> None:
    """Have operations that callbacks of `future` start counted as theirs, and so on."""
    _callbacks_of[future] = _Callbacks(title)


def serve_futures() -> None:
    """Have torch's futures take callbacks as above; once."""
    kind: Any = torch._C.Future
    torchs_then, torchs_add_done_callback = kind.then, kind.add_done_callback
    if hasattr(torchs_then, "_of_gradred"):
        return

    @functools.wraps(torchs_then)
    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        callbacks = _callbacks_of.get(self)
        if callbacks is None:
            return torchs_then(self, functools.partial(_call_as, _running.callback, callback))
        call, of_the_next = callbacks.add(callback)
        following = torchs_then(self, call)
        _callbacks_of[following] = of_the_next
        return following

    @functools.wraps(torchs_add_done_callback)
    def add_done_callback(self: Any, callback: Callable[[Any], Any]) -> None:
        callbacks = _callbacks_of.get(self)
        if callbacks is None:
            call: Any = functools.partial(_call_as, _running.callback, callback)
        else:
            call = callbacks.add(callback)[0]
        torchs_add_done_callback(self, call)

    then._of_gradred = True  # type: ignore[attr-defined]
    kind.then, kind.add_done_callback = then, add_done_callback
