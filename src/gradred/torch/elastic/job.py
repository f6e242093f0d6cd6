"""What a rank knows of the elastic job that it is part of: `gradred run --min-np` and the like."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gradred._util import clock
from gradred.errors import UsageError, explain
from gradred.launch import failure_board, state_files
from gradred.torch import basics
from gradred.torch.functions import allgather_object, broadcast_object

if TYPE_CHECKING:
    from gradred.comm import Comm

_SHARE = 0.1  # of the time that may go into writing states


@dataclass
class ElasticJob:
    """The job, where it is elastic.

    Attributes:
        least: ranks that there have to be.
        folder: of the states.
        number: of the state that was written, or read, last.
    """

    least: int
    folder: str
    number: int = 0
    _next_at: float = field(default=0.0, repr=False)
    _rank: int = field(default=0, repr=False)  # at the last commit
    _last: Any = field(default=None, repr=False)  # what that saved, unless it has been written

    def hosts_have_changed(self) -> bool:
        """Whether the job should start again, with other hosts. Collective."""
        where = os.environ.get(failure_board.VARIABLE, "")
        mine = bool(where) and failure_board.hosts_have_changed(where)
        return bool(broadcast_object(mine, 0, "elastic.hosts"))

    def write(self, values: Any, at_once: bool = False) -> None:
        """Have rank 0 write a state, unless that would take too much of the time. Local.

        Args:
            values: as `State.saved` gives them; None: there is nothing to write.
            at_once: whatever time it takes.
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
            state_files.write(self.folder, self.number, lambda file: torch.save(values, file))
        except OSError as error:
            found = f"a state could not be written ({error})"
            text = explain("elastic", found, "Make room in the folder of --elastic-dir")
            warnings.warn(text, stacklevel=5)
        end = clock.now()
        self._next_at = end + (end - begin) * (1 / _SHARE - 1)

    def read(self) -> Any:
        """The newest state that any rank finds; None where there is none. Collective."""
        found = state_files.newest(self.folder)
        numbers = allgather_object(found[0] if found else 0, "elastic.newest")
        self.number = max(numbers)
        if self.number == 0:
            return None
        root = numbers.index(self.number)
        values = None
        if basics.rank() == root:
            assert found is not None
            # Of a folder that nobody else can write to (state_files.require).
            values = torch.load(found[1], weights_only=False)
        return broadcast_object(values, root, "elastic.newest.values")

    def write_last(self, left: Comm | None) -> None:
        """Have one rank of those that live write what the last commit saved. Local.

        Args:
            left: these ranks; None: that is not known, and rank 0 writes it if it lives.
        """
        if self._last is not None and (self._rank if left is None else left.Get_rank()) == 0:
            self._write()

    def start_again(self) -> NoReturn:
        """End this rank; `gradred run` starts the job again."""
        sys.stdout.flush()
        raise SystemExit(state_files.AGAIN)


def of_this_rank() -> ElasticJob | None:
    """The job as `gradred run` has told it; None: it is not elastic.

    Raises:
        UsageError: the folder of the states is not this user's own.
    """
    told = os.environ.get(state_files.VARIABLE, "")
    if not told:
        return None
    least, _, folder = told.partition(" ")
    try:
        state_files.require(folder)
    except UsageError as error:
        raise UsageError(f"on {os.uname().nodename}: {error}") from None
    return ElasticJob(int(least), folder)
