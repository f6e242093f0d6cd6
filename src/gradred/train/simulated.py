"""What the simulator says of more hosts like this one, and how far it is off where it was measured.

A step takes what the rank's own work takes (the peer `compute`), and what the exchange adds. The
gradients are those that were watched: their order, their sizes and when each was ready. On this
host an allreduce costs what was measured; between hosts what the schedules of gradred take in
simulated time on a named network. One number is fitted to the measured steps: the share of the
backward pass during which messages move at all (`overlap`).
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradred.simulate import iteration, plans, presets
from gradred.simulate.iteration import Link, Scheme
from gradred.simulate.networks import Network
from gradred.train import framework
from gradred.train.framework import Peer
from gradred.train.settings import Settings

_OVERLAPS = tuple(round(0.05 * i, 2) for i in range(21))
_OVERLAP = 0.5  # where no other model was measured
_GUESSED = f"an overlap of {_OVERLAP}, since no other model was measured"
_LENGTHS = (1 << 20, 32 << 20)  # bytes at which a network's cost is simulated
_ACROSS = ("hierarchical", "ring", "rabenseifner", "recursive_doubling")
_ITEM = 4  # bytes of a gradient's element


class Point(NamedTuple):
    """A measured step with exchange, and what is needed to model it."""

    row: dict[str, Any]
    name: str
    peer: Peer

    @property
    def compute(self) -> float:
        """Seconds of the step without exchange."""
        return float(self.row["summary"]["compute"]["step_ms"]["median"]) / 1e3

    @property
    def measured(self) -> float:
        """Seconds of the step."""
        return float(self.row["summary"][self.name]["step_ms"]["median"]) / 1e3

    def modelled(self, link: Link, overlap: float) -> float:
        """Seconds of the step by the model."""
        layers = self.row["layers"]
        elements = np.asarray(layers["elements"], float)
        network = Network("", True, elements, np.asarray(layers["ready"], float))
        buckets = self.peer.bucket_bytes
        scheme = Scheme("bucket", buckets) if buckets else Scheme("whole")
        part = overlap * layers["backward_share"] / iteration.BACKWARD
        return self.compute + iteration.added(
            network, self.compute, scheme, link, itemsize=_ITEM, overlap=part
        )


def simulate(record: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """The part `simulated` of a record.

    Args:
        record: complete but for this part.
        settings: of the run.
    """
    points = _points(record, settings)
    if not points or not settings.simulated_hosts:
        found = "it needs two ranks or more on one host, with `compute` and a peer of gradred's"
        return {"why_not": "not asked for" if points else found}
    network = presets.find(settings.net)
    overlap = _fitted(points, record)
    return {
        "net": settings.net,
        "about": network.about,
        "source": network.source,
        "overlap": overlap,
        "error_here": _error(points, record),
        "error_between_hosts": network.error,
        "rows": [
            _row(point, hosts, record, settings.net, overlap)
            for point in points
            for hosts in settings.simulated_hosts
            if hosts > 1
        ],
    }


def _points(record: dict[str, Any], settings: Settings) -> list[Point]:
    """The measured steps that can be modelled: those whose exchange gradred carries out."""
    peers = framework.find(settings.framework).peers
    return [
        Point(row, name, peers[name])
        for row in record["rows"]
        for name in row["summary"]
        if row["ranks"] > row["hosts"] == 1
        and "compute" in row["summary"]
        and peers[name].by_gradred
    ]


def _link_here(point: Point, record: dict[str, Any]) -> Link:
    """The cost of an allreduce among the ranks of the job, as measured."""
    times = record["jobs"][str(point.row["ranks"])]["allreduce_us"]
    (_, _), (few, short), (many, long) = sorted((int(n), 1e-6 * us) for n, us in times.items())
    return _line(few, short, many, long)


def _line(few: int, short: float, many: int, long: float) -> Link:
    beta = max(0.0, (long - short) / (many - few))
    return Link(max(0.0, short - beta * few), beta)


def _fitted(points: Sequence[Point], record: dict[str, Any]) -> float:
    """The overlap with the least sum of errors."""
    if not points:
        return _OVERLAP

    def off(overlap: float) -> float:
        return sum(
            abs(one.modelled(_link_here(one, record), overlap) / one.measured - 1) for one in points
        )

    return min(_OVERLAPS, key=off)


def _error(points: Sequence[Point], record: dict[str, Any]) -> dict[str, Any]:
    """How far steps on this host are off, each by an overlap fitted to the other models."""
    errors = []
    several = len({one.row["cell"]["model"] for one in points}) > 1
    how = "an overlap fitted to the other models"
    for one in points:
        others = [two for two in points if two.row["cell"]["model"] != one.row["cell"]["model"]]
        seconds = one.modelled(_link_here(one, record), _fitted(others, record))
        errors.append(100 * abs(seconds / one.measured - 1))
    return {
        "steps": len(errors),
        "median_percent": statistics.median(errors),
        "largest_percent": max(errors),
        "how": f"measured steps on this host, with {how if several else _GUESSED}",
    }


def _row(
    point: Point, hosts: int, record: dict[str, Any], net: str, overlap: float
) -> dict[str, Any]:
    local = point.row["ranks"]
    seconds = point.modelled(_link_across(net, hosts, local, _seconds_here(point, record)), overlap)
    ranks, cell = hosts * local, point.row["cell"]
    speed = ranks * cell["batch"] / seconds
    found = {"cell": cell, "peer": point.name, "hosts": hosts, "ranks": ranks}
    found |= {"samples_per_s": speed, "step_ms": 1e3 * seconds}
    single = point.row["summary"].get("single")
    if single is not None:
        found["speed_up"] = speed / single["samples_per_s"]["median"]
        found["efficiency"] = found["speed_up"] / ranks
    return found


def _seconds_here(point: Point, record: dict[str, Any]) -> float:
    """The measured time of the longest allreduce on this host."""
    times = record["jobs"][str(point.row["ranks"])]["allreduce_us"]
    return 1e-6 * float(times[str(_LENGTHS[-1])])


@functools.lru_cache(maxsize=1024)
def _link_across(net: str, hosts: int, local: int, here: float) -> Link:
    """The cost of an allreduce between hosts: of the best schedule at two lengths.

    Inside each host memory is as fast as on this one.
    """
    network = presets.find(net)
    if network.memory == "host":
        nominal = plans.simulate("node", network, plans.Layout.even(local, 1), _LENGTHS[-1]).seconds
        faster = nominal / here
        network = dataclasses.replace(
            network,
            inside=(network.inside[0], network.inside[1] * faster),
            reduce=network.reduce / faster,
            copy=network.copy / faster,
        )
    layout = plans.Layout.even(hosts * local, hosts)
    names = [name for name in _ACROSS if not plans.find(name).why_not(network, layout)]
    short, long = (
        min(plans.simulate(name, network, layout, nbytes).seconds for name in names)
        for nbytes in _LENGTHS
    )
    return _line(_LENGTHS[0], short, _LENGTHS[1], long)
