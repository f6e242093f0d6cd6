"""Allreduce of leaves: sums whose bits do not depend on how many ranks share them.

The leaves of all ranks are one list. A fixed binary tree adds them up (csrc/base/leaf_tree.h), the
same one whichever rank has which leaf. A rank adds up what it can by itself, its parts of the tree;
a schedule adds up the parts of all ranks.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
from mpi4py import MPI

from gradred import _core, config, ops
from gradred.buffers import messages
from gradred.buffers.refusing import refusing
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES
from gradred.errors import UsageError, UsageTypeError, type_of
from gradred.request import Request
from gradred.schedules import Schedule

if TYPE_CHECKING:
    from gradred.streams import StreamLike

LeavesLike: TypeAlias = "SupportsIndex | Sequence[SupportsIndex] | Literal['job']"

# A blocking call gathers the parts of all ranks on every rank if they are no longer together.
_GATHERED_BYTES = 1 << 20
# The schedule of a started call does so if a leaf is no longer.
_WHOLE_BYTES = 64 << 10
_FLOATS = ("real", "complex")  # kinds of element types


@dataclasses.dataclass(frozen=True)
class Vectors:
    """This rank's leaves in host memory, and where the sum of all ranks' leaves goes."""

    leaves: int
    """The address of the leaves, one after another."""
    result: int
    """The address of the result."""
    count: int
    """The number of elements of a leaf, and of the result."""
    dtype: str
    layout: int = 0
    """The hash of the shape of a leaf, for the ranks' comparison."""

    @property
    def nbytes(self) -> int:
        """The number of bytes of a leaf."""
        return self.count * ITEMSIZES[self.dtype]


class Split(NamedTuple):
    """How the leaves are split among ranks."""

    leaves: tuple[int, ...]
    """The number of leaves of each rank."""
    parts: tuple[int, ...]
    """The number of parts of each rank."""
    widths: tuple[int, ...]
    """The number of leaves that each part stands for, of all ranks."""


class Sum(NamedTuple):
    """A call whose arguments are understood."""

    comm: MPI.Comm
    split: Split
    op: str
    factor: float
    given: Vectors

    @property
    def needs_no_tree(self) -> bool:
        """Whether any plan gives the bits: there is one part, or a float sum of one of each of two.

        Other operations may depend on the order of the two, or be another one in the MPI: some add
        integers up to a limit. `GRADRED_DETERMINISTIC=ranks` refuses sums without a tree.
        """
        is_sum = self.op in ("sum", "premul") and ELEMENT_TYPES[self.given.dtype].kind in _FLOATS
        is_pair = self.split.parts == (1, 1) and is_sum
        return (is_pair or self.split.parts == (1,)) and not _core.by_leaves(self.comm)

    @property
    def layout(self) -> int:
        """The hash that the ranks compare."""
        how = f"{self.split.leaves} {self.op} {self.factor!r}"
        return self.given.layout ^ zlib.crc32(how.encode())


@functools.lru_cache(maxsize=256)
def _split(leaves: int | tuple[int, ...], size: int) -> Split | None:
    """Return the split of so many leaves; None if that is none."""
    each = (leaves,) * size if isinstance(leaves, int) else leaves
    if len(each) != size or min(each) < 0 or not 0 < sum(each) < 1 << 31:
        return None
    parts = [_core.parts_of_leaves(each, rank) for rank in range(size)]
    widths = tuple(itertools.chain.from_iterable(parts))
    return Split(each, tuple(map(len, parts)), widths)


def split_of(leaves: LeavesLike, size: int, asked: str) -> Split:
    """Read `leaves`.

    Args:
        leaves: the number of leaves of each rank, a list with a number for each rank, or `"job"`.
        size: the number of ranks.
        asked: what the caller wants to do, for messages.

    Raises:
        gradred.UsageError: it is none of these, or no rank has a leaf.
    """
    whole: int | tuple[int, ...]
    given: Any = _of_job(size, asked) if isinstance(leaves, str) and leaves == "job" else leaves
    try:
        try:
            whole = operator.index(given)
        except TypeError:
            whole = tuple(map(operator.index, given))
    except TypeError:
        remedy = "Pass the number of leaves of each rank, a list with a number for each, or 'job'"
        raise UsageTypeError(asked, f"leaves is {type_of(leaves)}", remedy) from None
    split = _split(whole, size)
    if split is None:
        wanted = f"Pass a number for each of the {size} ranks, not all of them 0"
        raise UsageError(asked, f"leaves={leaves!r} are no numbers of leaves", wanted)
    return split


def _of_job(size: int, asked: str) -> tuple[int, ...]:
    """Return each rank's number of the job's leaves: as many, or one more."""
    leaves = config.get("leaves")
    if leaves is None:
        found = "leaves='job', and the job has no number of leaves"
        raise UsageError(asked, found, "Start it by `gradred run --leaves N`")
    ends = [rank * leaves // size for rank in range(size + 1)]
    return tuple(end - begin for begin, end in itertools.pairwise(ends))


def ask(
    comm: MPI.Comm, split: Split, operation: tuple[str, float], given: Vectors, asked: str
) -> Sum:
    """Check the operation for the type.

    Raises:
        gradred.UsageError: the type lacks the operation, or it is a mean of integers.
    """
    name, factor = operation
    ops.require(name, given.dtype, f"{asked} of {given.dtype}")
    if name == "avg" and ELEMENT_TYPES[given.dtype].kind in ("signed", "unsigned"):
        found = f"the mean of leaves of {given.dtype} would be rounded"
        raise UsageError(asked, found, "Sums of integers are exact: divide the sum")
    return Sum(comm, split, name, factor, given)


def run(asked: Sum, passed: Any) -> None:
    """Block until the sum is in the result; `passed` are the program's arguments."""
    split, given = asked.split, asked.given
    most = max(split.parts)
    is_long = len(split.parts) * most * given.nbytes > _GATHERED_BYTES
    has_messages = not hasattr(asked.comm, "share")  # a communicator of shared memory has none
    if asked.needs_no_tree or (is_long and has_messages):
        found = call_of(asked)
        found.add_own()
        _run(asked, found.call, (passed, found.held))
        return
    own, held, add_own = _own_parts(asked, most)
    add_own()
    parts = np.empty(max(len(split.parts) * most * given.nbytes, 1), np.uint8)
    address = parts.ctypes.data
    call = _core.Call(
        "allgather", own, address, most * given.count, given.dtype, layout=asked.layout
    )
    _run(asked, call, (passed, held))
    _core.add_parts(given.result, address, given.count, given.dtype, asked.op, split.leaves, most)


def _run(asked: Sum, call: _core.Call, passed: Any) -> None:
    """Carry out the call; an error about it names the leaves, which the call does not show."""
    try:
        _core.run(asked.comm, call, passed)
    except UsageError as error:
        name = f"a sum of leaves={asked.split.leaves} with op={asked.op!r}"
        remedy = "Pass the same leaves=, op and shape on all ranks"
        raise UsageError(name, f"its parts could not be added up ({error})", remedy) from None


class CallOfParts(NamedTuple):
    """A call that adds up the parts of all ranks."""

    call: _core.Call
    held: Any
    """The object to keep alive until it has ended."""
    add_own: Callable[[], object]
    """Makes this rank's parts, before the call."""


def call_to_start(asked: Sum) -> CallOfParts:
    """The same as `call_of` for a call that the MPI may not carry out in an order of its own."""
    found = call_of(asked)
    several = len(asked.split.parts) > 1
    if several and asked.needs_no_tree and not _core.starts(asked.comm, found.call):
        found = call_of(asked, by_tree=True)
    return found


def call_of(asked: Sum, *, by_tree: bool = False) -> CallOfParts:
    """Return the call that adds up the parts of all ranks.

    Args:
        asked: the call.
        by_tree: whether the schedule of the tree is used in any case.
    """
    split, given, rank = asked.split, asked.given, asked.comm.Get_rank()
    is_alone = len(split.parts) == 1
    source, held, add_own = _own_parts(asked, split.parts[rank])

    def add_all() -> None:
        add_own()
        _core.add_parts(given.result, source, given.count, given.dtype, asked.op, split.leaves, 1)

    schedule = None
    if by_tree or not asked.needs_no_tree:
        is_short = given.nbytes <= _WHOLE_BYTES
        schedule = _schedule(rank, split.leaves, 1 if is_short else len(split.parts))
    call = _core.Call(
        "allreduce",
        None if is_alone else source,
        given.result,
        given.count,
        given.dtype,
        "sum" if asked.op == "premul" else asked.op,
        layout=asked.layout,
        schedule=schedule,
    )
    return CallOfParts(call, held, add_all if is_alone else add_own)


def _own_parts(asked: Sum, room: int) -> tuple[int, Any, Callable[[], object]]:
    """Return where this rank's parts are, the memory if it is new, and what makes them.

    Args:
        asked: the call.
        room: the number of vectors for which there has to be memory.
    """
    split, given, rank = asked.split, asked.given, asked.comm.Get_rank()
    if 0 < split.parts[rank] == split.leaves[rank] == room and asked.op != "premul":
        return given.leaves, None, lambda: None
    held = np.empty(max(room * given.nbytes, 1), np.uint8)
    address = int(held.ctypes.data)
    own = (given.leaves, given.count, given.dtype, asked.op, asked.factor)
    add = functools.partial(_core.add_leaves, address, *own, split.leaves, rank)
    return address, held, add


@functools.lru_cache(maxsize=64)
def _schedule(rank: int, each: tuple[int, ...], chunks: int) -> Schedule:
    return _core.leaf_tree(rank, each, chunks)


# ---- the methods of communicators -----------------------------------------------------------


def _read(
    method: str, comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: Any, leaves: LeavesLike
) -> Sum:
    split = split_of(leaves, comm.Get_size(), method)
    if messages.is_in_place(sendbuf):
        found = "the leaves are longer than the result, so that they have an array of their own"
        raise UsageError(f"{method} with leaves", found, "Pass them as sendbuf")
    own = split.leaves[comm.Get_rank()]
    vectors = _of_numpy(sendbuf, recvbuf, own) or _of_any(method, sendbuf, recvbuf, own, leaves)
    operation = ops.resolve(op)
    if operation is None:
        remedy = f"Use one of {', '.join(ops.OPS)}"
        raise UsageError(f"{method} with leaves", "the MPI alone knows this operation", remedy)
    return ask(comm, split, operation, vectors, method)


def _of_numpy(x: Any, out: Any, own: int) -> Vectors | None:
    """Return the vectors of NumPy's arrays; None if something about them needs a closer look."""
    if type(x) is not np.ndarray or type(out) is not np.ndarray:
        return None
    given, result = _core.plain_array(x), _core.plain_array(out)
    if given is None or result is None or given[1] != result[1] or x.size != own * out.size:
        return None
    is_apart = given[0] + x.nbytes <= result[0] or result[0] + out.nbytes <= given[0]
    if not (is_apart and given[1] in ITEMSIZES and result[5]):
        return None
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return None
    return Vectors(given[0], result[0], out.size, given[1])


def _of_any(method: str, sendbuf: Any, recvbuf: Any, own: int, leaves: LeavesLike) -> Vectors:
    recv = messages.read(recvbuf, f"{method}'s recvbuf", writable=True, by_rows=True)
    send = messages.read(sendbuf, f"{method}'s sendbuf", writable=False, by_rows=True)
    for buffer in (send, recv):
        if buffer.memory is not None:
            remedy = "Use gradred.allreduce(..., leaves=), which copies them to the host"
            raise UsageError(f"{method} with leaves", "the buffers are in a GPU's memory", remedy)
    if send.dtype is None or send.dtype != recv.dtype:
        found = f"sendbuf has {send.type_text}, recvbuf {recv.type_text}"
        raise UsageError(method, found, "Pass two buffers of one type that gradred reduces")
    if send.count != own * recv.count:
        found = f"sendbuf has {send.count} elements, recvbuf {recv.count}"
        raise UsageError(method, found, f"Pass {own} times as many in sendbuf, for leaves={leaves}")
    nbytes = recv.count * ITEMSIZES[send.dtype]
    if send.address < recv.address + nbytes and recv.address < send.address + own * nbytes:
        found = "recvbuf lies in sendbuf"
        raise UsageError(f"{method} with leaves", found, "Pass a recvbuf of its own memory")
    return Vectors(send.address, recv.address, recv.count, send.dtype)


def takes_leaves(method: str, look: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of `Comm` that takes `leaves=`, and calls `look` without."""

    def take(
        comm: MPI.Intracomm,
        sendbuf: Any,
        recvbuf: Any,
        op: Any = MPI.SUM,
        *,
        stream: StreamLike = None,
        leaves: LeavesLike | None = None,
        wire: str | None = None,
    ) -> Any:
        if leaves is None:
            return look(comm, sendbuf, recvbuf, op, stream=stream, wire=wire)
        starts = method.startswith("I")
        with refusing(comm, blocking=not starts):
            if stream is not None or wire is not None:
                why = "the host adds up leaves, as they are, so that no stream orders the call"
                raise UsageError(f"{method} with leaves", why, "Leave out stream= and wire=")
            asked = _read(method, comm, sendbuf, recvbuf, op, leaves)
            found = call_to_start(asked) if starts else None
            if found is not None:
                found.add_own()
        if found is None:
            return run(asked, (sendbuf, recvbuf))
        return Request.start(comm, found.call, (found.held, sendbuf, recvbuf))

    take.__doc__ = look.__doc__
    return take


def call_to_repeat(
    comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any, op: Any, leaves: LeavesLike, wire: str | None
) -> CallOfParts:
    """Return the call of `Comm.Allreduce_init`. Blocking and collective."""
    method = "Allreduce_init"
    with refusing(comm):
        if wire is not None:
            raise UsageError(f"{method} with leaves", "they travel as they are", "Leave out wire=")
        asked = _read(method, comm, sendbuf, recvbuf, op, leaves)
    _core.prepare(comm)
    found = call_to_start(asked)
    return found._replace(held=(found.held, sendbuf, recvbuf))
