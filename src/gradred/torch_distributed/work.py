"""Works of torch.distributed: operations of a process group in flight."""

from __future__ import annotations

import datetime
import math
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from gradred import _core
from gradred._util import clock
from gradred.errors import TimeoutError  # noqa: A004
from gradred.torch_distributed.callbacks import count_callbacks
from gradred.torch_distributed.compiling import left_alone
from gradred.torch_distributed.methods import METHODS
from gradred.torch_distributed.profiling import Shown, show_paths, waiting
from gradred.torch_tensors import stream_of

Tensor: TypeAlias = torch.Tensor

_COALESCED, _UNKNOWN = 17, 100  # of torch's `OpType`
_NUMBER = re.compile(r"operation (\d+) of ")


@left_alone
class GradredWork(dist.Work):
    """An operation in flight. `wait` and the future raise its errors.

    Args:
        requests: the requests of the operation. It ends when all of them have ended.
        finish: stores the results. The first thread that observes the end calls it, once. None:
            the results are already in place.
        result: value of the future: tensors, or lists of tensors.
        limit: time limit in seconds of the future, and of `wait` without a timeout.
        placed: the results go to their tensors without `finish`, which only copies results for
            which the engine had to allocate host memory.
    """

    # Values of a new work. Attributes of the class take no time in `__init__`.
    kind = ""  # the method of the group that made it
    _shown: Shown | None = None  # its record in a profile
    _concluded = False  # results are stored, or it has failed
    _failure: Exception | None = None
    _future: Any = None
    _ended: Any = None  # completing it completes the future
    _completed = False  # `_ended` has been completed
    _late: Exception | None = None
    _waited = False

    def __init__(
        self,
        requests: Sequence[Any],
        finish: Callable[[], None] | None,
        result: list[Any],
        limit: float | None,
        placed: bool = False,
    ) -> None:
        super().__init__()
        self._placed = placed or finish is None
        self._requests, self._result, self._limit = list(requests), result, limit
        self._finish = finish
        self._lock = threading.Lock()
        if _FORGETS_PYTHON:
            _thin_out()

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait for the operation. Raises its error, or gradred.TimeoutError.

        For tensors on a GPU the current stream waits for the results. The call blocks until all
        ranks have submitted the operation and this rank's device has all its work. It blocks until
        the end if `timeout` is given, or if the data go through host memory.
        """
        if not self._concluded:
            seconds, in_stream = self._limit, True
            if timeout is not None and timeout.total_seconds() > 0:
                seconds, in_stream = timeout.total_seconds(), False
            if self._shown is None:
                self._settle(seconds, in_stream)
            else:
                with waiting(self._shown):
                    self._settle(seconds, in_stream)
        if self._shown is not None:
            show_paths()
        self._waited = True
        if _FORGETS_PYTHON:
            _let_go(self)
        if self._failure is not None:
            raise self._failure
        return True

    def _settle(self, seconds: float | None, in_stream: bool) -> None:
        """Wait for the end, or make the current stream wait for it."""
        if not (in_stream and self._precedes_current_stream(seconds)):
            self._conclude(self._first_failure(seconds))

    def _precedes_current_stream(self, seconds: float | None) -> bool:
        """Make the current stream wait for the results. False: the host has to wait."""
        if not self._placed or len(self._requests) != 1:
            return False
        request = self._requests[0]
        if not isinstance(request, _core.NamedRequest):  # a message
            return False
        tensor = self._result[0] if self._result else None
        if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
            return False
        try:
            return bool(request.wait_in_stream(stream_of(tensor), seconds))
        except TimeoutError:
            if request.done():
                return False
            if seconds is None:
                raise
            raise self._is_late(request, seconds) from None
        except Exception:
            # The stream cannot wait, or the operation has failed: the host's wait raises its error.
            return False

    def synchronize(self) -> None:
        """Same as `wait`."""
        self.wait()

    def _first_failure(self, seconds: float | None) -> Exception | None:
        """Wait for all requests, and return the error of the first one that failed.

        Raises an error only if a request is still running at the time limit.
        """
        is_one = len(self._requests) == 1
        begin, left, failure = 0.0 if is_one else clock.now(), seconds, None
        for request in self._requests:
            try:
                request.wait(left)
            except Exception as error:
                if isinstance(error, TimeoutError) and not request.done():
                    if seconds is None:
                        raise
                    raise self._is_late(request, seconds) from None
                failure = failure or _own_error(request, error)
            if seconds is not None and not is_one:
                left = max(0.0, round(begin + seconds - clock.now(), 3))
        return failure

    def _is_late(self, request: Any, seconds: float) -> TimeoutError:
        found = f"Timed out after {seconds:g} s, and the operation goes on"
        remedy = "See what that rank does, and wait again or for longer"
        if seconds == self._limit:
            remedy += ": this is the time limit of the group or of the call (timeout=)"
        return TimeoutError(f"wait for {request.waits_for}", found, remedy)

    def _conclude(self, failure: Exception | None) -> None:
        """Store the results after all requests have ended.

        It holds the lock, and so must not call a request, which may call back.
        """
        with self._lock:
            if self._concluded:
                return
            finish, self._finish = self._finish, None
            # An operation whose results are placed has outputs if the engine had to allocate them.
            if (
                failure is None
                and finish is not None
                and (not self._placed or any(request.outputs for request in self._requests))
            ):
                try:
                    finish()
                    for gpu in _gpus_of(self._result):  # other streams read it
                        torch.cuda.current_stream(gpu).synchronize()
                except Exception as error:
                    failure = error
            self._failure, self._concluded = failure, True
        if self._shown is not None:
            self._shown.end()

    @property
    def has_ended(self) -> bool:
        """Whether its results are in their tensors, or it has failed."""
        return self._concluded

    @property
    def written(self) -> list[Any]:
        """The tensors with its results, and lists of such."""
        return self._result

    def show(self, operation: Shown) -> None:
        """Attach a record in a profile, which ends with the operation."""
        self._shown = operation
        operation.path = self._path
        if all(request.name for request in self._requests):  # messages may advance only in waits
            self._call_at_end(operation.end)

    def _path(self) -> str:
        """How the data travelled, in the profile's words. Empty if there were none."""
        return " and ".join(filter(None, dict.fromkeys(one.way for one in self._requests)))

    def is_completed(self) -> bool:
        """Whether the operation has completed or failed. If True, the results are in place."""
        if not self._concluded:
            if not all(request.done() for request in self._requests):
                return False
            self._conclude(self._first_failure(None))
        return True

    def is_success(self) -> bool:
        """Whether the operation has completed without an error."""
        return self.is_completed() and self._failure is None

    def exception(self) -> Exception | None:
        """The operation's error. None: it has not ended, or has not failed."""
        return self._failure if self.is_completed() else None

    def result(self) -> list[Any]:
        """The tensors that hold the result, or lists of them."""
        return self._result

    def _get_op_type(self) -> int:
        """The kind of operation, as the number of a torch `OpType`."""
        if self.kind in METHODS:
            return METHODS[self.kind].number
        return _COALESCED if self.kind else _UNKNOWN

    def _get_sequence_number(self) -> int:
        """The operation's number in its group, from 1. Raises RuntimeError for a message."""
        numbers = [found[1] for one in self._requests if (found := _NUMBER.match(one.name))]
        if not numbers:
            raise RuntimeError("a message has no number in its group")
        return int(numbers[-1])

    def get_future(self) -> Any:
        """A future with the tensors. The progress thread does not call its callbacks.

        The future fails with a RuntimeError with the text of the error that `wait` raises. It also
        fails at the time limit of the group, as waiting for a future has no time limit.
        """
        with self._lock:
            if self._future is not None:
                return self._future
            self._ended = torch.futures.Future(devices=_gpus_of(self._result))
            # For C++ code, such as DDP, an exception that torch's set_exception has set is a normal
            # value. An exception raised in a callback is an error for Python and C++ code.
            self._future = self._ended.then(lambda _: self._outcome())
            if self._requests and (name := self._requests[0].name):
                count_callbacks(self._future, name)
        if self._limit is not None:
            _time_limits.add(self, self._limit)
        self._call_at_end(self._complete_future)
        return self._future

    def get_future_result(self) -> Any:
        """A future with how the operation has ended, as the number of a torch `WorkResult`.

        It never fails. It has no time limit of its own.
        """
        ended: Any = torch.futures.Future()

        def complete() -> None:
            failure = self._first_failure(None)
            self._conclude(failure)
            ended.set_result(_result_of(self._failure))

        self._call_at_end(complete)
        return ended

    def _call_at_end(self, function: Callable[[], None], index: int = 0) -> None:
        """Call a function after all requests have ended, not in the progress thread."""
        if index < len(self._requests):
            self._requests[index].add_done_callback(
                lambda _: self._call_at_end(function, index + 1)
            )
            return
        function()

    def _complete_future(self, late: Exception | None = None) -> None:
        with self._lock:
            if self._completed:
                return
            self._completed, self._late = True, late
        _time_limits.remove(self)
        self._ended.set_result(None)

    def _outcome(self) -> list[Any]:
        if self._late is not None:
            raise self._late
        self.wait()
        return self._result

    def fail_future(self) -> None:
        """Fail the future, as its time limit is over, unless the operation has ended."""
        try:
            going = [request.waits_for for request in self._requests if not request.done()]
        except Exception as error:
            return self._complete_future(error)
        if going:
            found = f"Timed out after {self._limit:g} s"
            remedy = "See what that rank does, or pass a longer timeout"
            late = TimeoutError(f"future of {going[0]}", found, remedy)
            self._complete_future(late)
        return None


def _result_of(failure: Exception | None) -> int:
    """The number of torch's `WorkResult`, which older PyTorch lacks."""
    if failure is None:
        return 0  # SUCCESS
    return 1 if isinstance(failure, TimeoutError) else 2  # TIMEOUT, COMM_ERROR


def _gpus_of(result: Any) -> list[torch.device]:
    """The GPUs of a result, which consists of tensors or lists of them."""
    if isinstance(result, torch.Tensor):
        return [result.device] if result.is_cuda else []
    return list(dict.fromkeys(device for one in result for device in _gpus_of(one)))


def together(
    works: Sequence[GradredWork],
    limit: float | None,
    finish: Callable[[], None] = lambda: None,
    result: list[Any] | None = None,
) -> GradredWork:
    """Combine works that no caller has seen into one. `finish` is called at its end."""
    parts = [work._finish for work in works]

    def finish_all() -> None:
        for part in parts:
            if part is not None:
                part()
        finish()

    for work in works:
        work._waited = True
    requests = [request for work in works for request in work._requests]
    if result is None:
        result = [tensor for work in works for tensor in work.result()]
    return GradredWork(requests, finish_all, result, limit)


def all_of(works: Sequence[GradredWork], limit: float | None) -> GradredWork:
    """Make one work of those that a caller may also have waited for, or may wait for."""
    left = [work for work in works if not work._waited]

    def finish() -> None:
        for work in left:
            work._conclude(None)
            if work._failure is not None:
                raise work._failure

    requests = [request for work in left for request in work._requests]
    return GradredWork(requests, finish, [one for work in left for one in work.result()], limit)


class _TimeLimits:
    """Makes futures fail at their time limits. One thread sleeps until the next limit."""

    _LONGEST = 1e6  # seconds of its longest sleep

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[GradredWork, float] = {}
        self._wakes = math.inf
        self._thread: threading.Thread | None = None

    def add(self, work: GradredWork, seconds: float) -> None:
        due = clock.now() + seconds
        with self._changed:
            self._due[work] = due
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gradred time limits", daemon=True
                )
                self._thread.start()
            elif due < self._wakes:
                self._changed.notify()

    def remove(self, work: GradredWork) -> None:
        with self._changed:
            self._due.pop(work, None)

    def _run(self) -> None:
        while True:
            for work in self._next():
                work.fail_future()

    def _next(self) -> list[GradredWork]:
        """Sleep until the next time limit or a change. Returns the works whose limit is over."""
        with self._changed:
            self._wakes = min(self._due.values(), default=math.inf)
            self._changed.wait(clock.nap(min(self._wakes - clock.now(), self._LONGEST)))
            now = clock.now()
            over = [work for work, due in self._due.items() if due <= now]
            for work in over:
                del self._due[work]
            return over


_time_limits = _TimeLimits()

# Older PyTorch frees the Python half of a Work once Python code has no reference to it. C++ code
# that was just given the Work then waits for ever. So a work that Python code drops before a wait
# is kept alive until a wait for it. If no wait comes, the oldest works that have ended free their
# memory, but keep their outcome.
_FORGETS_PYTHON = torch.torch_version.TorchVersion(torch.__version__) < (2, 13)
_MOST_YOUNG, _MOST_OLD = 1024, 1 << 16
_young: dict[GradredWork, None] = {}
_old: dict[GradredWork, None] = {}
_keeping = threading.RLock()  # freeing one work may drop another


def _keep(work: GradredWork) -> None:
    """Keep a work alive until a wait for it. Python calls this once, as `__del__`."""
    if not work._waited:
        with _keeping:
            _young[work] = None


def _thin_out() -> None:
    """Free the memory of the oldest work if there are many."""
    with _keeping:
        oldest = next(iter(_young)) if len(_young) > _MOST_YOUNG else None
    if oldest is None or not oldest.is_completed():
        return
    with _keeping:
        if _young.pop(oldest, 0) is None:  # no wait has happened meanwhile
            _old[oldest] = None
            if oldest._future is None:  # a future returns the result
                oldest._requests, oldest._result = [], []
        if len(_old) > _MOST_OLD:
            del _old[next(iter(_old))]


def _own_error(request: Any, error: Exception) -> Exception | None:
    """How a request ended that raised this error: just after a time limit, perhaps well."""
    if not isinstance(error, TimeoutError):
        return error
    try:
        request.wait(0.0)
    except Exception as own:
        return own
    return None


def _let_go(work: GradredWork) -> None:
    with _keeping:
        _young.pop(work, None)
        _old.pop(work, None)


if _FORGETS_PYTHON:
    GradredWork.__del__ = _keep
