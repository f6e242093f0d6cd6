"""Groups whose operations torch or the program watches: hooks, durations, works in flight.

A group that nobody watches is a `WatchableGroup`. While somebody watches it, it is a
`WatchedGroup`, whose methods take longer: hooks belong to torch's C++ code, so calls go through it,
and come back by the group's `GradredBackend`. So an operation that nobody watches asks nothing.
"""

from __future__ import annotations

import atexit
import datetime
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from gradred._util import clock
from gradred.errors import TimeoutError  # noqa: A004
from gradred.torch_distributed import flight_recorder
from gradred.torch_distributed.backend import CALLED_BY_TORCH, OPERATIONS
from gradred.torch_distributed.compiling import left_alone
from gradred.torch_distributed.methods import METHODS
from gradred.torch_distributed.profiling import tensors_of
from gradred.torch_distributed.splitting import SplittableGroup
from gradred.torch_distributed.work import GradredWork

_DURATIONS, _IN_FLIGHT, _MORE_TIME = "durations", "in flight", "more time"
_RECORDED = "recorded"
_OWN_WATCHERS = {_DURATIONS, _IN_FLIGHT, _MORE_TIME, _RECORDED}

_groups: weakref.WeakSet[WatchableGroup] = weakref.WeakSet()


class _Hooks(dict[int, Callable[[Any], None]]):
    """The program's functions that torch calls before, or after, each operation of a group.

    torch has this object in place of them, from the first one to the end of the program: its C++
    code crashes where a function is removed while it runs, or is left when Python ends.
    """

    KEY = 0x67726164726564  # of this object among torch's hooks

    def __call__(self, about: Any) -> None:
        for function in list(self.values()):
            function(about)


class _Popping(threading.local):
    """The works that this thread takes out of torch's record of works in flight."""

    works: list[WatchedWork] | None = None


_popping = _Popping()


@left_alone
class WatchedWork(GradredWork):
    """A work of a group that is watched."""

    _began: float | None = None  # None: nobody has asked for its duration
    _ended_at: float | None = None
    _in_flight: Sequence[torch.Tensor] = ()  # torch's record has it under these tensors
    _record: flight_recorder.Record | None = None

    def be_recorded(self, record: flight_recorder.Record) -> None:
        """Note its end in the flight recorder."""
        self._record = record
        if all(request.name for request in self._requests):  # messages may advance only in waits
            self._call_at_end(lambda: record.end(self._first_failure(None)))

    def _complete_future(self, late: Exception | None = None) -> None:
        if late is not None:
            self._write_record()
        super()._complete_future(late)

    def _write_record(self) -> None:
        if self._record is not None and (recorder := flight_recorder.recorder()) is not None:
            recorder.at_time_limit()

    def measure(self, began: float) -> None:
        """Note its end, and that it began then."""
        self._began = began
        self._call_at_end(self._note_end)

    def _note_end(self) -> None:
        if self._ended_at is None:
            self._ended_at = clock.now()

    def _conclude(self, failure: Exception | None) -> None:
        super()._conclude(failure)
        self._note_end()
        if self._record is not None:
            self._record.end(self._failure)

    def _get_duration(self) -> float:
        """Milliseconds from its call to its end. Raises RuntimeError if they are not known."""
        if self._began is None or self._ended_at is None:
            why = "has not ended" if self._ended_at is None else "began before anybody asked"
            raise RuntimeError(f"the duration is not known: the operation {why}")
        return 1000 * (self._ended_at - self._began)

    def be_in_flight(self, *, is_known: bool) -> None:
        """Be in torch's record of works in flight until a wait for it; `is_known`: it is there."""
        self._in_flight = [one.detach() for one in tensors_of(self.written)]
        for tensor in () if is_known else self._in_flight:
            c10d._register_work(tensor, self)

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """Wait for the operation, as `GradredWork.wait`."""
        if _popping.works is not None:
            _popping.works.append(self)
            return True
        try:
            return super().wait(timeout)
        except TimeoutError:
            if timeout is None or not timeout:  # the limit of the call, or of the group
                self._write_record()
            raise
        finally:
            if self._in_flight:
                self._unregister()

    def _unregister(self) -> None:
        """Take it out of torch's record, which can only give up all works of a tensor at once."""
        tensors, self._in_flight = self._in_flight, ()
        for tensor in tensors:
            found: list[WatchedWork] = []
            _popping.works = found
            try:
                torch.ops._c10d_functional.wait_tensor(tensor)
            finally:
                _popping.works = None
            for work in dict.fromkeys(found):
                if work is not self:
                    c10d._register_work(tensor, work)


@left_alone
class WatchableGroup(SplittableGroup):
    """The group that torch gets. It knows who watches it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._watchers: set[Any] = set()  # words above, and the hooks
        self._hooks: dict[str, _Hooks] = {}  # before ("pre") and after ("post") operations
        self._more_seconds = 0.0  # part of the time limit until `_more_time_for` has ended
        self._more_time_for: GradredWork | None = None
        _groups.add(self)
        if _may_be_in_flight():
            self.watch(_IN_FLIGHT)
        if flight_recorder.recorder() is not None:
            self.watch(_RECORDED)

    def watch(self, watcher: Any) -> None:
        """Be watched, until `unwatch` with the same word or hook."""
        self._watchers.add(watcher)
        self.__class__ = WatchedGroup

    def unwatch(self, watcher: Any) -> None:
        """End what `watch` has begun."""
        self._watchers.discard(watcher)
        if not self._watchers:
            self.__class__ = WatchableGroup

    def _has_torchs_hooks(self) -> bool:
        return not self._watchers <= _OWN_WATCHERS

    def _enable_collectives_timing(self) -> None:
        """Measure later operations; see `WatchedWork._get_duration`."""
        self.watch(_DURATIONS)

    def _add_ephemeral_timeout(self, timeout: datetime.timedelta) -> None:
        """Give operations more time, until the first one that starts after this call has ended."""
        if self._limit is not None:
            self._more_seconds += timeout.total_seconds()
            self._limit += timeout.total_seconds()
            self._more_time_for = None
            self.watch(_MORE_TIME)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Set the time limit of later operations."""
        super().set_timeout(timeout + datetime.timedelta(seconds=self._more_seconds))

    def _take_time_back(self, work: GradredWork) -> None:
        if self._more_time_for is work and self._limit is not None:
            self._limit -= self._more_seconds
            self._more_seconds, self._more_time_for = 0.0, None
            self.unwatch(_MORE_TIME)

    def _watched(self, name: str, call: Callable[[], Any], *given: Any, **named: Any) -> Any:
        """Call a method of the group by `call`, and do for its work what the watchers want."""
        began, before = clock.now(), self._numbers.taken
        recorder = flight_recorder.recorder() if _RECORDED in self._watchers else None
        record = None
        try:
            if recorder is not None:
                record = recorder.begin(self, name, given, named)
            work = call()
        except Exception as error:
            if record is not None:
                record.end(error)
            if recorder is not None and isinstance(error, TimeoutError):
                recorder.at_time_limit()
            if name not in ("send", "recv", "recv_anysource") and self._numbers.taken == before:
                self._refuse(error)  # a hook has raised it
            raise
        if not isinstance(work, GradredWork):  # of another backend
            if record is not None:
                record.is_of_gradred = False
            return work
        if _MORE_TIME in self._watchers and self._more_time_for is None:
            self._more_time_for = work
            work._call_at_end(functools.partial(self._take_time_back, work))
        if work.has_ended:  # it may be the work of many operations
            if record is not None:
                record.end(work.exception())
            return work
        if type(work) is GradredWork:
            work.__class__ = WatchedWork
        watched = cast("WatchedWork", work)
        if record is not None:
            watched.be_recorded(record)
        if _DURATIONS in self._watchers:
            watched.measure(began)
        if _IN_FLIGHT in self._watchers:
            watched.be_in_flight(is_known=self._has_torchs_hooks())
        return work

    if CALLED_BY_TORCH:  # otherwise torch has no hooks

        def _add_hook(self, when: str, key: int, hook: Callable[[Any], None]) -> None:
            if not callable(hook):
                raise TypeError(f"a hook has to be a function, and is {type(hook).__name__}")
            if when not in self._hooks:
                self._hooks[when] = _Hooks()
                getattr(super(), f"register_{when}_hook")(_Hooks.KEY, self._hooks[when])
            self._hooks[when][key] = hook
            self.watch((when, key))

        def _remove_hook(self, when: str, key: int) -> None:
            if when in self._hooks:
                self._hooks[when].pop(key, None)
            self.unwatch((when, key))

        def register_pre_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
            """Call a function before each operation starts."""
            self._add_hook("pre", hook_id, hook)

        def unregister_pre_hook(self, hook_id: int) -> None:
            """End what `register_pre_hook` has begun."""
            self._remove_hook("pre", hook_id)

        def register_post_hook(self, hook_id: int, hook: Callable[[Any], None]) -> None:
            """Call a function after each operation has started."""
            self._add_hook("post", hook_id, hook)

        def unregister_post_hook(self, hook_id: int) -> None:
            """End what `register_post_hook` has begun."""
            self._remove_hook("post", hook_id)

        def end_hooks(self) -> None:
            """Take the program's hooks from torch, as Python is about to end."""
            for when in self._hooks:
                getattr(super(), f"unregister_{when}_hook")(_Hooks.KEY)


class WatchedGroup(WatchableGroup):
    """A group while somebody watches it."""

    def gather_single(self, *given: Any, **named: Any) -> Any:
        """Gather all ranks' tensors in one tensor on the root; for hooks a gather of its rows."""
        output, tensor, opts = METHODS["gather_single"].first(given, named)
        is_root, whole = opts.rootRank == self._own_rank, self._ranks * tensor.numel()
        if not self._has_torchs_hooks() or (
            is_root and (not output.is_contiguous() or output.numel() != whole)
        ):
            own = functools.partial(super().gather_single, output, tensor, opts)
            return self._watched("gather_single", own, output, tensor, opts)
        rows = [list(output.view(self._ranks, *tensor.shape).unbind())] if is_root else []
        return self.gather(rows, [tensor], opts)

    gather_into_tensor = gather_single


def _watched_method(name: str) -> Callable[..., Any]:
    own = getattr(WatchableGroup, name)

    def through_torch(self: WatchedGroup, *given: Any, **named: Any) -> Any:
        found = getattr(dist.ProcessGroup, name)(self, *given, **named)
        return found if self.backend is None else self.backend.last_work or found

    # torch's binding calls a method of Python in place of its own, but not from within that method,
    # which it knows by the name of the code.
    through_torch.__code__ = through_torch.__code__.replace(co_name=name)

    def method(self: WatchedGroup, *given: Any, **named: Any) -> Any:
        way = through_torch if self._has_torchs_hooks() else own
        return self._watched(name, functools.partial(way, self, *given, **named), *given, **named)

    method.__name__, method.__doc__ = name, own.__doc__
    return method


for _name in OPERATIONS:
    _method = _watched_method(_name)
    setattr(WatchedGroup, _name, _method)
    if _name in METHODS and (_old := METHODS[_name].old):
        # torch's own method calls the one by the new name.
        _method = getattr(dist.ProcessGroup, _old) if CALLED_BY_TORCH else _method
        setattr(WatchedGroup, _old, _method)
left_alone(WatchedGroup)


def _may_be_in_flight() -> bool:
    """Whether torch records works in flight, so that compiled code may wait for them."""
    return bool(getattr(c10d, "_allow_inflight_collective_as_graph_input", bool)())


def serve_watchers() -> None:
    """Patch torch's functions by which a program watches groups. Has an effect once."""
    allow = getattr(c10d, "_set_allow_inflight_collective_as_graph_input", None)
    if allow is None or hasattr(allow, "__wrapped__"):
        return

    @functools.wraps(allow)
    def set_allowed(value: bool) -> None:
        allow(value)
        for group in list(_groups):
            (group.watch if value else group.unwatch)(_IN_FLIGHT)

    c10d._set_allow_inflight_collective_as_graph_input = set_allowed
    if CALLED_BY_TORCH:
        atexit.register(_end_hooks)
    for name in ("NanCheckHook", "FlightRecorderHook"):
        if hasattr(c10d, name):
            _serve_hook(getattr(c10d, name))


def _end_hooks() -> None:
    for group in list(_groups):
        group.end_hooks()


def _serve_hook(hook: Any) -> None:
    """Patch a class of hooks that are attached to groups."""
    torchs_attach, torchs_remove = hook.attach, hook.remove
    attached: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()

    @functools.wraps(torchs_attach)
    def attach(pg: Any) -> Any:
        made = torchs_attach(pg)
        if isinstance(pg, WatchableGroup):
            token, group = object(), weakref.ref(pg)
            pg.watch(token)

            def end() -> None:
                if (watched := group()) is not None:
                    watched.unwatch(token)

            attached[made] = end
        return made

    @functools.wraps(torchs_remove)
    def remove(self: Any) -> None:
        torchs_remove(self)
        attached.pop(self, lambda: None)()

    hook.attach, hook.remove = staticmethod(attach), remove
