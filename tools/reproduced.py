"""The headlines of published studies of allreduce and training, as our simulator has them.

CLAIMS is the table: each row has the published figure and a function that computes ours.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import simulated_workers
from simulated_workers import Workers

from gradred.simulate import plans
from gradred.simulate.plans import Layout
from gradred.simulate.presets import NETWORKS
from gradred_lab.simulate import messages, what_if, work
from gradred_lab.simulate.dag import Rules, run
from gradred_lab.simulate.exchange import Exchange, Place, Way
from gradred_lab.simulate.work import DEVICES

MIB = 1 << 20
MPI_PLANS = ("ring", "recursive_doubling", "rabenseifner", "hierarchical")
_MPICH_SHORT, _OPENMPI_SHORT = 2048, 10_000  # bytes up to which both take recursive doubling


@dataclass(frozen=True)
class Figure:
    """One of our figures, in the row of a setting; `published` is that of the row, or empty."""

    setting: str
    column: str
    published: str
    ours: float
    unit: str
    error: str

    @property
    def text(self) -> str:
        """The figure with its unit."""
        if not math.isfinite(self.ours):
            return "never"
        return (
            f"{self.ours:,.0f}{self.unit}" if self.ours >= 1000 else f"{self.ours:.3g}{self.unit}"
        )


@dataclass(frozen=True)
class Finding:
    """What came out: whether the claim holds in our model, what it needs, and why."""

    figures: Sequence[Figure]
    holds: str
    assumption: str
    why: str


@dataclass(frozen=True)
class Claim:
    """A published headline. `whole` ones take minutes, and are left to the nightly run."""

    name: str
    headline: str
    source: str
    find: Callable[[], Finding] = field(repr=False)
    whole: bool = False


def _ratio(found: Sequence[float]) -> str:
    return f"{min(found):.2g} to {max(found):.2g}"


# ---- a ring of 512 ranks ------------------------------------------------------------------------


def _seconds(plan: str, net: str, layout: Layout, nbytes: int) -> float:
    return plans.simulate(plan, NETWORKS[net], layout, nbytes).seconds


def _default(mpi: str, nbytes: int) -> str:
    """The algorithm that an MPI takes by its fixed rules, of those that we have."""
    if mpi == "MPICH":
        return "recursive_doubling" if nbytes <= _MPICH_SHORT else "rabenseifner"
    return "recursive_doubling" if nbytes < _OPENMPI_SHORT else "ring"


_RINGS = (("10GbE", 512), ("10GbE", 128), ("25GbE-RoCE", 512), ("Leonardo", 512), ("Sunway", 512))


def ring() -> Finding:
    """Against recursive doubling, and against what two MPIs take by default."""
    figures: list[Figure] = []
    doubling: list[float] = []
    mpich: list[float] = []
    for net, hosts in _RINGS:
        layout = Layout.even(512, hosts)
        for nbytes in (4 * MIB, 64 * MIB):
            own = _seconds("ring", net, layout, nbytes)
            where = f"{net}, {512 // hosts} a host, {nbytes // MIB} MiB"
            for other in ("recursive_doubling", _default("MPICH", nbytes)):
                found = _seconds(other, net, layout, nbytes) / own
                (doubling if other == "recursive_doubling" else mpich).append(found)
                against = "over " + other.replace("_", " ")
                figures.append(Figure(where, against, "", found, "x", NETWORKS[net].error))
    return Finding(
        figures,
        "against recursive doubling; not against a tuned default",
        "`MPI_Allreduce` takes recursive doubling at lengths for which no tuned MPI takes it, and "
        "vectors have a few MiB, on 10 Gb/s Ethernet tens of MiB; for longer ones, and where hosts "
        "have several ranks, the ratio is larger",
        f"The ring is {_ratio(doubling)} times as fast as recursive doubling. Against MPICH's "
        f"default, which is Rabenseifner's algorithm from 2 KiB on, it is {_ratio(mpich)} times as "
        "fast: it sends as many bytes, and has 1,022 rounds in place of 18. Open MPI's fixed rules "
        "take a ring above 10 kB, so against them the ratio is 1.",
    )


# ---- parameter servers --------------------------------------------------------------------------

_SUNWAY = (("alexnet_grouped", 256, 10.0), ("googlenet", 32, 77.0), ("resnet50", 32, 98.0))
_SUNWAY_BATCH = {"alexnet_grouped": 256, "googlenet": 128, "resnet50": 32}


def servers() -> Finding:
    """One allreduce of contiguous gradients against a server that gathers and broadcasts."""
    figures: list[Figure] = []
    error = NETWORKS["Sunway"].error
    for model, hosts, published in _SUNWAY:
        place = Place(NETWORKS["Sunway"], Layout.even(hosts, hosts))
        alone = work.on_device(model, DEVICES["SW26010"], _SUNWAY_BATCH[model])
        ours = messages.iterate("contiguous", alone, Exchange(place, Way()))
        sizes = [float(one) for one in alone.nbytes]
        where, claimed = f"{model}, {hosts} hosts", f"{published:g}x"
        for name, grpc in (("", False), (" over gRPC", True)):
            exchange = Exchange(place, Way(servers=1, grpc=grpc))
            found = run(alone, messages.each(alone, exchange), Rules(after_backward=True), exchange)
            iterations = found.iteration / ours.iteration
            exchanges = found.exchange / ours.exchange
            figures += [
                Figure(where, f"exchange{name}", claimed, exchanges, "x", error),
                Figure(where, f"iteration{name}", claimed, iterations, "x", what_if.ERROR),
            ]
        at_server = published * ours.iteration - (ours.iteration - ours.exposed)
        rate = 2 * hosts * sum(sizes) / at_server
        figures.append(Figure(where, "server it needs", claimed, rate / 1e6, " MB/s", error))
    return Finding(
        figures,
        "in direction; the order of the three only with a slow server",
        "a server that handles, in and out, what the last column has, on links of 14,000 MB/s",
        "A server gets p vectors and sends p, an allreduce moves two: the ratio of exchanges is "
        "p at most as long as the links decide, so 77 and 98 on 32 hosts need a server that is "
        "slower than its links, and per message too. 10 on 256 hosts is far below p = 256, so most "
        "of that iteration was computation.",
    )


# ---- 64 GPUs, and NCCL --------------------------------------------------------------------------


@functools.cache
def _pascal(hosts: int) -> Place:
    """Hosts with one P100 each and a 100 Gb/s adapter."""
    base = NETWORKS["V100-100Gb"]
    network = dataclasses.replace(base, local=1, link="pci", rank_port=DEVICES["P100"].bus)
    return Place(network, Layout.even(hosts, hosts))


def pascal() -> Finding:
    """ResNet-50 on 64 P100 by Horovod, over an MPI's plans and over NCCL's ring."""
    place = _pascal(64)
    speeds: dict[tuple[str, int], float] = {}
    figures: list[Figure] = []
    group = messages.buckets(64 * MIB)  # Horovod's fusion buffer
    for batch in (32, 64):
        alone = work.on_device("resnet50", DEVICES["P100"], batch)
        for name, way in (("MPI", Way(MPI_PLANS)), ("NCCL's ring", Way(("nccl_ring",)))):
            exchange = Exchange(place, way)
            found = run(alone, group(alone, exchange), Rules(copies=2.0), exchange)
            speeds[name, batch] = alone.seconds / found.iteration
            share = 100 * speeds[name, batch]
            figures.append(Figure(f"batch {batch}", name, "", share, " %", what_if.ERROR))
        gain = 100 * (speeds["MPI", batch] / speeds["NCCL's ring", batch] - 1)
        figures.append(Figure(f"batch {batch}", "MPI over NCCL", "", gain, " %", what_if.ERROR))
    return Finding(
        figures,
        "the efficiency; the difference is smaller than the error",
        "one GPU a host, an adapter of 100 Gb/s, gradients fused in 64 MiB during backward, and "
        "nothing but gradients is waited for (no input, no late worker)",
        "Nearly all of the exchange is hidden by backward, so what is left is the last bucket. The "
        "allreduce itself differs more than the iterations do.",
    )


_LENGTHS = (("small", 8, "5x"), ("medium", 64 << 10, "17x"), ("large", 256 * MIB, "29 %"))


def ring_only_nccl() -> Finding:
    """The fastest of an MPI's plans against NCCL with rings alone, on one GPU a host."""
    figures: list[Figure] = []
    found: dict[tuple[int, str], float] = {}
    error = f"of MareNostrum5-H100, the nearest: {NETWORKS['MareNostrum5-H100'].error}"
    for hosts in (16, 64):
        place = _pascal(hosts)
        for kind, nbytes, published in _LENGTHS:
            own = min(
                plans.simulate(plan, place.network, place.layout, nbytes).seconds
                for plan in MPI_PLANS
                if not plans.find(plan).why_not(place.network, place.layout)
            )
            nccl = plans.simulate("nccl_ring", place.network, place.layout, nbytes).seconds
            found[hosts, kind] = nccl / own
            figures.append(
                Figure(f"{kind}, {nbytes} B", f"{hosts} GPUs", published, nccl / own, "x", error)
            )
    return Finding(
        figures,
        "small; medium by a third of the factor; not large",
        "NCCL before 2.4, which has rings alone, and an MPI whose messages between GPUs take about "
        "7 us (GPUDirect RDMA)",
        "A ring of p ranks has 2 (p - 1) rounds, recursive doubling lg p: the ratio grows with p "
        f"({found[16, 'small']:.2g}x on 16 and {found[64, 'small']:.2g}x on 64 GPUs for 8 B). For "
        "long vectors both send 2 n (p - 1) / p bytes over the same links: 29 % needs links that "
        "NCCL leaves idle, which the model does not have.",
    )


# ---- many machines ------------------------------------------------------------------------------

_SCALES = (("V100-100Gb", 24), ("25GbE-RoCE", 24), ("V100-1000", 125))
_NETS_PLANS = {125: ("ring", "rabenseifner", "nccl_ring", "nccl_tree")}  # hierarchical: minutes


def scaling() -> Finding:
    """Efficiency of three networks on 24 machines, and on 1,000 GPUs."""
    figures: list[Figure] = []
    least: dict[tuple[str, str], float] = {}
    for net, hosts in _SCALES:
        network = NETWORKS[net]
        local = network.local
        place = Place(network, Layout.even(hosts * local, hosts))
        exchange = Exchange(place, Way(_NETS_PLANS.get(hosts, Way().plans)))
        for model, batch in (("resnet50", 128), ("bert_base", 32), ("vgg16", 64)):
            alone = work.on_device(model, DEVICES["V100"], batch)
            found = {
                name: alone.seconds / messages.iterate(name, alone, exchange).iteration
                for name in ("bsp", "buckets")
            }
            least[net, model] = max(found.values())
            for name, share in found.items():
                where = f"{net}, {hosts * local} GPUs on {hosts} hosts, {model}"
                figures.append(Figure(where, name, "", 100 * share, " %", what_if.ERROR))
    below = [f"{model} on {net}" for (net, model), share in least.items() if share < 0.8]
    return Finding(
        figures,
        "where gradients are exchanged during backward, on 100 Gb/s between hosts",
        "100 Gb/s for 8 GPUs, batches that fill a V100, exchange during backward, a plan with few "
        "rounds for short messages, and input that keeps up",
        f"Below 80 % with every scheme: {', '.join(below) or 'none'}. Only communication is in the "
        "model: late workers and input are not, and published runs lose most there.",
    )


# ---- schemes of 8 V100 by TCP ----

_V100_TCP = (("no overlap", "bsp", "63 %"), ("layer by layer", "wfbp", "89 %"),
             ("merged", "mgwfbp", "98 %"))  # fmt: skip


def over_tcp() -> Finding:
    """ResNet-50 on 8 V100 of two hosts, by NCCL's ring over 10 GbE."""
    hosts, tcp = NETWORKS["P40-56Gb-IB"], NETWORKS["10GbE"]  # GPUs on PCIe 3.0; the network
    network = dataclasses.replace(
        hosts, across=tcp.across, port=tcp.port, overhead=tcp.overhead, device="V100"
    )
    exchange = Exchange(Place(network, Layout.even(8, 2)), Way(("nccl_ring",)))
    alone = work.on_device("resnet50", DEVICES["V100"], 64, 253.1)
    figures = []
    for about, scheme, published in _V100_TCP:
        share = 100 * alone.seconds / messages.iterate(scheme, alone, exchange).iteration
        figures.append(Figure(about, "of linear", published, share, " %", what_if.ERROR))
    return Finding(
        figures,
        "within 2 points",
        "NCCL takes its ring, and each message costs 0.25 ms beside its bytes",
        "161 messages of 0.25 ms are 40 ms, of which backward hides a part; all bytes take 159 ms, "
        "which one message after backward adds to an iteration of 253 ms. Without a cost of a "
        "message the second figure is 100 %. The cost was chosen with this row in view.",
    )


# ---- asynchronous workers -----------------------------------------------------------------------

_STEPS = ((0.1, 0.0), (0.1, 0.9))
_STALE_ERROR = (
    "simulated clocks, real gradients; the synchronous run has the bits of a measured one, an "
    "asynchronous one was off by 2 % on 2 workers (schemes-mpich-2workers-2026-11-28.json)"
)


def asynchronous() -> Finding:
    """Iterations to one loss, and iterations in the same time, of ASP over BSP."""
    figures: list[Figure] = []
    to_loss: list[float] = []
    in_time: list[float] = []
    late_ones: list[float] = []
    for count, (rate, momentum), late in itertools.product((8, 32), _STEPS, (1.0, 3.0)):
        given = Workers(count, rate, momentum, late=late)
        asp = simulated_workers.run(given)
        bsp = simulated_workers.run(dataclasses.replace(given, staleness=0, together=True))
        where = f"{count} workers, momentum {momentum:g}{', one late' if late > 1 else ''}"
        more = asp.iterations / bsp.iterations
        faster = asp.iterations / asp.seconds * bsp.seconds / bsp.iterations
        to_loss.append(more)
        (late_ones if late > 1 else in_time).append(faster)
        figures += [
            Figure(where, "to one loss", "", more, "x", _STALE_ERROR),
            Figure(where, "in the same time", "", faster, "x", _STALE_ERROR),
        ]
    return Finding(
        figures,
        "iterations in the same time, with a late worker; not iterations to one loss",
        "one worker is about three times as slow as the others, or the headline counts how "
        "many iterations are made, not how many are needed",
        f"In the same time ASP makes {_ratio(in_time)} times as many, since nobody waits, and "
        f"{_ratio(late_ones)} times where one worker is three times as slow. To one loss it needs "
        f"{_ratio(to_loss)} times as many: on this small network old parameters hurt little.",
    )


# ---- copies -------------------------------------------------------------------------------------


def copies() -> Finding:
    """What two copies of all gradients take of an iteration."""
    figures: list[Figure] = []
    for model, device, net, hosts in (
        ("alexnet_grouped", "SW26010", "Sunway", 256),
        ("resnet50", "SW26010", "Sunway", 32),
        ("alexnet", "P40", "P40-56Gb-IB", 4),
        ("bert_base", "V100", "V100-100Gb", 4),
    ):
        place = Place(NETWORKS[net], Layout.even(hosts * NETWORKS[net].local, hosts))
        alone = work.on_device(model, DEVICES[device], 64)
        exchange = Exchange(place, Way())
        packed = messages.iterate("bsp", alone, exchange)
        spared = packed.iteration - messages.iterate("contiguous", alone, exchange).iteration
        where = f"{model}, {device}, batch 64"
        share = 100 * spared / packed.iteration
        figures += [
            Figure(where, "time", "", 1e3 * spared, " ms", what_if.ERROR),
            Figure(where, "of the iteration", "", share, " %", what_if.ERROR),
        ]
    return Finding(
        figures,
        "yes; it matters little",
        "gradients would otherwise be packed into one buffer and unpacked from it",
        "`gradred.schemes` copies scattered gradients once each way, contiguous ones not at all "
        "(`contiguous=`). The copies run at the speed of the device's memory, which is high beside "
        "that of a network.",
    )


CLAIMS: tuple[Claim, ...] = (
    Claim("ring", "A ring is 2.3 to 4.1 times as fast as `MPI_Allreduce` on 512 ranks",
          "studies of ring allreduce for training", ring),
    Claim("servers", "A decentralised exchange is 10 (AlexNet, 256 hosts), 77 (GoogLeNet, 32) and "
          "98 times (ResNet, 32) as fast as a parameter server",
          "a study of Caffe on Sunway TaihuLight", servers),
    Claim("pascal", "ResNet-50 has 90 % efficiency on 64 Pascal GPUs, and an MPI is 3 % faster "
          "than NCCL 2", "Awan et al., CCGRID 2019 (arXiv 1810.11112)", pascal),
    Claim("nccl", "An allreduce of an MPI is 5 times, 17 times and 29 % faster than NCCL 2 with "
          "rings alone, for small, medium and large messages",
          "Awan et al., CCGRID 2019 (arXiv 1810.11112)", ring_only_nccl),
    Claim("scaling", "Scaling is at least 80 % of linear beyond 20 machines, and on 1,000 GPUs",
          "studies of training on many GPUs", scaling, whole=True),
    Claim("tcp", "8 V100 on 10 GbE reach 63, 89 and 98 % of linear scaling without overlap, layer "
          "by layer and with merged gradients", "HKBU-HPML/ddl-benchmarks (arXiv 2005.13247)",
          over_tcp),
    Claim("asynchronous", "Asynchronous workers (ASP) make 2 to 3 times the iterations of "
          "synchronous ones (BSP)", "studies of parameter servers", asynchronous, whole=True),
    Claim("copies", "Contiguous gradients save two copies",
          "a study of Caffe on Sunway TaihuLight", copies),
)  # fmt: skip
