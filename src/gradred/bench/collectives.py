"""The collectives that `gradred bench` measures: a table with one row each.

Sizes are those of the OSU benchmarks: of the whole vector for allreduce, reduce-scatter and
broadcast, of one rank's part for allgather. Bandwidths are defined as in nccl-tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

Mode = Literal["blocking", "nonblocking", "persistent"]


class Collective(NamedTuple):
    """One collective, for p ranks."""

    title: str
    """The name in the first line of the OSU benchmarks."""
    lengths: Callable[[int, int], tuple[int, int]]
    """Returns the elements of a rank's input and output, for the row's elements and p."""
    moved: Callable[[int, int], int]
    """Returns the bytes that algbw counts, for the row's bytes and p."""
    busy: Callable[[int], float]
    """Returns busbw divided by algbw."""
    reduces: bool = False
    is_split: bool = False
    """Whether the vector has a part for each rank, so that its length must be a multiple of p."""
    modes: tuple[Mode, ...] = ("blocking",)
    peers: tuple[str, ...] = ("mpi",)


COLLECTIVES: Final[dict[str, Collective]] = {
    "allreduce": Collective(
        title="Allreduce",
        reduces=True,
        lengths=lambda n, p: (n, n),
        moved=lambda n, p: n,
        busy=lambda p: 2 * (p - 1) / p,
        modes=("blocking", "nonblocking", "persistent"),
        peers=("mpi", "mpi4py", "gloo"),
    ),
    "reduce_scatter_block": Collective(
        title="Reduce_scatter_block",
        reduces=True,
        is_split=True,
        lengths=lambda n, p: (n, n // p),
        moved=lambda n, p: n,
        busy=lambda p: (p - 1) / p,
    ),
    "allgather": Collective(
        title="Allgather",
        lengths=lambda n, p: (n, n * p),
        moved=lambda n, p: n * p,
        busy=lambda p: (p - 1) / p,
    ),
    "bcast": Collective(
        title="Broadcast",
        lengths=lambda n, p: (n, n),
        moved=lambda n, p: n,
        busy=lambda p: 1.0,
    ),
}
