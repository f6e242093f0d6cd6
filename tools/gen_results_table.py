"""Write tables of measured.md, torch.md, train.md and others in docs/ from benchmarks/results/.

`--check` only compares. docs/measured.md and docs/measured-hosts.md show, for each MPI and number
of ranks and hosts, the newest record that benchmarks/allreduce.py wrote, with a link to it. A table
has a few sizes. Below it, or in the table of layouts of hosts, stands each size at which gradred
took longer by more than 2 %, with the ratio. Where the ranks' cores were near each other in some
rounds and far in others, each placement has its row. Where one record of a day has near cores and
another one far cores, the page shows the newest of each.
docs/torch.md shows the newest records of benchmarks/torch_backend.py, of one host and of several.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import every_call_tables
import schemes_tables
import simulate_tables
import train_tables

from gradred_lab import pictures

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: {} (tools/gen_results_table.py) -->", "<!-- results: end -->"

SCHEMAS = ("gradred-allreduce/1", "gradred-allreduce/2")  # the first has no placements
SINGLE = ("near", "far")
SHOWN = {"near": "near", "far": "far", "all": ""}  # placements; not those of unknown ones
SIZES = (8, 1 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
SLOWER = 0.98  # a ratio below it; closer to 1 the same time was taken
NEAR_US = 0.1  # below, in a record of one placement, the cores lay near each other
NOTHING = "No record of a measurement is kept here yet. `make bench` measures on your machine.\n"

Record = dict[str, Any]


def newest(folder: Path = RESULTS) -> dict[str, Record]:
    """File name and record of the newest measurement for each MPI, processor and layout of ranks.

    And for the other placement of the cores, if it was measured on the same day.
    """
    found: dict[tuple[int, str, str, int, bool], dict[str, tuple[str, Record]]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("schema") not in SCHEMAS:
            continue
        layout = (record["ranks"], bool(unequal(record)))
        key = (record["hosts"], mpi_name(record), record["machine"]["cpu"], *layout)
        chosen = found.setdefault(key, {})
        where = placement(record)
        if where not in chosen or record["date"] >= chosen[where][1]["date"]:
            chosen[where] = (path.name, record)
    result: dict[str, Record] = {}
    for key in sorted(found):
        first, *others = sorted(found[key].values(), key=lambda one: one[1]["date"], reverse=True)
        single = [one for one in others if {placement(first[1]), placement(one[1])} == {*SINGLE}]
        same_day = [one for one in single if one[1]["date"][:10] == first[1]["date"][:10]]
        result |= dict([first, *same_day])
    return result


def unequal(record: Record) -> str:
    """`3 + 1` where the hosts have unequally many ranks; else empty."""
    ranks = record.get("ranks_on_hosts", [])  # older records have none: equally many
    return " + ".join(map(str, ranks)) if len(set(ranks)) > 1 else ""


def placement(record: Record) -> str:
    """How the cores lay in all rounds of a record; empty if both ways, or not recorded."""
    about = record.get("placements", {}).get("all", {})
    if not about.get("flag_us"):
        return ""
    return "near" if about["flag_us"] < NEAR_US else "far"


def mpi_name(record: Record) -> str:
    """`MPICH 5.0.2` or `Open MPI 5.0.11`, from the library's own long text."""
    text = record["versions"]["mpi"]
    for pattern, name in (
        (r"Intel\(R\) MPI Library\D*([\d.]+)", "Intel MPI"),
        (r"Open MPI v([\w.]+)", "Open MPI"),
        (r"MPICH Version:\s*([\w.]+)", "MPICH"),
    ):
        found = re.search(pattern, text)
        if found:
            return f"{name} {found[1]}"
    return str(text).split(",")[0][:40]


def link(name: str) -> str:
    """The path of a record, from the root of the repository."""
    return f"benchmarks/results/{name}"


def slower(record: Record) -> str:
    """The sizes at which gradred took longer, with the ratio."""
    lost = [
        f"{shown_bytes(row['bytes'])} ({lowest_ratio(row):.2f})"
        for row in record["rows"]
        if lowest_ratio(row) < SLOWER
    ]
    return ", ".join(lost) or "no size measured"


def table(name: str, record: Record) -> str:
    """One measurement: where and when, the sizes, and where gradred was slower."""
    ranks = f"{record['ranks']} rank{'' if record['ranks'] == 1 else 's'}"
    hosts = f"{record['hosts']} host{'' if record['hosts'] == 1 else 's'}"
    hosts += f" ({unequal(record)})" if unequal(record) else ""
    machine, versions, what = record["machine"], record["versions"], record["arguments"]
    where = (
        f"{ranks} on {hosts}, {mpi_name(record)}, {what['type']} {what['op']}; {machine['cpu']}, "
        f"{machine['cores']} cores; gradred {versions['gradred']}, {record['date'][:10]}; "
        f"[all sizes and rounds]({link(name)})"
    )
    if note := what.get("note"):
        where += f". {note}"
    rows = [row for row in record["rows"] if row["bytes"] in SIZES]
    both = any(shown in row.get("placements", {}) for row in rows for shown in ("near", "far"))
    head = ["bytes", *(["cores"] if both else []), "gradred", "MPI", "ratio", "10-90 % of rounds"]
    lines = [
        where,
        "",
        f"| {' | '.join(head)} |",
        f"|{'---:|' * len(head)}",
        *(line for row in rows for line in row_lines(row, both)),
        "",
    ]
    if record["hosts"] == 1:  # those of several have the sizes in overview()
        lines += [f"Slower than the MPI (lowest ratio) at: {slower(record)}.", ""]
    flags = record.get("placements", {})
    placements = [
        f"{placement(record) or name}: {flags[name]['rounds']} rounds, one-way latency "
        f"{flags[name]['flag_us']:.2f} µs"
        for name in SHOWN
        if flags.get(name, {}).get("flag_us")
    ]
    if placements:
        lines += [f"Placement of the cores of ranks 0 and 1: {'; '.join(placements)}.", ""]
    return "\n".join(lines)


def by_placement(row: Record) -> dict[str, Record]:
    """The figures of a row: those of each placement, else of all rounds."""
    found = row.get("placements", {})
    return {name: found[name] for name in SHOWN if name in found} or {"all": row}


def lowest_ratio(row: Record) -> float:
    """The ratio in the worse placement."""
    return min(float(figures["ratio"]) for figures in [row, *by_placement(row).values()])


def row_lines(row: Record, both: bool) -> list[str]:
    """A line of the table for each placement."""
    lines = []
    for name, figures in by_placement(row).items():
        spread = f"{figures['ratio_p10']:.2f}-{figures['ratio_p90']:.2f}"
        ratio = f"{figures['ratio']:.2f}" + (", **slower**" if figures["ratio"] < SLOWER else "")
        times = [shown_time(figures["gradred_us"]), shown_time(figures["mpi_us"])]
        cells = [shown_bytes(row["bytes"]), *([SHOWN[name]] if both else []), *times, ratio, spread]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shown_bytes(count: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale and count % scale == 0:
            return f"{count // scale} {unit}"
    return f"{count} B"


def shown_time(us: float) -> str:
    return f"{us / 1000:.2f} ms" if us >= 1000 else f"{us:.2f} µs"


def line(name: str, record: Record) -> str:
    """One measurement of several hosts, as a row of a table."""
    per_host = record["ranks"] // record["hosts"]
    layout = unequal(record) or " + ".join([str(per_host)] * record["hosts"])
    ratios = sorted(float(row["ratio"]) for row in record["rows"])
    median = ratios[len(ratios) // 2]
    longest = max(record["rows"], key=lambda row: int(row["bytes"]))
    cells = [
        f"[{layout}]({link(name)})",
        mpi_name(record),
        f"{median:.2f}",
        f"{longest['ratio']:.2f} at {shown_bytes(longest['bytes'])}",
        slower(record),
    ]
    return f"| {' | '.join(cells)} |"


def overview(records: dict[str, Record]) -> str:
    """Those of several hosts, a row each."""
    head = ["ranks on the hosts", "MPI", "median of all sizes", "longest", "slower than the MPI at"]
    rows = [line(name, record) for name, record in records.items()]
    return "\n".join([f"| {' | '.join(head)} |", "|---|---|---:|---:|---|", *rows, ""])


def section(folder: Path = RESULTS, hosts: str = "any") -> str:
    """What stands between two marks: of records of "one" host, of "several", or of any."""
    records = newest(folder)
    wanted = {
        name: record
        for name, record in records.items()
        if hosts == "any" or (record["hosts"] == 1) == (hosts == "one")
    }
    parts = [table(name, record) for name, record in wanted.items()] or [NOTHING]
    return "\n" + "\n".join(parts) + "\n"


def one_host(folder: Path) -> str:
    """The tables of the records of one host."""
    return below_docs(section(folder, "one"))


def several_hosts(folder: Path) -> str:
    """The records of several hosts: first a row for each, then their tables."""
    several = {name: one for name, one in newest(folder).items() if one["hosts"] > 1}
    rows = f"\n{overview(several)}" if several else ""
    return below_docs(rows + section(folder, "several"))


def below_docs(text: str) -> str:
    """The text with its links as a page in docs/ needs them."""
    return text.replace("](benchmarks/", "](../benchmarks/")


def torch_backend(folder: Path) -> str:
    """The newest records of torch.distributed on gradred and gloo: of one host, and of several."""
    found: dict[bool, tuple[str, Record]] = {}
    for path in sorted(folder.glob("torch-backend-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        several = record["hosts"] > 1
        if several not in found or record["date"] >= found[several][1]["date"]:
            found[several] = (path.name, record)
    tables = [below_docs(torch_table(*found[one])) for one in sorted(found)]
    return "\n" + "\n".join(tables) + "\n"


def torch_table(name: str, record: Record) -> str:
    """One record: where and when, and a row for each set of tensors."""
    ranks, hosts = record["ranks"], record["hosts"]
    where = f"{ranks} ranks on {'one host' if hosts == 1 else f'{hosts} hosts'}"
    about = f"{mpi_name(record)}, PyTorch {record['versions']['torch']}, {record['date'][:10]}"
    lines = [
        f"{where}, {about}, medians ([record]({link(name)})):",
        "",
        "| | gradred | gloo | gloo / gradred | `comm.Allreduce`, without torch |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in record["sets"]:
        us = row["us"]
        ours, gloo = shown_time(us["gradred"]), shown_time(us["gloo"])
        plain = shown_time(us["blocking"]) if "blocking" in us else "-"
        cells = [row["set"], ours, gloo, f"{row['gloo_over_gradred']:.2f}", plain]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


# For each page, what stands behind the begin mark of each name.
PAGES: dict[str, dict[str, Callable[[Path], str]]] = {
    "docs/measured.md": {"one host": one_host},
    "docs/every-call.md": {"every call": every_call_tables.table},
    "docs/measured-hosts.md": {"several hosts": several_hosts},
    "docs/train.md": {"train": train_tables.printed, "train, all": train_tables.page},
    "docs/torch.md": {"torch": torch_backend},
    "docs/schemes.md": schemes_tables.TABLES,
    "docs/simulate-errors.md": {"predictions": simulate_tables.table},
    "docs/simulate-iterations.md": {"iterations": simulate_tables.iterations},
}

PICTURES: dict[str, Callable[[Path], str]] = {
    "docs/simulate-errors.svg": simulate_tables.errors_picture,
    "docs/simulate-phases.svg": simulate_tables.phases_picture,
    "docs/train-efficiency.svg": train_tables.picture,
}
"""SVG documents beside the pages."""


def renewed(page: str, text: str, folder: Path = RESULTS) -> str:
    """The page's `text` with new tables between its marks; ValueError if a mark is missing."""
    for name, make in PAGES[page].items():
        begin = BEGIN.format(name)
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(END)
        if not found or not found_end:
            raise ValueError(f"{page} needs the marks {begin} and {END}")
        text = f"{before}{begin}\n{make(folder)}{END}{after}"
    return text


def shows(picture: str, drawn: str) -> bool:
    """Whether both show the same: each version of matplotlib writes bytes of its own."""
    return pictures.data_of(picture) == pictures.data_of(drawn)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it has drifted")
    check = parser.parse_args().check
    drifted = []
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        if check and renewed(page, text) != text:
            drifted.append(page)
        elif not check:
            (ROOT / page).write_text(renewed(page, text), encoding="utf-8")
    for name, draw in PICTURES.items():
        picture = ROOT / name
        if not check:
            picture.write_text(draw(RESULTS), encoding="utf-8")
        elif not picture.exists() or not shows(picture.read_text(encoding="utf-8"), draw(RESULTS)):
            drifted.append(name)
    for name in drifted:
        print(f"{name} has drifted: run python tools/gen_results_table.py", file=sys.stderr)
    return 1 if drifted else 0


if __name__ == "__main__":
    sys.exit(main())
