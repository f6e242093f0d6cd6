"""Throughput of training at numbers of GPUs that were not measured: prediction, band, reason."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradred_lab.simulate import divided, iteration, links, networks
from gradred_lab.simulate.links import Terms
from gradred_lab.simulate.networks import Network
from gradred_lab.simulate.throughput import Speed, Training

JITTER = 0.002  # of an iteration per doubling of the GPUs: the slowest of more devices
NOISE = 0.01  # of a measured throughput, as a logarithm
OWN = {True: 0.5, False: 1.0}  # how far a setting's cost of a byte may differ: pooled or nominal
# Terms of what messages cost, in the order in which they are fitted, and how much each is held to
# its nominal value.
TERMS = {"inside": 0.1, "latency_inside": 0.5, "between": 0.1, "latency_between": 2.0}
_REACH = 3.0  # logarithms of factors that are tried lie within this
# Shares of backward in which messages may move, among which the best is looked for.
_OVERLAPS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.2, 1.5)
OVERLAP = 0.7  # of settings whose like was not measured


@dataclass(frozen=True)
class Found:
    """What the measurements say of a setting."""

    one: float  # seconds of an iteration on one device
    terms: Terms
    overlap: float
    stall: float  # seconds that a measured iteration took beyond the model's
    anchor: Speed  # the measured iteration nearest in scale
    guessed: str  # how the seconds of one device were guessed; empty: they were measured


@dataclass(frozen=True)
class Outcome:
    """Logarithm of images per second, its deviation, and the model's reason.

    `step` is where the prediction goes from what was measured: a key of STEPS, with the training's
    `kind` behind it. `linear` is as fast per device as what was measured.
    """

    mean: float
    deviation: float
    reason: str
    step: str
    linear: Scaled | None


@dataclass(frozen=True)
class Scaled:
    """What was measured times the number of GPUs, as a logarithm, with its deviation."""

    mean: float
    deviation: float
    reason: str


STEPS = {
    "inside": "to more GPUs of one node",
    "across": "from one node to several, as others of the cluster were measured",
    "across unseen": "from one node to several, of which the network's name alone is known",
    "between": "from several nodes to other numbers of nodes",
    "divided": "to a division of the model or a batch that was not measured",
    "elsewhere": "to a work that was measured nowhere",
}
"""Where a prediction goes from what was measured, in words."""

SERVERS = ", by servers"
DIVIDED = ", of a divided model"
STRONG = ", of one global batch"


def kind(training: Training) -> str:
    """What follows a step's name, since such trainings are off for reasons of their own."""
    return (
        SERVERS * links.is_server(training)
        + DIVIDED * training.is_divided
        + STRONG * (training.global_batch is not None)
    )


class Trainings:
    """Iteration models of all settings of a table."""

    def __init__(self, rows: Sequence[Speed]) -> None:
        """Calibrate by at least one measurement."""
        self._rows = list(rows)
        self._settings: dict[Training, list[Speed]] = collections.defaultdict(list)
        for row in rows:
            self._settings[row.training.setting].append(row)
        self._ones: dict[tuple[Training, int], float | None] = {}
        self._pooled: dict[tuple[object, ...], float] = {}
        self._pool()

    # ---- of one device ------------------------------------------------------------------------

    def one(self, training: Training) -> float | None:
        """Seconds of one device: the setting's own, or that of the same work elsewhere."""
        key = (training.setting, training.batch)
        if key not in self._ones:
            self._ones[key] = self._find_one(training)
        return self._ones[key]

    def _find_one(self, training: Training) -> float | None:
        own = [
            s
            for s in self._settings.get(training.setting, ())
            if s.training.gpus == 1 and s.training.batch == training.batch
        ]
        if own:
            return float(np.median([speed.seconds for speed in own]))
        work = _work(training)
        same = [s for s in self._rows if s.training.gpus == 1 and _work(s.training) == work]
        near = [s for s in same if _family(s.training) == _family(training)] or same
        if near:
            return float(np.median([speed.seconds for speed in near]))
        return self._by_batch(training) if training.global_batch else None

    def _alone(self, training: Training) -> list[Speed]:
        """One device with the same model and other batches."""
        same = [
            s for s in self._rows if s.training.gpus == 1 and _task(s.training) == _task(training)
        ]
        return [s for s in same if _family(s.training) == _family(training)] or same

    def _by_batch(self, training: Training) -> float | None:
        """Seconds of a batch that one device was not measured with.

        By a straight line through two batches or more; of one batch in proportion to it.
        """
        known = [(s.training.batch, s.seconds) for s in self._alone(training)]
        if not known:
            return None
        batches, times = np.array(known).T
        if len(set(batches)) > 1:
            each, least = np.polyfit(batches, times, 1)
            if each > 0 and least >= 0:
                return float(least + each * training.batch)
        return float(np.median(times / batches)) * training.batch

    # ---- what settings share ------------------------------------------------------------------

    def _pool(self) -> None:
        """Fit what settings share, twice: costs of a byte, and the overlaps that follow."""
        for _ in range(2):
            self._pool_costs()
            self._pool_overlaps()

    def _pool_costs(self) -> None:
        """Costs of a byte or of a message, inside nodes from one node alone, then between nodes."""
        for term, weight in TERMS.items():
            groups: dict[tuple[object, ...], list[Speed]] = collections.defaultdict(list)
            for row in self._rows:
                at = row.training
                if (at.nodes > 1) == term.endswith("between") and self._is_fitted(at):
                    groups[_group(at, term)].append(row)
            for name, speeds in groups.items():
                loss = functools.partial(self._off, speeds, term, weight)
                self._pooled[name] = _least(loss)

    def _is_fitted(self, training: Training) -> bool:
        """Whether costs are fitted to it: those of divided models are simulated by them."""
        return training.gpus > 1 and not training.is_divided and self.one(training) is not None

    def _pool_overlaps(self) -> None:
        overlaps: dict[tuple[object, ...], list[Speed]] = collections.defaultdict(list)
        for row in self._rows:
            if self._is_fitted(row.training) and links.scheme(row.training).kind != "whole":
                overlaps[_overlapping(row.training)].append(row)
        for name, speeds in overlaps.items():
            self._pooled[name] = _best(_OVERLAPS, functools.partial(self._off_overlap, speeds))

    def _off(self, speeds: Iterable[Speed], term: str, weight: float, factor: float) -> float:
        return weight * factor**2 + sum(
            _loss(
                self._modelled(
                    s.training, self._terms(s.training, {term: factor}), self._overlap(s.training)
                ),
                s.seconds,
            )
            for s in speeds
        )

    def _off_overlap(self, speeds: Iterable[Speed], overlap: float) -> float:
        return (overlap - OVERLAP) ** 2 + sum(
            _loss(self._modelled(s.training, self._terms(s.training), overlap), s.seconds)
            for s in speeds
        )

    def _terms(self, training: Training, tried: Mapping[str, float] | None = None) -> Terms:
        """What messages cost, by what settings share, and by what is tried in its place."""
        factors = {
            term: (tried or {}).get(term, self._pooled.get(_group(training, term), 0.0))
            for term in TERMS
        }
        return links.nominal(training).scaled(**factors)

    def _overlap(self, training: Training) -> float:
        return self._pooled.get(_overlapping(training), OVERLAP)

    def _modelled(self, training: Training, terms: Terms, overlap: float) -> float:
        one = self.one(training)
        assert one is not None
        return _seconds(training, one, terms, overlap)

    # ---- a setting ----------------------------------------------------------------------------

    def found(self, training: Training) -> Found | None:
        """What is known of a setting; None if neither it nor the same work was measured."""
        setting = training.setting
        own = self._settings.get(setting, [])
        one, guessed = self.one(training), ""
        if one is None and (training.is_divided or training.global_batch):
            return self._found_back(training, own or self._like(training))
        if one is None and own:
            least = min(own, key=lambda speed: speed.training.gpus)
            one, guessed = least.seconds * 0.95, f" (a guess: {least.training.gpus} GPUs less 5 %)"
        if one is None:
            return None
        if not own:
            work = _work(training)
            own = [s for s in self._rows if s.training.gpus == 1 and _work(s.training) == work][:1]
            own = own or self._alone(training)
        overlap = self._overlap(training)
        several = [
            s
            for s in own
            if s.training.gpus > 1 and not s.training.is_divided and not s.training.global_batch
        ]
        shift = {"inside": 0.0, "between": 0.0}
        for which, chosen in (
            ("inside", [s for s in several if s.training.nodes == 1]),
            ("between", [s for s in several if s.training.nodes > 1]),
        ):
            if chosen:
                shift[which] = self._own_shift(chosen, one, overlap, shift, which)
        terms = self._terms(training).scaled(shift["inside"], shift["between"])
        anchor = min(
            own, key=lambda s: (abs(math.log2(s.training.gpus / training.gpus)), s.seconds)
        )
        is_other = anchor.training.batch != training.batch
        of_anchor = (is_other and self.one(anchor.training)) or one
        stall = anchor.seconds - _seconds(anchor.training, of_anchor, terms, overlap)
        if guessed == "" and training.global_batch and not self._is_measured(training):
            guessed = " (a guess: by other batches)"
        return Found(one, terms, overlap, stall, anchor, guessed)

    def _is_measured(self, training: Training) -> bool:
        return any(s.training.batch == training.batch for s in self._alone(training))

    def _like(self, training: Training) -> list[Speed]:
        """The same model on several devices, divided in another way."""
        return [s for s in self._rows if _task(s.training) == _task(training)]

    def _found_back(self, training: Training, like: Sequence[Speed]) -> Found | None:
        """Of a model that no device was measured with alone: its time by that of several."""
        if not like:
            return None
        terms, overlap = self._terms(training), self._overlap(training)
        anchor = min(
            like,
            key=lambda s: (
                s.training.setting != training.setting,
                abs(math.log2(s.training.gpus / training.gpus)),
                s.seconds,
            ),
        )
        one = _one_of(anchor, terms, overlap) * training.batch / anchor.training.batch
        at = anchor.training
        guessed = f" (a guess: what the measured {at.gpus} GPUs leave for computing)"
        return Found(one, terms, overlap, 0.0, anchor, guessed)

    def _own_shift(
        self, speeds: list[Speed], one: float, overlap: float, shift: dict[str, float], which: str
    ) -> float:
        is_pooled = _group(speeds[0].training, which) in self._pooled

        def off(x: float) -> float:
            now = {**shift, which: x}
            loss = (x / OWN[is_pooled]) ** 2
            for s in speeds:
                terms = self._terms(s.training).scaled(now["inside"], now["between"])
                loss += _loss(_seconds(s.training, one, terms, overlap), s.seconds)
            return loss

        return _least(off)

    def predict(self, training: Training) -> Outcome:
        """Predict one training, whether its setting was measured or not."""
        found = self.found(training)
        if found is None:
            return self._from_similar(training)
        modelled = _seconds(training, found.one, found.terms, found.overlap)
        seconds = _with_stall(training, found, modelled)
        exposed = max(0.0, modelled - found.one / training.replica) / modelled
        doublings = abs(math.log2(training.gpus / found.anchor.training.gpus))
        step = self._step(training, found.anchor.training)
        deviation = _deviation(step, exposed, doublings)
        images = training.replicas * training.batch / seconds
        return Outcome(
            math.log(images),
            deviation,
            _reason(training, found, exposed),
            step + kind(training),
            _scaled(training, found.anchor, _deviation(step, 0.0, doublings)),
        )

    def _step(self, training: Training, anchor: Training) -> str:
        if anchor.setting != training.setting and (training.is_divided or training.global_batch):
            return "divided"
        if training.nodes == 1:
            return "inside"
        if anchor.nodes > 1:
            return "between"
        return "across" if _group(training, "between") in self._pooled else "across unseen"

    def _from_similar(self, training: Training) -> Outcome:
        """Predict that each device is as fast as in the most similar setting, less a tenth."""
        best = max(self._rows, key=lambda s: _likeness(s.training, training))
        speed = best.images_per_s / best.training.gpus
        mean = math.log(speed * training.gpus * 0.9)
        reason = (
            f"neither this setting nor its work on one device was measured: as fast per device as "
            f"{best.training.model} with {best.training.framework} on "
            f"{best.training.gpus} GPUs, less a tenth"
        )
        return Outcome(mean, 0.5, reason, "elsewhere", None)


def _seconds(training: Training, one: float, terms: Terms, overlap: float) -> float:
    if training.is_divided:
        slower = one * (1 + JITTER * math.log2(training.gpus))
        return divided.seconds(training, _network(training), slower, terms, overlap)
    exposed = (
        iteration.added(
            _network(training),
            one,
            links.scheme(training),
            links.link(training, terms),
            itemsize=links.itemsize(training),
            overlap=overlap,
        )
        if training.gpus > 1
        else 0.0
    )
    return one * (1 + JITTER * math.log2(training.gpus)) + exposed


def _one_of(speed: Speed, terms: Terms, overlap: float) -> float:
    """The seconds of one device that the model needs to take as long as was measured."""
    low, high = 0.0, 2 * speed.seconds * speed.training.replica
    for _ in range(50):
        middle = (low + high) / 2
        if _seconds(speed.training, middle, terms, overlap) < speed.seconds:
            low = middle
        else:
            high = middle
    return high


@functools.lru_cache(maxsize=1024)
def _network_of(model: str, options: str, numbers: tuple[int | None, int | None]) -> Network:
    return networks.find(model, options, numbers)


def _network(training: Training) -> Network:
    numbers = (training.parameters, training.tensors)
    return _network_of(training.model, training.options, numbers)


def _with_stall(training: Training, found: Found, modelled: float) -> float:
    """Add what the model does not explain.

    A node that cannot feed images to its GPUs fast enough keeps them waiting, and messages move
    meanwhile: then the longer of both counts. Else what is unexplained comes on top.
    """
    anchor = found.anchor.training
    larger = training.batch / anchor.batch if training.global_batch else 1.0
    stall = found.stall * larger
    if anchor.gpus == training.gpus or stall <= 0:
        return max(modelled + stall, 0.1 * modelled)
    if _is_image(training) and training.nodes > anchor.nodes:
        return max(found.anchor.seconds * larger, modelled + 0.3 * stall)
    return modelled + stall


def _is_image(training: Training) -> bool:
    name = training.model.lower()
    is_text = any(word in name for word in ("bert", "gpt", "transformer", "lstm"))
    return not is_text and _network(training).shape is None


def _scaled(training: Training, anchor: Speed, deviation: float) -> Scaled:
    each = anchor.images_per_s / anchor.training.gpus
    if training.global_batch is None and not training.is_divided:
        each *= training.batch / anchor.training.batch
    gpus, nodes = anchor.training.gpus, anchor.training.nodes
    reason = f"linear scaling: each GPU is as fast as one of the {gpus} measured on {nodes} node"
    return Scaled(math.log(each * training.gpus), deviation, reason + "s" * (nodes > 1))


def _deviation(step: str, exposed: float, doublings: float) -> float:
    """Grows with the share of communication and with the distance from what was measured."""
    shares = {"inside": (0.2, 0.02), "between": (0.1, 0.01), "divided": (0.5, 0.1)}
    share, least = shares.get(step, (0.3, 0.02))
    return math.hypot(NOISE, share * exposed * min(2.0, max(doublings, 0.5)), least * doublings)


def _reason(training: Training, found: Found, exposed: float) -> str:
    link = links.link(training, found.terms)
    network = _network(training)
    unknown = "" if network.is_known else " of one size, a guess"
    megabytes = float(network.elements.sum()) * links.itemsize(training) / 1e6
    parts = [
        f"{1e3 * found.one:.3g} ms on one device{found.guessed}, {megabytes:.3g} MB of gradients "
        f"in {len(network.elements)} tensors{unknown}",
        f"scheme {links.scheme(training).kind}",
        *links.guesses(training),
    ]
    parts += divided.words(training)
    if training.gpus > 1 and not training.is_divided:
        rate = 1 / max(link.beta, 1e-15) / 1e9
        parts.append(f"allreduce at {rate:.3g} GB/s and {1e6 * link.alpha:.3g} us a message")
    if training.gpus > 1:
        parts.append(f"{100 * exposed:.2g} % of the iteration not overlapped")
    at = found.anchor.training
    whose = "" if at.setting == training.setting else f" of {at.framework}, another setting"
    gpus, nodes = ("s" if count > 1 else "" for count in (at.gpus, at.nodes))
    parts.append(f"set off from the measured {at.gpus} GPU{gpus} on {at.nodes} node{nodes}{whose}")
    if training.nodes > 1 and at.nodes == 1:
        parts.append("no run across nodes was measured: a share of the network's rate, a guess")
    return "; ".join(parts)


def _work(training: Training) -> tuple[object, ...]:
    return (*_task(training), training.batch)


def _task(training: Training) -> tuple[object, ...]:
    return (training.source, training.cluster, training.model, training.precision)


def _family(training: Training) -> tuple[object, ...]:
    return (training.framework, training.options)


def _group(training: Training, term: str) -> tuple[object, ...]:
    """Trainings of which a term of the costs is about the same."""
    shared = (term, training.cluster, links.is_server(training))
    if term.endswith("between"):
        return (*shared, training.network)
    return (*shared, training.model) if term == "inside" else shared


def _overlapping(training: Training) -> tuple[object, ...]:
    place = (training.cluster, training.model, training.nodes > 1, links.is_server(training))
    return ("overlap", training.scheduler, *place)


def _likeness(one: Training, other: Training) -> float:
    weights = {"model": 4.0, "framework": 3.0, "precision": 3.0, "cluster": 2.0, "scheduler": 2.0}
    same = sum(
        weight for name, weight in weights.items() if getattr(one, name) == getattr(other, name)
    )
    return (
        same
        - 0.5 * abs(math.log2(one.batch / other.batch))
        - 0.2 * abs(math.log2(one.gpus / other.gpus))
    )


def _loss(modelled: float, measured: float) -> float:
    """Squared error of logarithms in units of the noise; large ones count little."""
    off = (math.log(modelled / measured) / NOISE) ** 2
    return 5 * math.log1p(off / 5)


def _best(values: Iterable[float], loss: Callable[[float], float]) -> float:
    return min((float(value) for value in values), key=loss)


def _least(loss: Callable[[float], float]) -> float:
    """Find the value of least loss within reach: on a grid, then on finer ones around its best."""
    centre = _best(np.linspace(-_REACH, _REACH, 13), loss)
    centre = _best(centre + np.linspace(-0.4, 0.4, 9), loss)
    return _best(centre + np.linspace(-0.08, 0.08, 9), loss)
