"""The elastic job of this rank, which `gradred run --min-np` and similar commands start."""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from gradred._util import clock
from gradred.errors import UsageError, explain
from gradred.horovod import basics
from gradred.horovod.objects import allgather_object, broadcast_object
from gradred.launch import failure_board, state_files

if TYPE_CHECKING:
    from gradred.comm import Comm

_SHARE = 0.1  # maximum share of the time spent writing states


class StateFormat(NamedTuple):
    """How states are written to files, and read from them.

    Only this user can write to the folder of the files (state_files.require).
    """

    save: Callable[[Any, IO[bytes]], object]
    load: Callable[[Path], Any]


PICKLED = StateFormat(pickle.dump, lambda path: pickle.loads(path.read_bytes()))


@dataclass
class ElasticJob:
    """An elastic job.

    Attributes:
        least: minimum number of ranks.
        folder: folder of the saved states.
        file_format: how states are written there.
        number: number of the state that was written or read last.
    """

    least: int
    folder: str
    file_format: StateFormat
    number: int = 0
    _next_at: float = field(default=0.0, repr=False)
    _rank: int = field(default=0, repr=False)  # at the last commit
    _last: Any = field(default=None, repr=False)  # values of that commit, until they are written

    def hosts_have_changed(self) -> bool:
        """Whether the job should be restarted with other hosts. Collective."""
        where = os.environ.get(failure_board.VARIABLE, "")
        mine = bool(where) and failure_board.hosts_have_changed(where)
        return bool(broadcast_object(mine, 0, "elastic.hosts"))

    def write(self, values: Any, at_once: bool = False) -> None:
        """Let rank 0 write a state, unless that would take too much of the time. Local.

        Without values there is nothing to write. `at_once` writes regardless of the time it takes.
        """
        if values is None:
            return
        self.number += 1
        self._rank, self._last = basics.rank(), values
        if self._rank == 0 and (at_once or clock.now() >= self._next_at):
            self._write()

    def _write(self) -> None:
        begin, values = clock.now(), self._last
        self._last = None
        try:
            save = self.file_format.save
            state_files.write(self.folder, self.number, lambda file: save(values, file))
        except OSError as error:
            found = f"a state could not be written ({error})"
            text = explain("elastic", found, "Make room in the folder of --elastic-dir")
            warnings.warn(text, stacklevel=5)
        end = clock.now()
        self._next_at = end + (end - begin) * (1 / _SHARE - 1)

    def read(self) -> Any:
        """The newest state that any rank finds, or None. Collective."""
        found = state_files.newest(self.folder)
        numbers = allgather_object(found[0] if found else 0, "elastic.newest")
        self.number = max(numbers)
        if self.number == 0:
            return None
        root = numbers.index(self.number)
        values = None
        if basics.rank() == root:
            assert found is not None
            values = self.file_format.load(found[1])
        return broadcast_object(values, root, "elastic.newest.values")

    def write_last(self, left: Comm | None) -> None:
        """Let one of the remaining ranks write the state of the last commit. Local.

        If the remaining ranks are not known, the one that was rank 0 at the last commit does.
        """
        if self._last is not None and (self._rank if left is None else left.Get_rank()) == 0:
            self._write()

    def start_again(self) -> NoReturn:
        """End this rank. `gradred run` then restarts the job."""
        sys.stdout.flush()
        raise SystemExit(state_files.AGAIN)


def of_this_rank(file_format: StateFormat) -> ElasticJob | None:
    """The elastic job that `gradred run` has announced. None: the job is not elastic.

    Raises:
        UsageError: the folder of the states does not belong to this user.
    """
    announced = os.environ.get(state_files.VARIABLE, "")
    if not announced:
        return None
    least, _, folder = announced.partition(" ")
    try:
        state_files.require(folder)
    except UsageError as error:
        raise UsageError(f"on {os.uname().nodename}: {error}") from None
    return ElasticJob(int(least), folder, file_format)
