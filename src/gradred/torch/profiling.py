"""Operations of process groups as torch.profiler shows them, next to the backward pass."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch

_profiles = torch.autograd._profiler_enabled

_Collective = TypeVar("_Collective", bound=Callable[..., Any])


class _Calling(threading.local):
    """What this thread is in."""

    shown = False  # a call that is shown; what it calls is a part of it


_calling = _Calling()


class Shown:
    """One operation in a profile, from its call to its end.

    The profiler takes what one thread begins and another one ends to be asynchronous. The record
    ends with a future, which brings to that thread what it has to know of the profiler.

    Args:
        title: its name.
        tensors: whose shapes are shown.
    """

    def __init__(self, title: str, tensors: list[torch.Tensor]) -> None:
        self.title = title
        self._ending = threading.Lock()
        self._began_in = threading.get_ident()
        begin = torch.autograd._record_function_with_args_enter
        end_with = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction
        self._ended: Any = torch.futures.Future()
        end_with(begin(f"gradred:{title}", *tensors), self._ended)

    def end(self) -> None:
        """The operation has; again does nothing. It returns when the profiler knows."""
        with self._ending:
            if self._ended.done():
                return
            if threading.get_ident() != self._began_in:
                self._ended.set_result(None)
                return
            other = threading.Thread(target=self._ended.set_result, args=(None,))
            other.start()
            other.join()


def shown(title: str, inputs: int = 0) -> Callable[[_Collective], _Collective]:
    """Have calls of a method shown by torch's name for them, after "gradred:".

    Args:
        title: this name.
        inputs: which argument has the tensors whose shapes are shown.
    """

    def decorate(collective: _Collective) -> _Collective:
        @functools.wraps(collective)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not _profiles() or _calling.shown:
                return collective(group, *args, **kwargs)
            operation = Shown(title, _tensors(args[inputs : inputs + 1]))
            _calling.shown = True
            try:
                work = collective(group, *args, **kwargs)
            except BaseException:
                operation.end()
                raise
            finally:
                _calling.shown = False
            work.show(operation)
            return work

        return cast("_Collective", call)

    return decorate


def _tensors(given: Any) -> list[torch.Tensor]:
    """In lists of lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    if not isinstance(given, (list, tuple)):
        return []
    return [tensor for one in given for tensor in _tensors(one)]


def waiting(operation: Shown | None) -> AbstractContextManager[Any]:
    """Within it is the wait for an operation; None: it is not shown."""
    if operation is None or not _profiles():
        return nullcontext()
    seen: AbstractContextManager[Any] = torch.profiler.record_function(
        f"gradred waits for {operation.title}"
    )
    return seen
