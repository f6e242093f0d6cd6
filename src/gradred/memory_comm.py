"""The communicators of `Comm.shrink` and `gradred.connect`, which have no MPI handle."""

# ruff: noqa: N802 (MPI's own names)
from __future__ import annotations

import inspect
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

from mpi4py import MPI

from gradred import _core
from gradred.buffers import messages
from gradred.buffers.refusing import refusing
from gradred.comm import Comm
from gradred.errors import PeerLost, UsageError, UsageTypeError, explain, usage_error
from gradred.persistent import PersistentAllreduce
from gradred.request import Request
from gradred.streams import StreamLike, handle_of

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, InPlace
    from typing_extensions import CapsuleType, Self

    from gradred.leaves import LeavesLike
    from gradred.ops import OpLike

_CALLS = (*messages.KINDS, "Allgather", "Bcast")


class MemoryComm(Comm):
    """A `Comm` that uses only shared memory; see `Comm.shrink` and `gradred.connect`.

    Its MPI handle is null. A slot of the object holds the state, in place of an MPI attribute.
    Copies by `Comm(comm)` share the state.
    """

    __slots__ = ("_rank", "_size", "_state")
    _state: CapsuleType
    _rank: int
    _size: int

    @classmethod
    def of(cls, state: CapsuleType, rank: int, size: int) -> Self:
        """Make an object from the result of `_core.shrink` or `_core.connect`."""
        self = MPI.Intracomm.__new__(cls)
        self._state, self._rank, self._size = state, rank, size
        return self

    def share(self) -> MemoryComm:
        """Make another object of the same communicator."""
        return self.of(self._state, self._rank, self._size) if self else MemoryComm()

    def Get_rank(self) -> int:
        """Return this rank; after `shrink` among the remaining ranks, which keep their order."""
        self._require_alive("Get_rank")
        return self._rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        self._require_alive("Get_size")
        return self._size

    def Get_name(self) -> str:
        """Return a name for messages."""
        return f"{self._size} ranks on shared memory" if self else "freed"

    def Is_inter(self) -> bool:
        """Return False: it is not an intercommunicator."""
        return False

    def Is_intra(self) -> bool:
        """Return True: it is an intracommunicator."""
        return True

    rank = property(Get_rank)
    size = property(Get_size)
    name = property(Get_name)
    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def __bool__(self) -> bool:
        return hasattr(self, "_state") and not _core.memory_comm_is_free(self._state)

    def __eq__(self, other: object) -> bool:
        mine, theirs = (getattr(comm, "_state", None) for comm in (self, other))
        return mine is theirs and mine is not None

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]  # as in mpi4py's communicators

    def __repr__(self) -> str:
        whom = f"rank {self._rank} of {self._size}" if self else "freed"
        return f"<gradred.Comm on shared memory, {whom}>"

    def __reduce__(self) -> NoReturn:
        found = "it exists in the processes of its ranks only"
        raise UsageTypeError("pickling a communicator of shared memory", found, "Pass its rank")

    def Iallreduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: OpLike = MPI.SUM,
        *,
        stream: StreamLike = None,
        leaves: LeavesLike | None = None,
        wire: str | None = None,
    ) -> Request:
        """Start an allreduce as on any `Comm`; sums of leaves only block here."""
        if leaves is not None:
            return super().Iallreduce(sendbuf, recvbuf, op, stream=stream, leaves=leaves)
        found = self._reduction("Iallreduce", sendbuf, recvbuf, op, stream=stream, form=wire)
        return Request.start(self, found.call, found.owners)

    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: OpLike = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
        *,
        leaves: LeavesLike | None = None,
        wire: str | None = None,
    ) -> PersistentAllreduce:
        """Prepare a persistent allreduce as on any `Comm`; starts are like `Iallreduce`."""
        if leaves is not None:
            return super().Allreduce_init(sendbuf, recvbuf, op, leaves=leaves, wire=wire)
        found = self._reduction("Allreduce_init", sendbuf, recvbuf, op, blocking=True, form=wire)
        return self._persistent(found.call, found.owners, recvbuf, one_order=False)

    def Dup(self, info: MPI.Info | None = None) -> Self:
        """Make another communicator of the same ranks; blocking and collective.

        Raises:
            gradred.PeerLost: a rank has ended meanwhile; call `shrink` on this communicator.
        """
        self._require_alive("Dup")
        state, rank, size = _core.shrink(self)
        if size == self._size:
            return self.of(state, rank, size)
        _core.free_memory_comm(state)
        found = f"{size} of its {self._size} ranks live"
        raise PeerLost("Dup of a communicator of shared memory", found, "Call shrink()")

    def Free(self) -> None:
        """Free the communicator and its shared memory. Local."""
        self._require_alive("Free")
        _core.prepare_free(self)
        _core.free_memory_comm(self._state)
        del self._state

    def free(self) -> None:
        """Call `Free` if the communicator is not freed yet."""
        if self:
            self.Free()

    def _reduction(
        self,
        method: str,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        *,
        blocking: bool = False,
        stream: StreamLike = None,
        form: str | None = None,
    ) -> messages.Reduction:
        with refusing(self, blocking=blocking):
            handle = None if stream is None else handle_of(stream, method)
            found = messages.reduction(method, self, sendbuf, recvbuf, op, handle, form)
            if isinstance(found, messages.Message):
                self._require_mpi()
                raise AssertionError  # _require_mpi() always raises
        return found

    def _require_mpi(self) -> None:
        raise _refusal("a reduction that the MPI would carry out")

    def _require_alive(self, asked: str) -> None:
        if not self:
            message = explain(asked, "the communicator is freed", "Use one that is alive")
            raise usage_error(message, "ERR_COMM")


def _refusal(asked: str) -> UsageError:
    found = "it has shared memory only, and the MPI knows nothing of it"
    remedy = f"Use {', '.join(_CALLS)} or the functions of gradred; for all else restart the job"
    return UsageError(f"{asked} on a communicator of shared memory", found, remedy)


def _refused(name: str) -> Any:
    def refuse(self: MemoryComm, *args: Any, **kwargs: Any) -> NoReturn:
        raise _refusal(name)

    refuse.__name__, refuse.__doc__ = name, "Refused: it is the MPI's."
    is_property = isinstance(inspect.getattr_static(MPI.Intracomm, name), GetSetDescriptorType)
    return property(refuse) if is_property else refuse


# All other members would call the MPI with the null handle, which is an error at best.
for _name in dir(MPI.Intracomm):
    if not (_name.startswith("_") or _name in vars(MemoryComm) or _name in (*_CALLS, "handle")):
        setattr(MemoryComm, _name, _refused(_name))
_core.install_memory_comm(MemoryComm)
