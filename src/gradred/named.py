"""Operations that ranks submit by name, in any order; all carry them out in one order.

Front ends for deep learning build on this: gradients become ready in another order on each rank.
What is agreed on, and how: docs/design/named-operations.md.
"""

from __future__ import annotations

import atexit
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from gradred import _core

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gradred.comm import Comm

Described: TypeAlias = (
    tuple[int, int, str, tuple[int, ...]]
    | tuple[int, int, str, tuple[int, ...], int]
    | tuple[int, int, str, tuple[int, ...], int, _core.Placement]
    | tuple[int, int, str, tuple[int, ...], int, _core.Placement | None, tuple[int, ...]]
)
"""Address of the input, of the result (equal: in place; 0: make memory for it), element type,
shape. Of an allgather, alltoall or reducescatter also the result's bytes: it gets memory of its
own, the host's, where it has other bytes than these. Of arrays on a GPU also where they lie, on all
ranks of what they submit by one name. Last the axes from the slowest in memory to the fastest,
where they do not lie as they stand; ranks compare them."""

MOST_FUSED_BYTES = 4 << 20
"""Small arrays that become ready together travel as one vector of at most so many bytes."""

_open: weakref.WeakSet[NamedOperations] = weakref.WeakSet()


class NamedRequest(Protocol):
    """An operation in flight. It goes on if the program forgets it."""

    def wait(self, timeout: float | None = None) -> None:
        """Block until the operation has ended; the thread that waits carries it on.

        Args:
            timeout: seconds to wait for it; None waits as long as `GRADRED_TIMEOUT` allows.

        Raises:
            gradred.TimeoutError: it has not ended in this time. It goes on: wait again.
            gradred.UsageError: the ranks have submitted different things under this name.
            gradred.PeerLost: a rank has ended.
            gradred.Error: a rank has left (`NamedOperations.close`), or what else ended it.
        """

    def done(self) -> bool:
        """Whether it has ended, well or not. Does not block."""

    def add_done_callback(self, fn: Callable[[_core.NamedRequest], object]) -> None:
        """Have `fn(request)` called once when it has ended; as `Request.add_done_callback`."""

    @property
    def name(self) -> str:
        """What it was submitted by."""

    @property
    def waits_for(self) -> str:
        """Its name, and the ranks that have not submitted it yet, for messages."""

    @property
    def outputs(self) -> list[NDArray[np.uint8]]:
        """After the end: the bytes of each result for which there was no memory."""

    @property
    def rows(self) -> list[list[int]]:
        """After the end, by array and rank: how many rows a rank gave, or gets.

        Of an allgather what each gave, of an alltoall what this rank got from each, of a
        reducescatter what each gets.
        """

    @property
    def last_joined(self) -> int:
        """After the end of a join: the rank that was the last to join."""


class NamedOperations(_core.NamedOperations):
    """Named operations over the ranks of a communicator, of which they use a duplicate.

    Making them blocks and is collective. Any thread may submit and wait. Arrays are in host memory,
    or on a GPU: then what the program's stream has been given by now comes first, and the results
    are there, for all streams, when the operation has ended.
    Ranks that share memory agree there; others connect to rank 0's host by TCP.

    `submit(kind, name, arrays, op="sum", prescale=1.0, postscale=1.0, root=0, splits=(),
    held=None, priority=0)` returns a `NamedRequest` at once; the operation begins when all ranks
    have submitted one of this name. `kind` is "allreduce", "allgather", "broadcast", "alltoall",
    "reducescatter" or "barrier". Several arrays are one operation. Inputs are multiplied by
    `prescale`, results by `postscale` (integers in float64, truncated toward zero; so is
    `op="avg"`). `splits` are the rows of an alltoall for each rank. `held` lives until the
    operation has ended. Of what all ranks have submitted and none has begun, the highest `priority`
    goes first, of several the oldest; a large allreduce lets others pass after each 8 MiB, once
    something has been more urgent than it is. Where ranks give other priorities the highest counts.
    Raises UsageError for what no rank could carry out and for a name that is in flight, Error once
    a rank has left.

    `write_to(timeline)` has what happens from now on written to a `Timeline`, a file for
    chrome://tracing; None ends that.

    `look_for_lost(where)` raises PeerLost where a rank has ended while this one waits for something
    else, of which the text `where` tells.

    `join()` says that this rank has no more arrays: until all ranks have joined it takes part in
    sums with zeros.

    Args:
        comm: whose ranks take part.
        most_fused_bytes: see `MOST_FUSED_BYTES`; 0 keeps each array apart. Rank 0's counts.
        title: for messages, where a program has several: `"process set 1"`.
        ranks: by which numbers messages call the ranks, by rank; none: by those in `comm`.

    Raises:
        gradred.UsageError: the ranks share no memory, and their MPI takes no calls from any thread.
        gradred.TransportError: there is too little memory, or a host cannot reach that of rank 0.
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
        self.ranks = list(ranks) or list(range(self.size))
        super().__init__(self._comm, most_fused_bytes, title, list(ranks))
        _open.add(self)

    def next_name(self, kind: str) -> str:
        """A name for an operation of this kind that has none.

        It counts those alone, so that they meet if the ranks submit them in the same order.
        """
        self._unnamed[kind] += 1
        return f"noname.{self._unnamed[kind]}"

    def close(self) -> None:
        """This rank leaves: what is not agreed on yet ends with an error on all ranks."""
        self.leave()
        _open.discard(self)

    def shrink(self) -> Comm:
        """As `close`, and a communicator of the ranks that live, see `Comm.shrink`."""
        self.close()
        return self._comm.shrink()

    def free(self) -> None:
        """As `close`, and free the communicator. All ranks have to; none waits for the others."""
        self.close()
        self._comm.free()


def close_all() -> None:
    """Close all that are open, as at exit."""
    for one in list(_open):
        one.close()


atexit.register(close_all)
