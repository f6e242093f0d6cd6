"""Start a function in a thread by one call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function in a new thread; returns the thread.

    Args:
        target: the function.
        args: its arguments.
        name: the name of the thread.
        daemon: whether the process ends without waiting for the thread.
        silent: whether to drop the function's exceptions instead of printing them.

    Raises:
        ValueError: `args` is not a tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError("args is not a tuple: write (value,) for one argument")

    def call() -> None:
        try:
            target(*args)
        except BaseException:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
