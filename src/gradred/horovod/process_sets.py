"""Sets of ranks that carry out operations separately from the other ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gradred import _core
from gradred.errors import explain
from gradred.horovod.errors import NOT_INITIALISED, HorovodInternalError
from gradred.horovod.settings import most_fused_bytes, stall_limits
from gradred.horovod.state import state

if TYPE_CHECKING:
    from gradred._core import Timeline
    from gradred.named import NamedOperations


class ProcessSet:
    """A set of ranks, given by global ranks or by an mpi4py communicator.

    `process_set_id` is None until init() or `add_process_set` registers the set.
    """

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self._engine: NamedOperations | None = None
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        ranks = list(ranks_or_comm)
        if not all(isinstance(rank, int) for rank in ranks):
            raise ValueError(explain(f"ProcessSet({ranks})", "a rank is not an int", "Give ints"))
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """The number of ranks in the set. None: the set is not registered."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """The index of this rank in the set. None: the set is not registered.

        Raises:
            ValueError: this rank is not in the set.
        """
        if self.process_set_id is None or self.ranks is None:
            return None
        return self.place_of(state.here().rank)

    def included(self) -> bool | None:
        """Whether this rank is in the set. None: the ranks of the set are not known yet."""
        return None if self.ranks is None else state.here().rank in self.ranks

    def takes_part(self) -> bool:
        """Whether this rank is in the set.

        Raises:
            ValueError: init() has not been called, or the set is not registered.
        """
        rank = state.here().rank
        self._require_registered()
        return self.ranks is not None and rank in self.ranks

    def _require_registered(self) -> None:
        if self.process_set_id is None or self.process_set_id not in _registered:
            remedy = "Pass it to init(process_sets=...), or to add_process_set"
            raise ValueError(explain(f"{self}", "it has not been registered", remedy))

    def place_of(self, rank: int) -> int:
        """The index in the set of a global rank.

        Raises:
            ValueError: the rank is not in the set, or init() has not been called.
        """
        state.here()  # raises where init() was forgotten
        if self.ranks is None or rank not in self.ranks:
            remedy = "Use a rank, and a process set, that belong together"
            raise ValueError(explain(f"{self}", f"rank {rank} is not part of it", remedy))
        return self.ranks.index(rank)

    def engine(self) -> NamedOperations:
        """The engine that carries out the operations of the set.

        Raises:
            HorovodInternalError: init() has not been called, or shutdown() has been.
            ValueError: the set is not registered, or this rank is not in it.
        """
        if self._engine is not None:
            return self._engine
        if state.place is None:
            raise HorovodInternalError(NOT_INITIALISED)
        self._require_registered()
        self.place_of(state.place.rank)
        raise HorovodInternalError(NOT_INITIALISED)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None

_registered: dict[int, ProcessSet] = {}
_free_ids: list[int] = []  # ids of removed sets, to reuse; the oldest first


def begin(size: int, comm: Any) -> None:
    """Register the global set when init() runs."""
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(size))
    global_process_set.mpi_comm = comm
    global_process_set._engine = state.engine
    _registered.clear()
    _free_ids.clear()
    _registered[0] = global_process_set
    _core.serve_kernels(0, state.engine)


def end() -> None:
    """Close all sets when shutdown() runs."""
    for number, one in _registered.items():
        _core.serve_kernels(number, None)
        if one._engine is not None and one is not global_process_set:
            one._engine.close()
        one._engine = None
        if one is not global_process_set:
            one.process_set_id = None
    _registered.clear()


def write_to(timeline: Timeline | None) -> None:
    """Write the operations of all sets to this timeline. None: write them nowhere."""
    for one in _registered.values():
        if one._engine is not None:
            prefix = "" if one is global_process_set else f"set {one.process_set_id}: "
            one._engine.write_to(timeline, prefix)


def registered(number: int) -> ProcessSet:
    """The registered set with this number.

    Raises:
        ValueError: there is none.
    """
    if number not in _registered:
        found = "it has not been registered, or has been removed"
        raise ValueError(explain(f"process set {number}", found, "Register it"))
    return _registered[number]


def ids_and_ranks() -> dict[int, list[int]]:
    """The global ranks of all registered sets, by id."""
    return {number: list(one.ranks or []) for number, one in sorted(_registered.items())}


def register_all(sets: Sequence[ProcessSet], given_comm: Any) -> None:
    """Register the sets of init(process_sets=...); blocking and collective.

    Ranks may give different sets, as communicators that they have split: all ranks register all of
    them. A set of ranks that is registered already keeps its number.

    Raises:
        ValueError: a rank's set names ranks that do not exist; then on all ranks. Or this rank has
            given a set twice, or a set of all ranks; then the sets are registered nevertheless.
        NotImplementedError: a set is given by a communicator, and `init` got none.
    """
    assert state.comm is not None
    if any(one.mpi_comm is not None for one in sets):
        if not hasattr(given_comm, "Get_rank"):
            remedy = "Pass init(comm=...) a communicator as well, or give the sets by ranks"
            raise NotImplementedError(
                explain("init(process_sets=...)", "a set is given by a communicator", remedy)
            )
        _find_ranks(sets)
    given = state.comm.allgather([one.ranks for one in sets])
    for lists in itertools.zip_longest(*given):  # the first sets of all ranks, then the second ones
        for ranks in lists:
            if ranks is not None and _number_of(ranks) is None:
                one = ProcessSet(ranks)
                _check_ranks(one)
                _register(one)
    seen = {0}
    for one in sets:
        number = _number_of(one.ranks)
        assert number is not None
        if number in seen:
            found = f"{one.ranks} are the ranks of another set"
            raise ValueError(explain("init(process_sets=...)", found, "Give each set once"))
        seen.add(number)
        one.process_set_id, one._engine = number, _registered[number]._engine
        _registered[number] = one


def _number_of(ranks: list[int] | None) -> int | None:
    """The number of the registered set of these ranks."""
    return next((number for number, one in _registered.items() if one.ranks == ranks), None)


def _find_ranks(sets: Sequence[ProcessSet]) -> None:
    """Give each set that was made from a communicator the ranks of that."""
    from mpi4py import MPI

    assert state.comm is not None
    everyone = state.comm.Get_group()
    for one in sets:
        if one.mpi_comm is not None and one.ranks is None:
            group = one.mpi_comm.Get_group()
            mine = list(range(group.Get_size()))
            one.ranks = sorted(MPI.Group.Translate_ranks(group, mine, everyone))


def _check_ranks(one: ProcessSet) -> None:
    assert state.place is not None
    ranks = one.ranks or []
    wrong = not ranks or ranks[0] < 0 or ranks[-1] >= state.place.size
    if wrong or len(set(ranks)) < len(ranks):
        found = f"its ranks have to be some of 0 to {state.place.size - 1}, each once"
        raise ValueError(explain(f"{one}", found, "Name other ranks"))


def _register(one: ProcessSet) -> None:
    """Register one set. Blocking, and collective over all ranks."""
    from mpi4py import MPI

    from gradred.comm import Comm
    from gradred.named import NamedOperations

    assert state.comm is not None
    ranks = one.ranks or []
    included = state.comm.Get_rank() in ranks
    comm = MPI.Intracomm(state.comm).Split(0 if included else MPI.UNDEFINED, 0)
    one.process_set_id = _free_ids.pop(0) if _free_ids else len(_registered)
    if included:
        title = f"process set {one.process_set_id}"
        with stall_limits():
            one._engine = NamedOperations(
                Comm(comm), most_fused_bytes=most_fused_bytes(), title=title, ranks=ranks
            )
        comm.Free()  # the engine uses a duplicate
    _registered[one.process_set_id] = one
    _core.serve_kernels(one.process_set_id, one._engine)
    if state.timeline is not None:
        write_to(state.timeline)


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set. Blocking, and collective over all ranks, including those outside the set.

    Raises:
        ValueError: sets are not dynamic (see `init`), the ranks pass different sets, or a set with
            these ranks exists.
        NotImplementedError: the set is given by a communicator.
    """
    one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    comm = _dynamic("add_process_set")
    if one.mpi_comm is not None:
        remedy = "Give its ranks"
        raise NotImplementedError(explain("add_process_set", "it has a communicator", remedy))
    _check_ranks(one)
    asked = comm.allgather(one.ranks)
    if any(ranks != one.ranks for ranks in asked):
        remedy = "Call it with the same ranks everywhere"
        raise ValueError(explain("add_process_set", f"the ranks ask for {asked}", remedy))
    if any(one.ranks == other.ranks for other in _registered.values()):
        found = f"{one.ranks} are the ranks of a set that exists"
        raise ValueError(explain("add_process_set", found, "Use that set"))
    _register(one)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a set. Blocking, and collective over all ranks.

    Returns:
        Whether the set was registered. The global set is never removed.

    Raises:
        ValueError: sets are not dynamic.
    """
    comm = _dynamic("remove_process_set")
    number = process_set.process_set_id
    if number is None or number == 0 or _registered.get(number) is not process_set:
        return False
    comm.Barrier()
    _core.serve_kernels(number, None)
    if process_set._engine is not None:
        process_set._engine.free()
        process_set._engine = None
        state.handles.forget_engine()
    del _registered[number]
    _free_ids.append(number)
    process_set.process_set_id = None
    return True


def _dynamic(asked: str) -> Any:
    if state.comm is None:
        raise ValueError(NOT_INITIALISED)
    if not state.dynamic_sets:
        found = "process sets are fixed after init()"
        remedy = 'Set HOROVOD_DYNAMIC_PROCESS_SETS=1, or call init(process_sets="dynamic")'
        raise ValueError(explain(asked, found, remedy))
    return state.comm
