"""Read mpi4py's buffer specifications: an array, `[array, type]`, `[array, count, type]` etc.

All ranks must agree on the meaning of a specification, but not on its form: `x`, `[x, MPI.FLOAT]`
and `(x, 4, "f")` are the same message. So only the type and the operation decide whether gradred
or the MPI carries out a call.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from gradred import _core, ops, wire
from gradred.buffers import more_than_numbers
from gradred.buffers.arrays import dense_remedy, is_torch, laid_out
from gradred.buffers.arrays import read as read_array
from gradred.buffers.cuda_interface import finish_stream, require_host
from gradred.buffers.dlpack import Exported
from gradred.element_types import ITEMSIZES
from gradred.errors import (
    UsageBufferError,
    UsageElementError,
    UsageError,
    UsageTypeError,
    explain,
    type_of,
    usage_error,
)

ROWS = {row["name"]: row for row in _core.call_kinds()}
"""The core's table of the kinds of calls on arrays."""

KINDS: dict[str, str] = {
    method: kind
    for kind, row in ROWS.items()
    if row["reduces"]
    for method in (kind.capitalize(), f"I{kind}")
} | {"Allreduce_init": "allreduce"}
"""The methods of a communicator that reduce, and the kinds of their calls."""

# The operations of gradred that are MPI's too, by gradred's names.
MPI_OPS = frozenset(ops.OPS) - {"avg"}


@dataclasses.dataclass(slots=True)  # not frozen, like arrays.Array
class Message:
    """Elements at an address."""

    address: int
    count: int
    """The number of elements; of one block if a message has several blocks, as in MPI."""
    dtype: str | None
    """gradred's name of the type; None if only the MPI knows the type."""
    datatype: MPI.Datatype | None
    """The MPI's type; None if the specification names none."""
    owner: Any
    memory: _core.DeviceMemory | None = None
    """The device that owns the memory; None for host memory."""
    stream: int | None = None
    """The stream in which the program works on a device's memory."""
    layout: int = 0
    """The hash of the layout, for the ranks' comparison; 0 if they do not compare it.

    They do not compare arrays that are row by row, or column by column unless PyTorch's: to the
    MPI these are the same message in any form."""
    straight: bool = True
    """Whether the axes are in C order or in Fortran order."""

    @property
    def itemsize(self) -> int:
        """Bytes of data in an element; for a derived type without its gaps."""
        if self.dtype is not None:
            return ITEMSIZES[self.dtype]
        assert self.datatype is not None
        return self.datatype.Get_size()

    @property
    def nbytes(self) -> int:
        """Bytes of data; of one block if the message has several."""
        return self.count * self.itemsize

    @property
    def type_text(self) -> str:
        """The type's name, for messages."""
        if self.dtype is not None:
            return self.dtype
        assert self.datatype is not None
        name: str = self.datatype.Get_name()
        return name or f"a derived type of {self.itemsize} bytes"

    @property
    def text(self) -> str:
        """Count and type, for messages."""
        between = " " if self.dtype is not None else " elements of "
        return f"{self.count}{between}{self.type_text}"


@dataclasses.dataclass(slots=True)
class _Parts:
    buffer: Any
    count: Any = None
    displacement: Any = None
    datatype: Any = None


def read(
    spec: Any,
    asked: str,
    *,
    writable: bool,
    blocks: int = 1,
    any_order: bool = False,
    by_rows: bool = False,
) -> Message:
    """Read one specification.

    Args:
        spec: a specification of mpi4py.
        asked: the argument's name for messages: `"Allreduce's recvbuf"`.
        writable: whether the call writes there.
        blocks: the number of blocks of the elements; the message's `count` is that of one block.
        any_order: whether the axes of a dense array may have any order, as in channels_last.
        by_rows: whether they must be in C order.

    Raises:
        gradred.UsageError: it is not valid, or describes more than the memory holds.
        gradred.DeviceError: the memory is a device's, and gradred cannot reach it.
    """
    parts = _take_apart(spec, asked, is_result=writable)
    typed = parts.datatype is not None
    memory = _memory(parts.buffer, asked, typed=typed, is_result=writable)
    layout = laid_out(memory, asked, is_result=writable)
    if not any_order:
        require_straight(layout, asked, is_result=writable)
    if by_rows and not layout.by_rows:
        found = "the array is not in C order"
        raise UsageBufferError(asked, found, dense_remedy(parts.buffer, is_result=writable))
    if writable and not memory.writable:
        found = f"the memory is read-only ({type(parts.buffer).__name__})"
        raise UsageBufferError(asked, found, "Pass a writable array")
    if writable:
        _core.tell_of_write(parts.buffer)
    dtype, datatype = _type_of(parts.datatype, memory, asked)
    extent = ITEMSIZES[dtype] if dtype is not None else _extent(datatype)
    gap = 0 if dtype is not None else _gap(datatype)
    offset, count = _cut(parts, layout.count * memory.itemsize, extent, blocks, gap, asked)
    if count > 0 and datatype == MPI.DATATYPE_NULL:
        found = f"{count} elements of MPI.DATATYPE_NULL"
        raise usage_error(explain(asked, found, "Name the type that they have"), "ERR_TYPE")
    same = layout.by_rows if is_torch(parts.buffer) else layout.straight
    compared = layout.hash if any_order and not same else 0
    where = (memory.memory, memory.stream, compared, layout.straight)
    owner = (parts.buffer, memory.owner)
    return Message(memory.address + offset, count, dtype, datatype, owner, *where)


def require_straight(x: Message | _core.Layout, asked: str, *, is_result: bool) -> None:
    """Raise UsageBufferError unless the axes are in C order or in Fortran order."""
    if not x.straight:
        found = "the array's axes are in another order than C's or Fortran's"
        raise UsageBufferError(asked, found, dense_remedy(None, is_result=is_result))


def _is_buffer(x: Any) -> bool:
    if hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"):
        return True
    try:
        memoryview(x)
    except TypeError:
        return False
    except (BufferError, ValueError):  # its type has no format, as those of ml_dtypes
        pass
    return True


def _take_apart(spec: Any, asked: str, *, is_result: bool) -> _Parts:
    if isinstance(spec, np.ndarray):
        return _Parts(spec)
    if spec is MPI.IN_PLACE:
        found = "MPI.IN_PLACE is not a buffer"
        raise usage_error(explain(asked, found, "It stands for sendbuf alone"), "ERR_ARG")
    if not isinstance(spec, (list, tuple)):
        if spec is None or not _is_buffer(spec):
            more_than_numbers.refuse(spec, asked, is_result=is_result)
            name = "None" if spec is None else type_of(spec)
            raise UsageTypeError(
                asked, f"{name} is not a buffer", "Pass an array, or [array, count, MPI type]"
            )
        return _Parts(spec)
    if len(spec) == 2 and isinstance(spec[1], (MPI.Datatype, str)):
        return _Parts(spec[0], datatype=spec[1])
    if len(spec) == 2:
        return _Parts(spec[0], *_count_and_displacement(spec[1], asked))
    if len(spec) == 3:
        return _Parts(spec[0], *_count_and_displacement(spec[1], asked), spec[2])
    if len(spec) == 4:
        return _Parts(*spec)
    raise UsageError(
        asked,
        f"a specification of {len(spec)} items",
        "Pass [array, count, displacement, MPI type]",
    )


def _count_and_displacement(given: Any, asked: str) -> tuple[Any, Any]:
    if not isinstance(given, (list, tuple)):
        return given, None
    if len(given) != 2:
        found = f"{len(given)} numbers where count and displacement belong"
        raise UsageError(asked, found, "Pass [array, (count, displacement), MPI type]")
    return given[0], given[1]


def _memory(x: Any, asked: str, *, typed: bool, is_result: bool) -> Exported:
    """Return the memory of a buffer; `typed` says whether the specification names the type."""
    if x is None or x is MPI.BOTTOM:
        if not typed:
            remedy = "Name the type: [None, MPI.FLOAT]"
            raise UsageElementError(asked, "no buffer and no type", remedy)
        return Exported(0, "uint8", (0,), None, 1, True, None)
    if isinstance(x, np.ndarray) and x.dtype.hasobject:
        raise UsageElementError(
            asked, "the array holds Python objects", "Use the lower-case method, which pickles"
        )
    return read_array(x, asked, is_result=is_result)


# Buffer formats of types that the MPI may know and gradred does not, by their names in DLPack.
_FORMATS = {"float128": "g", "complex256": "Zg"}


def _format(found: Exported) -> str:
    """Return the buffer format of elements whose type gradred does not know."""
    owner: Any = found.owner
    try:
        return memoryview(owner).format
    except TypeError:  # it has no buffer protocol
        return _FORMATS.get(found.dtype, found.dtype)
    except ValueError:  # the buffer protocol has no format for the type
        return str(owner.dtype)


def _type_of(given: Any, memory: Exported, asked: str) -> tuple[str | None, MPI.Datatype | None]:
    """Return gradred's name of the elements' type, and the MPI's type."""
    if given is None and memory.dtype in ITEMSIZES:
        return memory.dtype, None
    if isinstance(given, MPI.Datatype):
        return _known_or_asked(name_of(given)), given
    code = given if given is not None else _native(_format(memory), asked)
    if not isinstance(code, str):
        raise UsageElementError(
            asked, f"{code!r} is not an MPI type", "Pass [array, count, MPI type]"
        )
    datatype = MPI.BYTE if given is None and code == "B" else MPI._typedict.get(code)
    if datatype is None and code == "e":
        return "float16", None  # mpi4py 4.0 does not know it
    if datatype is None:
        found = f"no MPI type stands for elements of format {code!r}"
        raise UsageElementError(asked, found, "Name the type: [array, count, MPI type]")
    return _known_or_asked(name_of(datatype)), datatype


def _known_or_asked(name: str | None) -> str | None:
    """Return `name`; if it is None, only the MPI knows the type, so the MPI must run."""
    if name is None:
        _core.require_running_mpi()
    return name


def _native(code: str, asked: str) -> str:
    """Remove the byte order from a buffer format; it must be this machine's order."""
    foreign = ">" if sys.byteorder == "little" else "<"
    if code[0] in (foreign, "!"):
        found = f"elements of format {code!r} are in another order of bytes"
        raise UsageBufferError(asked, found, "Convert the array to native order")
    return code.lstrip("@=<>")


_HALF = MPI._typedict.get("e")
_BFLOAT16 = getattr(MPI, "BFLOAT16_T", MPI.DATATYPE_NULL)


def name_of(datatype: MPI.Datatype) -> str | None:
    """Return gradred's name of a type; None if only the MPI knows the type."""
    if datatype == MPI.DATATYPE_NULL:
        return None
    name = _core.datatype_name(datatype)
    if name is None and _HALF is not None and datatype == _HALF:
        return "float16"
    if name is None and datatype == _BFLOAT16:
        return "bfloat16"
    return name


def _extent(datatype: MPI.Datatype | None) -> int:
    if datatype is None or datatype == MPI.DATATYPE_NULL:
        return 0
    return datatype.Get_extent()[1]


def _gap(datatype: MPI.Datatype | None) -> int | None:
    """Return the bytes behind an element that the last one does not need; None if unknown."""
    if datatype is None or datatype == MPI.DATATYPE_NULL or not datatype.is_predefined:
        return None
    gap: int = _extent(datatype) - datatype.Get_true_extent()[1]
    return gap


def _cut(
    parts: _Parts, nbytes: int, extent: int, blocks: int, gap: int | None, asked: str
) -> tuple[int, int]:
    """Return the offset in bytes and the count that a specification gives."""
    displacement = _index(parts.displacement, "displacement", asked)
    offset = displacement * extent
    length = nbytes - offset
    if displacement > 0 and (extent <= 0 or length < 0):
        found = f"displacement {displacement} lies outside the {nbytes} bytes of the array"
        raise UsageError(asked, found, "Give a smaller displacement")
    if parts.count is None:
        count = _whole(length, extent, blocks, asked)
    else:
        count = _index(parts.count, "count", asked)
        if count > 0 and parts.buffer is None:
            raise UsageError(asked, f"count {count} of no buffer", "Pass a buffer")
        elements = max(blocks, 1) * count
        if gap is not None and elements > 0 and elements * extent - gap > length:
            found = f"{elements} elements of {extent} bytes exceed the {length} bytes of the memory"
            raise UsageError(asked, found, "Give a smaller count or a larger array")
    return offset, count


def _index(given: Any, name: str, asked: str) -> int:
    if given is None:
        return 0
    try:
        value = operator.index(given)
    except TypeError:
        raise UsageTypeError(asked, f"{name} {given!r}", "Give a whole number") from None
    if value < 0:
        raise UsageError(asked, f"negative {name} {value}", "Give a whole number, at least 0")
    return value


def _whole(length: int, extent: int, blocks: int, asked: str) -> int:
    """Return the number of elements per block that the memory holds."""
    if length == 0:
        return 0
    if extent <= 0 or length % extent != 0:
        found = f"{length} bytes hold no whole number of elements of {extent} bytes"
        raise UsageError(asked, found, "Give the count")
    if blocks > 1 and length // extent % blocks != 0:
        found = f"{length // extent} elements do not make {blocks} equal blocks"
        raise UsageError(asked, found, "Pass a multiple of the number of ranks")
    return length // extent // max(blocks, 1)


# ---- calls ----------------------------------------------------------------------------------


class Reduction(NamedTuple):
    """A reduction that gradred carries out, with all its arguments."""

    call: _core.Call
    owners: Any


def reduction(
    method: str,
    comm: MPI.Comm,
    sendbuf: Any,
    recvbuf: Any,
    op: Any,
    stream: int | None = None,
    form: str | None = None,
) -> Reduction | Message:
    """Read the arguments of a reduction; returns its recvbuf if only the MPI can carry it out.

    Args:
        method: the method that the program has called, one of `KINDS`; messages name it.
        comm: the communicator.
        sendbuf: as in mpi4py; `MPI.IN_PLACE` or None takes the input from `recvbuf`.
        recvbuf: as in mpi4py.
        op: an MPI.Op, a name from gradred.OPS, gradred.premul(factor) or gradred.user_op(f).
        stream: the handle of a CUDA stream, if the call is in its order.
        form: of a compressed wire between hosts; None: there is none.

    Raises:
        gradred.UsageError: the arguments are inconsistent.
    """
    kind = KINDS[method]
    blocks = blocks_of(method, comm)
    if stream is None and form is None:
        plain = _core.plain_reduction(kind, blocks, sendbuf, recvbuf, op)
        if plain is not None:
            return Reduction(*plain)
    found = ops.resolve(op)
    in_place = is_in_place(sendbuf)
    whole = not ROWS[kind]["has_blocks"]
    cut = blocks if in_place else 1
    recv = read(recvbuf, f"{method}'s recvbuf", writable=True, blocks=cut, any_order=whole)
    coded = wire.require(form, recv.dtype, None if found is None else found[0], method)
    if recv.dtype is None or found is None:
        if found is None or found[0] in MPI_OPS:
            require_host(recv, method)
            finish_stream([recv], stream)
            if not in_place:
                sent = read(sendbuf, f"{method}'s sendbuf", writable=False, any_order=whole)
                require_host(sent, method)
            return recv
        remedy = f"Use an MPI.Op, or one of the types {', '.join(ITEMSIZES)}"
        raise UsageError(f"{method} with {op!r}", "the type is known to the MPI alone", remedy)
    on_device = recv.memory is not None
    ops.require(found[0], recv.dtype, f"{method} of {recv.dtype}", on_device=on_device)
    send = None if in_place else read_input(method, sendbuf, recv, blocks)
    finish_stream([send, recv], stream)
    call = _core.Call(
        kind,
        None if send is None else send.address,
        recv.address,
        recv.count,
        recv.dtype,
        found[0],
        factor=found[1],
        layout=recv.layout,
        wire=coded,
        placement=_core.placement(send, recv, stream),
    )
    return Reduction(call, (send, recv))


def blocks_of(method: str, comm: MPI.Comm) -> int:
    """Return the number of blocks of an input whose result is one block; else 1."""
    return comm.Get_size() if ROWS[KINDS[method]]["has_blocks"] else 1


def is_in_place(sendbuf: Any) -> bool:
    """Return whether the input is in recvbuf."""
    return sendbuf is None or sendbuf is MPI.IN_PLACE


def read_input(method: str, sendbuf: Any, recv: Message, blocks: int) -> Message | None:
    """Read the sendbuf of a reduction; None if it is recvbuf again, which means in place.

    mpi4py does so from 4.2 on; in older ones some MPIs refuse it.

    Raises:
        gradred.UsageError: it is not valid, or does not match `recv`.
    """
    whole = not ROWS[KINDS[method]]["has_blocks"]
    send = read(sendbuf, f"{method}'s sendbuf", writable=False, blocks=blocks, any_order=whole)
    if send.layout != recv.layout:
        found = "sendbuf and recvbuf have their axes in different orders, or other shapes"
        remedy = "Pass two arrays of one layout, for example numpy.empty_like(x)"
        raise UsageBufferError(method, found, remedy)
    if send.dtype != recv.dtype or (send.dtype is None and send.datatype != recv.datatype):
        found = f"sendbuf has {send.type_text}, recvbuf {recv.type_text}"
        raise UsageError(method, found, "Pass two buffers of one type")
    if send.count != recv.count:
        per_block = " per block" if blocks > 1 else ""
        found = f"sendbuf has {send.count} elements{per_block}, recvbuf {recv.count}"
        raise UsageError(method, found, "Pass as many elements in both")
    if send.count > 0 and send.address == recv.address:
        return None
    refuse_overlap(method, send, recv, blocks, 1)
    return send


def refuse_overlap(
    name: str, send: Message, recv: Message, send_blocks: int, recv_blocks: int
) -> None:
    """Raise UsageError if two messages share memory, which MPI forbids.

    Types with gaps may interleave. Two such messages are refused only if they begin at the same
    address.
    """
    send_end = send.address + max(send.count * _span(send) * send_blocks, 1)
    recv_end = recv.address + max(recv.count * _span(recv) * recv_blocks, 1)
    if not (send.count and recv.count and send.address):
        return
    if send.address < recv_end and recv.address < send_end:
        found = "sendbuf and recvbuf overlap"
        raise usage_error(explain(name, found, "Pass MPI.IN_PLACE as sendbuf"), "ERR_BUFFER")


def _span(message: Message) -> int:
    """Return the bytes from one element to the next; 0 if other data may lie between them."""
    if message.dtype is not None:
        return ITEMSIZES[message.dtype]
    datatype = message.datatype
    assert datatype is not None
    extent = _extent(datatype)
    dense = (0, extent) == datatype.Get_true_extent() and extent == datatype.Get_size()
    return extent if dense or datatype.is_predefined else 0
