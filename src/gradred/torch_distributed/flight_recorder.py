"""torch's flight recorder for groups of gradred: their last operations, for torch's own analyser.

It is on if a variable says so by which torch's own recorder is set, and then makes each call a
little longer. A rank whose operation outlasts the group's time limit writes its record to a file,
and asks the other ranks for theirs by the store of the default group.

torch's analyser expects all ranks of a group in each operation of the group. So messages count as
operations of a group of two, for each direction. It takes operations only of backends that it
knows, of which gradred is none.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import itertools
import os
import pickle
import sys
import threading
import time
import weakref
from collections import deque
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from gradred.errors import UsageError
from gradred.torch_distributed.methods import METHODS
from gradred.torch_distributed.profiling import tensors_of

if TYPE_CHECKING:
    from gradred.torch_distributed.watched import WatchableGroup

_FORMAT = "2.10"  # torch's version of the files
_BACKEND = "gloo"  # one that the analyser knows
_LENGTHS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_MOST_FRAMES = 32
_LOOKS_EVERY = 0.5  # seconds
_PATIENCE = datetime.timedelta(seconds=5)  # with the other ranks' files
_ASKED, _NOT = "a rank asks for files", "no"  # a key, and its value while nobody asks

# Names that are not the title of the method.
_TITLES = {
    "all_gather_single": "_all_gather_base",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "allgather_coalesced": "all_gather_into_tensor_coalesced",
    "allreduce_coalesced": "allreduce_coalesced",
    "gather_single": "gather",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
_PARTS = {"allgather": 0, "reduce_scatter": 1}  # the argument with a tensor of each rank
_OF_PARTS = ("allgather", "allgather_coalesced", "alltoall", "gather", "reduce_scatter", "scatter")


class _Group:
    """A group as the analyser knows it, and how far this rank is in it."""

    def __init__(self, number: int, name: str, about: str, ranks: list[int]) -> None:
        self.number, self.name, self.about, self.ranks = number, name, about, ranks
        self.started = self.completed = 0

    def config(self) -> dict[str, str]:
        return {"name": self.name, "desc": self.about, "ranks": str(self.ranks)}

    def status(self) -> dict[str, int]:
        counts = {"enqueued": self.started, "started": self.started, "completed": self.completed}
        return {f"last_{word}_collective": count for word, count in counts.items()}


class Record:
    """One operation. It keeps no tensor alive."""

    has_ended = False  # well, or not
    ended_at: int | None = None  # after a good end
    is_of_gradred = True

    def __init__(self, number: int, group: _Group, title: str, seconds: float | None) -> None:
        group.started += 1
        self._number, self._group, self._title, self._seconds = number, group, title, seconds
        self._of_group, self._began = group.started, time.time_ns()
        self._thread = threading.get_ident()
        self.inputs: list[tuple[tuple[int, ...], torch.dtype]] = []
        self.outputs = self.inputs
        self._frames: list[tuple[CodeType, int]] = []
        frame: FrameType | None = sys._getframe(4)
        while frame is not None and len(self._frames) < _MOST_FRAMES:
            self._frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back

    def end(self, failure: Exception | None) -> None:
        """Note the end, the first time."""
        if not self.has_ended:
            self.has_ended = True
            if failure is None:
                self.ended_at = time.time_ns()
                self._group.completed = max(self._group.completed, self._of_group)

    def written(self) -> dict[str, Any]:
        """The record in torch's format."""
        is_message = self._title.startswith(("send", "recv"))
        return {
            "frames": [
                {"name": code.co_name, "filename": code.co_filename, "line": line}
                for code, line in self._frames
            ],
            "record_id": self._number,
            "pg_id": self._group.number,
            "process_group": (self._group.name, self._group.about),
            "thread_id": str(self._thread),
            "thread_name": "",
            "collective_seq_id": self._of_group,
            "p2p_seq_id": self._of_group if is_message else 0,
            "op_id": self._of_group,
            "profiling_name": f"{_BACKEND}:{self._title}",
            "time_created_ns": self._began,
            "input_sizes": [list(shape) for shape, _ in self.inputs],
            "input_dtypes": [str(dtype).removeprefix("torch.") for _, dtype in self.inputs],
            "output_sizes": [list(shape) for shape, _ in self.outputs],
            "output_dtypes": [str(dtype).removeprefix("torch.") for _, dtype in self.outputs],
            "state": "started" if self.ended_at is None else "completed",
            "time_discovered_started_ns": self._began,
            "time_discovered_completed_ns": self.ended_at,
            "retired": self.has_ended,
            "timeout_ms": 0 if self._seconds is None else int(1000 * self._seconds),
            "is_p2p": is_message,
        }


class FlightRecorder:
    """The last operations of all groups of this process. It keeps `length` of them."""

    def __init__(self, length: int) -> None:
        home = os.path.join(os.environ.get("HOME", "/tmp"), ".cache/torch")
        self._file = _first_set(_FILES) or f"{home}/comm_lib_trace_rank_"
        self._records: deque[Record] = deque(maxlen=length)
        self._count, self._groups = itertools.count(), dict[str, _Group]()
        self._known: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()
        self._store: tuple[Any, Any] = (None, None)  # torch's, and how this object reaches it
        self._rank = 0
        self._has_answered, self._ends = False, threading.Event()
        self._looks = threading.Thread(target=self._look, name="gradred flight", daemon=True)
        self._looks.start()
        atexit.register(self.end)

    def begin(
        self, group: WatchableGroup, name: str, given: tuple[Any, ...], named: dict[str, Any]
    ) -> Record | None:
        """Record a call of a group's method; None for a message from any rank."""
        if name == "recv_anysource":
            return None
        of = self._known.get(group._numbers) or self._know(group)
        if name in ("send", "recv"):
            values = dict(zip(("tensors", "peer"), given, strict=False)) | named
            peer = next(values[one] for one in ("peer", "dstRank", "srcRank") if one in values)
            pair = [group.rank(), peer] if name == "send" else [peer, group.rank()]
            of, title = self._between(of, pair, name)
            record = self._add(Record(next(self._count), of, title, group._limit))
            record.inputs = record.outputs = _sizes(name, values["tensors"])
            return record
        *data, opts = METHODS.get(name, METHODS["allreduce"]).first(given, named)
        title = _TITLES.get(name) or METHODS[name].title
        sizes = [_sizes(name, one) for one in data[:2]] or [[]]
        parts = data[_PARTS[name]] if name in _PARTS else ()
        if len({one.numel() for one in tensors_of(parts)}) > 1:  # each rank has another length
            title, sizes = f"{title}_v", [sizes[_PARTS[name]]]
        record = self._add(Record(next(self._count), of, title, group._limit_of(opts)))
        record.outputs, record.inputs = sizes[0], sizes[-1]
        return record

    def _add(self, record: Record) -> Record:
        self._records.append(record)
        return record

    def _know(self, group: WatchableGroup) -> _Group:
        about, name = "undefined", group.pg_name
        with contextlib.suppress(AttributeError, RuntimeError):  # older PyTorch has none
            about = group.group_desc or about
        ranks = list(dist.distributed_c10d._world.pg_group_ranks.get(group, ()))
        if len(ranks) != group.size():
            ranks = list(range(group.size()))
        if name in self._groups:  # the program has begun anew, or the group has other ranks
            self._records.clear()
            self._groups.clear()
            self._known.clear()
        of = self._groups[name] = _Group(len(self._groups), name, about, ranks)
        self._known[group._numbers] = of
        self._rank = group.rank()
        return of

    def _between(self, of: _Group, pair: list[int], name: str) -> tuple[_Group, str]:
        """The group for messages from one rank of a group to another, and a message's title."""
        whole = f"{of.name} {pair[0]}->{pair[1]}"
        ends = [of.ranks[one] for one in pair]
        if whole not in self._groups:
            about = f"messages of {of.about}"
            self._groups[whole] = _Group(len(self._groups), whole, about, sorted(ends))
        source, target = (sorted(ends).index(one) for one in ends)
        title = f"send {source}->{target}" if name == "send" else f"recv {target}<-{source}"
        return self._groups[whole], title

    def _own_rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else self._rank

    def dump(self) -> str:
        """Write the record to the file of this rank, and return its path."""
        records = [one for one in list(self._records) if one.is_of_gradred]
        groups = list(self._groups.values())
        content = {
            "version": _FORMAT,
            "comm_lib_version": "gradred",
            "pg_config": {one.name: one.config() for one in groups},
            "pg_status": {str(one.number): one.status() for one in groups},
            "entries": [one.written() for one in records],
        }
        path = f"{self._file}{self._own_rank()}"
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        part = os.path.join(os.path.dirname(path), f".{os.getpid()}.part")
        with open(part, "wb") as file:
            pickle.dump(content, file, protocol=2)
        os.replace(part, path)
        return path

    def at_time_limit(self) -> None:
        """Write the file, and wait until the other ranks have written theirs, the first time."""
        if self._has_answered:
            return
        self._has_answered = True
        try:
            print(f"gradred: the flight recorder's file: {self.dump()}", file=sys.stderr)
        except OSError as error:  # the caller raises the timeout
            print(f"gradred: no file of the flight recorder: {error}", file=sys.stderr)
        # Calls of a store whose process has ended may not return.
        asks = threading.Thread(target=self._ask, name="gradred flight asks", daemon=True)
        asks.start()
        asks.join(_PATIENCE.total_seconds())

    def _ask(self) -> None:
        with contextlib.suppress(Exception):  # some rank has ended, or does not let threads run
            if (store := self._shared()) is not None:
                store.set(_written_by(self._own_rank()), "yes")
                store.set(_ASKED, "yes")
                store.wait([_written_by(rank) for rank in range(dist.get_world_size())], _PATIENCE)

    def _answer(self) -> None:
        self._has_answered = True
        self.dump()
        if (store := self._shared()) is not None:
            store.set(_written_by(self._own_rank()), "yes")

    def _shared(self) -> Any:
        """A store of all ranks that nobody else uses; None without a default group."""
        if not dist.is_initialized():
            return None
        own = dist.distributed_c10d._get_default_store()
        if self._store[0] is not own:
            # A thread that waits in a store keeps others from it.
            reached = own.clone() if hasattr(own, "clone") else own
            self._store = own, dist.PrefixStore("gradred flight", reached)
        return self._store[1]

    def _look(self) -> None:
        pipe = None
        while not self._ends.wait(_LOOKS_EVERY):
            with contextlib.suppress(Exception):  # the program must not fail by this
                pipe = pipe or self._pipe()
                if pipe is not None and os.read(pipe, 128):
                    self.dump()
            with contextlib.suppress(Exception):
                store = None if self._has_answered else self._shared()
                if store is not None and store.compare_set(_ASKED, _NOT, _NOT).decode() != _NOT:
                    self._answer()

    def _pipe(self) -> int | None:
        """Make the pipe by which a user asks for this rank's file."""
        stem = os.environ.get(_PIPE)
        if not stem or not self._groups:
            return None
        path = f"{stem}{self._own_rank()}.pipe"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def end(self) -> None:
        """End the thread, which must not be in torch's code when Python ends."""
        self._ends.set()
        self._looks.join(2)


def _sizes(name: str, tensors: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes and types. A list with a part for each rank counts as a whole."""
    found = tensors_of(tensors)
    if len(found) > 1 and name in _OF_PARTS:
        return [((sum(one.numel() for one in found),), found[0].dtype)]
    return [(tuple(one.shape), one.dtype) for one in found]


def _written_by(rank: int) -> str:
    return f"rank {rank} has written"


def _first_set(names: tuple[str, ...]) -> str:
    return next(filter(None, (os.environ.get(name) for name in names)), "")


@functools.cache
def recorder() -> FlightRecorder | None:
    """The recorder of this process; None if no variable asks for one."""
    asked = _first_set(_LENGTHS)
    if not asked and not _first_set((*_FILES, _PIPE)):
        return None
    length = int(asked or 2000)
    return FlightRecorder(length) if length > 0 else None


def dump() -> str:
    """Write the last operations of this process's groups to a file, and return its path.

    Raises:
        gradred.UsageError: the recorder is off.
    """
    if (found := recorder()) is None:
        remedy = f"Set {_LENGTHS[0]}=2000 before the first group is made"
        raise UsageError("flight_recorder.dump", "the flight recorder is off", remedy)
    return found.dump()
