"""Run the gate, which every change must pass. GATE is its table; it reads the nightly record too.

    python3 tools/ci.py                  # all stages: `make ci`, .ci/run
    python3 tools/ci.py --only NAME      # the stages whose names contain this, in the environments
                                         # of the last run
    python3 tools/ci.py --since REV      # tests for the changes since REV, by tools/layers.py

A test has one try here. Exit status: 0 no stage failed, 2 REV is no commit. tools/nightly.py runs
all other tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time

import checks
import gate_tests
import nightly
import nightly_record
import since
import tally
from checks import MPICH, OPENMPI
from stages import BUILD, Stage, named, report, run_stages


def openmpi_ranks() -> bool:
    """Run, on Open MPI, the binary that was built in MPICH's environment."""
    return checks.ranks(OPENMPI, "--no-unit", "--ranks", "2")


def records() -> bool:
    """Print the results of the gate under load and of the nightly run; False if one is red."""
    load = json.loads(nightly_record.UNDER_LOAD.read_text())
    rounds = f"{load['passed']} of {len(load['rounds'])} rounds passed"
    print(f"gate under load of {load['date'][:10]}, commit {load['commit'][:10]}: {rounds}")
    behind = nightly_record.commits_behind(load["commit"])
    if behind is not None and behind > nightly_record.FAR_BEHIND:
        print(f"{behind} commits have come since: run `make gate-under-load`")
    all_passed = load["passed"] == len(load["rounds"])
    if not all_passed:
        print("a test failed under load: mend it, then run `make gate-under-load`")
    return nightly_record.is_not_red(nightly.NAMES) and all_passed


def devices() -> bool:
    """Test arrays on the devices of the simulated driver."""
    return checks.ranks(MPICH, "--devices")


def faults() -> bool:
    """Run one test of each kind of fault; the closing lines name skipped tests."""
    return checks.jobs(MPICH, *gate_tests.FAULTS.values(), variables={tally.NAMES: "1"})


def commands() -> bool:
    """Run one test of each command; the closing lines name skipped tests."""
    return checks.jobs(MPICH, *gate_tests.COMMANDS.values(), variables={tally.NAMES: "1"})


def front_ends() -> bool:
    """Run one test of each front end."""
    return checks.torch_jobs(*gate_tests.FRONT_ENDS.values())


def laboratory() -> bool:
    """Run the laboratory's tests, if it or a name that it uses differs from the nightly run's."""
    commit = nightly_record.passed_on("laboratory")
    if commit is not None:
        with contextlib.suppress(since.UnknownRevisionError):  # in a clone without it, all run
            if not any(map(since.concerns_the_laboratory, since.changed(commit))):
                found = f"nothing that it uses has changed since the nightly run of {commit[:10]}"
                return tally.skip(found)
    return laboratory_alone()


def laboratory_alone() -> bool:
    well = checks.jobs(MPICH, "tests/lab", seconds=1800)
    return checks.torch_jobs(*gate_tests.LABORATORY.values()) and well


def packages_of_the_laboratory() -> bool:
    return checks.prepared("lab-no-torch")


def tests_alone() -> bool:
    return checks.ranks(MPICH)


GATE = (
    Stage("make test", checks.make_test, all_cores=True, tests=tests_alone),
    Stage("nightly record", records),
    Stage("sdist and wheel", checks.wheel),
    # It compiles in the folder in which the wheel is built, so it must run after the wheel.
    Stage("core", checks.core_tests, beside=True, tests=checks.core_tests),
    # These install into one environment, so each ends before the next begins.
    Stage("docs", checks.docs),
    Stage("packages of the laboratory", packages_of_the_laboratory),
    Stage("lint", checks.lint, beside=True),
    # These stages wait for a part of their time, so they run at the same time.
    Stage("faults", faults, beside=True, tests=faults),
    Stage("commands", commands, beside=True, tests=commands),
    Stage("doctests", checks.doctests, tests=checks.doctests),
    Stage("front ends", front_ends, beside=True, tests=front_ends),
    Stage("laboratory", laboratory, beside=True, tests=laboratory_alone),
    Stage("devices, 2 ranks", devices, tests=devices),
    Stage("openmpi, 2 ranks", openmpi_ranks, tests=openmpi_ranks),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="run the stages whose name contains this")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--since", metavar="REV", help="what the changes since then concern")
    options = parser.parse_args()
    os.chdir(checks.ROOT)
    BUILD.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    if options.since:
        try:
            choice = since.choose(since.changed(options.since))
        except since.UnknownRevisionError as error:
            print(error, file=sys.stderr)
            return 2
        print(choice, flush=True)
        stages = since.stages(choice, GATE)
    else:
        stages = named(GATE, options.stage, options.only)
    verdicts = run_stages(stages, __file__)
    return report(verdicts, time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
