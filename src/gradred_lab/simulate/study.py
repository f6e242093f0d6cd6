"""`gradred simulate study`: the eleven items of a study of training, from one command.

Hardware, topology, software, networks, phases of one iteration, one device, one host, exchange
inside hosts, exchange across hosts, scaling across hosts, speed of all cases.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradred.simulate import plans
from gradred.simulate.plans import Layout
from gradred.simulate.presets import UNLIMITED, Network
from gradred_lab.simulate import messages, what_if
from gradred_lab.simulate.exchange import Exchange, Place
from gradred_lab.simulate.work import Work

SCHEMA = "gradred-simulate-study/1"
SIZES = tuple(1 << power for power in (10, 14, 18, 22, 26))
"""Bytes of the exchanges."""

ITEMS = {
    "hardware": "Hardware",
    "topology": "Topology",
    "software": "Software",
    "networks": "Networks",
    "phases": "Phases of one iteration",
    "device": "One device",
    "host": "One host",
    "inside": "Exchange inside a host",
    "across": "Exchange across hosts",
    "scaling": "Scaling across hosts",
    "speed": "Speed of all cases",
}
"""The eleven items, in the order of the report."""


@dataclass(frozen=True)
class Model:
    """What is trained: samples of a device in an iteration, and the work of it."""

    batch: int
    work: Work
    device: dict[str, str]
    is_measured: bool = False
    """Whether a trace has its phases; else they follow from the device's speed."""


@dataclass(frozen=True)
class Study:
    """What is to be studied. The first model and scheme are those of single tables."""

    net: str
    network: Network
    local: int
    """Devices of a host."""
    hosts: tuple[int, ...]
    models: tuple[Model, ...]
    schemes: tuple[str, ...]
    plans: tuple[str, ...]
    error: str
    """The error of simulated iterations, in words."""
    measured: tuple[Layout, Exchange] | None = None
    """Ranks on which messages were measured, and what they cost there."""


def run(study: Study, facts: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """Simulate all items; the record that the report shows.

    Args:
        study: what is to be studied.
        facts: `hardware`, `topology` and `software` of this machine, by name.

    Raises:
        UsageError: a scheme is not known, or no plan serves some of the ranks.
    """
    most = max(study.hosts)
    cases = [
        _case(study, model, hosts, scheme)
        for model, hosts, scheme in itertools.product(study.models, study.hosts, study.schemes)
    ]
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "simulated": True,
        "net": study.net,
        "local": study.local,
        "hosts": list(study.hosts),
        "error_of_iterations": study.error,
        "error_of_exchanges": study.network.error,
        "models": [model.work.name for model in study.models],
    }
    items: dict[str, Any] = {
        "hardware": dict(facts["hardware"]) | _hardware(study),
        "topology": dict(facts["topology"]) | _topology(study),
        "software": dict(facts["software"]),
        "networks": _networks(study.network),
        "phases": [one for one in cases if one["hosts"] == most],
        "device": [_alone(model) for model in study.models],
        "host": [_inside(study, model, gpus) for model in study.models for gpus in _powers(study)],
        "inside": _exchanges(study, 1),
        "across": _exchanges(study, most),
        "scaling": [_scaling(one, cases) for one in cases],
        "speed": cases,
    }
    return record | {"items": items}


def _powers(study: Study) -> list[int]:
    """1, 2, 4, ... devices of one host, and all of them."""
    powers = [1 << power for power in range(study.local.bit_length())]
    return sorted({*powers, study.local})


def _hardware(study: Study) -> dict[str, str]:
    shown = {"cluster (simulated)": f"{study.network.about}; source: {study.network.source}"}
    for model in study.models:
        shown[f"device of {model.work.name}"] = (
            f"{model.device['about']}; source: {model.device['source']}"
        )
    return shown


def _topology(study: Study) -> dict[str, str]:
    counts = ", ".join(map(str, study.hosts))
    network = study.network
    between = f"torus of {network.torus} dimensions" if network.torus else "switches"
    return {
        "cluster (simulated)": f"{counts} hosts with {study.local} devices each, {between}, "
        f"ports of a host: {network.ports}",
        "inside hosts (simulated)": {"nvlink": "NVLink", "pci": "PCIe"}.get(
            network.link, "shared memory"
        ),
    }


def _networks(network: Network) -> list[dict[str, Any]]:
    levels = {"inside a host": network.inside, "between hosts": network.across}
    if network.beyond is not None:
        levels["between switches"] = network.beyond
    port = {"inside a host": network.rank_port, "between hosts": network.port}
    return [
        {
            "level": name,
            "latency_us": 1e6 * latency,
            "overhead_us": 1e6 * network.overhead,
            "bytes_per_s": _finite(min(speed, port.get(name, network.port))),
        }
        for name, (latency, speed) in levels.items()
    ]


def _finite(value: float) -> float | None:
    return None if value == UNLIMITED else value


def _case(study: Study, model: Model, hosts: int, scheme: str) -> dict[str, Any]:
    """One model on so many hosts under a scheme."""
    layout = Layout.even(hosts * study.local, hosts)
    question = _question(study, model, layout)
    row = what_if.row(question, scheme)
    return {"model": model.work.name, "hosts": hosts, "devices": layout.ranks, **row}


def _question(study: Study, model: Model, layout: Layout) -> what_if.Question:
    own = study.measured if study.measured and study.measured[0] == layout else None
    return what_if.Question(
        net=study.net,
        place=Place(study.network, layout),
        work=model.work,
        batch=model.batch,
        device=model.device,
        schemes=study.schemes,
        plans=study.plans,
        error=study.error,
        measured=own[1] if own else None,
        messages_from="measured" if own else "simulated",
    )


def _alone(model: Model) -> dict[str, Any]:
    """A device without exchange."""
    work = dataclasses.replace(model.work, late=0.0)
    free = Exchange.measured({0: 0.0, 1: 0.0})
    phases = messages.iterate("none", work, free)
    return {
        "model": work.name,
        "measured": model.is_measured,
        "batch": model.batch,
        "gradients": len(work.nbytes),
        "bytes": float(work.nbytes.sum()),
        **{f"{name}_ms": 1e3 * getattr(phases, name) for name in ("forward", "backward", "update")},
        "iteration_ms": 1e3 * phases.iteration,
        "samples_per_s": model.batch / phases.iteration,
    }


def _inside(study: Study, model: Model, devices: int) -> dict[str, Any]:
    """Some devices of one host, under the first scheme."""
    question = _question(study, model, Layout.even(devices, 1))
    row = what_if.row(question, study.schemes[0])
    return {"model": model.work.name, "devices": devices, **row}


def _exchanges(study: Study, hosts: int) -> dict[str, Any]:
    """Times of an allreduce by length and plan, and measured ones where there are some."""
    layout = Layout.even(hosts * study.local, hosts)
    place = (study.network, layout)
    names = [name for name in study.plans if not plans.find(name).why_not(*place)]
    measured = study.measured[1] if study.measured and study.measured[0] == layout else None
    rows = []
    for nbytes in SIZES if layout.ranks > 1 else ():
        times = {name: 1e6 * plans.simulate(name, *place, nbytes).seconds for name in names}
        row: dict[str, Any] = {"bytes": nbytes, "simulated_us": times}
        row["best"] = min(times, key=lambda name: times[name])
        if measured is not None:
            row["measured_us"] = 1e6 * measured(nbytes)
        rows.append(row)
    return {"ranks": layout.ranks, "hosts": hosts, "rows": rows}


def _scaling(case: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Speed-up over the fewest hosts."""
    same = [one for one in cases if all(one[key] == case[key] for key in ("model", "scheme"))]
    least = min(same, key=lambda one: int(one["hosts"]))
    speedup = case["samples_per_s"] / least["samples_per_s"]
    return {
        **{key: case[key] for key in ("model", "scheme", "hosts", "devices", "samples_per_s")},
        "speedup": speedup,
        "of_linear": speedup * least["hosts"] / case["hosts"],
        "efficiency": case["efficiency"],
    }
