"""The plans that can be simulated: schedules over messages, and native plans.

A native plan runs no schedule of messages. It is simulated as the schedule that specifies it, on a
network whose paths inside hosts are what the plan uses, and with terms of its own: flags in shared
memory as the selector takes them, launches of kernels, NCCL's latencies.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from gradred import _core, schedules
from gradred.errors import UsageError, explain
from gradred.simulate.presets import UNLIMITED, Network

# Shared memory: until a peer sees a flag, what begins and ends a call, and the time to look at a
# flag, a round figure.
_MEMORY = _core.memory_model()
_FLAG, _CALL, _LOOK = _MEMORY["alpha"], _MEMORY["call"], 0.02e-6

# A kernel on each GPU that waits for its peers: launch and synchronisation, and a flag over NVLink.
_LAUNCH, _GPU_FLAG = 6e-6, 1.5e-6

# NCCL's own model (src/graph/tuning.cc of NCCL 2.20): seconds of a call, seconds of a step inside
# hosts and between them, and the share of the links' speed that is data.
_NCCL: dict[str, dict[str, tuple[float, dict[str, float], float, float]]] = {
    "nccl_ring": {
        "LL": (6.6e-6, {"nvlink": 0.6e-6, "pci": 1.0e-6}, 2.7e-6, 1 / 4),
        "LL128": (14.0e-6, {"nvlink": 1.9e-6}, 4.0e-6, 0.92),
        "Simple": (8.4e-6, {"nvlink": 3.4e-6, "pci": 5.7e-6}, 14.0e-6, 1.0),
    },
    "nccl_tree": {
        "LL": (6.8e-6, {"nvlink": 0.6e-6, "pci": 1.0e-6}, 5.0e-6, 0.92 / 3.8),
        "LL128": (14.0e-6, {"nvlink": 1.25e-6}, 8.5e-6, 0.92 * 120 / 128),
        "Simple": (0.0, {"nvlink": 28e-6, "pci": 28e-6}, 28e-6, 0.92),
    },
}
_NCCL_SLICES = (1, 8)  # NCCL keeps eight parts of a buffer in flight

_MOST_IN_FLIGHT = 1 << 15  # messages; a simulation of more took minutes

# Bytes of a slice, a guess, and slices: as many as plan `hierarchical` takes at most.
_SMALLEST_SLICE, _MOST_SLICES = 1 << 20, 8


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which ranks share a host."""

    host_of: tuple[int, ...]

    @classmethod
    def even(cls, ranks: int, hosts: int) -> Layout:
        """Runs of ranks on each host, as equal as they can be."""
        return cls(tuple(rank * hosts // ranks for rank in range(ranks)))

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.host_of)

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return 1 + max(self.host_of)

    @property
    def local(self) -> int:
        """Ranks of each host; 0 if hosts differ."""
        return 0 if self.ranks % self.hosts else self.ranks // self.hosts


def layout_of(network: Network, ranks: int | None, hosts: int | None, thing: str) -> Layout:
    """The layout of so many ranks and hosts; None: as many as the network has for the other one.

    Args:
        network: the cluster.
        ranks: all of them.
        hosts: which share the ranks equally.
        thing: what a rank is called in an error.

    Raises:
        UsageError: there are more hosts than ranks.
    """
    if ranks is None:
        ranks = (hosts or network.hosts) * network.local
    if hosts is None:
        hosts = -(-ranks // network.local)
    if hosts > ranks:
        found = f"there are {ranks} {thing}s for {hosts} hosts"
        remedy = f"Give at most one host for each {thing}"
        raise UsageError(explain(f"--hosts {hosts}", found, remedy))
    return Layout.even(ranks, hosts)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run a plan; a plan takes the fastest of its variants."""

    label: str
    algorithm: str = ""
    parameters: dict[str, schedules.Parameter] = dataclasses.field(default_factory=dict)
    made: Callable[[], list[schedules.Schedule]] | None = None
    """The schedules of all ranks, where no algorithm of the table is meant."""
    slices: int = 1
    changes: dict[str, object] = dataclasses.field(default_factory=dict)
    """Fields of the cluster that this variant changes."""
    call: float = 0.0
    """Seconds of a call beside its schedule."""
    share: float = 1.0
    """The share of data in the bytes on the links."""
    collective: str = "allreduce"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a plan does, whom it serves and how it is run."""

    about: str
    why_not: Callable[[Network, Layout], str]
    """Empty if the plan serves such ranks."""
    variants: Callable[[Network, Layout, int], Iterator[Variant]]
    has_own_terms: bool = False
    """Measured terms of its own stand for the network's. A calibration leaves it out."""


def _algorithm(name: str) -> Plan:
    rows = schedules.algorithms()
    row = next(r for r in rows if (r["collective"], r["name"]) == ("allreduce", name))

    def why_not(network: Network, layout: Layout) -> str:
        return _too_many_in_flight(network, layout) if name == "direct" else ""

    def variants(_network: Network, _layout: Layout, _nbytes: int) -> Iterator[Variant]:
        yield Variant("", name)

    return Plan(row["about"], why_not, variants)


def _too_many_in_flight(network: Network, layout: Layout) -> str:
    """Whether so many messages share links at once that the simulation takes minutes."""
    crosses = network.torus or network.hosts_per_switch or not layout.local
    messages = layout.ranks * (layout.ranks if crosses else layout.local)
    if messages <= _MOST_IN_FLIGHT >> (1 if network.torus else 0):
        return ""
    return f"{messages} messages in flight at once take minutes to simulate"


# ---- shared memory ------------------------------------------------------------------------------


def _in_memory(network: Network) -> dict[str, object]:
    """A message inside a host is a flag, and the reader's loads."""
    cluster = network.cluster([0])
    paths = list(cluster["paths"])  # type: ignore[call-overload]
    paths[:2] = [(_FLAG, network.inside[1])] * 2
    return {"paths": paths}


def _why_not_node(network: Network, layout: Layout) -> str:
    if network.memory != "host":
        return "arrays are in the memory of GPUs"
    return "" if layout.hosts == 1 else "not all ranks share memory"


def _node(network: Network, layout: Layout, _nbytes: int) -> Iterator[Variant]:
    changes = {
        **_in_memory(network),
        "send_overhead": _LOOK,
        "receive_overhead": _LOOK,
        "rendezvous": UNLIMITED,
    }
    yield Variant("each a part", "direct", changes=changes, call=_CALL)
    if layout.ranks > 1:
        all_of_it: dict[str, schedules.Parameter] = {"k": layout.ranks}
        yield Variant(
            "each all of it", "recursive_multiplying", all_of_it, changes=changes, call=_CALL
        )


def _why_not_hierarchical(_network: Network, layout: Layout) -> str:
    return "" if 1 < layout.hosts < layout.ranks else "it needs several hosts with several ranks"


def _hierarchical(network: Network, layout: Layout, nbytes: int) -> Iterator[Variant]:
    groups: dict[str, schedules.Parameter] = (
        {"local": layout.local} if layout.local else {"groups": list(layout.host_of)}
    )
    changes = _in_memory(network) if network.memory == "host" else {}
    most = min(max(nbytes // _SMALLEST_SLICE, 1), _MOST_SLICES)
    for leaders in (1, 0):
        for across in ("recursive_doubling", "rabenseifner"):
            for slices in sorted({1, most}):
                parameters = {**groups, "leaders": leaders, "across": across, "inside": "direct"}
                label = f"{across} by {'leaders' if leaders else 'all'}"
                label += f", {slices} slices" if slices > 1 else ""
                yield Variant(label, "hierarchical", parameters, slices=slices, changes=changes)


def _why_not_compressed(_network: Network, layout: Layout) -> str:
    return "" if layout.hosts > 1 else "nothing is compressed on one host"


def _compressed(form: str) -> Callable[[Network, Layout, int], Iterator[Variant]]:
    def variants(network: Network, layout: Layout, nbytes: int) -> Iterator[Variant]:
        seen = set()
        for one in _hierarchical(network, layout, nbytes):
            shares = one.parameters["leaders"], one.slices
            if shares not in seen:
                seen.add(shares)
                label = one.label.removeprefix(f"{one.parameters['across']} ")
                yield dataclasses.replace(
                    one, label=label, parameters=one.parameters | {"wire": form}
                )

    return variants


# ---- GPUs ---------------------------------------------------------------------------------------


def _why_not_on_gpus(network: Network, layout: Layout) -> str:
    if network.memory != "gpu":
        return "arrays are in host memory"
    return "" if layout.hosts == 1 else "its kernels reach the GPUs of one host"


def _kernels(algorithm: str) -> Callable[[Network, Layout, int], Iterator[Variant]]:
    def variants(network: Network, layout: Layout, _nbytes: int) -> Iterator[Variant]:
        changes: dict[str, object] = {
            "paths": [(_GPU_FLAG, network.inside[1])] * 5,
            "send_overhead": 0.0,
            "receive_overhead": 0.0,
            "rendezvous": UNLIMITED,
        }
        parameters: dict[str, schedules.Parameter] = (
            {"k": max(2, layout.ranks)} if algorithm == "recursive_multiplying" else {}
        )
        yield Variant("", algorithm, parameters, changes=changes, call=_LAUNCH)

    return variants


def _why_not_nccl(network: Network, layout: Layout) -> str:
    if network.memory != "gpu":
        return "arrays are in host memory"
    if not network.link:
        return "its latencies on these links are not known"
    if layout.ranks == 1:
        return "one rank has nothing to exchange"
    return "" if layout.local else "hosts have different numbers of ranks"


def _nccl(name: str) -> Callable[[Network, Layout, int], Iterator[Variant]]:
    def variants(network: Network, layout: Layout, nbytes: int) -> Iterator[Variant]:
        for protocol, (call, inside, across, share) in _NCCL[name].items():
            if network.link not in inside:
                continue
            changes: dict[str, object] = {
                "paths": [(inside[network.link], UNLIMITED)] * 2 + [(across, UNLIMITED)] * 3,
                # Rings and trees of their own leave a host through each of its ports.
                "port": network.port * network.ports,
                "ports": 1,
                "lanes": 1,
                "send_overhead": 0.0,
                "receive_overhead": 0.0,
                "reduce": 0.0,  # done by the kernel that receives
                "rendezvous": UNLIMITED,
            }
            if name == "nccl_ring":
                yield Variant(protocol, "ring", changes=changes, call=call, share=share)
                continue
            for slices in _NCCL_SLICES if nbytes >= _SMALLEST_SLICE else (1,):
                yield Variant(
                    protocol,
                    made=functools.partial(_two_trees, layout.ranks, layout.local),
                    slices=slices,
                    changes=changes,
                    call=call,
                    share=share,
                )

    return variants


@functools.lru_cache(maxsize=1)
def _two_trees(ranks: int, local: int) -> list[schedules.Schedule]:
    return _core.two_trees(ranks, local, 1)


PLANS: dict[str, Plan] = {
    **{name: _algorithm(name) for name in schedules.names() if name != "hierarchical"},
    "hierarchical": Plan(
        "inside each host through its memory, between hosts by a schedule",
        _why_not_hierarchical,
        _hierarchical,
    ),
    "node": Plan("memory that all ranks share", _why_not_node, _node, True),
    "one_shot": Plan(
        "a kernel on each GPU that reads the inputs of all ranks",
        _why_not_on_gpus,
        _kernels("recursive_multiplying"),
        True,
    ),
    "two_shot": Plan(
        "a kernel on each GPU that reduces a slice and reads the others",
        _why_not_on_gpus,
        _kernels("direct"),
        True,
    ),
    "nccl_ring": Plan(
        "NCCL's rings, by NCCL's own latencies", _why_not_nccl, _nccl("nccl_ring"), True
    ),
    "nccl_tree": Plan("NCCL's two trees, likewise", _why_not_nccl, _nccl("nccl_tree"), True),
}

WIRES: dict[str, Plan] = {
    f"wire_{form}": Plan(
        f"plan hierarchical with {form} between hosts", _why_not_compressed, _compressed(form)
    )
    for form in _core.WIRES
}
"""Plans that only a call with `wire=` has: results differ, so no comparison has them unasked."""


@dataclasses.dataclass(frozen=True)
class Simulated:
    """What a plan takes for one length, in simulated time."""

    seconds: float
    variant: str
    """The fastest variant of a native plan."""
    slices: int
    rounds: int
    messages: int
    bytes_across: float
    simulated_ranks: int


def simulate(
    name: str,
    network: Network,
    layout: Layout,
    nbytes: int,
    *,
    collective: str = "allreduce",
    noise: float = 0.0,
    seed: int = 0,
) -> Simulated:
    """Simulate one operation. Takes from milliseconds to minutes, by the number of ranks.

    Args:
        name: one of PLANS or WIRES; of another collective one of `schedules.names(collective)`.
        network: the cluster.
        layout: where the ranks are.
        nbytes: the length of the vector.
        collective: the operation.
        noise: deviation of the logarithm of each message's and each reduction's time; 0: none.
        seed: of the noise.

    Raises:
        UsageError: there is no such plan, or it does not serve these ranks.

    Example:
        >>> from gradred.simulate.presets import NETWORKS
        >>> found = simulate("ring", NETWORKS["10GbE"], Layout.even(8, 8), 1 << 20)
        >>> round(found.seconds * 1e6)
        2169
    """
    if collective != "allreduce":
        one = Variant("", name, collective=collective)
        return _run(one, network, layout, nbytes, noise, seed)
    plan = find(name)
    why_not = plan.why_not(network, layout)
    if why_not:
        raise UsageError(explain(f"plan {name}", why_not, "Leave it out, or change the ranks"))
    variants = plan.variants(network, layout, nbytes)
    found = [_run(one, network, layout, nbytes, noise, seed) for one in variants]
    return min(found, key=lambda one: one.seconds)


def simulate_own(
    given: Sequence[schedules.Schedule],
    network: Network,
    layout: Layout,
    nbytes: int,
    *,
    slices: int = 1,
    noise: float = 0.0,
    seed: int = 0,
) -> Simulated:
    """Simulate schedules of the caller's own, one for each rank in order of rank.

    The arguments are those of `simulate`; `slices` executions of the schedules run at once, each on
    its part of the vector.

    Raises:
        UsageError: a schedule is not valid, or the schedules wait for each other.

    Example:
        >>> from gradred.schedules import make_all
        >>> from gradred.simulate.presets import NETWORKS
        >>> network, layout = NETWORKS["10GbE"], Layout.even(8, 8)
        >>> found = simulate_own(make_all("ring", 8), network, layout, 1 << 20)
        >>> found.seconds == simulate("ring", network, layout, 1 << 20).seconds
        True
    """
    return _run(
        Variant("own", made=lambda: list(given), slices=slices),
        network,
        layout,
        nbytes,
        noise,
        seed,
    )


def find(name: str) -> Plan:
    """The plan of this name; raises UsageError, which lists them."""
    known = PLANS | WIRES
    if name in known:
        return known[name]
    found = f"there is no such plan. There are: {', '.join(known)}"
    raise UsageError(explain(f"--algorithm {name}", found, "Name some of these"))


def _run(
    variant: Variant, network: Network, layout: Layout, nbytes: int, noise: float, seed: int
) -> Simulated:
    cluster = network.cluster(layout.host_of, noise) | variant.changes
    length, slices = nbytes / variant.share, variant.slices
    if variant.made is not None:
        given: Sequence[schedules.Schedule] = variant.made()
        found = _core.simulate_schedules(given, cluster, length, slices=slices, seed=seed)
    else:
        found = _core.simulate_algorithm(
            variant.collective,
            variant.algorithm,
            variant.parameters,
            cluster,
            length,
            slices=slices,
            seed=seed,
        )
    return Simulated(
        seconds=variant.call + found["seconds"],
        variant=variant.label,
        slices=slices,
        rounds=found["rounds"],
        messages=found["messages"],
        bytes_across=found["bytes_across"] * variant.share,
        simulated_ranks=found["simulated_ranks"],
    )
