"""What a message between GPUs costs, by the words of a table that name the network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradred_lab.simulate import rates
from gradred_lab.simulate.iteration import Link, Scheme
from gradred_lab.simulate.throughput import Training

# Bytes per second that one GPU moves through the links of its node.
INSIDE = (("nvlink", 60e9), ("pcie", 5e9), ("", 8e9))
# Share of its name's bits per second that an allreduce gets from a network.
SHARES = (("tcp", "infiniband", 0.25), ("gbe", "", 0.9), ("infiniband", "", 0.58), ("", "", 0.5))
LATENCY_INSIDE = 2e-5  # seconds of a message among the GPUs of a node, per doubling
LATENCY = {True: 2.5e-4, False: 7e-5}  # among eight GPUs of several nodes: by TCP or not
# The share of the bytes of a GPU's links, as vendors add up both directions, that it moves: 60 of
# the 300 GB/s of a V100's NVLink.
SHARE_INSIDE = 0.2
SERIAL = 4.0  # the power mean of the node's and the network's time: they work at the same time
# How a message among more GPUs takes longer: between log2 p (trees) and p (rings). The published
# fits of 10 GbE and of 56 Gb InfiniBand from 8 to 16 workers have 0.8 and 1.3 (MG-WFBP), but part
# of a latency is the framework's own, which does not grow.
GROWTH = 0.6
SERVER_GROWTH = 0.2

_SCHEDULERS = {
    "bsp": Scheme("whole"),
    "wfbp": Scheme("tensor"),
    "mgwfbp": Scheme("merged"),
    "bytescheduler": Scheme("pieces"),
}


@dataclass(frozen=True)
class Terms:
    """Seconds per byte inside a node and between nodes; seconds per message likewise."""

    inside: float
    between: float
    latency_inside: float
    latency_between: float

    def scaled(
        self,
        inside: float,
        between: float,
        latency_inside: float = 0.0,
        latency_between: float = 0.0,
    ) -> Terms:
        """Multiply the costs of a byte and of a message; arguments are logarithms of factors."""
        return Terms(
            self.inside * math.exp(inside),
            self.between * math.exp(between),
            self.latency_inside * math.exp(latency_inside),
            self.latency_between * math.exp(latency_between),
        )


def nominal(training: Training) -> Terms:
    """The terms by the name of the network alone."""
    words = training.network.lower()
    inside = next(speed for name, speed in INSIDE if name in words)
    if named := rates.inside_node(training.network):
        inside = named * SHARE_INSIDE
    bits = rates.between_nodes(training.network) or math.inf  # read only where there is one node
    share = next(share for one, other, share in SHARES if one in words and other in words)
    latency = LATENCY["tcp" in words or "gbe" in words]
    return Terms(1 / inside, 8 / (bits * share), LATENCY_INSIDE, latency)


def guesses(training: Training) -> list[str]:
    """What of a training nobody knows, and what is taken in its place."""
    found = []
    name = training.scheduler.lower().replace("-", "")
    if training.gpus > 1 and name not in _SCHEDULERS and name not in ("", "none"):
        found.append(f"scheduler {training.scheduler!r} is unknown: buckets, a guess")
    return found


def is_server(training: Training) -> bool:
    """Whether gradients go to parameter servers and back."""
    return "parameter server" in training.options.lower() or "byteps" in training.framework.lower()


def link(training: Training, terms: Terms) -> Link:
    """One exchange among all GPUs of a training."""
    p, nodes = training.gpus, training.nodes
    if p == 1:
        return Link(0.0, 0.0)
    each = p / nodes
    # Inside a node messages go around its own GPUs; of those around all GPUs a part of it has less
    # to carry, as they enter and leave by the network.
    share = math.sqrt((each - 1) / each * (p - 1) / p) if each > 1 else 0.0
    inside = terms.inside * 2 * share
    alpha = terms.latency_inside * math.log2(max(2.0, each)) if each > 1 else 0.0
    if nodes == 1:
        return Link(alpha, inside)
    if is_server(training):
        # Each node pushes to the servers on the other nodes, and pulls from them. More nodes have
        # more servers: where a server's own work is the limit, and not the network, time stays.
        # Published times over TCP are the same on two networks, so that work is most of it.
        between = terms.between * (2 * (nodes - 1) / nodes) ** SERVER_GROWTH
    else:
        between = terms.between * 2 * (p - 1) / p
    alpha += terms.latency_between * (p / 8) ** GROWTH
    power = (inside**SERIAL + between**SERIAL) ** (1 / SERIAL)
    return Link(alpha, power)


def scheme(training: Training) -> Scheme:
    """What shares a message: by the scheduler's name, or by what the framework does by itself."""
    name = training.scheduler.lower().replace("-", "")
    if name in _SCHEDULERS:
        return _SCHEDULERS[name]
    framework = f"{training.framework} {training.options}".lower()
    if "megatron" in framework:
        return Scheme("whole")
    if "horovod" in framework:
        return Scheme("bucket", 64 << 20)
    return Scheme("bucket", 32 << 20)


def itemsize(training: Training) -> float:
    """Bytes on the wire of an element: of mixed precision some frameworks send 2, others 4."""
    if training.gradient_bytes and training.parameters:
        return training.gradient_bytes / training.parameters
    return 4.0 if training.precision.lower() in ("fp32", "float32", "tf32", "") else 3.0
