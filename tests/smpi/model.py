"""The same cluster and the same schedules for SimGrid: a platform file, and a table of steps.

Every rank is a host of SimGrid's, so that ranks share what our simulator says that they share: the
bus and the ports of their host. Each pair of ranks has a route of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradred.schedules import Schedule

UNLIMITED = 1e15  # bytes per second
SPEED = 1e9  # operations per second of a host
HEADER = 16  # bytes that SMPI adds to each message


@dataclass(frozen=True)
class Shape:
    """Hosts of equally many ranks; latencies in seconds, speeds in bytes per second."""

    hosts: int
    local: int
    latency: float = 5e-6
    port: float = 1e9
    inside_latency: float = 1e-6
    bus: float = UNLIMITED
    reduce: float = 0.0

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.hosts * self.local

    def cluster(self) -> dict[str, object]:
        """The same as `gradred._core` takes it."""
        inside, across = (self.inside_latency, UNLIMITED), (self.latency, UNLIMITED)
        return {
            "host_of": [rank // self.local for rank in range(self.ranks)],
            "paths": [inside, inside, across, across, across],
            "port": self.port,
            "host_bus": self.bus,
            "reduce": self.reduce,
            "in_order": False,  # SimGrid knows no connections
        }


def platform(shape: Shape) -> str:
    """The platform file."""
    ranks = range(shape.ranks)
    return "\n".join(
        [
            "<?xml version='1.0'?>",
            '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
            '<platform version="4.1">',
            '<zone id="all" routing="Full">',
            *(f'<host id="r{rank}" speed="{SPEED:.0f}f"/>' for rank in ranks),
            *_links(shape),
            *(_route(shape, one, other) for one in ranks for other in ranks),
            "</zone>",
            "</platform>",
        ]
    )


def _links(shape: Shape) -> Iterator[str]:
    for host in range(shape.hosts):
        yield _link(f"out{host}", shape.port, shape.latency)
        yield _link(f"in{host}", shape.port, 0.0)
        yield _link(f"bus{host}", shape.bus, shape.inside_latency)


def _link(name: str, speed: float, latency: float) -> str:
    return f'<link id="{name}" bandwidth="{speed:.15g}Bps" latency="{latency:.15g}s"/>'


def _route(shape: Shape, one: int, other: int) -> str:
    a, b = one // shape.local, other // shape.local
    names = [f"bus{a}"] if a == b else [f"out{a}", f"in{b}"]
    links = "".join(f'<link_ctn id="{name}"/>' for name in names)
    return f'<route src="r{one}" dst="r{other}" symmetrical="NO">{links}</route>'


def hostfile(shape: Shape) -> str:
    """Rank by rank."""
    return "".join(f"r{rank}\n" for rank in range(shape.ranks))


def table(schedules: Sequence[Schedule], nbytes: int, reduce: float) -> str:
    """All steps, rank by rank: messages in bytes, and reductions in seconds."""
    return "".join(
        line
        for schedule in schedules
        for line in _lines(schedule, nbytes / schedule.chunks, reduce)
    )


def _lines(schedule: Schedule, chunk: float, reduce: float) -> Iterator[str]:
    for number, steps in enumerate(schedule.rounds):
        for step in steps:
            span = step.target or step.source
            assert span is not None
            length = span.chunks * chunk
            if step.kind in ("send", "recv"):
                sent = length - HEADER
                yield f"{schedule.rank} {number} {step.kind[0]} {step.peer} {sent:.0f}\n"
            elif step.kind == "reduce" and reduce:
                yield f"{schedule.rank} {number} x -1 {length * reduce:.15g}\n"
