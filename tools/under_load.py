"""Repeat the gate's tests, without installing and compiling, while busy loops use all cores.

    python3 tools/under_load.py              # five times: `make gate-under-load`
    python3 tools/under_load.py --times 1 --only faults

It uses the environments of the last `make ci`. A run of all stages, at least five times, is written
to docs/gate-under-load.json. Exit status 0: every test passed each time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import checks
import nightly_record
from ci import GATE
from nightly import git, processor, uncommitted
from stages import BUILD, named, report, run_stages

LEAST = 5  # rounds needed for a record
BURN = "while True: pass"
STAGES = [replace(stage, check=stage.tests) for stage in GATE if stage.tests is not None]


@contextlib.contextmanager
def burning(cores: int) -> Iterator[None]:
    """Run so many processes, each of which keeps one core busy."""
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(cores)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=LEAST)
    parser.add_argument("--only", help="the stages whose names contain this; no record")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(checks.ROOT)
    BUILD.mkdir(parents=True, exist_ok=True)
    stages = named(STAGES, options.stage, options.only)
    if options.stage:
        return report(run_stages(stages, __file__), 0)
    if files := uncommitted():
        print(f"no commit has the changes of {', '.join(files)}: nothing will be recorded")
    rounds, passed = [], 0
    for number in range(1, options.times + 1):
        begin = time.monotonic()
        with burning(checks.CORES):
            verdicts = run_stages(stages, __file__)
        print(f"\n==== {number} of {options.times}, under load ====", end="")
        report(verdicts, time.monotonic() - begin)
        found = {one.stage.name: (one.word, one.passed, round(one.seconds, 1)) for one in verdicts}
        rounds.append({"seconds": round(time.monotonic() - begin), "stages": found})
        passed += all(one.word == "passed" for one in verdicts)
    print(f"{passed} of {options.times} passed under load")
    if not options.only and options.times >= LEAST and not uncommitted():
        record = {
            "schema": "gradred-gate-under-load/1",
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commit": git("rev-parse", "HEAD").strip(),
            "machine": {"cpu": processor(), "cores": checks.CORES},
            "burning": checks.CORES,
            "passed": passed,
            "rounds": rounds,
        }
        nightly_record.UNDER_LOAD.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if passed == options.times else 1


if __name__ == "__main__":
    sys.exit(main())
