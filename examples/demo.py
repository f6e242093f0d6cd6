"""`make demo`: train on real data through gradred, check the result, compare with plain MPI.

    python examples/demo.py -np 2

Three programs, one after another: the network of `digits.py` on the ranks; the same training in
one process, for comparison (see `demo_parts.py`); and `benchmarks/allreduce.py`. Exit status 0, or
1 when the accuracy is too low, the weights differ or a program fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUDGET = {"training": 30, "check": 30, "comparison": 15}  # seconds
GOAL = 0.96  # of the held-out digits
SLOW_FLAG_US, SLOW_PART = 1.0, 0.1  # a tenth of that is usual between two running cores
RESULTS = ("training.json", "check.json", "allreduce.json", "allreduce.svg")


def run(name: str, command: list[str], progress: Path | None = None) -> float:
    """Run one program to its end, with a bar on a terminal; ends the demo if it fails.

    Returns:
        The seconds that it took.
    """
    start = time.monotonic()
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            time.sleep(0.1)
            if progress and progress.exists() and sys.stderr.isatty():
                draw_bar(name, progress.read_text())
    taken = time.monotonic() - start
    if progress and sys.stderr.isatty():
        print(file=sys.stderr)
    if process.returncode:
        sys.exit(f"demo: {name} failed with status {process.returncode}")
    print(f"{name}: {taken:.1f} s (budget {BUDGET[name]} s)", flush=True)
    return taken


def draw_bar(name: str, progress: str, width: int = 40) -> None:
    """Draw `progress`, such as `12/144` and a newline; text that is not whole draws nothing."""
    done, _, steps = progress.partition("/")
    if steps.endswith("\n"):
        filled = "#" * (width * int(done) // int(steps))
        bar = f"\r{name} [{filled:.<{width}}] {progress.strip()}"
        print(bar, end="", file=sys.stderr, flush=True)


def busy_machine(others: int, compared: dict[str, Any]) -> str:
    """Why the times say little; empty where they say something.

    Args:
        others: programs that wanted a core before the demo began.
        compared: the record of the comparison, which has the one-way latency between two ranks
            before each round: it takes microseconds only where one of them was not running.
    """
    flags = [flag for row in compared["rows"] for flag in row["flag_rounds_us"] if flag is not None]
    slow = sum(flag > SLOW_FLAG_US for flag in flags)
    found = []
    if others:
        some = f"{others} other program{'s' * (others > 1)}"
        found.append(f"{some} ran on {os.cpu_count()} cores when it began")
    if flags and slow >= SLOW_PART * len(flags):
        found.append(f"before {slow} of {len(flags)} rounds a rank waited for a core")
    return "; ".join(found)


def last_screen(folder: Path, seconds: dict[str, float], others: int) -> list[str]:
    """At most 12 lines: what came out, and what to type next."""
    training, checked, compared = (read(folder / name) for name in RESULTS[:3])
    row = next(row for row in compared["rows"] if row["bytes"] == training["bytes"])
    equal = f"yes, all bits of {checked['weights']:,}, after {training['steps']} steps"
    if not checked["equal"]:
        equal = f"NO: {checked['different']:,} differ, by up to {checked['largest_difference']:.1e}"
    taken = ", ".join(f"{name} {spent:.1f} of {BUDGET[name]}" for name, spent in seconds.items())
    plot = folder / RESULTS[3]
    busy = busy_machine(others, compared)
    return [
        f"gradred on {training['ranks']} ranks: a network trained on handwritten digits",
        *([f"  BUSY           {busy}: the times mean little"] if busy else []),
        f"  accuracy       {training['accuracy']:.1%} of {training['tested']} held-out digits",
        f"  equal weights  {equal}, as in one process",
        f"  exchange       {in_words(row)}",
        f"                 {in_words(compared['rows'][0])}",
        f"                 {training['exchange_seconds']:.2f} s of the training, waiting included",
        f"  seconds        {taken} (planned, on two idle cores)",
        f"  plot           {plot if plot.exists() else 'none: pip install matplotlib'}",
        f"  next           {command()} run -np 2 python examples/adopt.py",
    ]


def programs_running(samples: int = 11) -> int:
    """How many programs besides this one want a core, by the middle one of some looks.

    Not the load, which is that of the last minute: of the build before a first demo, for example.
    """
    found = []
    for _ in range(samples):
        try:
            runnable = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
        except OSError:  # not Linux
            return 0
        found.append(int(runnable) - 1)
        time.sleep(0.02)
    return sorted(found)[samples // 2]


def command() -> str:
    """`gradred` as one can type it here, also where its environment is not activated."""
    beside = Path(sys.executable).with_name("gradred")
    found = shutil.which("gradred")
    if not beside.exists() or (found and Path(found).samefile(beside)):
        return "gradred"
    return os.path.relpath(beside)


def in_words(row: dict[str, Any]) -> str:
    """One row of the comparison."""
    unit, scale = ("ms", 1e3) if row["mpi_us"] >= 1e3 else ("us", 1.0)
    times = f"gradred {row['gradred_us'] / scale:.2f}, mpi4py {row['mpi_us'] / scale:.2f} {unit}"
    spread = f"{row['ratio_p10']:.1f} to {row['ratio_p90']:.1f}"
    return f"{row['bytes']:,} bytes: {times}; ratio {row['ratio']:.2f} (rounds: {spread})"


def read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def demo(ranks: int, folder: Path) -> int:
    """Run the three programs; the exit status."""
    others = programs_running()
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*RESULTS, "progress"):  # what an earlier run left must not pass for this one's
        (folder / name).unlink(missing_ok=True)
    # As many threads alone as on a rank: the order of the sums in BLAS depends on it.
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // ranks))
    on_ranks = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), sys.executable]
    parts = str(ROOT / "examples" / "demo_parts.py")
    seconds = {}
    command = [*on_ranks, parts, "train", str(folder)]
    seconds["training"] = run("training", command, folder / "progress")
    seconds["check"] = run("check", [sys.executable, parts, "check", str(folder)])
    training, checked = read(folder / "training.json"), read(folder / "check.json")
    benchmark = [str(ROOT / "benchmarks" / "allreduce.py"), "--also", str(training["bytes"])]
    benchmark += ["--json", str(folder / "allreduce.json")]
    benchmark += ["--seconds", str(BUDGET["comparison"] - 3)]  # 3 to start Python and to draw
    if importlib.util.find_spec("matplotlib"):
        benchmark += ["--plot", str(folder / "allreduce.svg")]
    seconds["comparison"] = run("comparison", [*on_ranks, *benchmark])
    print("", *last_screen(folder, seconds, others), sep="\n")
    return 0 if checked["equal"] and training["accuracy"] >= GOAL else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="gradred on real data, beside plain MPI")
    parser.add_argument("-np", type=int, default=2, metavar="RANKS")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "demo", metavar="FOLDER")
    given = parser.parse_args()
    if given.np < 1:
        parser.error("-np needs at least 1 rank")
    return demo(given.np, given.out.resolve())


if __name__ == "__main__":
    sys.exit(main())
