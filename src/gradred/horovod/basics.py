"""Initialization, shutdown, and this process's ranks and sizes."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradred import _core
from gradred.errors import UsageError, explain
from gradred.horovod import process_sets as sets
from gradred.horovod.front_end import FRONT_ENDS
from gradred.horovod.process_sets import ProcessSet
from gradred.horovod.settings import is_true, most_fused_bytes, stall_limits
from gradred.horovod.state import Place, state

if TYPE_CHECKING:
    from gradred.comm import Comm

Average, Sum, Adasum, Min, Max, Product = range(6)


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Initialize gradred. Blocking and collective.

    A second call keeps the communicator of the first, and still registers `process_sets`.

    Initialises MPI if the program has not (mpi4py.rc.initialize = False), and then finalises it at
    exit.

    Args:
        comm: an mpi4py communicator, a list of ranks of MPI_COMM_WORLD, or None for all of them.
        process_sets: sets to register now, or "dynamic" to allow adding and removing sets later
            (so does HOROVOD_DYNAMIC_PROCESS_SETS=1).

    Raises:
        ValueError: the arguments are invalid.
    """
    if state.place is None:
        _begin(comm)
    dynamic = process_sets == "dynamic" or is_true("HOROVOD_DYNAMIC_PROCESS_SETS")
    state.dynamic_sets = state.dynamic_sets or dynamic
    if process_sets is not None and not isinstance(process_sets, str):
        sets.register_all(process_sets, given_comm=comm)


def _begin(comm: Any) -> None:
    from mpi4py import MPI

    from gradred import _rank
    from gradred.comm import Comm
    from gradred.named import NamedOperations

    if not MPI.Is_initialized() and multiprocessing.parent_process() is not None:
        found = "multiprocessing has started this process, as data loaders start workers"
        remedy = (
            "Only ranks call it: put what the program does under if __name__ == '__main__':, "
            "which workers do not run"
        )
        raise UsageError("init()", found, remedy)
    _rank.spare_workers()
    if not MPI.Is_initialized():
        _rank.begin_mpi()
        _rank.finalize_at_exit()
    world = _communicator(MPI, comm)
    mine = Comm(world).Dup()
    state.comm = mine
    with stall_limits():
        state.engine = NamedOperations(mine, most_fused_bytes=most_fused_bytes())
    state.place = _place_of(MPI, mine)
    state.handles.clear()
    state.asked = (comm, state.place.size)
    sets.begin(state.place.size, comm if isinstance(comm, MPI.Comm) else None)
    path = os.environ.get("HOROVOD_TIMELINE", "")
    if path and path.upper() != "DYNAMIC":
        start_timeline(path, is_true("HOROVOD_TIMELINE_MARK_CYCLES"))


def _communicator(mpi: Any, comm: Any) -> Any:
    if comm is None:
        return mpi.COMM_WORLD
    if isinstance(comm, mpi.Comm):
        return comm
    ranks = sorted({int(rank) for rank in comm})
    size = mpi.COMM_WORLD.Get_size()
    if not ranks or ranks[0] < 0 or ranks[-1] >= size:
        found = f"{ranks} are not all ranks of MPI_COMM_WORLD, which has {size}"
        raise ValueError(explain("init(comm=...)", found, "Name ranks that exist"))
    if mpi.COMM_WORLD.Get_rank() not in ranks:
        import warnings

        warnings.warn("this rank is not in the list: it gets all of COMM_WORLD", stacklevel=4)
        return mpi.COMM_WORLD
    group = mpi.COMM_WORLD.Get_group().Incl(ranks)
    return mpi.COMM_WORLD.Create_group(group)


def _place_of(mpi: Any, comm: Comm) -> Place:
    from gradred.memory_comm import MemoryComm

    rank, size = comm.Get_rank(), comm.Get_size()
    if isinstance(comm, MemoryComm):  # its ranks are on one host
        return Place(rank, size, rank, size, 0, 1, True)
    host = mpi.Intracomm(comm).Split_type(mpi.COMM_TYPE_SHARED)
    local_rank, local_size = host.Get_rank(), host.Get_size()
    host.Free()
    all_places = comm.allgather((local_rank, local_size))
    alike = [other for other, (place, _) in enumerate(all_places) if place == local_rank]
    homogeneous = len({its_size for _, its_size in all_places}) == 1
    return Place(rank, size, local_rank, local_size, alike.index(rank), len(alike), homogeneous)


def shrink() -> Comm | None:
    """Call `shutdown`, and return a communicator of the remaining ranks; see `Comm.shrink`.

    Returns None on all ranks if they share no memory (as on several hosts) or if process sets
    are registered.
    """
    from gradred.errors import PeerLost, UsageError

    engine, alone = state.engine, len(sets.ids_and_ranks()) == 1
    shutdown()
    while engine is not None and alone:
        try:
            return engine.shrink()
        except PeerLost:  # another rank has ended meanwhile
            continue
        except UsageError:
            break
    return None


def init_again(left: Comm | None = None) -> None:
    """Call `shutdown`, then `init` with the previous communicator, or what `shrink` returned."""
    from gradred.memory_comm import MemoryComm

    comm, size = state.asked
    shutdown()
    if left is not None and (left.Get_size() < size or isinstance(comm, MemoryComm)):
        comm = left
    init(comm)


def init_finds(left: Comm) -> bool:
    """Whether `init` with its previous arguments would include all ranks of what `shrink` returned.

    It would if no rank of the previous communicator has ended.
    """
    from gradred.memory_comm import MemoryComm

    comm, size = state.asked
    return left.Get_size() == size and not isinstance(comm, MemoryComm)


def shutdown() -> None:
    """Shut down on all ranks. Operations in flight on any rank fail. Returns immediately."""
    stop_timeline()
    sets.end()
    if state.engine is not None:
        state.engine.close()
    state.place = state.comm = state.engine = None
    state.handles.forget_engine()
    state.dynamic_sets = False


atexit.register(shutdown)


def is_initialized() -> bool:
    """Whether init() has been called, and shutdown() has not been called since."""
    return state.place is not None


def rank() -> int:
    """The global rank of this process."""
    return state.here().rank


def size() -> int:
    """The number of ranks."""
    return state.here().size


def local_rank() -> int:
    """The rank of this process among the ranks of its host."""
    return state.here().local_rank


def local_size() -> int:
    """The number of ranks on this host."""
    return state.here().local_size


def cross_rank() -> int:
    """The index of this host among the hosts that have a rank with this local rank."""
    return state.here().cross_rank


def cross_size() -> int:
    """The number of hosts that have a rank with this local rank."""
    return state.here().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks."""
    return state.here().homogeneous


def mpi_threads_supported() -> bool:
    """Whether the MPI library allows calls from several threads at once."""
    state.here()
    from mpi4py import MPI

    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Whether the ranks use MPI to find each other. Always True."""
    return True


def mpi_built(verbose: bool = False) -> bool:
    """Whether MPI is available. Always True."""
    return True


def gloo_enabled() -> bool:
    """Whether Gloo is in use. Always False."""
    return False


def gloo_built(verbose: bool = False) -> bool:
    """Whether Gloo is available. Always False."""
    return False


def nccl_built(verbose: bool = False) -> int:
    """The version of NCCL if operations use it. Always 0: they do not."""
    return 0


def ddl_built(verbose: bool = False) -> bool:
    """Whether DDL is available. Always False."""
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Whether oneCCL is available. Always False."""
    return False


def cuda_built(verbose: bool = False) -> bool:
    """Whether a framework in use was built with CUDA. Operations accept its GPU tensors."""
    loaded = (sys.modules.get(f"gradred.{name}") for name in FRONT_ENDS)
    return any(front_end.cuda_built() for front_end in loaded if front_end is not None)


def rocm_built(verbose: bool = False) -> bool:
    """Whether ROCm is available. Always False."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start to record when operations are submitted, agreed on and carried out. Local.

    chrome://tracing and Perfetto read the file, which is complete after each event.
    HOROVOD_TIMELINE starts a timeline in `init`; HOROVOD_TIMELINE_MARK_CYCLES=1 then marks cycles.

    Args:
        file_path: file that rank 0 writes. If it contains "{rank}", each rank writes its own.
        mark_cycles: mark the start of each batch of operations that are carried out as one.

    Raises:
        ValueError: `init` has not been called.
        OSError: the file cannot be opened.
    """
    place = state.here()
    stop_timeline()
    if place.rank != 0 and "{rank}" not in file_path:
        return
    path = file_path.replace("{rank}", str(place.rank))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    state.timeline = _core.Timeline(file, mark_cycles)
    sets.write_to(state.timeline)


def stop_timeline() -> None:
    """Close the timeline, if there is one. Warns if writing the file has failed."""
    timeline, state.timeline = state.timeline, None
    if timeline is None:
        return
    sets.write_to(None)
    if timeline.problem:
        import warnings

        found = f"nothing was written after an error: {timeline.problem}"
        warnings.warn(explain("the timeline", found, "See to the disk"), stacklevel=2)


class HorovodBasics:
    """The functions of this module as methods, which user code reaches as `mpi_ops._basics`.

    Args:
        pkg_path: where Horovod would look for its extension; ignored.
        args: ignored as well.
    """

    Average, Sum, Adasum, Min, Max, Product = Average, Sum, Adasum, Min, Max, Product

    def __init__(self, pkg_path: str | None = None, *args: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name in globals():
            return globals()[name]
        raise AttributeError(f"HorovodBasics has no {name}")

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        return sets.ids_and_ranks()

    def _process_set_rank(self, process_set_id: int) -> int:
        return self._ranks_of(process_set_id).index(rank())

    def _process_set_size(self, process_set_id: int) -> int:
        return len(self._ranks_of(process_set_id))

    def _ranks_of(self, process_set_id: int) -> list[int]:
        ranks = self._get_process_set_ids_and_ranks().get(process_set_id)
        if ranks is None:
            found = "there is no such process set"
            raise ValueError(explain(f"process set {process_set_id}", found, "Register it"))
        return ranks
