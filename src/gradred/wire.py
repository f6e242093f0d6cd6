"""Allreduce whose data are compressed between hosts: `gradred.allreduce(x, wire="int8")`.

Inside a host the ranks reduce as usual. Between hosts, one rank of each sends the parts of the sum
in the form of the wire (csrc/reduce/wire.h) to their owners, which add them up in float32, in the
order of hosts, and encode each sum once. All ranks decode the same bytes, the owner too, and so
they get the same bits. (An exchange of quantised parts and a gather: Wang and
others, "ZeRO++", 2023.)
"""

from __future__ import annotations

import zlib
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from mpi4py import MPI

from gradred import _core, request
from gradred.comm import Comm
from gradred.errors import UsageError

WIRES: Final = _core.WIRES
"""The names of the forms: `"bf16"`, `"fp16"`, `"int8"`, `"fp8_e4m3"`, `"int4"`."""
BLOCK: Final = 128
"""The numbers that share a scale."""
_Memory: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
_Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"


class _Hosts(NamedTuple):
    """How the ranks of a communicator lie on hosts."""

    inside: Comm
    """The ranks of this host."""
    across: Comm | None
    """The first rank of each host; None on others."""


def _free(comm: MPI.Comm, key: int, hosts: _Hosts) -> None:
    hosts.inside.Free()
    if hosts.across is not None:
        hosts.across.Free()


_KEY: Final = MPI.Comm.Create_keyval(delete_fn=_free)


def _hosts(comm: MPI.Intracomm) -> _Hosts:
    """Return the layout; the first time collective on `comm`."""
    known = comm.Get_attr(_KEY)
    if isinstance(known, _Hosts):
        return known
    of_rank, rank = _core.comm_info(comm)["host_of"], comm.Get_rank()
    inside = Comm(MPI.Intracomm.Split(comm, of_rank[rank], rank))
    first = inside.Get_rank() == 0
    across = MPI.Intracomm.Split(comm, 0 if first else MPI.UNDEFINED, rank)
    made = _Hosts(inside, Comm(across) if first else None)
    if made.across is not None:
        mark = np.zeros(1, np.uint8)  # calls may start after the first that blocks
        _run(made.across, "allreduce", mark, mark, 0)
    comm.Set_attr(_KEY, made)
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
    comm: MPI.Intracomm, vector: _Floats, wire: str, op: tuple[str, float], layout: int
) -> None:
    """Reduce `vector` of all ranks in place. Blocks.

    Args:
        comm: the communicator; collective on it.
        vector: this rank's numbers, one after another; the result.
        wire: the form between hosts.
        op: `"sum"`, `"avg"`, or `"premul"` with its factor.
        layout: the hash that the ranks compare.

    Raises:
        gradred.UsageError: the ranks make different calls.
    """
    layout ^= zlib.crc32(f"{wire} {op}".encode())
    mark = np.zeros(1, np.uint8)  # all compare their calls before any part travels
    of_length = layout ^ zlib.crc32(str(vector.size).encode())
    try:
        _run(comm, "allreduce", mark, mark, of_length)
    except UsageError as error:
        error.args = (f"allreduce of {vector.size} float32 with wire={wire!r}: {error}",)
        raise
    if not hasattr(comm, "share"):  # else there is one host
        hosts = _hosts(comm)
        _run(hosts.inside, "allreduce", vector, vector, layout)
        if hosts.across is not None and hosts.across.Get_size() > 1:
            _exchange(hosts.across, vector, wire, layout)
        _run(hosts.inside, "bcast", None, vector, layout)
    else:
        _run(comm, "allreduce", vector, vector, layout)
    if op[0] == "avg":
        vector /= np.float32(comm.Get_size())
    elif op[0] == "premul":
        vector *= np.float32(op[1])


def _run(comm: MPI.Intracomm, kind: str, send: Any, recv: Any, layout: int, count: int = 0) -> None:
    _core.run(comm, _call(kind, send, recv, layout, count or recv.size), (send, recv))


def _call(kind: str, send: Any, recv: Any, layout: int, count: int, root: int = 0) -> _core.Call:
    source = None if send is None or send is recv else send.ctypes.data
    dtype = str(recv.dtype)
    return _core.Call(kind, source, recv.ctypes.data, count, dtype, root=root, layout=layout)


def _exchange(comm: Comm, vector: _Floats, wire: str, layout: int) -> None:
    """Reduce the vectors of all hosts in place, compressed."""
    size, rank = comm.Get_size(), comm.Get_rank()
    each = -(-vector.size // (BLOCK * size)) * BLOCK  # numbers of a part, whole blocks
    parts = [vector[i * each : (i + 1) * each] for i in range(size)]
    length = _core.wire_bytes(wire, each)
    coded = np.zeros((size, length), np.uint8)
    came = np.empty((size, length), np.uint8)
    for i in range(size):
        if i != rank:
            _encode(wire, parts[i], coded[i])
    requests = [
        request.start(
            comm,
            _call("scatter", coded if root == rank else None, came[root], layout, length, root),
            (coded, came),
        )
        for root in range(size)
    ]
    own = np.zeros_like(parts[rank])
    for root, operation in enumerate(requests):
        operation.wait()
        operation.rethrow()
        if root == rank:
            own += parts[rank]
        else:
            _decode(wire, came[root], own, adds=True)
    _encode(wire, own, coded[rank])
    _run(comm, "allgather", coded[rank], came, layout, length)
    for i in range(size):
        _decode(wire, came[i], parts[i], adds=False)


def _encode(wire: str, values: _Floats, to: _Memory) -> None:
    _core.encode_wire(wire, values.ctypes.data, values.size, to.ctypes.data)


def _decode(wire: str, coded: _Memory, values: _Floats, *, adds: bool) -> None:
    _core.decode_wire(wire, coded.ctypes.data, values.size, values.ctypes.data, adds)
