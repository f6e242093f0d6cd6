"""Operations that ranks submit by name in any order, and that all ranks carry out in one order.

Front ends for deep learning use them, since gradients become ready in a different order on each
rank. docs/design/named.md describes what the ranks agree on and how.
"""

from __future__ import annotations

import atexit
import weakref
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from gradred import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gradred.comm import Comm

Described: TypeAlias = (
    tuple[int, int, str, tuple[int, ...]]
    | tuple[int, int, str, tuple[int, ...], int]
    | tuple[int, int, str, tuple[int, ...], int, _core.Placement]
    | tuple[int, int, str, tuple[int, ...], int, _core.Placement | None, tuple[int, ...]]
)
"""An array of an operation, as a tuple. Its items are:

- the address of the input;
- the address of the result: the same address for in place, 0 to allocate memory for it;
- the element type;
- the shape;
- the bytes of the result memory (allgather, alltoall, reducescatter). If the result has another
  size, it gets new host memory;
- the placement of arrays on a GPU. Under one name either all ranks submit such arrays or none;
- the axes from the slowest in memory to the fastest, if the array is not in C order. The ranks
  compare them."""

MOST_FUSED_BYTES = 4 << 20
"""The most bytes of one fused vector: small arrays that are ready together travel as one."""

_open: weakref.WeakSet[NamedOperations] = weakref.WeakSet()


NamedRequest: TypeAlias = _core.NamedRequest
"""An operation in flight. It continues even if the program drops this object.

- `wait(timeout=None)` blocks until the operation has ended, and makes progress on it; None waits as
  long as `GRADRED_TIMEOUT` allows. It raises TimeoutError if the operation has not ended within so
  many seconds: it continues, wait again. It raises UsageError if the ranks have submitted different
  operations under this name, PeerLost if the process of a rank has ended, and Error if a rank has
  left (`NamedOperations.close`) or the operation failed.
- `done()` returns whether it has ended, with or without an error. Does not block.
- `add_done_callback(fn)` calls `fn(request)` once after the end; see `Request`.
- `name` is that of the operation. `waits_for` has it and the ranks that have not submitted it yet,
  for messages.

Once the operation has ended:

- `way` is the path that the data took, in the profile's words. Empty if there were no data.
- `outputs` are the bytes of each result that gradred allocated.
- `rows` has numbers of rows, by array and rank: those that each rank gave to an allgather, that
  this rank got from each rank in an alltoall, or that each rank gets from a reducescatter.
- `last_joined` is the rank that was the last to join, of a join."""


class NamedOperations(_core.NamedOperations):
    """Named operations over the ranks of a communicator; they use a duplicate of it.

    The constructor is blocking and collective. Any thread may submit and wait. Arrays are in host
    memory or on a GPU. On a GPU, an operation follows the work that the program's stream has been
    given before, and its results are ready for all streams when it has ended. Ranks that share
    memory agree through it; other ranks connect to rank 0's host by TCP.

    `submit(kind, name, arrays, op="sum", prescale=1.0, postscale=1.0, root=0, splits=(),
    held=None, priority=0, structure="", wire="")` returns a `NamedRequest` immediately. The
    operation begins when all ranks have submitted one of this name. It raises UsageError for an
    operation that no rank could carry out and for a name that is in flight, and Error after a rank
    has left.

    - `kind` is "allreduce", "allgather", "broadcast", "alltoall", "reducescatter" or "barrier".
    - Several arrays make one operation.
    - Inputs are multiplied by `prescale` and results by `postscale`. Integers times a whole number
      are exact; otherwise they are multiplied in float64 and truncated toward zero. `op="avg"`
      without factors is exact, and truncated too.
    - `splits` gives the rows of an alltoall for each rank.
    - `structure` describes the tree whose leaves the arrays are. Ranks that differ in it get an
      error with both texts.
    - `wire` is the form between hosts of sums and means of float32, as in `gradred.allreduce`.
      Other arrays travel as they are.
    - `held` is an object that gradred keeps alive until the operation has ended.
    - Of the operations that all ranks have submitted and none has begun, the one with the highest
      `priority` begins first, then the oldest. If the ranks give different priorities, the highest
      one applies. Once a large allreduce has been less urgent than another operation, others may
      run after each 8 MiB of it.

    `write_to(timeline)` records all later events in a `Timeline`, a file for chrome://tracing;
    None stops the recording.

    `look_for_lost(where)` raises PeerLost if a rank has ended while this one waits for something
    else; the text `where` describes that wait.

    `join()` announces that this rank has no more arrays. Until all ranks have joined, it takes
    part in sums with zeros.

    Args:
        comm: the communicator whose ranks take part.
        most_fused_bytes: see `MOST_FUSED_BYTES`; 0 fuses no arrays. Rank 0's value applies.
        title: a name for messages, if a program has several objects: `"process set 1"`.
        ranks: the number by which messages call each rank; if empty, its rank in `comm`.

    Raises:
        gradred.UsageError: the ranks share no memory, and their MPI does not allow calls from any
            thread.
        gradred.TransportError: there is too little memory, or a host cannot reach rank 0's host.
    """

    def __init__(
        self,
        comm: Comm,
        *,
        most_fused_bytes: int = MOST_FUSED_BYTES,
        title: str = "",
        ranks: Sequence[int] = (),
    ) -> None:
        self._comm = comm.Dup()
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self._unnamed: Counter[str] = Counter()
        self._joins = 0
        self.ranks = list(ranks) or list(range(self.size))
        super().__init__(self._comm, most_fused_bytes, title, list(ranks))
        _open.add(self)

    def next_name(self, kind: str) -> str:
        """Return a name for an operation of this kind that the program has not named.

        The name counts the unnamed operations of the kind. So the names match on all ranks if
        these submit such operations in the same order. They are counted anew after each join.
        """
        self._unnamed[kind] += 1
        after = f"{self._joins}." if self._joins else ""
        return f"noname.{after}{self._unnamed[kind]}"

    def count_anew(self) -> None:
        """Count unnamed operations from 1 again, as all ranks do after a join.

        Before it, ranks that had not joined have submitted more than others.
        """
        self._joins += 1
        self._unnamed.clear()

    def close(self) -> None:
        """Leave: operations that are not agreed on yet end with an error on all ranks."""
        self.leave()
        _open.discard(self)

    def shrink(self) -> Comm:
        """Call `close` and return a communicator of the ranks that run; see `Comm.shrink`."""
        self.close()
        return self._comm.shrink()

    def free(self) -> None:
        """Call `close` and free the communicator. Every rank must call it; it does not wait."""
        self.close()
        self._comm.free()


def close_all() -> None:
    """Close all that are open, as at exit."""
    for one in list(_open):
        one.close()


atexit.register(close_all)
