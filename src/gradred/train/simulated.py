"""What the simulator says of more hosts like this one, and how far it is off where it was measured.

A step takes what the rank's own work takes (the peer `compute`), and what the exchange adds. The
gradients are those that were watched: their order, their sizes and when each was ready. On this
host an allreduce costs what was measured; between hosts what the schedules of gradred take in
simulated time on a named network. Fitted to the measured steps are the share of the backward pass
during which messages move at all (`overlap`), and what each peer does itself: a time for each byte
of the gradients (copies into buckets and back) and for each tensor (hooks, starts of operations).
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
_ENOUGH = 3  # models from which a peer's own work is fitted
_LENGTHS = (1 << 20, 32 << 20)  # bytes at which a network's cost is simulated
_ACROSS = ("hierarchical", "ring", "rabenseifner", "recursive_doubling")
_ITEM = 4  # bytes of a gradient's element


class Own(NamedTuple):
    """What a peer does itself, beside messages, in seconds."""

    by_byte: float = 0.0
    by_tensor: float = 0.0


class Fit(NamedTuple):
    """What is fitted to measured steps."""

    overlap: float
    own: dict[str, Own]
    """By peer; none where too few models were measured."""


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

    @property
    def size(self) -> tuple[float, float]:
        """Bytes and number of the gradients."""
        elements = self.row["layers"]["elements"]
        return float(_ITEM * sum(elements)), float(len(elements))

    def exchange(self, link: Link, overlap: float) -> float:
        """Seconds that messages add to the step by the model."""
        layers = self.row["layers"]
        elements = np.asarray(layers["elements"], float)
        network = Network("", True, elements, np.asarray(layers["ready"], float))
        buckets = self.peer.bucket_bytes
        scheme = Scheme("bucket", buckets) if buckets else Scheme("whole")
        part = overlap * layers["backward_share"] / iteration.BACKWARD
        return iteration.added(network, self.compute, scheme, link, itemsize=_ITEM, overlap=part)

    def modelled(self, link: Link, fit: Fit) -> float:
        """Seconds of the step by the model."""
        own = fit.own.get(self.name, Own())
        return self.compute + self.exchange(link, fit.overlap) + float(np.dot(own, self.size))


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
    fit = _fitted(points, record)
    return {
        "net": settings.net,
        "about": network.about,
        "source": network.source,
        "overlap": fit.overlap,
        "own": {name: one._asdict() for name, one in fit.own.items()},
        "error_here": _error(points, record),
        "error_between_hosts": network.error,
        "rows": [
            _row(point, hosts, record, settings.net, fit)
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


def _fitted(points: Sequence[Point], record: dict[str, Any]) -> Fit:
    """The overlap, and the own work that goes with it, with the least sum of errors."""
    if not points:
        return Fit(_OVERLAP, {})

    def off(fit: Fit) -> float:
        return sum(
            abs(one.modelled(_link_here(one, record), fit) / one.measured - 1) for one in points
        )

    return min((Fit(overlap, _own(points, record, overlap)) for overlap in _OVERLAPS), key=off)


def _own(points: Sequence[Point], record: dict[str, Any], overlap: float) -> dict[str, Own]:
    """By peer the work that explains best what steps take beyond computing and messages."""
    found = {}
    for name in {one.name for one in points}:
        its = [one for one in points if one.name == name]
        if len({one.row["cell"]["model"] for one in its}) < _ENOUGH:
            continue
        sizes = np.array([one.size for one in its])
        measured = np.array([one.measured for one in its])
        rest = measured - [
            one.compute + one.exchange(_link_here(one, record), overlap) for one in its
        ]
        found[name] = _least_squares(sizes / measured[:, None], rest / measured)
    return found


def _least_squares(sizes: Any, rest: Any) -> Own:
    """The two numbers, neither negative, by which `sizes` come closest to `rest`."""
    candidates = [Own()]
    for columns in ([0, 1], [0], [1]):
        values = np.zeros(2)
        values[columns] = np.linalg.lstsq(sizes[:, columns], rest, rcond=None)[0]
        if values.min() >= 0:
            candidates.append(Own(*values.tolist()))
    return min(candidates, key=lambda own: float(np.sum((sizes @ np.array(own) - rest) ** 2)))


def _error(points: Sequence[Point], record: dict[str, Any]) -> dict[str, Any]:
    """How far steps on this host are off, each by an overlap fitted to the other models."""
    errors = []
    several = len({one.row["cell"]["model"] for one in points}) > 1
    how = "numbers fitted to the other models"
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


def _row(point: Point, hosts: int, record: dict[str, Any], net: str, fit: Fit) -> dict[str, Any]:
    local = point.row["ranks"]
    seconds = point.modelled(_link_across(net, hosts, local, _seconds_here(point, record)), fit)
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
