"""What the simulator says of more hosts like this one, and how far it is off where it was measured.

A step takes what the rank's own work takes (the peer `compute`), and what the exchange adds. The
gradients are those that were watched: their order, their sizes and when each was ready. On this
host an allreduce costs what was measured; between hosts what the schedules of gradred take in
simulated time on a named network. Fitted to the measured steps are the share of the backward pass
during which messages move at all (`overlap`), and what each peer does itself: a time for each byte
of the gradients (copies into buckets and back), for each tensor (hooks, starts of operations), and
for each second of computing (waiting for the slowest rank, a processor that messages use too).
A simulated step is the measured one of this host, and what the network adds to it by the model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gradred.simulate import plans, presets
from gradred_lab.simulate import accuracy, iteration
from gradred_lab.simulate.accuracy import Floats
from gradred_lab.simulate.iteration import Link, Scheme
from gradred_lab.simulate.networks import Network
from gradred_lab.train import framework
from gradred_lab.train.framework import Peer
from gradred_lab.train.settings import Settings

_OVERLAPS = tuple(round(0.05 * i, 2) for i in range(21))
_OVERLAP = 0.5  # where no other model was measured
_GUESSED = f"an overlap of {_OVERLAP}, since no other model was measured"
_ENOUGH = 3  # models from which a peer's own work is fitted
_COLUMNS = ([0, 1, 2], [0, 1], [0, 2], [1, 2], [0], [1], [2])  # of the numbers of a peer's own work
_LENGTHS = (1 << 20, 32 << 20)  # bytes at which a network's cost is simulated
_ACROSS = ("hierarchical", "ring", "rabenseifner", "recursive_doubling")
_ITEM = 4  # bytes of a gradient's element


class Own(NamedTuple):
    """What a peer does itself, beside messages, in seconds."""

    by_byte: float = 0.0
    by_tensor: float = 0.0
    by_second: float = 0.0
    """Work beside messages for each second of computing."""


class Fit(NamedTuple):
    """What is fitted to measured steps."""

    overlap: float
    own: dict[str, Own]
    """Each peer's own work; a peer of which too few models were measured has none."""


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
    def size(self) -> Own:
        """What the work of a peer grows with: bytes, tensors, and seconds of computing."""
        elements = self.row["layers"]["elements"]
        return Own(float(_ITEM * sum(elements)), float(len(elements)), self.compute)

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
    steps = _Steps(points, record)
    fit, here = steps.fitted(), steps.error()
    return {
        "net": settings.net,
        "about": network.about,
        "source": network.source,
        "overlap": fit.overlap,
        "own": {name: one._asdict() for name, one in fit.own.items()},
        "error_here": here,
        "error_between_hosts": network.error,
        "rows": [
            _row(point, hosts, record, settings.net, fit, here["median_percent"] / 100)
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


class _Steps:
    """The measured steps, to which the model is fitted."""

    def __init__(self, points: Sequence[Point], record: dict[str, Any]) -> None:
        self._models = [one.row["cell"]["model"] for one in points]
        self._names = [one.name for one in points]
        self._compute, self._measured = (
            np.array([getattr(one, name) for one in points]) for name in ("compute", "measured")
        )
        self._sizes = np.array([one.size for one in points])
        links = [(one, _link_here(one, record)) for one in points]
        self._exchange = np.array(
            [[one.exchange(link, overlap) for overlap in _OVERLAPS] for one, link in links]
        )

    def fitted(self, but: str = "") -> Fit:
        """The overlap, and the own work that goes with it, with the least errors of all models.

        Args:
            but: the model that is left out; empty: none.
        """
        chosen = [i for i, model in enumerate(self._models) if model != but]
        if not chosen:
            return Fit(_OVERLAP, {})
        fits = [Fit(overlap, self._own(chosen, k)) for k, overlap in enumerate(_OVERLAPS)]
        return min(fits, key=lambda fit: float(self._off(fit)[chosen].sum()))

    def error(self) -> dict[str, Any]:
        """How far steps on this host are off, each by a fit to the other models."""
        models = [*dict.fromkeys(self._models)]
        off = {model: self._off(self.fitted(but=model)) for model in models}
        errors = [100 * float(off[model][i]) for i, model in enumerate(self._models)]
        how = "numbers fitted to the other models" if len(models) > 1 else _GUESSED
        return {
            "steps": len(errors),
            "median_percent": statistics.median(errors),
            "largest_percent": max(errors),
            "how": f"measured steps on this host, with {how}",
        }

    def _off(self, fit: Fit) -> Floats:
        """The errors of all steps, as shares of what was measured."""
        own = np.array([fit.own.get(name, Own()) for name in self._names])
        messages = self._exchange[:, _OVERLAPS.index(fit.overlap)]
        modelled = self._compute + messages + (own * self._sizes).sum(axis=1)
        return np.asarray(np.abs(modelled / self._measured - 1))

    def _own(self, chosen: Sequence[int], overlap: int) -> dict[str, Own]:
        """Find the work of each peer that best explains time beside computing and messages."""
        found = {}
        for name in dict.fromkeys(self._names[i] for i in chosen):
            its = [i for i in chosen if self._names[i] == name]
            if len({self._models[i] for i in its}) < _ENOUGH:
                continue
            measured = self._measured[its]
            rest = measured - self._compute[its] - self._exchange[its, overlap]
            found[name] = _least_squares(self._sizes[its] / measured[:, None], rest / measured)
        return found


def _least_squares(sizes: Floats, rest: Floats) -> Own:
    """The numbers, none negative, by which `sizes` come closest to `rest`."""
    candidates = [Own()]
    for columns in _COLUMNS:
        values = np.zeros(len(Own()))
        values[columns] = np.linalg.lstsq(sizes[:, columns], rest, rcond=None)[0]
        if values.min() >= 0:
            candidates.append(Own(*values.tolist()))
    return min(candidates, key=lambda own: float(np.sum((sizes @ np.array(own) - rest) ** 2)))


def _row(
    point: Point, hosts: int, record: dict[str, Any], net: str, fit: Fit, off: float
) -> dict[str, Any]:
    """A step on more hosts, with its error: of this host's by the share `off`."""
    local = point.row["ranks"]
    across = _link_across(net, hosts, local, _seconds_here(point, record))
    here = point.modelled(_link_here(point, record), fit)
    added = max(0.0, point.modelled(across, fit) - here)
    seconds = point.measured + added
    error = math.hypot(off * point.measured, _share(net) * added)
    ranks, cell = hosts * local, point.row["cell"]
    samples = ranks * cell["batch"]
    speed = samples / seconds
    found = {"cell": cell, "peer": point.name, "hosts": hosts, "ranks": ranks}
    found |= {
        "samples_per_s": speed,
        "step_ms": 1e3 * seconds,
        "error_percent": 1e2 * error / seconds,
    }
    found |= {
        "samples_per_s_low": samples / (seconds + error),
        "samples_per_s_high": samples / max(seconds - error, point.measured * (1 - off)),
    }
    single = point.row["summary"].get("single")
    if single is not None:
        found["speed_up"] = speed / single["samples_per_s"]["median"]
        found["efficiency"] = found["speed_up"] / ranks
    return found


def _share(net: str) -> float:
    """How far times on a network are off, as a share: the largest median that it names."""
    share = accuracy.stated(presets.find(net).error)
    assert share is not None
    return share


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
