"""States of an elastic training, to which it returns after a failure."""

from __future__ import annotations

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradred.errors import Error, PeerLost, TransportError, explain
from gradred.horovod import basics
from gradred.horovod.elastic.job import PICKLED, ElasticJob, StateFormat, of_this_rank
from gradred.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from gradred.horovod.objects import broadcast_object
from gradred.horovod.operations import one_structure
from gradred.horovod.process_sets import global_process_set


def _broadcast(obj: Any) -> Any:
    return broadcast_object(obj, 0, "elastic.state")


class Saved:
    """What can be saved, restored, and synchronized between ranks."""

    def save(self) -> None:
        """Save a copy."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the copy."""
        raise NotImplementedError

    def sync(self) -> None:
        """Broadcast from rank 0, whose values count as saved on all ranks."""
        raise NotImplementedError

    def saved(self) -> Any:
        """The copy for a file, as a picklable object. None: there is nothing to write."""

    def take(self, saved: Any) -> None:
        """Continue from a result of `saved`, perhaps of another process. None: change nothing."""

    def reset(self) -> None:
        """Adapt to the current ranks."""


class State(Saved):
    """State to save, restore and synchronize between ranks. Subclass it, or use `TorchState`.

    Args:
        bcast_object: broadcasts an object of rank 0. None: `hvd.broadcast_object`.
        get_rank: ignored.
    """

    _job: ElasticJob | None = None  # set by `run` in an elastic job
    _callbacks: list[Callable[[], object]]

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
    ) -> None:
        self._bcast_object = bcast_object or _broadcast
        self._callbacks = []

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], object]]) -> None:
        """Register functions to call after each restart of the training function."""
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Reset the state, and call the registered callbacks. `run` calls this after a restart."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Save the state. After a failure, the training returns to it.

        In an elastic job (`gradred run --min-np`) all ranks have to commit. Rank 0 also writes the
        state to a file, but spends at most a tenth of the time on this.

        Raises:
            HostsUpdatedInterrupt: see `check_host_updates`.
        """
        self.save()
        if self._job is not None:
            self._job.write(self.saved())
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Check for changed hosts. Collective in an elastic job, otherwise without effect.

        Raises:
            HostsUpdatedInterrupt: there is room for more ranks, or a host must no longer be used.
        """
        if self._job is not None and self._job.hosts_have_changed():
            raise HostsUpdatedInterrupt


class ObjectState(State):
    """State of plain values, by name, and of parts that subclasses save in their own ways.

    Args:
        bcast_object: broadcasts an object of rank 0. None: `hvd.broadcast_object`.
        get_rank: ignored.
        kwargs: the values. Each becomes an attribute.
    """

    _parts: Mapping[str, Saved] = {}  # a subclass sets it before it calls `__init__`

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] | None = None,
        get_rank: Callable[[], int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._names = list(kwargs)
        self._saved: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._keep()

    def _keep(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def save(self) -> None:
        """Save a copy of the state."""
        for part in self._parts.values():
            part.save()
        self._keep()

    def restore(self) -> None:
        """Restore the state from the copy."""
        for part in self._parts.values():
            part.restore()
        for name, value in self._saved.items():
            setattr(self, name, copy.deepcopy(value))

    def saved(self) -> Any:
        """The values and parts of the last `save`."""
        parts = {name: part.saved() for name, part in self._parts.items()}
        return {"values": self._saved, "parts": parts}

    def take(self, saved: Any) -> None:
        """Continue from such a state.

        Raises:
            ValueError: the names of its values or parts differ from those of this state.
        """
        if saved is None:
            return
        require_alike("parts", self._parts, saved["parts"])
        require_alike("values", self._saved, saved["values"])
        for name, part in self._parts.items():
            part.take(saved["parts"][name])
        self._saved = saved["values"]
        self.restore()

    def sync(self) -> None:
        """Broadcast the state of rank 0, which counts as saved on all ranks."""
        parts = sorted(self._parts.items())
        alike: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if parts:
            kinds = "; ".join(f"{name}: {type(part).__name__}" for name, part in parts)
            alike = one_structure(type(self).__name__, kinds, global_process_set)
        with alike:
            for _, part in parts:
                part.sync()
            values = {name: getattr(self, name) for name in self._names}
            for name, value in self._bcast_object(values).items():
                setattr(self, name, value)
            self._keep()

    def reset(self) -> None:
        """Adapt to the current ranks: samplers divide the remaining samples among them."""
        for part in self._parts.values():
            part.reset()


def require_alike(what: str, mine: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise ValueError unless a state in a file has the names of this program's state."""
    if mine.keys() != found.keys():
        text = f"it has the {what} {sorted(found)}, and this program's has {sorted(mine)}"
        remedy = "Use another folder (--elastic-dir) for another program"
        raise ValueError(explain("the state of an elastic job", text, remedy))


def run_fn(
    func: Callable[..., Any],
    reset: Callable[[], object] | None = None,
    *,
    file_format: StateFormat = PICKLED,
) -> Callable[..., Any]:
    """Decorate a training function whose first argument is a `State`; see `gradred.torch.elastic`.

    Args:
        func: the function.
        reset: replaces `shutdown` and `init` if no rank has ended.
        file_format: how an elastic job writes its states to files.
    """

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        job = state._job = of_this_rank(file_format)
        if job is not None and type(state).saved is State.saved:
            found = f"{type(state).__name__} has no saved() and take()"
            remedy = "Write them, or use TorchState"
            text = explain("elastic.run", f"{found}: a job that starts again has no state", remedy)
            warnings.warn(text, stacklevel=2)
        skips, begins = False, job is not None
        while True:
            try:
                if job is not None and begins:
                    state.take(job.read())
                    begins = False
                if not skips:
                    state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                skips = False
                _begin_anew(error, job, reset)
            except HostsUpdatedInterrupt as interrupt:
                if job is not None:
                    state.save()
                    job.write(state.saved(), at_once=True)
                    job.start_again()
                skips = interrupt.skip_sync
                (reset or basics.init_again)()
            state.on_reset()

    return wrapper


def _begin_anew(
    error: HorovodInternalError, job: ElasticJob | None, reset: Callable[[], object] | None
) -> None:
    """Initialize again with all ranks or, if some have ended, with the remaining ones."""
    lost, left = isinstance(error.__cause__, TransportError), None
    try:
        left = basics.shrink()
        if left is None and not lost:
            (reset or basics.init_again)()
            return
        if left is not None and reset is not None and basics.init_finds(left):
            reset()
            return
        while left is not None and (job is None or left.Get_size() >= job.least):
            try:
                basics.init_again(left)
                return
            except PeerLost:  # another rank has ended meanwhile
                left = left.shrink()
    except Error as why:
        if job is None:
            raise error from why
    if job is None:
        raise error
    job.write_last(left)
    job.start_again()
