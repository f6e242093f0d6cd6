"""Run mpi4py's own tests with gradred's communicators instead of mpi4py's.

The tests are downloaded, not stored here: the source distribution of the installed mpi4py version
goes into .cache/ once. For each number of ranks they run with `MPI.COMM_WORLD` and `MPI.COMM_SELF`
replaced, and on plain mpi4py (with `--quick` only if tests fail). Two kinds of failures are listed
apart, since they show no error of gradred: tests that fail on plain mpi4py too, and tests that fail
with mpi4py's own copies of the two communicators, since they require the very objects. Then they
run on plain mpi4py with the library of `gradred run --preload`: each test that passes without it
must pass. The last line has the counts. Exit status: 0 no test fails with gradred alone (or the
tests cannot be downloaded), 1 a test does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import tally
from processes import run_job
from run_tests import launcher

from gradred.launch import preload

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(".cache")
RESULTS = Path("build", "mpi4py-tests")

# Intended differences of gradred, with the reason; tests/compat/one_rank.py adapts one more.
DIFFERENT = {
    "test_objmodel.TestObjModel.testCAPI": "mpi4py's C functions make objects of mpi4py's classes",
}

# How often a run is repeated without the test that ended plain mpi4py.
MOST_FATAL = 3


@dataclass
class Run:
    """The verdicts of one job; `failed` has the text of the first rank on which a test failed."""

    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    fatal: str = ""  # the test that hung or ended a rank


def fetch() -> Path | str:
    """Return the folder of mpi4py's tests, or why there is none."""
    version = importlib.metadata.version("mpi4py")
    tests = CACHE / f"mpi4py-{version}" / "test"
    if tests.is_dir():
        return tests
    CACHE.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", f"mpi4py=={version}"]
    command += ["--dest", str(CACHE), "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    done = subprocess.run(command, capture_output=True, text=True)
    archive = CACHE / f"mpi4py-{version}.tar.gz"
    if done.returncode or not archive.exists():
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        return f"the source of mpi4py {version} cannot be had: {last}"
    with tarfile.open(archive) as packed:
        wanted = [one for one in packed.getmembers() if one.name.split("/")[1:2] == ["test"]]
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            packed.extraction_filter = tarfile.data_filter
        packed.extractall(CACHE, wanted)
    return tests


def run(tests: Path, kind: str, ranks: int, names: list[str], seconds: float) -> Run:
    """Run one job of `ranks` ranks; tests/compat/one_rank.py explains `kind` and `names`."""
    out = RESULTS / f"{kind}-{ranks}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    prefix, variables = launcher(ranks)
    if kind == "preload":
        preload.add_to(variables)
    program = str(ROOT / "tests" / "compat" / "one_rank.py")
    command = [*prefix, sys.executable, program, str(tests), str(out), kind, *names]
    begin = time.monotonic()
    job = run_job(command, {**os.environ, **variables, "PYTHONFAULTHANDLER": "1"}, seconds)
    found = read(out, ranks, job.problem)
    print(
        f"{kind:8}{ranks} ranks {time.monotonic() - begin:7.1f} s{len(found.passed):7} passed"
        f"{len(found.failed):5} failed{len(found.skipped):5} skipped",
        flush=True,
    )
    return found


def read(out: Path, ranks: int, problem: str | None) -> Run:
    """Join the verdicts of all ranks: a test has failed if it failed on any rank."""
    found = Run()
    for rank in range(ranks):
        verdicts = out / f"{rank}.json"
        if verdicts.exists():
            for test, text in json.loads(verdicts.read_text()).items():
                if text == "skipped":
                    found.skipped.add(test)
                elif text == "passed":
                    found.passed.add(test)
                else:
                    found.failed.setdefault(test, f"rank {rank}: {text}")
        elif not found.fatal:
            running, log = out / f"{rank}.running", out / f"{rank}.log"
            found.fatal = running.read_text() if running.exists() else "the start"
            last = "\n".join(log.read_text().splitlines()[-30:]) if log.exists() else ""
            found.failed[found.fatal] = f"rank {rank} did not survive it ({problem})\n{last}"
    if problem and not found.failed:
        found.fatal = "the end"
        found.failed[found.fatal] = f"all tests passed, then: {problem}"
    found.passed -= found.failed.keys()
    found.skipped -= found.passed | found.failed.keys()
    return found


Compared = tuple[Run, dict[str, str], dict[str, str]]


def compare_if_needed(tests: Path, ranks: int, seconds: float) -> Compared:
    """Do as `compare`, but run plain mpi4py only if it could explain a failure."""
    ours = run(tests, "gradred", ranks, [], seconds)
    failures = {test: text for test, text in ours.failed.items() if test not in DIFFERENT}
    apart = dict(DIFFERENT)
    if not ours.fatal:
        set_apart_what_asks_for_the_objects(tests, ranks, seconds, failures, apart)
    return compare(tests, ranks, seconds) if failures else (ours, apart, {})


def set_apart_what_asks_for_the_objects(
    tests: Path, ranks: int, seconds: float, failures: dict[str, str], apart: dict[str, str]
) -> None:
    """Move tests that require mpi4py's very objects from `failures` to `apart`."""
    if not failures:
        return
    copies = run(tests, "copies", ranks, sorted(failures), seconds)
    for test in copies.failed.keys() & failures.keys():
        del failures[test]
        apart[test] = "asks for the very object that mpi4py exports"


def compare(tests: Path, ranks: int, seconds: float) -> Compared:
    """Return gradred's run, the tests listed apart with reasons, and failures of gradred alone."""
    fatal: list[str] = []
    plain = run(tests, "plain", ranks, [], seconds)
    while plain.fatal and len(fatal) < MOST_FATAL:
        fatal.append(plain.fatal)
        plain = run(tests, "plain", ranks, [f"-{test}" for test in fatal], seconds)
    if plain.fatal:
        sys.exit(f"plain mpi4py does not survive its tests: {plain.failed[plain.fatal]}")
    apart = dict.fromkeys([*fatal, *plain.failed], "fails on plain mpi4py")
    apart |= DIFFERENT
    ours = run(tests, "gradred", ranks, [f"-{test}" for test in fatal], seconds)
    failures = {test: text for test, text in ours.failed.items() if test not in apart}
    # A test that plain mpi4py runs must run here too: a skip would hide a difference.
    for test in sorted((plain.passed & ours.skipped) - apart.keys()):
        failures[test] = "skipped, though plain mpi4py passes it"
    if not ours.fatal:
        set_apart_what_asks_for_the_objects(tests, ranks, seconds, failures, apart)
    return ours, apart, failures


def compare_preloaded(tests: Path, ranks: int, seconds: float) -> tuple[Run, dict[str, str]]:
    """Return the run with the preloaded library, and the tests that pass only without it."""
    loaded = run(tests, "preload", ranks, [], seconds)
    if loaded.fatal:
        return loaded, loaded.failed
    others = loaded.failed | dict.fromkeys(loaded.skipped, "skipped")
    plain = run(tests, "plain", ranks, sorted(others), seconds) if others else Run()
    if plain.fatal:
        sys.exit(f"plain mpi4py does not survive its tests: {plain.failed[plain.fatal]}")
    return loaded, {test: text for test, text in others.items() if test in plain.passed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one run")
    parser.add_argument("--quick", action="store_true", help="plain mpi4py only if tests fail")
    options = parser.parse_args()
    os.chdir(ROOT)
    check = compare_if_needed if options.quick else compare
    tests = fetch()
    if isinstance(tests, str):
        tally.skip(tests)
        return 0
    passed, failed, skipped, listed = 0, 0, 0, 0
    for ranks in [int(number) for number in options.ranks.split(",")]:
        ours, apart, failures = check(tests, ranks, options.timeout)
        for test, reason in sorted(apart.items()):
            print(f"apart, {ranks} ranks: {test}: {reason}")
        for test, text in failures.items():
            print(f"FAILED with {ranks} ranks: {test}\n{text}")
        loaded, worse = compare_preloaded(tests, ranks, options.timeout)
        for test, text in worse.items():
            print(f"FAILED with {ranks} ranks under the preload: {test}\n{text}")
        passed, failed = passed + len(loaded.passed), failed + len(worse)
        passed, failed = passed + len(ours.passed - apart.keys()), failed + len(failures)
        skipped, listed = skipped + len(ours.skipped), listed + len(apart)
    tally.add(passed, {"of mpi4py's own tests, by themselves": skipped} if skipped else {})
    print(f"{passed} passed, {failed} failed, {skipped} skipped, {listed} apart")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
