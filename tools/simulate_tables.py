"""Tables and pictures of docs/simulate*.md: errors from the newest records, phases simulated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradred.simulate import presets
from gradred.simulate.plans import Layout
from gradred_lab import pictures
from gradred_lab.simulate import what_if, work
from gradred_lab.simulate.exchange import Place
from gradred_lab.train.page import Table, markdown

Entry = dict[str, Any]

TITLES = ("predicted", "from", "rows", "median", "95th percentile", "in the band")
NEAR = {
    "extrapolated_near_in_time": "fewer nodes, a run of the same week",
    "extrapolated_far_in_time": "fewer nodes, runs of other weeks",
}
"""What allreduces were predicted from, by the part of an entry."""
LEFT_OUT = {
    "setting_left_out": "fewer GPUs, and other settings on that network",
    "network_unseen": "fewer GPUs, and the network's name",
}
"""The same of trainings."""


def newest(folder: Path, kind: str, how: str = "predicted") -> tuple[str, Entry]:
    """Name and content of the newest record of a kind of predictions."""
    path = max(folder.glob(f"{how}-{kind}-*.json"))
    record: Entry = json.loads(path.read_text(encoding="utf-8"))
    return path.name, record


def table(folder: Path) -> str:
    """A row for each system, scheduler and source, and what it was predicted from; with links."""
    allreduce, training = (newest(folder, kind) for kind in ("allreduce", "training"))
    rows = [*allreduces(allreduce[1]["cross_validation"])]
    rows += trainings(training[1]["cross_validation"])
    links = " and ".join(
        f"[{kind}](../benchmarks/results/{name})"
        for kind, (name, _) in (("allreduce", allreduce), ("training", training))
    )
    return f"\n{markdown([Table(TITLES, rows, left=2)])}\nRecords: {links}.\n\n"


def allreduces(found: Entry) -> Iterator[list[str]]:
    for system in found["by_system"]:
        for how, words in NEAR.items():
            if how in system:
                nodes = [
                    one["nodes"]
                    for one in found["by_scale"]
                    if one["system"] == system["system"] and how in one
                ]
                counts = ", ".join(map(str, sorted(nodes)))
                yield [f"{system['system']}, {counts} nodes", words, *cells(system[how])]


def trainings(found: Entry) -> Iterator[list[str]]:
    """The named schedulers with Horovod, and the source with several frameworks."""
    for one in found["by_scheduler"]:
        if one["scheduler"] and "Horovod" in one["framework"]:
            for how, words in LEFT_OUT.items():
                yield [f"training, {one['scheduler']} with Horovod", words, *cells(one[how])]
    for one in found["by_source"]:
        if one["source"].startswith("DLPerf v"):
            name = f"training, {one['source']}, {one['precision']}"
            yield [name, "fewer GPUs", *cells(one["setting_left_out"])]


def cells(entry: Entry) -> list[str]:
    return [
        str(entry["rows"]),
        f"{entry['median_error_percent']:.1f} %",
        f"{entry['p95_error_percent']:.0f} %",
        f"{entry.get('within_band_percent', 0):.0f} %",
    ]


def iterations(folder: Path) -> str:
    """Errors of iterations to which nothing was fitted: of all, by network, and by scheme."""
    name, record = newest(folder, "iterations", "simulated")
    groups = [("all", record["all"])]
    for one in record["by_network"]:
        hosts = f"{one['nodes']} host{'s' * (one['nodes'] > 1)}"
        groups.append((f"{one['network']}: {hosts}", one))
    groups += [(f"scheme `{one['scheme']}`", one) for one in record["by_scheme"]]
    rows = [[words, *cells(one)[:3]] for words, one in groups]
    table = markdown([Table(("iterations (simulated)", *TITLES[2:5]), rows)])
    return f"\n{table}\n[The record](../benchmarks/results/{name}).\n\n"


def errors_picture(folder: Path) -> str:
    """The errors of the table as bars: medians, and what is beyond them up to the 95th."""
    found = [newest(folder, kind)[1]["cross_validation"] for kind in ("allreduce", "training")]
    rows = [
        pictures.Bar(
            f"{what}; from {how}",
            {"median error": float(median[:-2]), "to the 95th percentile": _beyond(median, p95)},
            f"{median}, {p95}",
        )
        for what, how, _, median, p95, _ in [*allreduces(found[0]), *trainings(found[1])]
    ]
    notes = ["Cross-validation of predictions (simulated), in percent of what was measured."]
    return pictures.bars("Error of simulated times and throughputs", notes, rows)


def _beyond(median: str, p95: str) -> float:
    return max(0.0, float(p95[:-2]) - float(median[:-2]))


def phases_picture(_folder: Path) -> str:
    """What the first command of docs/simulate-iterations.md draws."""
    place = Place(presets.NETWORKS["P40-56Gb-IB"], Layout.even(64, 16))
    device = work.DEVICES[place.network.device]
    question = what_if.Question(
        net="P40-56Gb-IB",
        place=place,
        work=work.on_device("resnet50", device, 32),
        batch=32,
        device={"about": device.about, "source": device.source},
        schemes=("wfbp", "mgwfbp", "bsp", "ps"),
    )
    return what_if.drawing(what_if.run(question))
