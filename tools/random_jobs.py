"""Run tests/mpi/random_use.py many times, each job with its own seed, and write a record.

    python tools/random_jobs.py --jobs 500 --ranks 2,3,4 --json FILE   # on this interpreter's MPI
    python tools/random_jobs.py --seed 137 --ranks 3 --verbose        # one job again

A job that fails, hangs (every rank prints its stacks) or leaves a process behind counts as failed.
Its output is stored under build/random-jobs. Exit status: 0 all passed, 1 a failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tally
from run_tests import launcher

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "build" / "random-jobs"
JOB = """import sys, processes
job = processes.run_job(sys.argv[2:], dict(processes.os.environ), float(sys.argv[1]))
sys.exit("; ".join([job.problem or "", *(f"left behind: {one}" for one in job.left)]) or 0)
"""


@dataclasses.dataclass
class Outcome:
    """The result of a job."""

    seed: int
    ranks: int
    steps: int
    seconds: float
    problem: str


def shape(seed: int, ranks: list[int]) -> tuple[int, int]:
    """Return ranks and steps of a job, which depend only on its seed."""
    return ranks[seed % len(ranks)], 150 + seed * 53 % 151


def run(seed: int, options: argparse.Namespace) -> Outcome:
    ranks, steps = shape(seed, options.ranks)
    if options.steps:
        steps = options.steps
    prefix, variables = launcher(ranks)
    command = [*prefix, sys.executable, "tests/mpi/random_use.py"]
    command += ["--seed", str(seed), "--steps", str(steps), "--seconds", str(options.timeout)]
    command += ["--verbose"] if options.verbose else []
    # Each job has a process of its own, which ends only the processes that the job has started.
    guard = [sys.executable, "-c", JOB, str(options.timeout + 15), *command]
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT / "tools")}
    environment.setdefault("OMP_NUM_THREADS", "1")
    begin = time.monotonic()
    done = subprocess.run(
        guard,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    problem = ""
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip(" =")]
        problem = lines[-1].strip("; ") if lines else f"exit status {done.returncode}"
        (OUTPUT / f"seed-{seed}-{ranks}-ranks.log").write_text(done.stdout)
    if options.verbose:
        print(done.stdout)
    return Outcome(seed, ranks, steps, round(time.monotonic() - begin, 1), problem)


def text_of(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return " ".join(done.stdout.split())


def record(outcomes: list[Outcome], seconds: float) -> dict[str, Any]:
    """Return the record: the jobs, the machine and MPI, and the results."""
    ask = "from mpi4py import MPI; print(MPI.Get_library_version().strip(chr(0)))"
    failed = [one for one in outcomes if one.problem]
    return {
        "what": "tests/mpi/random_use.py by tools/random_jobs.py",
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": text_of("git", "rev-parse", "HEAD"),
        "uncommitted": text_of("git", "status", "--porcelain", "--untracked-files=no"),
        "mpi": text_of(sys.executable, "-c", ask)[:120],
        "cores": len(os.sched_getaffinity(0)),
        "jobs": len(outcomes),
        "jobs_by_ranks": {str(n): jobs for n, jobs in Counter(o.ranks for o in outcomes).items()},
        "seeds": [min(one.seed for one in outcomes), max(one.seed for one in outcomes)],
        "steps": sum(one.steps for one in outcomes),
        "seconds": round(seconds),
        "failures": [dataclasses.asdict(one) for one in failed],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="this job alone")
    parser.add_argument("--ranks", default="2,3,4", help="numbers of ranks, by turns")
    parser.add_argument("--steps", type=int, help="of each job; else 150 to 300 by its seed")
    parser.add_argument("--beside", type=int, default=2, help="jobs at once")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one job")
    parser.add_argument("--json", type=Path, help="where the record goes")
    parser.add_argument("--verbose", action="store_true", help="name each step as it begins")
    options = parser.parse_args()
    options.ranks = [int(number) for number in options.ranks.split(",")]
    OUTPUT.mkdir(parents=True, exist_ok=True)
    first = options.first if options.seed is None else options.seed
    seeds = range(first, first + (options.jobs if options.seed is None else 1))
    begin = time.monotonic()
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(options.beside) as pool:
        for outcome in pool.map(lambda seed: run(seed, options), seeds):
            outcomes.append(outcome)
            if outcome.problem:
                print(f"FAILED seed {outcome.seed}, {outcome.ranks} ranks: {outcome.problem}")
            if len(outcomes) % 20 == 0:
                print(f"{len(outcomes)} jobs, {time.monotonic() - begin:.0f} s", flush=True)
    written = record(outcomes, time.monotonic() - begin)
    if options.json:
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    failed = len(written["failures"])
    tally.add(len(outcomes) - failed, {})
    print(
        f"{len(outcomes)} jobs, {written['steps']} steps, {failed} failed, {written['seconds']} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
