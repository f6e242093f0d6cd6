"""What an algorithm sends: how many messages, of how many bytes, one after the other.

A pattern is a list of `Send`: so many messages in a row, each of so many bytes, of one kind. The
model learns what one message costs, as a function of its length; the pattern says how often it is
paid. p ranks, r of them on a node, a vector of n bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gradred_lab.simulate.measured import Case

# A message that is reduced on arrival; one that is kept; one inside a node; a long vector
# that flows through all nodes as through a pipeline; what a call costs before its first message.
REDUCED, KEPT, INSIDE, FLOW, START = range(5)
KINDS = 5

# Ranks of a node share its network: each further one adds this share of a message to the message
# of the first, since one rank alone does not fill the network.
SHARE = 1 / 3
SHARE_INSIDE = 1 / 24  # likewise of the memory, where messages stay inside a node
_ELEMENT = 4  # bytes; the tables are of int32 and float32
# Pipelined trees cut a vector into pieces, longer ones where it is long: as many pieces as pieces
# are multiples of this.
PIECE = 64 << 10
# How the messages on a link of a torus grow with the distance they go: by this power of it, and
# less where an algorithm keeps distances short and leaves other ports idle.
CROWD, CROWD_SHORT = 0.9, 0.5


@dataclass(frozen=True)
class Send:
    """`times` messages of `bytes` each, one after the other."""

    kind: int
    times: float
    bytes: float


@dataclass(frozen=True)
class Pattern:
    """What an algorithm sends, and the family of algorithms whose messages cost alike."""

    family: str
    sends: tuple[Send, ...]
    words: str


@dataclass(frozen=True)
class _Place:
    """Numbers that every pattern needs."""

    p: int
    r: float
    n: float

    @property
    def rounds(self) -> int:
        """Rounds of a doubling among the largest power of two of ranks."""
        return self.p.bit_length() - 1

    @property
    def is_folded(self) -> bool:
        """Whether some ranks hand their vector to another one first."""
        return self.p & (self.p - 1) != 0

    @property
    def inside(self) -> int:
        """Rounds of a doubling that stay inside a node."""
        return min(self.rounds, round(math.log2(self.r)))

    @property
    def nodes(self) -> float:
        return max(1.0, self.p / self.r)

    def shared(self, nbytes: float) -> float:
        """A message of each rank of a node, as long as one message that takes as much time."""
        return nbytes * (1 + (self.r - 1) * SHARE)

    def shared_inside(self, nbytes: float) -> float:
        """As `shared`, for messages inside the node."""
        return nbytes * (1 + (self.r - 1) * SHARE_INSIDE)


_Maker = Callable[[_Place, Case], list[Send]]


def _doubling(place: _Place, case: Case) -> list[Send]:
    n = place.n / case.ports
    sends = [Send(INSIDE, place.inside, place.shared_inside(n))]
    for crowd in _crowds(place, case):
        sends.append(Send(REDUCED, 1, place.shared(n * crowd)))
    return sends + _fold(place, n)


def _crowds(place: _Place, case: Case) -> list[float]:
    """Messages that share a link, by round: on a torus those to far nodes cross many others."""
    rounds = place.rounds - place.inside
    sides = case.torus
    if math.prod(sides) != place.p or min(sides, default=0) < 2:
        return [1.0] * rounds
    is_short = case.algorithm.startswith(("bine", "swing")) and case.ports == 1
    power = CROWD_SHORT if is_short else CROWD
    crowds = [
        max(1.0, float(2**k) ** power)
        for side in sides
        for k in range(max(1, round(math.log2(side))))
    ]
    return crowds[:rounds] + [1.0] * (rounds - len(crowds))


def _fold(place: _Place, n: float) -> list[Send]:
    if not place.is_folded:
        return []
    return [Send(REDUCED, 1, place.shared(n)), Send(KEPT, 1, place.shared(n))]


def _halving(place: _Place, case: Case) -> list[Send]:
    """Halves out, then halves back: messages of n/2, n/4, ... n/p."""
    n, sends = place.n / case.ports, []
    is_even = case.algorithm.startswith("bine") and place.p % 2 == 0
    rounds = math.ceil(math.log2(place.p)) if is_even else place.rounds
    for k in range(1, rounds + 1):
        part = n / 2**k
        if k <= place.inside:
            sends.append(Send(INSIDE, 2, place.shared_inside(part)))
        else:
            sends += [Send(kind, 1, place.shared(part)) for kind in (REDUCED, KEPT)]
    return sends if is_even else sends + _fold(place, n)


def _segmented_halving(place: _Place, case: Case) -> list[Send]:
    """`_halving` with messages cut into segments; `n/p` makes each segment one rank's part."""
    whole = _halving(place, case)
    if case.segment == "n/p":
        if place.is_folded:
            return whole  # cut only where ranks are a power of two
        segment = max(_ELEMENT, place.n / place.p)
    else:
        segment = _segment(case)
    cut = []
    for send in whole:
        pieces = max(1.0, math.ceil(send.bytes / segment))
        cut.append(Send(send.kind, send.times * pieces, send.bytes / pieces))
    return cut


def _segment(case: Case) -> float:
    return float(case.segment) if case.segment else math.inf


def _ring(place: _Place, case: Case) -> list[Send]:
    """One of the r ranks of a node sends to another node; the steps of the ranks overlap."""
    part, away = place.n / place.p, (place.p - 1) / place.r
    return [
        Send(REDUCED, away, part),
        Send(KEPT, away, part),
        Send(INSIDE, 2 * (place.p - 1 - away), place.shared_inside(part)),
    ]


def _bucket(place: _Place, case: Case) -> list[Send]:
    """A ring along each side of the torus in turn, every port with a part of its own."""
    sides = case.torus if math.prod(case.torus) == place.p else (place.p,)
    part, sends = place.n / case.ports, []
    for side in sides:
        part /= side
        sends += [Send(kind, side - 1, part) for kind in (REDUCED, KEPT)]
    return sends


def _linear(place: _Place, case: Case) -> list[Send]:
    return [Send(REDUCED, place.p - 1, place.n), Send(KEPT, place.rounds, place.n)]


def _piece(n: float) -> float:
    return min(n, math.sqrt(n * PIECE))


def _trees(place: _Place, case: Case) -> list[Send]:
    """A tree up and a tree down; a long vector flows through in pieces."""
    piece = _piece(place.n)
    return [
        Send(REDUCED, max(1, place.rounds), piece),
        Send(KEPT, max(1, place.rounds), piece),
        Send(FLOW, 1, place.n),
    ]


def _gpu_ring(place: _Place, case: Case) -> list[Send]:
    kind = INSIDE if place.nodes <= 1 else REDUCED
    return [Send(kind, 2 * (place.p - 1), place.n / place.p)]


def _gpu_tree(place: _Place, case: Case) -> list[Send]:
    piece = _piece(place.n)
    return [
        Send(REDUCED, 2 * math.log2(place.nodes), piece),
        Send(INSIDE, 2 * (place.r - 1), piece),
        Send(FLOW, 1, place.n),
    ]


def _two_levels(place: _Place, case: Case) -> list[Send]:
    """Inside each node first, then one exchange per rank between nodes, and inside again."""
    part = place.n / place.r
    sends = [Send(INSIDE, 2 * math.log2(max(2.0, place.r)), part)]
    for k in range(1, round(math.log2(max(1.0, place.nodes))) + 1):
        sends += [Send(kind, 1, place.shared(part / 2**k)) for kind in (REDUCED, KEPT)]
    return sends


def _two_levels_whole(place: _Place, case: Case) -> list[Send]:
    part = place.n / place.r
    nodes = math.log2(max(1.0, place.nodes))
    return [
        Send(INSIDE, 2 * math.log2(max(2.0, place.r)), part),
        Send(REDUCED, nodes, place.shared(part)),
    ]


# family -> (its pattern, how reports describe it)
_FAMILIES: dict[str, tuple[_Maker, str]] = {
    "doubling": (_doubling, "log2 p rounds of n bytes"),
    "halving": (_halving, "2 log2 p rounds, 2n(p-1)/p bytes"),
    "segmented halving": (_segmented_halving, "2 log2 p rounds in segments, 2n(p-1)/p bytes"),
    "short halving": (_halving, "2 log2 p rounds of an element a rank or less"),
    "ring": (_ring, "2(p-1) rounds of n/p bytes"),
    "bucket": (_bucket, "a ring along each side of the torus"),
    "linear": (_linear, "p-1 messages to one rank, and a broadcast"),
    "trees": (_trees, "a tree up and a tree down, pipelined"),
    "GPU ring": (_gpu_ring, "2(p-1) steps of n/p bytes"),
    "GPU tree": (_gpu_tree, "2 log2(nodes) steps, and n bytes in a pipeline"),
    "two levels": (_two_levels, "inside nodes, halving between them, inside again"),
    "two levels, whole": (_two_levels_whole, "inside nodes, doubling between them, inside again"),
}

# The name of an algorithm begins with one of these: the longest that fits says the family.
_NAMES = {
    "recursive_doubling": "doubling",
    "bine_latency": "doubling",
    "swing_latency": "doubling",
    "recursive_halving": "halving",
    "halving": "halving",
    "rabenseifner": "halving",
    "allgather_reduce": "halving",
    "reduce_scatter": "halving",
    "bine": "halving",
    "swing": "halving",
    "bine_bandwidth_segmented": "segmented halving",
    "swing_bandwidth_segmented": "segmented halving",
    "ring": "ring",
    "segmented_ring": "ring",
    "bucket": "bucket",
    "trix": "bucket",
    "basic_linear": "linear",
    "linear": "linear",
    "nonoverlapping": "trees",
    "rdbc": "trees",
    "binomial": "trees",
    "tree": "trees",
    "reduce_broadcast": "trees",
    "nccl_ring": "GPU ring",
    "nccl_nvlstree": "GPU ring",
    "nccl": "GPU tree",
    "hierarchical": "two levels",
    "hierarchical_latency": "two levels, whole",
}

# These choose another algorithm by the length; `twins` finds out which.
SWITCHING = ("default", "non_blocking", "nccl_collnet", "nccl_nvls", "nccl_pat", "auto")
_NOT_SWITCHING = ("nccl_nvlstree",)


def is_switching(algorithm: str) -> bool:
    """Whether the name stands for a choice among algorithms."""
    return algorithm.startswith(SWITCHING) and algorithm not in _NOT_SWITCHING


def family_of(case: Case) -> str | None:
    """The family by the name of the algorithm, None if it is unknown."""
    fitting = [name for name in _NAMES if case.algorithm.startswith(name)]
    if not fitting:
        return None
    family = _NAMES[max(fitting, key=len)]
    if family == "halving" and case.impl == "utofu":
        return "segmented halving"
    if family == "ring" and case.impl == "utofu":
        return "bucket"
    if case.algorithm.startswith("trix"):
        return "bucket"
    return family


def guess(case: Case) -> str:
    """A family for an algorithm nobody knows: what most libraries take for this length."""
    if case.impl == "nccl":
        return "GPU tree" if case.bytes < 16 << 20 else "GPU ring"
    return "doubling" if case.bytes <= 8 << 10 else "halving"


def pattern(case: Case, family: str) -> Pattern:
    """What an algorithm of this family sends in this case."""
    place = _Place(case.ranks, case.ranks_per_node, float(max(1, case.bytes)))
    needs = family == "ring" or (case.impl == "mpich" and "halving" in family)
    if needs and case.bytes < _ELEMENT * case.ranks:
        family = "doubling"  # which these take where a rank would get less than an element
    elif case.impl == "utofu" and "halving" in family and case.bytes <= _ELEMENT * case.ranks:
        family = "short halving"  # needs none of the buffers that longer vectors have registered
    make, text = _FAMILIES[family]
    sends = [send for send in make(place, case) if send.times > 0]
    return Pattern(family, (Send(START, 1, place.n), *sends), text)
