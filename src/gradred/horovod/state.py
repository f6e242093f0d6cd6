"""State of this process between init() and shutdown()."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradred import _core
from gradred.horovod.errors import NOT_INITIALISED, raised_when_starting, raised_when_waiting

if TYPE_CHECKING:
    from gradred._core import Timeline
    from gradred.comm import Comm
    from gradred.named import NamedOperations


@dataclass(frozen=True)
class Place:
    """This process's ranks and sizes."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool


class State:
    """State of this process between init() and shutdown()."""

    def __init__(self) -> None:
        self.place: Place | None = None
        self.comm: Comm | None = None  # of all ranks, for setup
        self.engine: NamedOperations | None = None
        self.timeline: Timeline | None = None
        self.dynamic_sets = False
        # Handles of the operations in flight. Their numbers start at 1 after each init().
        self.handles = _core.Handles(raised_when_starting, raised_when_waiting)
        self.asked: tuple[Any, int] = (None, 0)  # of the last init(): communicator, ranks

    def here(self) -> Place:
        """This process's ranks and sizes. Raises ValueError before init() and after shutdown()."""
        if self.place is None:
            raise ValueError(NOT_INITIALISED)
        return self.place


state = State()
