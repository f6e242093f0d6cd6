"""How a model's tensors are cut for sending: buckets in the order of backward, shards by server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Aggregate: TypeAlias = Literal["layer", "merged", "once"]
AGGREGATES: dict[Aggregate, str] = {
    "layer": "a message for each tensor",
    "merged": "neighbouring tensors together, up to a number of bytes",
    "once": "all tensors in one message",
}
_ITEM = 4  # bytes of a float32


@dataclass(frozen=True)
class Piece:
    """A run of elements of the flat vector that belongs to one server and travels as one."""

    start: int
    stop: int
    server: int
    shape: tuple[int, ...]
    """The shape of the tensor, if the piece is one whole tensor; else its length."""

    @property
    def where(self) -> slice:
        """The piece's elements."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Bucket:
    """Tensors that are sent together: their numbers, and the numbers of their pieces."""

    tensors: range
    pieces: range
    start: int
    stop: int

    @property
    def where(self) -> slice:
        """The bucket's elements."""
        return slice(self.start, self.stop)


class Layout:
    """The flat vector of all tensors, its buckets and pieces; the same on every rank.

    Args:
        shapes: of the tensors, in the order in which the forward pass needs them.
        aggregate: see `AGGREGATES`.
        merge_bytes: at which size a merged bucket is full.
        servers: among how many servers the elements are divided, in equal runs.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        aggregate: Aggregate = "layer",
        merge_bytes: int = 1 << 18,
        servers: int = 1,
    ) -> None:
        self.shapes = list(shapes)
        self.starts = [0]
        for shape in shapes:
            self.starts.append(self.starts[-1] + math.prod(shape))
        self.count = self.starts[-1]
        self._shards = [self.count * server // servers for server in range(servers + 1)]
        self.pieces: list[Piece] = []
        self.buckets: list[Bucket] = []
        full = {"layer": 0, "merged": merge_bytes, "once": math.inf}[aggregate]
        last = len(shapes)
        for first in reversed(range(last)):
            nbytes = _ITEM * (self.starts[last] - self.starts[first])
            if nbytes >= full or first == 0:
                self.buckets.append(self._bucket(range(first, last)))
                last = first
        self.bucket_of = {
            tensor: number
            for number, bucket in enumerate(self.buckets)
            for tensor in bucket.tensors
        }

    def where(self, tensor: int) -> slice:
        """The elements of a tensor."""
        return slice(self.starts[tensor], self.starts[tensor + 1])

    def _bucket(self, tensors: range) -> Bucket:
        start, stop = self.starts[tensors.start], self.starts[tensors.stop]
        before = len(self.pieces)
        for server in range(len(self._shards) - 1):
            begin, end = max(start, self._shards[server]), min(stop, self._shards[server + 1])
            if begin < end:
                is_tensor = len(tensors) == 1 and (begin, end) == (start, stop)
                shape = self.shapes[tensors.start] if is_tensor else (end - begin,)
                self.pieces.append(Piece(begin, end, server, shape))
        return Bucket(tensors, range(before, len(self.pieces)), start, stop)
