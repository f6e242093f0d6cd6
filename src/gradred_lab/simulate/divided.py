"""An iteration of a divided model: what its collective operations take, by schedules of gradred.

| operation | of | how often | source |
|---|---|---|---|
| allreduce of gradients | a GPU's parameters | as the scheduler has it | |
| reduce_scatter, then allgather | the same (ZeRO 1 and 2) | gradients during backward, parameters after the update | Rajbhandari et al., 2020, 1910.02054 |
| allgather, allgather, reduce_scatter | the same (ZeRO 3, FSDP) | during forward, during backward twice | the same |
| allreduce of activations | batch x tokens x width | 2 a layer in forward, 2 in backward | Shoeybi et al., 2019, 1909.08053 |
| message to the next stage | the same | 1 a micro-batch each way | Narayanan et al., 2021, 2104.04473 |

Of s stages and m micro-batches a device waits (s - 1) / m of its time (Narayanan et al.).
"""  # noqa: E501

from __future__ import annotations

import functools
from typing import NamedTuple

from gradred.simulate import plans, presets
from gradred.simulate.plans import Layout
from gradred_lab.simulate import iteration, links
from gradred_lab.simulate.iteration import Link
from gradred_lab.simulate.links import Terms
from gradred_lab.simulate.networks import Network
from gradred_lab.simulate.throughput import Training

STEPS = 6
"""Of an allreduce among eight nodes: what it takes has so many latencies of a message."""

_LENGTHS = (1 << 20, 1 << 30)  # bytes that are simulated
_SCHEDULES = {
    "allreduce": ("ring", "rabenseifner", "circulant"),
    "reduce_scatter": ("ring", "recursive_halving", "circulant"),
    "allgather": ("ring", "recursive_doubling", "circulant"),
    "bcast": ("binomial",),
}
"""Of which the fastest is taken; a message is a broadcast among two."""


class Group(NamedTuple):
    """Ranks that exchange with each other, their nodes, and how many such groups share a node."""

    ranks: int
    nodes: int
    alike: int


class Groups(NamedTuple):
    """Of the parts of a layer, of the replicas, and of two stages that follow each other."""

    parts: Group
    replicas: Group
    stages: Group


def groups(training: Training) -> Groups:
    """Where the ranks of each group are: parts of a layer are neighbours, then come replicas."""
    each = training.gpus // training.nodes
    parts, replicas = training.tensor_parallel or 1, training.replicas
    stage = parts * replicas

    def group(ranks: int, near: int) -> Group:
        near = max(1, min(ranks, near))
        return Group(ranks, -(-ranks // near), max(1, each // near))

    pair = Group(2, min(2, training.nodes), min(each, stage))
    return Groups(group(parts, each), group(replicas, each // parts), pair)


def pieces(training: Training) -> int:
    """The micro-batches of an iteration: without a number one for each sample."""
    if training.stages == 1:
        return 1
    return training.micro_batches or training.batch


def seconds(
    training: Training, network: Network, one: float, terms: Terms, overlap: float
) -> float:
    """Seconds of an iteration.

    Args:
        training: with a divided model.
        network: the model.
        one: seconds that one device would need for all of a replica's work.
        terms: what messages cost.
        overlap: share of backward during which messages of gradients move.
    """
    where, count = groups(training), pieces(training)
    busy = one / training.replica + _of_layers(training, network, terms, where.parts, count)
    rounds = count + training.stages - 1
    passed = 0.0
    if training.stages > 1:
        passed = 2 * _cost("bcast", _activations(training, network, count), terms, where.stages)
        passed *= rounds
    waited = busy * (training.stages - 1) / count
    exchanged = _of_gradients(training, network, busy, terms, overlap, where.replicas)
    return busy + waited + passed + exchanged


def _activations(training: Training, network: Network, count: int) -> float:
    """Bytes that a layer passes on for a micro-batch."""
    assert network.shape is not None
    itemsize = 4.0 if links.itemsize(training) == 4.0 else 2.0
    return training.batch / count * network.shape.tokens * network.shape.hidden * itemsize


def _of_layers(
    training: Training, network: Network, terms: Terms, group: Group, count: int
) -> float:
    """Seconds of the allreduces inside layers, which nothing overlaps."""
    if group.ranks == 1:
        return 0.0
    assert network.shape is not None
    one = _cost("allreduce", _activations(training, network, count), terms, group)
    return 4 * network.shape.layers / training.stages * count * one


def _of_gradients(
    training: Training, network: Network, busy: float, terms: Terms, overlap: float, group: Group
) -> float:
    """Seconds that the exchange of gradients and parameters adds."""
    if group.ranks == 1:
        return 0.0
    own = network.part(training.replica)
    itemsize = links.itemsize(training)
    reduced = _link("allreduce", terms, group)
    gathered, whole = _link("allgather", terms, group), float(own.elements.sum()) * itemsize
    before = after = 0.0
    if training.sharding:
        reduced = _link("reduce_scatter", terms, group)
        all_of_it = gathered.alpha + gathered.beta * whole
        if training.sharding == "zero3":
            layers = network.shape.layers if network.shape else len(own.elements)
            all_of_it += gathered.alpha * (layers / training.stages - 1)
            before = max(0.0, all_of_it - overlap * (1 - iteration.BACKWARD) * busy)
            reduced = Link(reduced.alpha + gathered.alpha, reduced.beta + gathered.beta)
        else:
            after = all_of_it
    kind = links.scheme(training)
    during = iteration.added(own, busy, kind, reduced, itemsize=itemsize, overlap=overlap)
    return before + during + after


def _cost(name: str, nbytes: float, terms: Terms, group: Group) -> float:
    link = _link(name, terms, group)
    return link.alpha + link.beta * nbytes


@functools.lru_cache(maxsize=4096)
def _link(name: str, terms: Terms, group: Group) -> Link:
    """What a collective operation costs: the fastest of its schedules at two lengths."""
    port = 1 / (terms.between * group.alike) if terms.between else presets.UNLIMITED
    network = presets.Network(
        about="the nodes of a table",
        source="its columns",
        hosts=group.nodes,
        memory="gpu",
        inside=(terms.latency_inside / 2, 1 / terms.inside),
        across=(terms.latency_between / STEPS, presets.UNLIMITED),
        port=port,
        overhead=0.0,
        reduce=0.0,
        copy=0.0,
    )
    layout = Layout.even(group.ranks, group.nodes)
    short, long = (
        min(
            plans.simulate(one, network, layout, nbytes, collective=name).seconds
            for one in _SCHEDULES[name]
        )
        for nbytes in _LENGTHS
    )
    beta = max(0.0, (long - short) / (_LENGTHS[1] - _LENGTHS[0]))
    return Link(max(0.0, short - beta * _LENGTHS[0]), beta)


def words(training: Training) -> list[str]:
    """What a reason says of the division."""
    found = []
    if training.replica > 1:
        found.append(
            f"a replica has {training.tensor_parallel or 1} parts of each layer x "
            f"{training.stages} stages"
        )
    if training.stages > 1:
        guess = "" if training.micro_batches else ", of one sample each, a guess"
        found.append(f"{pieces(training)} micro-batches{guess}")
    if training.sharding:
        found.append(f"sharded as {training.sharding}")
    return found
