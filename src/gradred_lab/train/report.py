"""The report of a run, as Markdown and as HTML, from its record alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradred._util import files
from gradred_lab import pictures
from gradred_lab.train import checks, framework, table
from gradred_lab.train.framework import Framework
from gradred_lab.train.page import Block, Bullets, Figure, Heading, Paragraph, Table, markdown, page
from gradred_lab.train.settings import Settings

_BUSY = 0.1  # cores of other programs that a reader should know of
_LONGEST = 100  # characters of a version

_OF_GPUS = (("busy_percent", 100, ".0%"), ("memory_bytes", 1e9, ".2f"), ("watts", 1, ".0f"))
"""What is shown of each GPU: its name, the number that is shown as 1, and the format."""

Record = dict[str, Any]


def write(record: Record, settings: Settings, folder: Path) -> list[Path]:
    """Write the report and its plots; returns the files that a reader opens.

    Args:
        record: with at least one repeat.
        settings: of the run.
        folder: where its record is.
    """
    known = framework.find(settings.framework)
    blocks = [*_opening(record, settings), *_results(record), *_figures(record, folder)]
    blocks += [*_simulated(record), *_uses(record), *_checks(record)]
    blocks += [*_system(record), *_protocol(record, settings, known)]
    found = []
    texts = {"report.md": markdown(blocks), "report.html": page(_title(record, settings), blocks)}
    for name, text in texts.items():
        path = folder / name
        with open(files.create(path), "w", encoding="utf-8") as file:
            file.write(text)
        found.append(path)
    return found


def other_cores(record: Record) -> float:
    """Cores that other programs used, at most: of a peer's mean over the repeats."""
    uses = [one["use"] for row in record["rows"] for one in row["summary"].values()]
    return max(float(use.get("other_cores", 0.0)) for use in uses)


def _title(record: Record, settings: Settings) -> str:
    cpu = next(iter(record["jobs"].values()))["machine"]["cpu"]
    return f"Data-parallel training with {settings.framework} on {cpu}"


def _opening(record: Record, settings: Settings) -> list[Block]:
    protocol = settings.protocol
    lines = [
        f"Measured by `gradred train`; last change {record['date']}. Each result is the median of "
        f"repeats ({protocol.repeats}), each the mean of {protocol.steps} steps after "
        f"{protocol.skip} that do not count. All peers ran in turn in the same jobs. The batch of "
        "a rank stays the same on more ranks (weak scaling). Data are synthetic, and nothing is "
        "loaded from disks.",
    ]
    done = sum(len(row["repeats"]) for row in record["rows"])
    wanted = protocol.repeats * len([*settings.cells()]) * len(settings.ranks)
    if done < wanted:
        lines.append(
            f"**The run was interrupted**: {done} of {wanted} repeats of all models and numbers of "
            "ranks are here. The same command continues it."
        )
    reduced = {row["reduced"]: None for row in record["rows"] if row["reduced"]}
    if reduced:
        lines.append(
            f"**The models are reduced** ({'; '.join(reduced)}): their results say nothing of the "
            "published ones."
        )
    others = other_cores(record)
    if others > _BUSY:
        lines.append(
            f"**The machine was busy**: other programs used up to {others:.1f} cores at the same "
            "time."
        )
    return [Heading(_title(record, settings), 1), *map(Paragraph, lines)]


def _results(record: Record) -> list[Block]:
    blocks: list[Block] = [Heading("Results")]
    titles = ["peer", *(column.title for column in table.COLUMNS)]
    for row in record["rows"]:
        rows = [
            [peer, *(column.cell(summary) for column in table.COLUMNS)]
            for peer, summary in row["summary"].items()
        ]
        about = f"{row['about']}: {table.cell_text(row)}. Samples are {row['unit']}."
        blocks += [Heading(table.short_text(row), 3), Paragraph(about), Table(titles, rows)]
    blocks.append(
        Bullets(
            [
                "`spread`: greatest less least throughput of the repeats, of the median.",
                "`ms/step`: the mean latency of a step; `p50`, `p90`, `p99`: percentiles of the "
                "steps, each that of its slowest rank.",
                "`speed-up`: throughput over that of one process in the same repeat; `efficiency`: "
                "speed-up over the number of ranks.",
                "`exchange ms`: a step beyond one of `compute`, whose ranks exchange nothing.",
            ]
        )
    )
    return blocks


def _figures(record: Record, folder: Path) -> list[Block]:
    if not pictures.can_draw():
        return [Paragraph(pictures.NO_MATPLOTLIB)]
    found: list[Block] = []
    several = [row for row in record["rows"] if row["ranks"] > 1]
    if several and any("speed_up" in one for one in several[0]["summary"].values()):
        path = folder / "speed-up.svg"
        pictures.throughput(record, path)
        found.append(Figure(path, "Speed-up of each peer"))
    for model in dict.fromkeys(row["cell"]["model"] for row in record["rows"]):
        path = folder / f"scaling-{re.sub(r'[^a-z0-9]+', '-', model.lower())}.svg"
        pictures.scaling(record, model, path)
        found.append(Figure(path, f"Throughput of {model} over ranks"))
    return found


def _simulated(record: Record) -> list[Block]:
    found = record["simulated"]
    blocks: list[Block] = [Heading("Beyond this machine: simulated")]
    if "why_not" in found:
        return [*blocks, Paragraph(f"Nothing is simulated: {found['why_not']}.")]
    here = found["error_here"]
    blocks.append(
        Paragraph(
            f"These figures are **simulated, not measured**: hosts like this one on the network "
            f"{found['net']} ({found['about']}). Error on this host: median "
            f"{here['median_percent']:.1f} %, largest {here['largest_percent']:.1f} % of "
            f"{here['steps']} {here['how']}. Error between hosts: {found['error_between_hosts']}. "
            "A step is the one that was measured here, and what the network adds to it. `±` is the "
            "median error of both parts; figures are rounded to it."
        )
    )
    simulated = [f"{title} (simulated)" for title in ("samples/s", "ms/step", "efficiency")]
    titles = ["model", "peer", "hosts", "ranks", *simulated]
    rows = [
        [
            f"{one['cell']['model']}{pictures.variant(one['cell'])}",
            one["peer"],
            str(one["hosts"]),
            str(one["ranks"]),
            *table.simulated_cells(one),
        ]
        for one in found["rows"]
    ]
    return [*blocks, Table(titles, rows, left=2)]


def _uses(record: Record) -> list[Block]:
    blocks: list[Block] = [Heading("Use of the machine")]
    first = next(iter(record["rows"][0]["summary"].values()))["use"]
    blocks += [Paragraph(f"GPU: {text}.") for text in _gpu_texts(first)]
    if "why_not" in first:
        return [*blocks, Paragraph(f"Processor, memory, disk, network: {first['why_not']}.")]
    titles = [
        *("cell", "peer", "cores of ranks", "of that in the kernel", "cores of others"),
        *("memory GB", "switches/s", "disk MB/s", "network MB/s", "loopback MB/s"),
        *("GPU busy", "GPU memory GB", "GPU W"),
    ]
    rows = [
        [table.short_text(row), peer, *_use_cells(summary["use"])]
        for row in record["rows"]
        for peer, summary in row["summary"].items()
    ]
    about = (
        "Over the measured steps, the mean of the repeats. Memory is the resident memory of all "
        "ranks at the end. Disk, network and GPUs count every program of the hosts; loopback "
        "counts each byte twice."
    )
    return [*blocks, Paragraph(about), Table(titles, rows, left=2)]


def _use_cells(use: dict[str, Any]) -> list[str]:
    gpus = [one for of_host in use["gpu"] if isinstance(of_host, list) for one in of_host]
    return [
        f"{use['rank_cores']:.2f}",
        f"{use['system_percent']:.0f} %",
        f"{use['other_cores']:.2f}",
        f"{use['memory_bytes'] / 1e9:.2f}",
        f"{use['switches_per_s']:.0f}",
        *(f"{use[f'{name}_bytes_per_s'] / 1e6:.2f}" for name in ("disk", "network", "loopback")),
        *(
            ", ".join(f"{one[name] / unit:{form}}" if name in one else "?" for one in gpus) or "-"
            for name, unit, form in _OF_GPUS
        ),
    ]


def _gpu_texts(use: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(one for one in use["gpu"] if isinstance(one, str)))


def _checks(record: Record) -> list[Block]:
    rows = []
    for row in record["rows"]:
        for peer, summary in row["summary"].items():
            found = [one["peers"][peer].get("check") for one in row["repeats"]]
            if "right" in summary:
                cells = [_largest(found, n) for n in ("rank_difference", "difference", "drift")]
                rows.append([table.short_text(row), peer, *cells, table.verdict(summary)])
    limits = ", ".join(f"{name} {value:g}" for name, value in checks.LIMITS.items())
    about = (
        "At the end of its steps each peer's parameters are compared with those of other ranks. "
        "Then it goes back to the first parameters, makes one step, and is compared with the first "
        "peer. Figures are the norm of the difference over the norm of what steps have changed. "
        "Ranks of gradred's peers must have the same bits (0). Limits of everything else: "
        f"{limits}. The drift is the difference between peers after all steps, which rounding "
        "alone brings about."
    )
    titles = ["cell", "peer", "between ranks", "between peers", "drift", "check"]
    return [Heading("Checks"), Paragraph(about), Table(titles, rows, left=2)]


def _largest(found: Sequence[Any], name: str) -> str:
    values = [one[name] for one in found]
    return "no number" if None in values else f"{max(values):.2g}"


def _system(record: Record) -> list[Block]:
    blocks: list[Block] = [Heading("System")]
    for ranks, job in record["jobs"].items():
        machine, topology = job["machine"], job["topology"]
        items = [
            f"Ranks on hosts: {', '.join(map(str, job['ranks_on_hosts']))}; cores of each rank: "
            + "; ".join(",".join(map(str, cores)) for cores in job["cores_of_ranks"]),
            f"Processor: {machine['cpu']} ({machine['architecture']}); sockets: "
            f"{topology['sockets']}, cores: {topology['cores']}, threads: {topology['threads']}, "
            f"memory nodes: {topology['memory_nodes']}; {', '.join(topology['features'])}",
            f"Caches of core 0: {'; '.join(topology['caches_of_core_0']) or 'not known'}",
            f"Memory: {machine['memory_bytes'] / 1e9:.1f} GB; kernel {machine['kernel']}; load "
            f"before: {job['load_before']:.1f}",
            "Devices: " + ("; ".join(", ".join(one) for one in job["devices"] if one) or "none"),
            *(f"{name}: {_cut(version)}" for name, version in job["versions"].items()),
        ]
        blocks += [Heading(f"Job of {ranks} ranks", 3), Bullets(items)]
    return blocks


def _cut(text: str) -> str:
    """The beginning of a text: MPIs say at length how they were built."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _protocol(record: Record, settings: Settings, known: Framework) -> list[Block]:
    models = {row["cell"]["model"]: row for row in record["rows"]}
    items = [f"`{name}`: {known.peers[name].about}" for name in settings.peers]
    items += [
        f"`{name}`: {row['about']}, {row['parameters']:,} parameters in {row['tensors']} tensors; "
        f"published {known.models[name].parameters:,}; {row['optimizer']}; {row['arithmetic']}"
        for name, row in models.items()
    ]
    asked = "; ".join(
        f"{name} {text}" for name, value in record["arguments"].items() if (text := _plain(value))
    )
    return [Heading("Protocol"), Bullets(items), Paragraph(f"Asked for: {asked}.")]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
