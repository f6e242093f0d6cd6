"""Training on this machine, predicted from a trace and measured messages, against measured.

    python benchmarks/predicted_training.py --json out.json    # hosts of namespaces need root

On each layout of 2 to 4 ranks, on one host and on namespace hosts with links of 1 and 10 Gbit/s,
rounds of these commands run in turn, so that all see the same machine:

    gradred bench -np RANKS --bind none    and --nonblocking: how much of a message overlaps
    gradred simulate record --copies RANKS -- python benchmarks/trained.py WAY
    gradred run -np RANKS python benchmarks/trained.py WAY

where WAY is bsp, and then ddp. An iteration is then predicted as by `gradred simulate training
--trace --messages --overlap`; the overlap is that of the work done (`worked_overlap_percent`). The
error of a layout and scheme is that of the medians over the rounds. The namespace hosts share the
cores of this machine, as the copies of the trace do.

The record, written after each layout (`schema` = "gradred-predicted-training/1"):

    date, arguments, machine{...}, versions{...}, busy: programs that ran beside at the start
    rows  [{layout, ranks, hosts, rate, scheme, measured_ms, predicted_ms, error_percent,
            rounds[{measured_ms, predicted_ms, alone_ms, late_ms, overlap_percent,
            messages_ms}]}]; messages_ms: all gradients in one message
    median_error_percent

Exit status: 0 done; 1 a command failed; 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import trained  # noqa: E402 (the program)
from hosts import jobs, machines  # noqa: E402 (a module of the tests)

import gradred  # noqa: E402
from gradred import launch  # noqa: E402
from gradred._util import cpu  # noqa: E402
from gradred_lab.simulate import bench_times, messages, trace  # noqa: E402

SCHEMA = "gradred-predicted-training/1"
PROGRAM = str(ROOT / "benchmarks" / "trained.py")
SCHEMES = {"bsp": "contiguous", "ddp": "buckets"}
"""How the program exchanges, and the row of the table of schemes that it is."""
SIZES = "64k:16m"
LIMIT_S = 300


@dataclass(frozen=True)
class Layout:
    """Ranks of each host, and the rate of links; one host has no link."""

    ranks: tuple[int, ...]
    rate: str = ""

    @property
    def name(self) -> str:
        """As the record and the table have it."""
        hosts = " + ".join(map(str, self.ranks))
        return f"{hosts} by {self.rate}" if self.rate else hosts


LAYOUTS = (
    Layout((2,)),
    Layout((4,)),
    *(
        Layout(ranks, rate)
        for ranks in ((1, 1), (2, 2), (1, 1, 1, 1))
        for rate in ("1gbit", "10gbit")
    ),
)


class FailedError(Exception):
    """A command failed; its output is the message."""


def run(
    hosts: machines.Machines | None, layout: Layout, command: str, *words: str, cache: str
) -> str:
    """Run a command of gradred on the layout's ranks; its stdout."""
    count = str(sum(layout.ranks))
    variables = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": cache, "GRADRED_TUNE": "1"}
    if hosts is not None:
        where = ",".join(f"h{number}:{ranks}" for number, ranks in enumerate(layout.ranks, 1))
        process = jobs.start(
            hosts, ROOT, "-np", count, *words, command=command, where=where, **variables
        )
    else:
        line = [sys.executable, "-m", "gradred", command, "-np", count, *words]
        environment = {**os.environ, "PYTHONPATH": jobs.PATHS, **variables}
        process = subprocess.Popen(
            line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    out, err = process.communicate(timeout=LIMIT_S)
    if process.returncode:
        raise FailedError(f"gradred {command} {' '.join(words)}:\n{out}{err}")
    return str(out)


@contextlib.contextmanager
def made(layout: Layout) -> Iterator[machines.Machines | None]:
    """The hosts of a layout; None for this host."""
    if not layout.rate:
        yield None
        return
    with machines.Machines(len(layout.ranks)) as found:
        for number in range(1, len(layout.ranks) + 1):
            found.limit(f"h{number}", layout.rate)
        yield found


def record(folder: Path, how: str, copies: int) -> trace.Trace:
    """Record the program as one rank, with as many copies as there are ranks."""
    path = folder / "trace.json"
    words = ["simulate", "record", "--copies", str(copies), "--json", str(path), "--"]
    command = [sys.executable, "-m", "gradred", *words, sys.executable, PROGRAM, how]
    environment = {**os.environ, "PYTHONPATH": jobs.PATHS, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        raise FailedError(done.stderr)
    return trace.read(path)


def one_round(
    hosts: machines.Machines | None, layout: Layout, folder: Path
) -> dict[str, dict[str, float]]:
    """Measure and predict once; by scheme."""
    cache, bench = str(folder / "cache"), folder / "bench.json"
    nbytes = 4 * sum(one.numel() for one in trained.network().parameters())
    # Bound ranks of namespace hosts would all have the first core.
    where = ("--bind", "none", "--json", str(bench))
    run(hosts, layout, "bench", "-m", SIZES, *where, cache=cache)
    exchange = bench_times.read(bench)[1]
    run(hosts, layout, "bench", "-m", f"{nbytes}:{nbytes}", "--nonblocking", *where, cache=cache)
    overlapped = json.loads(bench.read_text())["rows"][0]["results"]["gradred"]
    share = max(0.0, min(1.0, overlapped["worked_overlap_percent"] / 100))
    found = {}
    for how, scheme in SCHEMES.items():
        alone = record(folder, how, sum(layout.ranks))
        work = dataclasses.replace(alone.work(), overlap=share)
        out = run(hosts, layout, "run", sys.executable, PROGRAM, how, cache=cache)
        measured = statistics.median(json.loads(out.strip().splitlines()[-1].split("] ")[-1]))
        found[scheme] = {
            "measured_ms": 1e3 * measured,
            "predicted_ms": 1e3 * messages.iterate(scheme, work, exchange).iteration,
            "alone_ms": 1e3 * alone.iteration_s,
            "late_ms": 1e3 * alone.late_s,
            "overlap_percent": 100 * share,
            "messages_ms": 1e3 * exchange(nbytes),
        }
    return found


def measure(layout: Layout, rounds: int) -> list[dict[str, Any]]:
    """All rounds of a layout; a row for each scheme."""
    with made(layout) as hosts, tempfile.TemporaryDirectory() as folder:
        found = [one_round(hosts, layout, Path(folder)) for _ in range(rounds)]
    rows = []
    for scheme in SCHEMES.values():
        own = [each[scheme] for each in found]
        measured, predicted = (
            statistics.median(one[f"{what}_ms"] for one in own)
            for what in ("measured", "predicted")
        )
        row = {
            "layout": layout.name,
            "ranks": sum(layout.ranks),
            "hosts": len(layout.ranks),
            "rate": layout.rate,
            "scheme": scheme,
            "measured_ms": round(measured, 2),
            "predicted_ms": round(predicted, 2),
            "error_percent": round(100 * abs(predicted / measured - 1), 1),
            "rounds": own,
        }
        print(
            f"{layout.name:<24}{scheme:<12}measured {measured:8.1f} ms  predicted (simulated) "
            f"{predicted:8.1f} ms  error {row['error_percent']:.1f} %",
            flush=True,
        )
        rows.append(row)
    return rows


def busy() -> int:
    """Programs that run at this moment, beside this one."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1


def described(given: argparse.Namespace) -> dict[str, Any]:
    """Date, machine and versions."""
    return {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "kind": "predicted (simulated) against measured",
        "arguments": {"rounds": given.rounds},
        "machine": {"cpu": cpu.model(), "cores": cpu.cores(), "kernel": platform.release()},
        "busy": busy(),
        "versions": {
            "gradred": gradred.__version__,
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "mpi": launch.find_mpi().family,
        },
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5, help="of each layout (default: 5)")
    parser.add_argument("--layout", type=int, action="append", help="numbers from 0; default: all")
    given = parser.parse_args(words)
    chosen = [LAYOUTS[number] for number in given.layout or range(len(LAYOUTS))]
    why_not = jobs.why_not()
    if why_not and any(layout.rate for layout in chosen):
        parser.error(f"no hosts can be made here: {why_not}")
    found = described(given)
    rows: list[dict[str, Any]] = []
    for layout in chosen:
        try:
            rows += measure(layout, given.rounds)
        except FailedError as error:
            print(error, file=sys.stderr)
            return 1
        errors = [row["error_percent"] for row in rows]
        found |= {"median_error_percent": statistics.median(errors), "rows": rows}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"median error {found['median_error_percent']:.1f} %, largest {max(errors):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
