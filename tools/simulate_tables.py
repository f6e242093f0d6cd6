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

TITLES = ("step", "rows", "median", "95th percentile")
WITHIN = ("within_band_percent", "within_band_of_other_systems_percent")


def newest(folder: Path, kind: str, how: str = "predicted") -> tuple[str, Entry]:
    """Name and content of the newest record of a kind of predictions."""
    path = max(folder.glob(f"{how}-{kind}-*.json"))
    record: Entry = json.loads(path.read_text(encoding="utf-8"))
    return path.name, record


def table(folder: Path) -> str:
    """The goals, then a row for each system and step; with links."""
    found = {kind: newest(folder, kind) for kind in ("allreduce", "training")}
    links = " and ".join(
        f"[{kind}](../benchmarks/results/{name})" for kind, (name, _) in found.items()
    )
    aims = [row for _, record in found.values() for row in goals(record["goals"])]
    steps = [row for _, record in found.values() for row in by_step(record)]
    blocks = [
        Table(("goal", "wanted", "reached", "linear scaling", "rows"), aims),
        Table((*TITLES, "in the band", "in that of other systems", "linear scaling"), steps),
    ]
    return f"\n{markdown(blocks)}\nRecords: {links}.\n\n"


def goals(found: list[Entry]) -> Iterator[list[str]]:
    """Percents: the median, and the 95th percentile where the goal has one."""
    for one in found:
        wanted, reached = (
            f"{one['median_goal_percent']:g} %",
            f"{one['median_error_percent']:.1f} %",
        )
        if one["p95_goal_percent"]:
            wanted += f", 95th {one['p95_goal_percent']:g} %"
            reached += f", 95th {one['p95_error_percent']:.0f} %"
        reached += "" if one["is_reached"] else ": not reached"
        yield [one["goal"], wanted, reached, linear(one), str(one["rows"])]


def linear(found: Entry) -> str:
    """The median and the 95th percentile by linear scaling."""
    one = found.get("linear")
    if not one:
        return "-"
    return f"{one['median_error_percent']:.1f} %, 95th {one['p95_error_percent']:.0f} %"


def by_step(record: Entry) -> Iterator[list[str]]:
    for one in record["cross_validation"]["by_step"]:
        within = ["-" if one[name] is None else f"{one[name]:.0f} %" for name in WITHIN]
        name = f"{one['system']}: {one['step']}"
        yield [name, *cells(one), *within, linear(one)]


def cells(entry: Entry) -> list[str]:
    return [
        str(entry["rows"]),
        f"{entry['median_error_percent']:.1f} %",
        f"{entry['p95_error_percent']:.0f} %",
    ]


def iterations(folder: Path) -> str:
    """Errors of simulated iterations: of all, by network, and by scheme."""
    name, record = newest(folder, "iterations", "simulated")
    groups = [("all", record["all"])]
    for one in record["by_network"]:
        hosts = f"{one['nodes']} host{'s' * (one['nodes'] > 1)}"
        groups.append((f"{one['network']}: {hosts}", one))
    groups += [(f"scheme `{one['scheme']}`", one) for one in record["by_scheme"]]
    rows = [[words, *cells(one)] for words, one in groups]
    table = markdown([Table(("iterations (simulated)", *TITLES[1:]), rows)])
    return f"\n{table}\n[The record](../benchmarks/results/{name}).\n\n"


def errors_picture(folder: Path) -> str:
    """The errors of the table as bars: medians, and what is beyond them up to the 95th."""
    found = [newest(folder, kind)[1] for kind in ("allreduce", "training")]
    rows = [
        pictures.Bar(
            f"{one['system']}: {one['step']}",
            {
                "median error": one["median_error_percent"],
                "to the 95th percentile": one["p95_error_percent"] - one["median_error_percent"],
            },
            ", ".join(cells(one)[1:]),
        )
        for record in found
        for one in record["cross_validation"]["by_step"]
        if one["step"] not in ("from other systems", "elsewhere")
    ]
    notes = ["Cross-validation of predictions (simulated), in percent of what was measured."]
    return pictures.bars("Error of simulated times and throughputs", notes, rows)


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
