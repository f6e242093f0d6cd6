"""Numbering of operations that callbacks of futures start, as DDP's PowerSGD hook does.

Operations of a group are matched by number, but ranks run callbacks at different times. So
operations that a callback starts are counted separately, as part of the operation whose callback it
is. They match whatever other operations have been started meanwhile, and in whichever thread the
callback runs. A callback added after the operation has ended runs immediately, in the thread that
adds it, and is counted in the same manner.

Callbacks of other futures (a program's own, `torch.futures.collect_all`) count with the code that
added them: as operations of the group, or of the callback that added them.
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

_LONGEST_TITLE = 100  # characters; callbacks of callbacks exceed it


class Numbers:
    """Counts operations of a group in the order in which this rank starts them.

    `of_callback` is the title of the callback that starts the operations. Empty: none does.
    """

    def __init__(self, of_callback: str = "") -> None:
        self._of_callback = of_callback
        self.lock = threading.Lock()
        self.taken = 0  # set by the core, as soon as it has submitted an operation

    def submit(self, submit: Callable[[str, Numbers, int], _Submitted], group: str) -> _Submitted:
        """Call `submit` with the next name, this counter, and the number."""
        counted = self._of_callback or f"group {group}"
        with self.lock:
            number = self.taken + 1
            return submit(f"operation {number} of {counted}", self, number)


class _Callback:
    """A callback that runs or will run; its title is in the names of its operations."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._numbers: weakref.WeakKeyDictionary[Any, Numbers] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def numbers_of(self, group: Any) -> Numbers:
        """The callback's count for a group. Each group has its own, as their ranks may differ."""
        with self._lock:
            if group not in self._numbers:
                self._numbers[group] = Numbers(self._title)
            return self._numbers[group]


class _Running(threading.local):
    """The callback that runs in this thread."""

    callback: _Callback | None = None


running = _Running()


def numbers_here(group: Any, own: Numbers) -> Numbers:
    """The count of the callback that this thread runs, or `own` outside callbacks."""
    callback = running.callback
    return own if callback is None else callback.numbers_of(group)


def _call_as(callback: _Callback | None, function: Callable[[Any], Any], future: Any) -> Any:
    before, running.callback = running.callback, callback
    try:
        return function(future)
    finally:
        running.callback = before


class _Callbacks:
    """Counts the callbacks of one future, which belongs to what has this title."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._added = 0

    def add(self, function: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], _Callbacks]:
        """Return the function to register as the callback, and the callbacks of its own future."""
        with self._lock:
            self._added += 1
            title = _shortened(f"callback {self._added} of {self._title}")
        callback = _Callback(title)

        def call(future: Any) -> Any:
            _callbacks_of[future] = self  # may be another Python object for the same future
            return _call_as(callback, function, future)

        return call, _Callbacks(title)


def _shortened(title: str) -> str:
    if len(title) <= _LONGEST_TITLE:
        return title
    digest = hashlib.blake2b(title.encode(), digest_size=8).hexdigest()
    return f"{title[: _LONGEST_TITLE // 2]}... {digest}"


_callbacks_of: weakref.WeakKeyDictionary[Any, _Callbacks] = weakref.WeakKeyDictionary()


def count_callbacks(future: Any, title: str) -> None:
    """Count operations that callbacks of `future` start as theirs, at any depth."""
    _callbacks_of[future] = _Callbacks(title)


def serve_futures() -> None:
    """Patch torch's futures to count callbacks as described above. Has an effect once."""
    kind: Any = torch._C.Future
    torchs_then, torchs_add_done_callback = kind.then, kind.add_done_callback
    if hasattr(torchs_then, "_of_gradred"):
        return

    @functools.wraps(torchs_then)
    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        callbacks = _callbacks_of.get(self)
        if callbacks is None:
            return torchs_then(self, functools.partial(_call_as, running.callback, callback))
        call, of_the_next = callbacks.add(callback)
        following = torchs_then(self, call)
        _callbacks_of[following] = of_the_next
        return following

    @functools.wraps(torchs_add_done_callback)
    def add_done_callback(self: Any, callback: Callable[[Any], Any]) -> None:
        callbacks = _callbacks_of.get(self)
        if callbacks is None:
            call: Any = functools.partial(_call_as, running.callback, callback)
        else:
            call = callbacks.add(callback)[0]
        torchs_add_done_callback(self, call)

    then._of_gradred = True  # type: ignore[attr-defined]
    kind.then, kind.add_done_callback = then, add_done_callback
