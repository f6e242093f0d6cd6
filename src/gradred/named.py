"""Operations that ranks submit by name, in any order; all carry them out in one order.

Front ends for deep learning build on this: gradients become ready in another order on each rank.
What is agreed on, and how: docs/design/named-operations.md.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from gradred import _core
from gradred.errors import TimeoutError, explain  # noqa: A004
from gradred.request import keep_alive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gradred.comm import Comm

Described: TypeAlias = tuple[int, int, str, tuple[int, ...]]
"""Address of the input, of the result (equal: in place; 0: make memory for it), element type,
shape."""

MOST_FUSED_BYTES = 4 << 20
"""Small arrays that become ready together travel as one vector of at most so many bytes."""

_open: weakref.WeakSet[NamedOperations] = weakref.WeakSet()


class NamedRequest:
    """An operation in flight. It goes on if the program forgets it."""

    __slots__ = ("_operation",)

    def __init__(self, operation: _core.NamedOperation) -> None:
        self._operation = operation

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
        if not self._operation.wait(timeout):
            found = f"the operation has not ended within {timeout} s; it goes on"
            raise TimeoutError(explain("wait", found, "Wait again"))

    def done(self) -> bool:
        """Whether it has ended, well or not. Does not block."""
        return self._operation.test()

    def add_done_callback(self, fn: Callable[[NamedRequest], object]) -> None:
        """Have `fn(request)` called once when it has ended; as `Request.add_done_callback`."""
        self._operation.add_done_callback(_call, (fn, self))

    @property
    def outputs(self) -> list[NDArray[np.uint8]]:
        """After the end: the bytes of each result for which there was no memory."""
        return self._operation.outputs

    @property
    def rows(self) -> list[list[int]]:
        """After the end, by array and rank: how many rows a rank gave, or gets.

        Of an allgather what each gave, of an alltoall what this rank got from each, of a
        reducescatter what each gets.
        """
        return self._operation.rows

    @property
    def last_joined(self) -> int:
        """After the end of a join: the rank that was the last to join."""
        return self._operation.last_joined


def _call(argument: tuple[Callable[[NamedRequest], object], NamedRequest]) -> None:
    fn, request = argument
    _core.call_callback(fn, request)


class NamedOperations:
    """Named operations over the ranks of a communicator, of which they use a duplicate.

    Blocking and collective. Any thread may submit and wait. Arrays are in host memory.

    Args:
        comm: whose ranks take part.
        most_fused_bytes: see `MOST_FUSED_BYTES`; 0 keeps each array apart. Rank 0's counts.

    Raises:
        gradred.UsageError: the ranks share no memory.
        gradred.TransportError: there is too little of it.
    """

    def __init__(self, comm: Comm, *, most_fused_bytes: int = MOST_FUSED_BYTES) -> None:
        self._comm = comm.Dup()
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self._all = _core.NamedOperations(self._comm, most_fused_bytes)
        self._submit = self._all.submit
        _open.add(self)

    def submit(
        self,
        kind: str,
        name: str,
        arrays: Sequence[Described],
        op: str = "sum",
        prescale: float = 1.0,
        postscale: float = 1.0,
        root: int = 0,
        splits: Sequence[int] = (),
        held: Any = None,
    ) -> NamedRequest:
        """Submit an operation under a name; returns at once.

        It begins when all ranks have submitted one of this kind and name.

        Args:
            kind: "allreduce", "allgather", "broadcast", "alltoall", "reducescatter" or "barrier".
            name: what pairs the ranks' submissions.
            arrays: one, or several that are one operation.
            op: how an allreduce or reducescatter combines.
            prescale: each input is multiplied by this first.
            postscale: each result is multiplied by this.
            root: of a broadcast.
            splits: of an alltoall, the rows for each rank.
            held: lives until the operation has ended.

        Raises:
            gradred.UsageError: no rank could carry that out, or an operation of this kind and name
                is in flight.
            gradred.Error: a rank has left.
        """
        operation = self._submit(kind, name, arrays, op, prescale, postscale, root, splits)
        keep_alive(operation, held)
        return NamedRequest(operation)

    def join(self) -> NamedRequest:
        """This rank has no more arrays: it takes part in allreduces with zeros until all join."""
        return NamedRequest(self._all.join())

    def close(self) -> None:
        """This rank leaves: what is not agreed on yet ends with an error on all ranks."""
        self._all.close(f"rank {self.rank} has left: named operations have been shut down")
        _open.discard(self)


def _close_all() -> None:
    for one in list(_open):
        one.close()


atexit.register(_close_all)
