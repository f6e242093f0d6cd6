"""Reductions that the MPI carries out: a user-defined MPI.Op, or a type that gradred does not know.

Once a rank is inside the MPI's call, gradred cannot report its mistakes to the peers: they wait,
abort or compute a wrong result. So all checks come before: each rank checks its own arguments, and
the ranks agree on count, type and operation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from mpi4py import MPI

from gradred import _core, ops
from gradred.buffers import messages, typemaps
from gradred.buffers.cuda_interface import require_host
from gradred.buffers.messages import KINDS, Message, Reduction
from gradred.element_types import ELEMENT_TYPES
from gradred.errors import UsageElementError, UsageError, usage_error


@dataclasses.dataclass(slots=True)
class MpiCall:
    """A call for the MPI, whose arguments are consistent."""

    method: str
    messages: tuple[Message | None, Message]
    """The memory of input and result; their owners must live as long as the call."""
    op: MPI.Op
    detail: int
    """The hash that the ranks compare."""
    send: Any
    """The buffer for mpi4py, as `recv`; both have one type and count, so mpi4py raises nothing."""
    recv: Any

    @property
    def text(self) -> str:
        """A description of this rank's call."""
        op = _name(self.op) or "an operation of the program's own"
        return f"{self.method} of {self.messages[1].text} with {op}"

    def agree(self, comm: MPI.Comm) -> None:
        """Block until all ranks have agreed to leave this very call to the MPI.

        Raises:
            gradred.UsageError: their calls differ, or a rank has refused its arguments.
        """
        try:
            _core.leave_to_mpi(comm, KINDS[self.method], self.detail)
        except UsageError as error:
            # The ranks exchange too few bytes for names, so each adds the names of its own call.
            text = f"{str(error).rstrip('.')}. This rank asked for {self.text}."
            raise usage_error(text, error.mpi_class) from None


def reduction(
    method: str,
    comm: MPI.Comm,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    also: object = None,
    stream: int | None = None,
    form: str | None = None,
) -> Reduction | MpiCall:
    """Call `messages.reduction` for a method that may block; check a call of the MPI's.

    Raises:
        gradred.UsageError: the arguments are inconsistent.
    """
    found = messages.reduction(method, comm, sendbuf, recvbuf, op, stream, form)
    if isinstance(found, Reduction):
        return found
    return checked(method, comm, sendbuf, found, op, also)


def checked(
    method: str, comm: MPI.Comm, sendbuf: Any, recv: Message, op: Any, also: object = None
) -> MpiCall:
    """Check a call whose recvbuf has been read; raises as `reduction` does."""
    blocks = messages.blocks_of(method, comm)
    in_place = messages.is_in_place(sendbuf)
    send = None if in_place else messages.read_input(method, sendbuf, recv, blocks)
    return of_messages(method, comm, send, recv, mpi_op(op), also)


def of_messages(
    method: str,
    comm: MPI.Comm,
    send: Message | None,
    recv: Message,
    op: MPI.Op,
    also: object = None,
) -> MpiCall:
    """Make a call of messages that are consistent.

    `send` is None if the input is in `recv`. The ranks also compare `also`.

    Raises:
        gradred.UsageError: the MPI does not have the type, or the result may depend on the number
            of ranks and must not.
    """
    require_one_result(comm, op, method)
    for message in (send, recv):
        if message is not None:
            require_host(message, method)
    datatype = _mpi_type(method, recv)
    if not datatype.is_predefined:
        datatype.Commit()  # the MPI would refuse an uncommitted type, perhaps on this rank alone
    basics = typemaps.of_message(recv)
    same = (
        KINDS[method],
        recv.count,
        basics.length,
        basics.hash,
        _compared(op),
        also,
        recv.layout,
    )
    return MpiCall(
        method,
        (send, recv),
        op,
        detail=typemaps.hash_of(same),
        send=MPI.IN_PLACE if send is None else _specification(send, datatype),
        recv=_specification(recv, datatype),
    )


def require_one_result(comm: MPI.Comm, op: Any, asked: str) -> None:
    """Refuse what the MPI adds up if `GRADRED_DETERMINISTIC` is ranks.

    Raises:
        gradred.UsageError: it is, and the operation may depend on the number of ranks.
    """
    exact = isinstance(op, MPI.Op) and _name(op) in _EXACT
    if not exact and _core.by_leaves(comm):
        found = "GRADRED_DETERMINISTIC is ranks, and the order of the MPI has other bits"
        raise UsageError(asked, found, "Pass leaves= to an allreduce, or use gradred.exact_sum")


def mpi_op(op: ops.OpLike) -> MPI.Op:
    """Return the MPI's operation; `messages.reduction` has refused operations of gradred alone."""
    if isinstance(op, MPI.Op):
        return op
    known = getattr(MPI, op.upper() if isinstance(op, str) else "", None)
    assert isinstance(known, MPI.Op)
    return known


def _mpi_type(method: str, message: Message) -> MPI.Datatype:
    if message.datatype is not None:
        return message.datatype
    found = None
    if message.dtype is not None and ELEMENT_TYPES[message.dtype].is_numpys:
        found = MPI._typedict.get(np.dtype(message.dtype).char)
    if found is None:
        why = f"the MPI has no {message.dtype}, which its own operations would need"
        raise UsageElementError(method, why, f"Use one of {', '.join(ops.OPS)}")
    return found


def _specification(message: Message, datatype: MPI.Datatype) -> list[Any]:
    if message.address == 0:
        return [MPI.BOTTOM, message.count, datatype]
    # mpi4py checks only the count, not the length of the memory.
    return [MPI.buffer.fromaddress(message.address, 1), message.count, datatype]


def _compared(op: MPI.Op) -> tuple[str, bool]:
    """Return what ranks compare of an operation; user-defined operations have no common name."""
    return (_name(op) or "own"), op.Is_commutative()


# Predefined operations that gradred does not know.
_OTHERS = {f"MPI_{name}": getattr(MPI, name) for name in ("MINLOC", "MAXLOC", "REPLACE", "NO_OP")}
# Operations without a rounding.
_EXACT = {*_OTHERS, *ops.OPS} - {"sum", "prod", "avg"}


def _name(op: MPI.Op) -> str | None:
    known = _core.op_name(op)
    return known or next((name for name, other in _OTHERS.items() if op == other), None)
