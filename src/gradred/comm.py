"""`gradred.Comm`: an `MPI.Intracomm` whose collective reductions are gradred's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from gradred import _core, _rank
from gradred.buffers import messages, moved_bytes, mpi_fallback
from gradred.buffers.messages import Message, Reduction
from gradred.buffers.mpi_fallback import MpiCall
from gradred.buffers.passed import with_passed
from gradred.buffers.refusing import refusing
from gradred.persistent import PersistentAllreduce
from gradred.request import Request, run_in_stream
from gradred.streams import StreamLike, handle_of

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, InPlace
    from typing_extensions import Self

    from gradred.ops import OpLike

CommT = TypeVar("CommT", bound="Comm")

LARGE_OBJECT_BYTES = 1 << 20


class Comm(MPI.Intracomm):
    """A communicator of mpi4py whose allreduce is gradred's.

    `Comm(comm)` is local and shares the handle of `comm`, as mpi4py's constructors do; whatever
    takes an `MPI.Intracomm` takes it. `Allreduce`, `Iallreduce`, `Allreduce_init`,
    `Reduce_scatter_block`, `Ireduce_scatter_block`, `Allgather` and `Bcast` keep mpi4py's meaning
    and are gradred's where it knows type and operation; all else is the MPI's. The communicators
    that its methods make are of this kind too.

    The knobs (`gradred.config`) are read when a communicator is made.

    Raises:
        gradred.UsageError: a knob has no meaning.
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
        # One of shared memory is more than its handle, which is null.
        share: Callable[[], CommT] | None = getattr(comm, "share", None)
        if comm is not None and share is None:
            _core.require_running_mpi(comm)  # mpi4py asks the MPI about it
        # Not super(): what a class with two bases inherits is this one's.
        return MPI.Intracomm.__new__(cls, comm) if share is None else share()

    def __init__(self, comm: MPI.Comm | None = None) -> None:
        _rank.configure()

    if TYPE_CHECKING:  # at run time a method of the extension module, for its cost

        def Allreduce(  # noqa: D102 (the extension documents it)
            self,
            sendbuf: BufSpec | InPlace,
            recvbuf: BufSpec,
            op: OpLike = MPI.SUM,
            *,
            stream: StreamLike = None,
        ) -> None: ...
        def Iallreduce(  # noqa: D102
            self,
            sendbuf: BufSpec | InPlace,
            recvbuf: BufSpec,
            op: OpLike = MPI.SUM,
            *,
            stream: StreamLike = None,
        ) -> Request: ...
        def Reduce_scatter_block(  # noqa: D102
            self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: OpLike = MPI.SUM
        ) -> None: ...
        def Allgather(  # noqa: D102
            self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB
        ) -> None: ...
        def Bcast(self, buf: BufSpec, root: int = 0) -> None: ...  # noqa: D102

    @property
    def device_path(self) -> str:
        """How calls on arrays in GPUs' memory have gone that could go from device to device. Local.

        `"devices: ..."`, or `"host memory: "` and why; `"no such call yet"`.
        """
        info = _core.comm_info(self)
        measured = "; ".join(info["device_plans"])
        return info["device_path"] + (f"; measured: {measured}" if measured else "")

    # ---- collective calls -------------------------------------------------------------------

    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: OpLike = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> PersistentAllreduce:
        """Prepare an allreduce that is started many times on the same buffers.

        Args:
            sendbuf: this rank's input.
            recvbuf: where the result goes.
            op: an MPI.Op, a name from gradred.OPS, gradred.premul(factor) or gradred.user_op(f).
            info: hints for the MPI, which has no use for them where the operation is gradred's.

        Raises:
            gradred.UsageError: the arguments do not fit each other.
        """
        with refusing(self):
            found = mpi_fallback.reduction(
                "Allreduce_init", self, sendbuf, recvbuf, op, also="init"
            )
        _core.prepare(self)  # may block, as MPI allows here: Start does not
        own = isinstance(found, Reduction) and (_core.starts(self) or not _core.mpi_has(found.call))
        if isinstance(found, Reduction) and not own:
            with refusing(self):
                asked = "Allreduce_init's recvbuf"
                recv = messages.read(recvbuf, asked, writable=True, any_order=True)
                found = mpi_fallback.checked("Allreduce_init", self, sendbuf, recv, op, also="init")
        if isinstance(found, MpiCall):
            found.agree(self)
            request = super().Allreduce_init(found.send, found.recv, found.op, info)
            return PersistentAllreduce.of_mpi(request, (found.messages, sendbuf, recvbuf))
        _core.agree_on_init(self, found.call)
        return PersistentAllreduce.prepare(self, found.call, found.owners)

    def Ireduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: OpLike = MPI.SUM
    ) -> MPI.Request:
        """Start a `Reduce_scatter_block`; see `Iallreduce`."""
        with refusing(self, blocking=False):
            found = messages.reduction("Ireduce_scatter_block", self, sendbuf, recvbuf, op)
        if isinstance(found, Message):
            return super().Ireduce_scatter_block(sendbuf, recvbuf, mpi_fallback.mpi_op(op))
        return Request.start(self, found.call, found.owners)

    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """Reduce Python objects, by pickling: mpi4py's own method.

        Warns once when it is given a large array, which `gradred.allreduce` reduces in place of
        pickling it.
        """
        _warn_of_pickling(sendobj)
        return super().allreduce(sendobj, op)

    # ---- after a death ------------------------------------------------------------------------

    def shrink(self) -> Comm:
        """A communicator of the ranks that live, after `PeerLost`; they agree on who that is.

        For ranks of one host that share memory. Every rank that lives calls it, and waits until
        all others have called it or ended. They keep their order. No MPI call is made, since the
        MPI may wait for the failed ones; so the new communicator has no MPI handle (it is
        `MPI.COMM_NULL`), and of an `MPI.Intracomm` it serves what is gradred's own: `Allreduce`,
        `Iallreduce`, `Allreduce_init`, `Reduce_scatter_block`, `Ireduce_scatter_block`,
        `Allgather`, `Bcast`, `Dup`, and the functions of gradred with `comm=`, on the types
        and operations that gradred knows. All else raises `UsageError`. It can be shrunk again.

        Under `gradred run` the job goes on without failed ranks. On a sound communicator it gives
        one of all ranks, and the sound one stays so.

        Raises:
            gradred.UsageError: the ranks share no memory (several hosts, `GRADRED_SHM=0`): the
                job has to be started again.
            gradred.PeerLost: another rank has ended meanwhile; all that live may call it again.
            gradred.TimeoutError: after `GRADRED_TIMEOUT` a rank that lives had not called it.

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

    # ---- communicators from this one ----------------------------------------------------------

    @classmethod
    def fromhandle(cls: type[CommT], handle: int) -> CommT:
        """A communicator of this class from an MPI handle."""
        return cls(super().fromhandle(handle))

    @classmethod
    def fromint(cls: type[CommT], arg: int, /) -> CommT:
        """A communicator of this class from an integer handle."""
        return cls(super().fromint(arg))

    @classmethod
    def f2py(cls: type[CommT], arg: int) -> CommT:
        """A communicator of this class from a Fortran handle."""
        return cls(super().f2py(arg))

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """A communicator of the same ranks; collective, and waits for all of them.

        Raises:
            gradred.PeerLost: a rank has ended before all had called it.
            gradred.TimeoutError: after `GRADRED_TIMEOUT` a rank had not called it.
        """
        try:
            new, request = super().Idup(info)
        except NotImplementedError:  # with hints before MPI 4: the MPI waits, and nobody watches it
            return super().Dup(info)
        if code := _core.await_duplicate(self, request):
            raise MPI.Exception(code)
        _rank.configure()  # as where the constructor makes one
        return new

    def Dup_with_info(self, info: MPI.Info) -> Self:
        """`Dup` with these hints."""
        return self.Dup(info)

    def Clone(self) -> Self:
        """`Dup`."""
        return self.Dup()

    def Create(self, group: MPI.Group) -> Comm:
        """A communicator of a subgroup; collective over this one."""
        return Comm(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """A communicator of a subgroup; collective over the group."""
        return Comm(super().Create_group(group, tag))

    @classmethod
    def Create_from_group(
        cls,
        group: MPI.Group,
        stringtag: str = "org.mpi4py",
        info: MPI.Info = MPI.INFO_NULL,
        errhandler: MPI.Errhandler | None = None,
    ) -> Comm:
        """A communicator of a group, without one to start from; collective over the group."""
        return Comm(super().Create_from_group(group, stringtag, info, errhandler))

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """A communicator per color, in the order of the keys."""
        return Comm(super().Split(color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """A communicator per part of the machine, for example those that share memory."""
        return Comm(super().Split_type(split_type, key, info))

    def Shrink(self) -> Comm:
        """A communicator of the ranks that live, where the MPI can tell."""
        return Comm(super().Shrink())

    def Ishrink(self) -> tuple[Comm, MPI.Request]:
        """`Shrink`, with a request."""
        comm, request = super().Ishrink()
        return Comm(comm), request

    def Create_cart(
        self,
        dims: Sequence[int],
        periods: Sequence[bool] | None = None,
        reorder: bool = False,
    ) -> CartComm:
        """A communicator with the topology of a grid."""
        return CartComm(super().Create_cart(dims, periods, reorder))

    def Create_graph(
        self, index: Sequence[int], edges: Sequence[int], reorder: bool = False
    ) -> GraphComm:
        """A communicator with the topology of a graph, known to all ranks."""
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
        """A communicator with the topology of a graph; each rank names its own edges."""
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
        """A communicator with the topology of a graph; each rank names any edges."""
        made = super().Create_dist_graph(sources, degrees, destinations, weights, info, reorder)
        return DistGraphComm(made)

    def Create_intercomm(
        self,
        local_leader: int,
        peer_comm: MPI.Intracomm,
        remote_leader: int,
        tag: int = 0,
    ) -> InterComm:
        """An intercommunicator of this group and another; its collective calls are the MPI's."""
        return InterComm(super().Create_intercomm(local_leader, peer_comm, remote_leader, tag))

    def Free(self) -> None:
        """Free the communicator, and what gradred keeps for it.

        Blocks until non-blocking calls that the MPI carries out have ended.
        """
        _core.prepare_free(self)
        super().Free()
        _core.reap()

    def free(self) -> None:
        """`Free` if the communicator is not null."""
        if self != MPI.COMM_NULL:
            _core.prepare_free(self)
        super().free()
        _core.reap()

    def Disconnect(self) -> None:
        """Wait until nothing is in flight on the communicator, then free it."""
        _core.prepare_free(self)
        super().Disconnect()
        _core.reap()


class CartComm(Comm, MPI.Cartcomm):
    """A `Comm` with the topology of a grid."""

    __slots__ = ()

    def Sub(self, remain_dims: Sequence[bool]) -> CartComm:
        """A communicator per part of the grid."""
        return CartComm(super().Sub(remain_dims))


class GraphComm(Comm, MPI.Graphcomm):
    """A `Comm` with the topology of a graph that all ranks know."""

    __slots__ = ()


class DistGraphComm(Comm, MPI.Distgraphcomm):
    """A `Comm` with the topology of a graph of which each rank knows its own edges."""

    __slots__ = ()


class InterComm(MPI.Intercomm):
    """An intercommunicator: mpi4py's own, except that merging it gives a `Comm`."""

    __slots__ = ()

    def Merge(self, high: bool = False) -> Comm:
        """One communicator of both groups."""
        return Comm(super().Merge(high))


# ---- what the extension calls ---------------------------------------------------------------


def _allreduce(
    comm: Comm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, stream: StreamLike = None
) -> None:
    """`Comm.Allreduce` for everything but plain NumPy arrays and predefined operations."""
    with refusing(comm):
        handle = None if stream is None else handle_of(stream, "Allreduce")
        found = mpi_fallback.reduction("Allreduce", comm, sendbuf, recvbuf, op, stream=handle)
    if isinstance(found, MpiCall):
        found.agree(comm)
        MPI.Intracomm.Allreduce(comm, found.send, found.recv, found.op)
    else:
        run_in_stream(comm, found.call, found.owners, handle)


def _iallreduce(
    comm: Comm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM, *, stream: StreamLike = None
) -> MPI.Request:
    """`Comm.Iallreduce` for the rest, in the same way."""
    with refusing(comm, blocking=False):
        handle = None if stream is None else handle_of(stream, "Iallreduce")
        found = messages.reduction("Iallreduce", comm, sendbuf, recvbuf, op, handle)
        if isinstance(found, Message):
            messages.require_straight(found, "Iallreduce's recvbuf", is_result=True)
    if isinstance(found, Message):
        return MPI.Intracomm.Iallreduce(comm, sendbuf, recvbuf, mpi_fallback.mpi_op(op))
    return Request.start(comm, found.call, found.owners)


def _reduce_scatter_block(comm: Comm, sendbuf: Any, recvbuf: Any, op: Any = MPI.SUM) -> None:
    with refusing(comm):
        found = mpi_fallback.reduction("Reduce_scatter_block", comm, sendbuf, recvbuf, op)
    if isinstance(found, MpiCall):
        found.agree(comm)
        MPI.Intracomm.Reduce_scatter_block(comm, found.send, found.recv, found.op)
    else:
        _core.run(comm, found.call, found.owners)


def _allgather(comm: Comm, sendbuf: Any, recvbuf: Any) -> None:
    moved_bytes.allgather(comm, sendbuf, recvbuf)


def _bcast(comm: Comm, buf: Any, root: int = 0) -> None:
    moved_bytes.bcast(comm, buf, root)


_warned_of_pickling = False


def _warn_of_pickling(x: Any) -> None:
    global _warned_of_pickling
    nbytes = getattr(x, "nbytes", 0)
    if _warned_of_pickling or not isinstance(nbytes, int) or nbytes < LARGE_OBJECT_BYTES:
        return
    _warned_of_pickling = True
    warnings.warn(
        f"comm.allreduce pickles this {type(x).__name__} of {nbytes / 2**20:.0f} MiB; "
        "gradred.allreduce(x, comm=comm) reduces it without",
        stacklevel=3,
    )


_CLOSER_LOOKS: dict[str, Callable[..., object]] = {
    "Allreduce": _allreduce,
    "Iallreduce": _iallreduce,
    "Reduce_scatter_block": _reduce_scatter_block,
    "Allgather": _allgather,
    "Bcast": _bcast,
}
for _name, _look in _CLOSER_LOOKS.items():
    _look.__qualname__ = f"Comm.{_name}"  # for what Python says of missing arguments

_rank.begin(Comm, _CLOSER_LOOKS, with_passed)
