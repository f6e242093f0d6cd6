"""What it takes to exchange a message of gradients on a cluster: simulated schedules, by length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gradred.errors import UsageError
from gradred.simulate import plans
from gradred.simulate.plans import Layout
from gradred.simulate.presets import Network
from gradred.simulate.servers import parameter_servers
from gradred_lab.simulate import links

_KNOTS = tuple(256 << shift for shift in range(0, 24, 2))  # bytes that are simulated: to 1 GiB
_LATENCY = 256  # bytes of a message that is all latency

ALL = ("ring", "recursive_doubling", "rabenseifner", "hierarchical", "nccl_ring", "nccl_tree")
"""The plans among which the fastest is taken, where none is named."""

# gRPC: a message is written into a protocol buffer and read out of it by one thread at each side,
# and goes through the kernel. Round figures.
_GRPC_OVERHEAD, _GRPC_STREAM = 50e-6, 1e9

_KERNEL = 10e-6  # seconds: a message that takes as long passes through the kernel's TCP

_MOST_AT_ONCE = 1 << 16  # messages of all workers to all servers


@dataclass(frozen=True)
class Way:
    """How a message is exchanged: by plans, or by so many servers; over gRPC or not."""

    plans: tuple[str, ...] = ALL
    servers: int = 0
    grpc: bool = False


@dataclass(frozen=True)
class Place:
    """A network, and where the ranks are on it."""

    network: Network
    layout: Layout


class Exchange:
    """Seconds of one message among all ranks, by its length: simulated at knots, straight between.

    Raises:
        UsageError: no plan serves these ranks, or the servers cannot be simulated.
    """

    def __init__(self, place: Place, way: Way) -> None:
        self._place, self._way = place, way
        self._check()
        self.seconds_at = functools.cache(self._simulated)

    @classmethod
    def measured(cls, times: dict[int, float]) -> Exchange:
        """From measured seconds by number of bytes, in place of a simulation.

        Raises:
            UsageError: there are fewer than two lengths.
        """
        if len(times) < 2:
            found = f"{len(times)} lengths were measured"
            raise UsageError("exchange", found, "Measure at least two lengths")
        new = cls.__new__(cls)
        new._knots = tuple(sorted(times))
        new.seconds_at = functools.cache(times.__getitem__)
        return new

    _knots: Sequence[int] = _KNOTS
    seconds_at: Callable[[int], float]

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest message whose seconds are known."""
        return self._knots[0], self._knots[-1]

    @property
    def latency(self) -> float:
        """Seconds of a message that is hardly longer than nothing."""
        return self(_LATENCY)

    def __call__(self, nbytes: float) -> float:
        """Seconds of a message; of a longer one than any knot by the last two."""
        at = int(np.searchsorted(self._knots, nbytes))
        if at == 0:
            return self.seconds_at(self._knots[0])
        low, high = self._knots[at - 1 : at + 1] if at < len(self._knots) else self._knots[-2:]
        first, last = self.seconds_at(low), self.seconds_at(high)
        return first + (last - first) * (nbytes - low) / (high - low)

    def best(self, nbytes: int) -> str:
        """The plan that is fastest at this length."""
        return self._fastest(nbytes)[1]

    def _check(self) -> None:
        layout = self._place.layout
        if self._way.servers:
            messages = layout.ranks * self._way.servers
            if messages > _MOST_AT_ONCE:
                found = f"{messages} messages in flight at once take minutes to simulate"
                raise UsageError("parameter servers", found, "Take fewer servers")
        elif layout.ranks > 1 and not self._serving():
            found = "none of these plans serves these ranks"
            raise UsageError(", ".join(self._way.plans), found, "Name other plans")

    def _serving(self) -> list[str]:
        place = (self._place.network, self._place.layout)
        return [name for name in self._way.plans if not plans.find(name).why_not(*place)]

    def _simulated(self, nbytes: int) -> float:
        return self._fastest(nbytes)[0]

    def _fastest(self, nbytes: int) -> tuple[float, str]:
        network, layout = self._place.network, self._place.layout
        if layout.ranks == 1:
            return 0.0, "none"
        if self._way.servers:
            schedules = parameter_servers(layout.ranks, self._way.servers)
            network = over_grpc(network) if self._way.grpc else network
            found = plans.simulate_own(schedules, network, layout, nbytes)
            return found.seconds, f"{self._way.servers} servers"
        start = started(network, layout)
        return min(
            (start + plans.simulate(name, network, layout, nbytes).seconds, name)
            for name in self._serving()
        )


def started(network: Network, layout: Layout) -> float:
    """Seconds that a message of gradients costs beside its schedule, by transport.

    The ranks agree that all of them have it, and start it (Horovod's negotiation; launches).
    """
    if layout.hosts == 1:
        return links.LATENCY_INSIDE
    return links.LATENCY[network.across[0] >= _KERNEL]


def over_grpc(network: Network) -> Network:
    """Return this network as gRPC uses it."""

    def path(given: tuple[float, float]) -> tuple[float, float]:
        return given[0], min(given[1], _GRPC_STREAM)

    return dataclasses.replace(
        network,
        inside=path(network.inside),
        across=path(network.across),
        beyond=None if network.beyond is None else path(network.beyond),
        overhead=network.overhead + _GRPC_OVERHEAD,
    )
