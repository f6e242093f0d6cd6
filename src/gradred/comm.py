"""`gradred.Comm`: an `MPI.Intracomm` whose collective reductions gradred carries out."""

from __future__ import annotations

import functools
import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mpi4py import MPI

from gradred import _core, _rank
from gradred.buffers import messages, moved_bytes, mpi_fallback
from gradred.buffers.messages import Reduction
from gradred.buffers.mpi_fallback import MpiCall
from gradred.buffers.passed import disagreement
from gradred.buffers.refusing import refusing
from gradred.leaves import call_to_repeat, takes_leaves
from gradred.persistent import PersistentAllreduce
from gradred.request import Request, run_in_stream
from gradred.streams import StreamLike, handle_of

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, InPlace
    from typing_extensions import Self

    from gradred.leaves import LeavesLike
    from gradred.ops import OpLike

    In: TypeAlias = BufSpec | InPlace
    InB: TypeAlias = BufSpecB | InPlace  # a block for each rank
    OutB: TypeAlias = BufSpec | BufSpecB

CommT = TypeVar("CommT", bound="Comm")

LARGE_OBJECT_BYTES = 1 << 20
# Persistent calls of Intel MPI 2021.18 do not keep MPI 4.0's rule on the order of starts (6.13). So
# gradred starts an operation of the MPI in each round, on a duplicate for each request.
_ORDERS_HANG = MPI.get_vendor()[0] == "Intel MPI"


class Comm(MPI.Intracomm):
    """An mpi4py communicator whose allreduce gradred carries out.

    `Comm(comm)` is local and shares the handle of `comm`, as mpi4py's constructors do. A `Comm` can
    be passed wherever an `MPI.Intracomm` is accepted. `Allreduce`, `Allreduce_init`, `Allgather`,
    `Bcast`, and all methods that reduce into one vector or block on each rank (such as
    `Reduce_scatter_block`) or start that (such as `Iallreduce`), keep mpi4py's meaning. gradred
    carries them out if it knows the element type and the operation. The MPI carries out all
    other calls. Methods that make a communicator return a `Comm` too.

    A communicator reads its settings (`gradred.config`) when it is made.

    Raises:
        gradred.UsageError: a setting has a value that cannot be read.
        TypeError: `comm` is an intercommunicator.

    Example:
        >>> import numpy, gradred
        >>> from mpi4py import MPI
        >>> comm = gradred.Comm(MPI.COMM_SELF)
        >>> x = numpy.arange(3.0)
        >>> comm.Allreduce(MPI.IN_PLACE, x)
        >>> x
        array([0., 1., 2.])
    """

    __slots__ = ()

    def __new__(  # noqa: D102 (mpi4py's)
        cls: type[CommT], comm: MPI.Comm | None = None
    ) -> CommT:
        # A communicator of shared memory has a null MPI handle, so the handle is not enough.
        share: Callable[[], CommT] | None = getattr(comm, "share", None)
        if comm is not None and share is None:
            _core.require_running_mpi(comm)  # mpi4py's constructor calls MPI with `comm`
        # super() would give a class with two bases the __new__ of its other base.
        return MPI.Intracomm.__new__(cls, comm) if share is None else share()

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        _rank.configure()

    if TYPE_CHECKING:  # at run time these are methods of the extension module, which cost less

        def Allreduce(  # noqa: D102 (the extension documents it)
            self,
            sendbuf: In,
            recvbuf: BufSpec,
            op: OpLike = MPI.SUM,
            *,
            stream: StreamLike = None,
            leaves: LeavesLike | None = None,
            wire: str | None = None,
        ) -> None: ...
        def Iallreduce(  # noqa: D102
            self,
            sendbuf: In,
            recvbuf: BufSpec,
            op: OpLike = MPI.SUM,
            *,
            stream: StreamLike = None,
            leaves: LeavesLike | None = None,
            wire: str | None = None,
        ) -> Request: ...
        def Reduce_scatter_block(  # noqa: D102
            self, sendbuf: InB, recvbuf: OutB, op: OpLike = MPI.SUM, *, stream: StreamLike = None
        ) -> None: ...
        def Ireduce_scatter_block(  # noqa: D102
            self, sendbuf: InB, recvbuf: OutB, op: OpLike = MPI.SUM, *, stream: StreamLike = None
        ) -> MPI.Request: ...
        def Scan(  # noqa: D102
            self, sendbuf: In, recvbuf: BufSpec, op: OpLike = MPI.SUM, *, stream: StreamLike = None
        ) -> None: ...
        def Iscan(  # noqa: D102
            self, sendbuf: In, recvbuf: BufSpec, op: OpLike = MPI.SUM, *, stream: StreamLike = None
        ) -> MPI.Request: ...
        def Exscan(  # noqa: D102
            self, sendbuf: In, recvbuf: BufSpec, op: OpLike = MPI.SUM, *, stream: StreamLike = None
        ) -> None: ...
        def Iexscan(  # noqa: D102
            self, sendbuf: In, recvbuf: BufSpec, op: OpLike = MPI.SUM, *, stream: StreamLike = None
        ) -> MPI.Request: ...
        def Allgather(self, sendbuf: In, recvbuf: BufSpecB) -> None: ...  # noqa: D102
        def Bcast(self, buf: BufSpec, root: int = 0) -> None: ...  # noqa: D102

    @property
    def device_path(self) -> str:
        """How calls on GPU arrays have been carried out: between devices or by host memory. Local.

        Only calls that could have been carried out between devices count. The text is
        `"devices: ..."`, `"host memory: "` and the reason, or `"no such call yet"`.
        """
        return _core.comm_info(self)["device_path"]

    # ---- collective calls -------------------------------------------------------------------

    def Allreduce_init(
        self,
        sendbuf: In,
        recvbuf: BufSpec,
        op: OpLike = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        leaves: LeavesLike | None = None,
        wire: str | None = None,
    ) -> PersistentAllreduce:
        """Prepare an allreduce that is started many times on the same buffers.

        Args:
            sendbuf: this rank's input.
            recvbuf: where the result goes.
            op: an MPI.Op, a name from gradred.OPS, gradred.premul(factor) or gradred.user_op(f).
            info: hints for the MPI; unused if gradred carries out the operation.
            leaves: as in `Allreduce`. Each start adds up this rank's own leaves.
            wire: as in `gradred.allreduce`; unused if the MPI carries out the operation.

        Ranks may start their persistent operations in different orders.

        Raises:
            gradred.UsageError: the arguments are inconsistent.
        """
        if leaves is not None:
            call, owners, before = call_to_repeat(self, sendbuf, recvbuf, op, leaves, wire)
            return self._persistent(call, owners, recvbuf, _promises_one_order(self), before)
        with refusing(self):
            found = mpi_fallback.reduction(
                "Allreduce_init", self, sendbuf, recvbuf, op, also="init", form=wire
            )
        _core.prepare(self)  # may block: MPI allows that here, but not in Start
        if isinstance(found, Reduction) and not (_core.starts(self, found.call) or _ORDERS_HANG):
            with refusing(self):
                asked = "Allreduce_init's recvbuf"
                recv = messages.read(recvbuf, asked, writable=True, any_order=True)
                found = mpi_fallback.checked("Allreduce_init", self, sendbuf, recv, op, also="init")
        if isinstance(found, MpiCall):
            found.agree(self)
            request = super().Allreduce_init(found.send, found.recv, found.op, info)
            return PersistentAllreduce.of_mpi(request, (found.messages, sendbuf, recvbuf))
        return self._persistent(found.call, found.owners, recvbuf, _promises_one_order(self))

    def _persistent(
        self,
        call: _core.Call,
        owners: Any,
        result: Any,
        one_order: bool,
        before: Callable[[], object] | None = None,
    ) -> PersistentAllreduce:
        """Make the request of a call; all ranks make it."""
        from gradred.memory_comm import MemoryComm  # derived from this class

        lane = _core.agree_on_init(self, call, one_order)
        comm = self if lane is None else MemoryComm.of(lane, self.rank, self.size)
        return PersistentAllreduce.prepare(comm, call, owners, result, before)

    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce Python objects by pickling, as mpi4py's method does.

        On up to 4 ranks, and on up to 16 for up to 252 pickled bytes, each rank reduces all, in the
        order of ranks. The rest is mpi4py's, also what has over 64 MiB or lengths that differ much.
        Warns once of a large array, which `gradred.allreduce` reduces without pickling.
        """
        _warn_of_pickling(sendobj)
        size = self.Get_size()
        shown = _gather_objects(self, sendobj, _MOST_BYTES if size <= _FEW_RANKS else _SHORT_BYTES)
        if shown is None:
            return super().allreduce(sendobj, op)
        return functools.reduce(op, map(MPI.pickle.loads, shown))

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return the objects of all ranks, as mpi4py's method does; most take less time."""
        shown = _gather_objects(self, sendobj, _MOST_BYTES)
        if shown is None:
            return super().allgather(sendobj)
        return [MPI.pickle.loads(one) for one in shown]

    def _require_mpi(self) -> None:
        """Raise UsageError if the MPI does not know this communicator."""

    # ---- after a failure ----------------------------------------------------------------------

    def shrink(self) -> Comm:
        """Make a communicator of the ranks that still run, after `PeerLost`.

        The ranks that still run agree on which of them it contains, and keep their order. This
        works for ranks of one host that share memory. Every rank that still runs calls it. It
        blocks until all other ranks have called it or ended.

        No MPI call is made, since the MPI may wait for failed ranks. So the new communicator has no
        MPI handle (it is `MPI.COMM_NULL`), and only gradred's own calls work on it: those that the
        class names, `Dup`, and the functions of gradred with `comm=`, on the types and operations
        that gradred knows. All other calls raise `UsageError`. The new communicator can
        be shrunk again.

        Under `gradred run` the job continues without the failed ranks. On a communicator without a
        failure, `shrink` makes one of all ranks, and the old communicator remains usable.

        Raises:
            gradred.UsageError: the ranks share no memory (several hosts, `GRADRED_SHM=0`), so the
                job has to be started again.
            gradred.PeerLost: another rank has ended meanwhile; the remaining ranks may call again.
            gradred.TimeoutError: a running rank did not call it within `GRADRED_TIMEOUT`.

        Example:
            >>> import numpy, gradred
            >>> from mpi4py import MPI
            >>> comm = gradred.Comm(MPI.COMM_SELF).shrink()
            >>> gradred.allreduce(numpy.ones(2), comm=comm)
            array([1., 1.])
        """
        from gradred.memory_comm import MemoryComm  # derived from this class

        state, rank, size = _core.shrink(self)
        return MemoryComm.of(state, rank, size)

    # ---- communicators made from this one -----------------------------------------------------

    @classmethod
    def fromhandle(cls: type[CommT], handle: int) -> CommT:
        """Make a communicator of this class from an MPI handle."""
        return cls(super().fromhandle(handle))

    @classmethod
    def fromint(cls: type[CommT], arg: int, /) -> CommT:
        """Make a communicator of this class from an integer handle."""
        return cls(super().fromint(arg))

    @classmethod
    def f2py(cls: type[CommT], arg: int) -> CommT:
        """Make a communicator of this class from a Fortran handle."""
        return cls(super().f2py(arg))

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """Make a communicator of the same ranks; collective, blocks until all ranks call it.

        Raises:
            gradred.PeerLost: a rank has ended before all ranks had called it.
            gradred.TimeoutError: a rank did not call it within `GRADRED_TIMEOUT`.
        """
        try:
            new, request = super().Idup(info)
        except NotImplementedError:  # MPI < 4 has no Idup with hints: Dup waits without a watchdog
            return super().Dup(info)
        if code := _core.await_duplicate(self, request):
            raise MPI.Exception(code)
        _rank.configure()  # as the constructor does
        return new

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """Call `Dup` with these hints."""
        return self.Dup(info)

    def Clone(self) -> Self:
        """Call `Dup`."""
        return self.Dup()

    def Create(self, group: MPI.Group) -> Comm:
        """Make a communicator of a subgroup; collective over this communicator."""
        return Comm(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """Make a communicator of a subgroup; collective over the group."""
        return Comm(super().Create_group(group, tag))

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Comm:
        """Make a communicator of a group without a parent communicator; collective over it."""
        return Comm(super().Create_from_group(group, stringtag, info, errhandler))

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Make a communicator for each color, with the ranks in the order of their keys."""
        return Comm(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """Make a communicator for each part of the machine, such as ranks that share memory."""
        return Comm(super().Split_type(split_type, key, info))

    def Shrink(self) -> Comm:
        """Make a communicator of the ranks that still run, if the MPI supports this."""
        return Comm(super().Shrink())

    def Ishrink(self) -> tuple[Comm, MPI.Request]:
        """Start `Shrink`; returns the communicator and a request."""
        comm, request = super().Ishrink()
        return Comm(comm), request

    def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | None = None,
        reorder: bool = False,
    ) -> CartComm:
        """Make a communicator with the topology of a grid."""
        return CartComm(super().Create_cart(dims, periods, reorder))

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> GraphComm:
        """Make a communicator with the topology of a graph that all ranks know."""
        return GraphComm(super().Create_graph(index, edges, reorder))

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> DistGraphComm:
        """Make a communicator with the topology of a graph; each rank names its own edges."""
        made = super().Create_dist_graph_adjacent(
            sources, destinations, sourceweights, destweights, info, reorder
        )
        return DistGraphComm(made)

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: MPI.Info = MPI.INFO_NULL,
        reorder: bool = False,
    ) -> DistGraphComm:
        """Make a communicator with the topology of a graph; each rank names any edges."""
        made = super().Create_dist_graph(sources, degrees, destinations, weights, info, reorder)
        return DistGraphComm(made)

    def Create_intercomm(
        self,
        local_leader: int,
        peer_comm: MPI.Intracomm,
        remote_leader: int,
        tag: int = 0,
    ) -> InterComm:
        """Make an intercommunicator of this group and another; its calls are the MPI's."""
        return InterComm(super().Create_intercomm(local_leader, peer_comm, remote_leader, tag))

    def Free(self) -> None:
        """Free the communicator and the state that gradred has for it.

        Blocks until gradred's non-blocking calls that the MPI carries out have ended. Wait for
        others, such as a MINLOC, before: Open MPI crashes in them once their communicator is freed.
        """
        _core.prepare_free(self)
        super().Free()
        _core.reap()

    def free(self) -> None:
        """Call `Free` if the communicator is not null."""
        if self != MPI.COMM_NULL:
            _core.prepare_free(self)
        super().free()
        _core.reap()

    def Disconnect(self) -> None:
        """Block until nothing is in flight on the communicator, then free it."""
        _core.prepare_free(self)
        super().Disconnect()
        _core.reap()


class CartComm(Comm, MPI.Cartcomm):
    """A `Comm` with the topology of a grid."""

    __slots__ = ()

    def Sub(self, remain_dims: Sequence[bool]) -> CartComm:
        """Make a communicator for each part of the grid."""
        return CartComm(super().Sub(remain_dims))


class GraphComm(Comm, MPI.Graphcomm):
    """A `Comm` with the topology of a graph that all ranks know."""

    __slots__ = ()


class DistGraphComm(Comm, MPI.Distgraphcomm):
    """A `Comm` with the topology of a graph of which each rank knows its own edges."""

    __slots__ = ()


class InterComm(MPI.Intercomm):
    """An intercommunicator of mpi4py whose `Merge` returns a `Comm`."""

    __slots__ = ()

    def Merge(self, high: bool = False) -> Comm:
        """Make one communicator of both groups."""
        return Comm(super().Merge(high))


# ---- functions that the extension calls -----------------------------------------------------


def _blocking(method: str) -> Callable[..., None]:
    """Return the blocking method of a reduction, for arguments of any form."""

    def run(
        comm: Comm,
        sendbuf: Any,
        recvbuf: Any,
        op: Any = MPI.SUM,
        *,
        stream: StreamLike = None,
        wire: str | None = None,
    ) -> None:
        with refusing(comm):
            handle = None if stream is None else handle_of(stream, method)
            found = mpi_fallback.reduction(
                method, comm, sendbuf, recvbuf, op, stream=handle, form=wire
            )
        if isinstance(found, MpiCall):
            found.agree(comm)
            getattr(MPI.Intracomm, method)(comm, found.send, found.recv, found.op)
            nbytes = found.messages[1].nbytes
            _core.know_compared(messages.KINDS[method], recvbuf, nbytes, found.op, found.detail)
        else:
            run_in_stream(comm, found.call, found.owners, handle)

    run.__doc__ = f"Call mpi4py's `{method}` by gradred; the arguments are those of `Allreduce`."
    return run


def _starting(method: str) -> Callable[..., MPI.Request]:
    """Return the non-blocking method of a reduction, for arguments of any form."""

    def start(
        comm: Comm,
        sendbuf: Any,
        recvbuf: Any,
        op: Any = MPI.SUM,
        *,
        stream: StreamLike = None,
        wire: str | None = None,
    ) -> MPI.Request:
        with refusing(comm, blocking=False):
            handle = None if stream is None else handle_of(stream, method)
            found = messages.reduction(method, comm, sendbuf, recvbuf, op, handle, wire)
            if isinstance(found, Reduction):
                return Request.start(comm, found.call, found.owners)
            comm._require_mpi()
            messages.require_straight(found, f"{method}'s recvbuf", is_result=True)
            call = mpi_fallback.checked(method, comm, sendbuf, found, op)
        request = getattr(MPI.Intracomm, method)(comm, call.send, call.recv, call.op)
        return Request.of_mpi(request, (sendbuf, recvbuf))

    start.__doc__ = f"Start a `{method[1:].capitalize()}`; the arguments are those of `Iallreduce`."
    return start


def _promises_one_order(comm: MPI.Comm) -> bool:
    """Return whether the program promises to start persistent calls in one order on all ranks."""
    hint = "mpi_assert_strict_persistent_collective_ordering"
    if len(hint) > MPI.MAX_INFO_KEY:  # Open MPI knows no hint of this length
        return False
    info = comm.Get_info()
    try:
        return info.Get(hint) == "true"
    finally:
        info.Free()


def _require_one_result(comm: MPI.Comm, method: str, *given: Any, **named: Any) -> None:
    """Refuse a reduction of mpi4py if its result must not depend on the number of ranks, but may.

    Raises:
        gradred.UsageError: so it is. Sums of whole numbers as objects are exact.
    """
    if not _core.by_leaves(comm):
        return
    op = next((one for one in (*given, *named.values()) if isinstance(one, MPI.Op)), MPI.SUM)
    is_whole = method.islower() and isinstance(next(iter(given), None), numbers.Integral)
    if not is_whole:
        mpi_fallback.require_one_result(comm, op, method)


def _refusing(method: str) -> Callable[..., Any]:
    """Return a method of communicators that refuses what may depend on the number of ranks."""
    inner = getattr(Comm, method)

    @functools.wraps(inner)
    def reduce(comm: Comm, *given: Any, **named: Any) -> Any:
        _require_one_result(comm, method, *given, **named)
        return inner(comm, *given, **named)

    return reduce


def guard_sums() -> None:
    """Let methods of mpi4py refuse sums. This costs time, so it is for programs that ask for it."""
    if hasattr(Comm.allreduce, "__wrapped__"):
        return
    # All others that take an operation; mpi4py's docstrings begin with the signature.
    takes_op = {name for name in dir(MPI.Intracomm) if _has_op(name)} - {*vars(Comm)}
    for method in {*takes_op, "allreduce"} - {*messages.KINDS}:
        setattr(Comm, method, _refusing(method))


def _has_op(method: str) -> bool:
    return " op: " in (getattr(MPI.Intracomm, method).__doc__ or "")


# Of more ranks a tree reduces objects in less time, since each rank need not read all of them, but
# for the shortest.
_FEW_RANKS, _MANY_RANKS, _SHORT_BYTES, _MOST_BYTES = 4, 16, 252, 64 << 20


def _gather_objects(comm: Comm, obj: Any, most: int) -> Sequence[bytes | memoryview] | None:
    """Return all ranks' pickled objects; None on all ranks if they are mpi4py's to exchange."""
    if not 1 < comm.Get_size() <= _MANY_RANKS:
        return None
    # What is surely longer is not pickled in vain: an element takes a byte or more.
    length = len(obj) if isinstance(obj, (list, tuple, dict, str, bytes)) else _nbytes(obj)
    return _core.gather_objects(comm, MPI.pickle.dumps(obj) if length <= most else None, most)


def _nbytes(x: Any) -> int:
    """Return the bytes of an array; 0 of other objects."""
    nbytes = getattr(x, "nbytes", 0)
    return nbytes if isinstance(nbytes, int) else 0


_warned_of_pickling = False


def _warn_of_pickling(x: Any) -> None:
    global _warned_of_pickling
    nbytes = _nbytes(x)
    if _warned_of_pickling or nbytes < LARGE_OBJECT_BYTES:
        return
    _warned_of_pickling = True
    warnings.warn(
        f"comm.allreduce pickles this {type(x).__name__} of {nbytes / 2**20:.0f} MiB; "
        "gradred.allreduce(x, comm=comm) reduces it without",
        stacklevel=3,
    )


_CLOSER_LOOKS: dict[str, Callable[..., object]] = {
    name: _starting(name) if name.startswith("I") else _blocking(name)
    for name in messages.KINDS.keys() - vars(Comm).keys()
}
_CLOSER_LOOKS.update(Allgather=moved_bytes.allgather, Bcast=moved_bytes.bcast)
for _name in ("Allreduce", "Iallreduce"):
    _CLOSER_LOOKS[_name] = takes_leaves(_name, _CLOSER_LOOKS[_name])
for _name, _look in _CLOSER_LOOKS.items():
    _look.__qualname__ = f"Comm.{_name}"  # Python's errors on missing arguments show this name

_rank.begin(Comm, _CLOSER_LOOKS, disagreement, guard_sums)
