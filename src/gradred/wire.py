"""Allreduce whose data are compressed between hosts: `gradred.allreduce(x, wire="int8")`.

Inside a host the ranks reduce as usual. Between hosts, one rank of each sends the parts of the sum
in the form of the wire (csrc/reduce/wire.h) to their owners, which add them up in float32, in the
order of hosts, and encode each sum once. All ranks decode the same bytes, the owner too, and so
they get the same bits. (An exchange of quantised parts and a gather: Wang and
others, "ZeRO++", 2023.)
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from mpi4py import MPI

from gradred import _core, request
from gradred.coded import BLOCK, Floats, Parts
from gradred.comm import Comm
from gradred.errors import Error, PeerLost, UsageError

WIRES: Final = _core.WIRES
"""The names of the forms: `"bf16"`, `"fp16"`, `"int8"`, `"fp8_e4m3"`, `"int4"`."""
_PART: Final = 1 << 18
"""The numbers of a host's part of a segment: 1 MiB before, and enough for any link after."""
_AHEAD: Final = 2
"""Segments whose parts travel before the first sum does."""


class _Hosts(NamedTuple):
    """How the ranks of a communicator lie on hosts."""

    inside: MPI.Intracomm
    """The ranks of this host."""
    across: Comm | None
    """The first rank of each host; None on others, and where there is one host."""
    number: int


def _free(comm: MPI.Comm, key: int, hosts: _Hosts) -> None:
    hosts.inside.Free()
    if hosts.across is not None:
        hosts.across.Free()


@functools.cache
def _key() -> int:  # not at import, as MPI may not be initialised, or never be
    return MPI.Comm.Create_keyval(delete_fn=_free)


def _hosts(comm: MPI.Intracomm) -> _Hosts:
    """Return the layout; the first time collective on `comm`."""
    known = comm.Get_attr(_key())
    if isinstance(known, _Hosts):
        return known
    of_rank, rank = _core.comm_info(comm)["host_of"], comm.Get_rank()
    number = len(set(of_rank))
    inside = Comm(MPI.Intracomm.Split(comm, of_rank[rank], rank))
    sends = inside.Get_rank() == 0 and number > 1
    across = MPI.Intracomm.Split(comm, 0 if sends else MPI.UNDEFINED, rank)
    made = _Hosts(inside, Comm(across) if sends else None, number)
    if made.across is not None:
        mark = np.zeros(1, np.uint8)  # calls may start after the first that blocks
        _run(made.across, "allreduce", mark, mark, 0)
    comm.Set_attr(_key(), made)
    return made


def require_wire(wire: object, dtype: str, op: str, asked: str) -> str:
    """Return the form of the wire, checked; UsageError for another, or for other calls."""
    if wire not in WIRES:
        found = f"wire={wire!r} is none of {', '.join(map(repr, WIRES))}"
        raise UsageError(asked, found, "Name one of them, or leave wire= out")
    if dtype != "float32":
        why = f"a compressed wire carries float32, not {dtype}"
        raise UsageError(f"{asked} with wire={wire!r}", why, "Leave wire= out")
    if op not in ("sum", "avg", "premul"):
        why = f"a compressed wire has sums, means and scaled sums, not {op}"
        raise UsageError(f"{asked} with wire={wire!r}", why, "Leave wire= out")
    return str(wire)


def reduce(
    comm: MPI.Intracomm,
    given: Floats,
    result: Floats,
    wire: str,
    op: tuple[str, float],
    layout: int,
) -> None:
    """Reduce the vectors of all ranks. Blocks.

    Args:
        comm: the communicator; collective on it.
        given: this rank's numbers, one after another.
        result: where the sums go; `given` itself, or other memory.
        wire: the form between hosts.
        op: `"sum"`, `"avg"`, or `"premul"` with its factor.
        layout: the hash that the ranks compare.

    Raises:
        gradred.UsageError: the ranks make different calls.
    """
    layout ^= zlib.crc32(f"{wire} {op}".encode())
    mark = np.zeros(1, np.uint8)  # all compare their calls before any part travels
    of_length = layout ^ zlib.crc32(str(result.size).encode())
    try:
        _run(comm, "allreduce", mark, mark, of_length)
    except UsageError as error:
        asked = f"allreduce of {result.size} float32 with wire={wire!r} and op={op[0]!r}"
        found = f"other ranks ask for something else ({error})"
        raise UsageError(asked, found, "Pass the same wire=, op and count on all ranks") from None
    # A communicator of shared memory has no MPI, and one host.
    hosts = _Hosts(comm, None, 1) if hasattr(comm, "share") else _hosts(comm)
    try:
        _carry_out(comm, hosts, given, result, (wire, op, layout))
    except UsageError as error:  # another rank's
        if _LOST in str(error):
            raise PeerLost(str(error).split(_LOST, 1)[1]) from None
        raise


_LOST = "PeerLost: "


@contextlib.contextmanager
def _telling(comm: MPI.Intracomm | None) -> Iterator[None]:
    """Let the ranks of `comm`, which wait for this one, hear of an error here."""
    try:
        yield
    except Exception as error:
        if comm is not None:
            reason = f"{_LOST if isinstance(error, PeerLost) else ''}{error}"
            with contextlib.suppress(Error):
                _core.refuse(comm, reason, blocking=True)
        raise


def _carry_out(
    comm: MPI.Intracomm,
    hosts: _Hosts,
    given: Floats,
    result: Floats,
    how: tuple[str, tuple[str, float], int],
) -> None:
    """Reduce inside each host, between hosts, and share the result inside."""
    wire, (op, factor), layout = how
    several = hosts.inside.Get_size() > 1
    if hosts.number == 1:
        call = _call("allreduce", given, result, layout, result.size, op=op, factor=factor)
        return _core.run(hosts.inside, call, (given, result))
    source = given
    with _telling(hosts.across):
        if several:
            _run(hosts.inside, "allreduce", given, result, layout)
            source = result
    if op != "sum" and hosts.across is not None:  # before it is encoded, which has a limit
        by = np.float32(1 / comm.Get_size() if op == "avg" else factor)
        source = np.multiply(source, by, out=result)
    if hosts.across is not None:
        with _telling(hosts.inside if several else None):
            _exchange(hosts.across, source, result, wire, layout)
    if several:
        _run(hosts.inside, "bcast", None, result, layout)
    return None


def _run(comm: MPI.Intracomm, kind: str, send: Any, recv: Any, layout: int, count: int = 0) -> None:
    _core.run(comm, _call(kind, send, recv, layout, count or recv.size), (send, recv))


def _call(
    kind: str, send: Any, recv: Any, layout: int, count: int, root: int = 0, **how: Any
) -> _core.Call:
    source = None if send is None or send is recv else send.ctypes.data
    dtype = str(recv.dtype)
    return _core.Call(kind, source, recv.ctypes.data, count, dtype, root=root, layout=layout, **how)


class _Segment:
    """A run of the vectors whose parts travel."""

    def __init__(self, comm: Comm, parts: Parts, layout: int) -> None:
        self._comm, self._parts, self._layout = comm, parts, layout
        self._in_flight: list[_core.Operation] = []

    def send_parts(self) -> None:
        """Start to send each host its part."""
        self._parts.encode()
        sent, came = self._parts.sent, self._parts.came
        for root in range(len(sent)):
            own = sent if root == self._comm.Get_rank() else None
            self._start("scatter", own, came[root], root)

    def send_sum(self) -> None:
        """Add up the parts that came, and start to send the sum to all."""
        for root, operation in enumerate(self._in_flight):
            _finish(operation)
            self._parts.add(root)
        self._start("allgather", self._parts.encode_sum(), self._parts.came, 0)

    def receive(self) -> None:
        """Write the sums of all parts to the result."""
        _finish(self._in_flight[-1])
        self._parts.decode()

    def _start(self, kind: str, send: Any, recv: Any, root: int) -> None:
        call = _call(kind, send, recv, self._layout, self._parts.sent.shape[1], root)
        self._in_flight.append(request.start(self._comm, call, self))


def _finish(operation: _core.Operation) -> None:
    operation.wait()
    operation.rethrow()


def _exchange(comm: Comm, given: Floats, result: Floats, wire: str, layout: int) -> None:
    """Reduce the vectors of all hosts, compressed: some segments travel while one is decoded."""
    hosts = comm.Get_size()
    length = min(_PART * hosts, -(-given.size // (BLOCK * hosts)) * BLOCK * hosts)
    shape = (hosts, _core.wire_bytes(wire, length // hosts))
    rooms = [(np.zeros(shape, np.uint8), np.empty(shape, np.uint8)) for _ in range(3 * _AHEAD)]
    sent, summed = deque[_Segment](), deque[_Segment]()
    for number, begin in enumerate(range(0, given.size, length or 1)):
        if len(summed) == 2 * _AHEAD:
            summed.popleft().receive()
        run = slice(begin, begin + length)
        room = rooms[number % len(rooms)]
        parts = Parts(wire, given[run], result[run], hosts, comm.Get_rank(), room)
        sent.append(_Segment(comm, parts, layout))
        sent[-1].send_parts()
        if len(sent) == _AHEAD:
            summed.append(sent.popleft())
            summed[-1].send_sum()
    for segment in sent:
        segment.send_sum()
    for segment in (*summed, *sent):
        segment.receive()
