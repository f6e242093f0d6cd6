"""Records of process groups' operations for torch.profiler, next to the backward pass.

How the data of an operation travelled is known at its end, often in a thread that the profiler does
not observe. So the thread that ends it notes the path, and a thread of the program records it: in
its wait, at its next call, or at the end of the backward pass.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch

is_profiled = torch.autograd._profiler_enabled

_Collective = TypeVar("_Collective", bound=Callable[..., Any])


class _Calling(threading.local):
    """Whether this thread is inside a recorded call."""

    shown = False  # calls inside a recorded call are part of it


_calling = _Calling()


class Shown:
    """The record of one operation in a profile, from its call to its end.

    The profiler shows a record as asynchronous if it begins and ends in different threads. A future
    ends the record: it transfers the profiler's state to the thread that completes it.

    The shapes of `tensors` are recorded.
    """

    def __init__(self, title: str, tensors: list[torch.Tensor]) -> None:
        self.title = title
        self.path: Callable[[], str] = str  # says how the data travelled, after a good end
        self._ending = threading.Lock()
        self._began_in = threading.get_ident()
        begin = torch.autograd._record_function_with_args_enter
        end_with = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction
        self._ended: Any = torch.futures.Future()
        end_with(begin(f"gradred:{title}", *tensors), self._ended)

    def end(self) -> None:
        """End the record, and return once the profiler has it. Further calls do nothing."""
        with self._ending:
            if self._ended.done():
                return
            if path := self.path():
                _paths.append(f"gradred {self.title} by {path}")
            if threading.get_ident() != self._began_in:
                self._ended.set_result(None)
                return
            other = threading.Thread(target=self._ended.set_result, args=(None,))
            other.start()
            other.join()


def shown(title: str, inputs: int = 0) -> Callable[[_Collective], _Collective]:
    """Decorate a method: its calls appear in profiles as "gradred:" and torch's name for them.

    `inputs` is the index of the argument with the tensors whose shapes are recorded.
    """

    def decorate(collective: _Collective) -> _Collective:
        @functools.wraps(collective)
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_profiled() or _calling.shown:
                return collective(group, *args, **kwargs)
            operation = Shown(title, tensors_of(args[inputs : inputs + 1]))
            _calling.shown = True
            try:
                work = collective(group, *args, **kwargs)
            except BaseException:
                operation.end()
                raise
            finally:
                _calling.shown = False
            work.show(operation)
            show_paths()
            _show_paths_after_backward_pass()
            return work

        return cast("_Collective", call)

    return decorate


# The names of records of paths that no thread has made yet.
_paths: collections.deque[str] = collections.deque(maxlen=1 << 16)


def show_paths() -> None:
    """Record by which paths operations went that have ended since, as events without length."""
    while _paths and is_profiled():
        try:
            name = _paths.popleft()
        except IndexError:  # another thread has recorded it
            return
        with torch.profiler.record_function(name):
            pass


def _show_paths_after_backward_pass(again: bool = True) -> None:
    """Record paths at the end of the backward pass that runs in this thread, if one does.

    DistributedDataParallel waits for its last operation there, but begins to do so after the call.
    """
    if torch._C._current_graph_task_id() == -1:
        return

    def at_end() -> None:
        if again:
            _show_paths_after_backward_pass(again=False)
        else:
            show_paths()

    torch.autograd.Variable._execution_engine.queue_callback(at_end)


def tensors_of(given: Any) -> list[torch.Tensor]:
    """The tensors in nested lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    if not isinstance(given, (list, tuple)):
        return []
    return [tensor for one in given for tensor in tensors_of(one)]


def waiting(operation: Shown | None) -> AbstractContextManager[Any]:
    """Context that records the wait for an operation. None: the operation is not recorded."""
    if operation is None or not is_profiled():
        return nullcontext()
    seen: AbstractContextManager[Any] = torch.profiler.record_function(
        f"gradred waits for {operation.title}"
    )
    return seen
