"""Time the compiler and the tests: wheels and `make test` of commits, units at several levels.

    python benchmarks/build_times.py --commits 88ed47a1 HEAD --json out.json
    python benchmarks/build_times.py --commits 88ed47a1 HEAD --tests 2 --json out.json
    python benchmarks/build_times.py --build build/cmake-1234abcd --levels=-O3,-O1,-fsyntax-only

Times are core seconds (user and system) without a compiler cache. A wheel is built from a fresh
clone with this environment's packages; with --tests, what `make test` does there from nothing is
timed in its place, in turn, so many times. A unit is compiled as its build compiles it, with a
level added, which then counts.

The JSON record (`schema` = "gradred-build-times/1"): compiler, wheels [{commit, core_s, wall_s}],
tests [{commit, prepare_core_s, prepare_s, tests_core_s, tests_s, last_line}],
units [{unit, level, core_s, text_bytes}], date, machine{...}, versions{...}.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from mpi4py import MPI

from gradred.bench.machine import describe
from gradred.bench.rank_zero import write_json

ROOT = Path(__file__).resolve().parent.parent


def timed(command: list[str], folder: Path, log: IO[str] | None = None) -> tuple[float, float]:
    """Run a command without a compiler cache; returns its core seconds and seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")}
    environment["CCACHE_DISABLE"] = "1"
    output = log or subprocess.DEVNULL  # failed tests are in the last line of their log
    subprocess.run(command, cwd=folder, check=log is None, stdout=output, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.monotonic() - begin


def copy(commit: str, folder: str) -> tuple[Path, str]:
    """A fresh clone, and the short name of the commit in it."""
    clone = Path(folder, "clone")
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    subprocess.run(["git", "checkout", "-q", commit], cwd=clone, check=True)
    name = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=clone, text=True)
    return clone, name.strip()


def tests(commit: str) -> dict[str, Any]:
    """What `make test` does in a fresh clone: environment and build, then the tests."""
    with tempfile.TemporaryDirectory() as folder:
        clone, name = copy(commit, folder)
        prepare = [sys.executable, "tools/environment.py", ".venv", "mpich,test"]
        prepare_core_s, prepare_s = timed(prepare, clone)
        with Path(folder, "log").open("w+") as log:
            run = [".venv/bin/python", "tools/run_tests.py"]
            tests_core_s, tests_s = timed(run, clone, log)
            log.seek(0)
            last_line = log.read().strip().splitlines()[-1]
    seconds = {"prepare_core_s": prepare_core_s, "prepare_s": prepare_s}
    seconds |= {"tests_core_s": tests_core_s, "tests_s": tests_s}
    rounded = {what: round(value, 1) for what, value in seconds.items()}
    return {"commit": name, **rounded, "last_line": last_line}


def wheel(commit: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        clone, name = copy(commit, folder)
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        used, took = timed([*command, ".", "-w", folder], clone)
    return {"commit": name, "core_s": round(used, 1), "wall_s": round(took, 1)}


def units(build: Path, levels: list[str]) -> list[dict[str, Any]]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in json.loads((build / "compile_commands.json").read_text()):
            words = shlex.split(entry["command"])
            words = words[1:] if words[0].endswith("ccache") else words
            place = words.index("-o") + 1
            unit, target = words[place], str(Path(folder, "unit.o"))
            if "test" in unit:
                continue
            words[place] = target
            for level in levels:
                used, _ = timed([*words, level], Path(entry["directory"]))
                text = 0
                if level != "-fsyntax-only":
                    shown = subprocess.check_output(["size", target], text=True)
                    text = int(shown.split()[6])
                row = {"unit": unit, "level": level, "core_s": round(used, 1), "text_bytes": text}
                print(f"{used:6.1f} s {level:14} {unit}", flush=True)
                found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--commits", nargs="*", default=[], metavar="COMMIT")
    parser.add_argument("--tests", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--build", type=Path, help="a folder with compile_commands.json")
    parser.add_argument("--levels", default="-O3,-O2,-O1,-fsyntax-only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    wheels = []
    timed_tests = []
    for commit in options.commits * options.tests:
        timed_tests.append(tests(commit))
        print(timed_tests[-1], flush=True)
    for commit in [] if options.tests else options.commits:
        wheels.append(wheel(commit))
        print(wheels[-1], flush=True)
    found = units(options.build.resolve(), options.levels.split(",")) if options.build else []
    compiler = subprocess.check_output(["c++", "--version"], text=True).splitlines()[0]
    record = {"schema": "gradred-build-times/1", "compiler": compiler, "wheels": wheels}
    record["tests"] = timed_tests
    arguments = {"commits": options.commits, "levels": options.levels}
    record |= {"units": found, **describe(MPI.COMM_SELF, arguments)}
    if options.json:
        write_json(options.json, record)


if __name__ == "__main__":
    main()
