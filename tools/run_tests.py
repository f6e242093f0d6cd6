"""Run the tests: those without MPI, then tests/mpi at each number of ranks.

Three and four ranks leave out what they do as two do (AS_WITH_TWO), unless --whole is given. With
--devices it runs the tests of tests/gpu instead, on a simulated driver.

Each run is a job with a time limit; at its end all of its processes are ended. Every rank writes a
result file, and a test counts as failed if it failed on any rank. The last line has the sums. Exit
status: 0 all passed, 1 a failure, a hang or a job without tests.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import tally
from processes import Beside, run_job

from gradred._util import cpu

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path("build", "test-results")
STARTS_PROCESSES = [
    f"tests/unit/test_{name}.py" for name in ("cli", "docs", "jobs", "run_function")
]
PROOFS = ["tests/unit/test_properties.py", "tests/unit/test_mutants.py"]
# Each part uses mostly one core, so they run at the same time.
WITHOUT_MPI = {
    "one process": ["tests/unit", *(f"--ignore={path}" for path in STARTS_PROCESSES + PROOFS)],
    "commands and jobs": STARTS_PROCESSES,
    "ranks as threads": ["tests/threads", *PROOFS],
}
# What three or four ranks do as two do, by the reason. They run the rest; with --whole, as in the
# nightly run, also this. A name of tests/mpi without .py: a file, or one test of it.
AS_WITH_TWO = {
    "a rank reads and refuses its own arguments": (
        *("arrays", "declared_calls", "elements", "forms", "handlers", "misuse"),
        *("more_than_numbers", "other_libraries", "readers", "surface", "user_ops"),
    ),
    "a rank's own memory, signals, threads, children and reports": (
        *("huge_pages", "signals", "status", "threads", "workers"),
        "own_memory::test_memory_of_an_array_is_free_when_its_rank_lets_it_go",
        "communicators::test_what_communicators_keep_for_later_calls_is_bounded"
        "_for_all_of_them_together",
    ),
    "a request is completed on each rank by itself": (
        *("callbacks", "completion", "persistent_order", "requests", "started_arrays"),
    ),
    "mpi4py's class": ("comm_class",),
    "whole programs, whose calls other files test": ("examples",),
    "gradients are compressed, and a wait for one peer ends, on each rank by itself": (
        "schemes::test_compressed_gradients_reach_the_same_loss_with_fewer_bytes",
        "schemes::test_a_long_wait_says_for_what",
        "schemes::test_a_message_that_does_not_come_is_a_timeout_error",
    ),
}
# From so many ranks on, only tests that depend on their number run: results, plans, agreement.
MANY_RANKS = 5
OF_MANY_RANKS = [
    f"tests/mpi/test_{name}.py"
    for name in ("results", "plans", "disagreement", "communicators", "random_use")
]
MOST_ON_A_DEVICE = 3  # ranks of tests/gpu, since its devices are threads
BESIDE_FOUR_DEVICES = 5  # the number of ranks after which four ranks test copies between devices
# Simulates ranks on several hosts (tests/hosts/faked.py), which needs root.
ON_HOSTS = {"TEST_HOSTS": "0,0,1"}
NOT_IN_FULL_SWEEP = {"commands and jobs"}  # none of its tests has the mark `full`


@dataclass
class Outcome:
    """The results of one job."""

    name: str
    seconds: float = 0.0
    core_seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def launcher(ranks: int) -> tuple[list[str], dict[str, str]]:
    """Return the command that starts `ranks` ranks of this environment's MPI, and its variables."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        sys.exit("no mpiexec: install an MPI, for example with pip install mpich")
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, timeout=60)
    if "Open MPI" in version.stdout or "OpenRTE" in version.stdout or "PRRTE" in version.stdout:
        # Tests run as root in containers and with more ranks than cores. Users decide about that
        # themselves, so only the tests have these settings.
        options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
        variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        return [mpiexec, "-n", str(ranks), *options], variables
    return [mpiexec, "-n", str(ranks)], {}


def run_pytest(
    name: str,
    paths: list[str],
    ranks: int,
    options: argparse.Namespace,
    more_variables: Mapping[str, str] = MappingProxyType({}),
) -> Outcome:
    """Run one pytest per rank over `paths`; with `ranks` of 0 a single one without MPI."""
    folder = results_of(name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    color = "yes" if sys.stdout.isatty() else "no"  # launchers hide or imitate the terminal
    command = [sys.executable, "-m", "pytest", "-q", f"--color={color}", "--durations=3", *paths]
    environment = {**os.environ, "RUN_TESTS_RESULTS": str(folder), "PYTHONFAULTHANDLER": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each rank would compile all tests
    environment |= more_variables
    if options.full:
        command += ["--full", "-m", "full or wider"]
    if ranks:
        prefix, variables = launcher(ranks)
        command = [*prefix, *command, "--with-mpi", "-p", "no:cacheprovider"]
        environment |= variables | {"RUN_TESTS_RANKS": str(ranks)}
    print(f"\n== {name} ==", flush=True)
    begin, used_before = time.monotonic(), core_seconds_used()
    job = run_job(command, environment, options.timeout)
    outcome = read_results(name, folder, max(ranks, 1), job.problem)
    outcome.failed += [f"{name}: left behind process {process}" for process in job.left]
    outcome.seconds = time.monotonic() - begin
    outcome.core_seconds = core_seconds_used() - used_before
    return outcome


def core_seconds_used() -> float:
    """Return the core seconds of all ended descendants, except concurrent commands."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - Beside.ended_core_seconds


def tests_of(ranks: int, *, whole: bool) -> list[str]:
    """Return pytest's words for the tests of tests/mpi that run with so many ranks."""
    if ranks >= MANY_RANKS:
        return OF_MANY_RANKS
    left_out = [name for names in AS_WITH_TWO.values() for name in names]
    if ranks <= 2 or whole:
        left_out = []
    return ["tests/mpi", *map(without, left_out)]


def without(name: str) -> str:
    """Return pytest's option that leaves out a file of tests/mpi, or a test of it."""
    file, _, test = name.partition("::")
    path = f"tests/mpi/test_{file}.py"
    return f"--deselect={path}::{test}" if test else f"--ignore={path}"


def run_on_devices(ranks: int, options: argparse.Namespace) -> Outcome:
    paths = ["tests/gpu", *(["-k", options.on_devices] if options.on_devices else [])]
    return run_pytest(f"device, {ranks} ranks", paths, ranks, options)


def results_of(name: str) -> Path:
    return ROOT / RESULTS / name.replace(" ", "-").replace(",", "")


def run_without_mpi(options: argparse.Namespace) -> list[Outcome]:
    """Run the parts at the same time: the first in this process, the others in their own."""
    first, *others = [
        name for name in WITHOUT_MPI if not (options.full and name in NOT_IN_FULL_SWEEP)
    ]
    (ROOT / RESULTS).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--timeout", str(options.timeout)]
    command += ["--full"] if options.full else []
    beside = {
        name: Beside([*command, "--part", name], results_of(name).with_suffix(".log"))
        for name in others
    }
    outcomes = [run_pytest(first, WITHOUT_MPI[first], 0, options)]
    for name, one in beside.items():
        status = one.wait()
        problem = f"exit status {status}" if status else None
        outcomes.append(read_results(name, results_of(name), 1, problem))
        outcomes[-1].seconds, outcomes[-1].core_seconds = one.seconds, one.core_seconds
    return outcomes


def read_results(name: str, folder: Path, ranks: int, problem: str | None) -> Outcome:
    """Join the result files of all ranks; `problem` says what went wrong with the job itself."""
    outcome = Outcome(name)
    verdicts: dict[str, set[str]] = {}
    lost: dict[str, list[str]] = {}  # ranks without results, by the place where they ended
    for rank in range(ranks):
        at = f"{name}, rank {rank}" if ranks > 1 else name
        file = folder / f"results-{rank}.xml"
        if not file.exists():
            running = folder / f"running-{rank}"
            where = f"in {running.read_text()}" if running.exists() else "before the first test"
            lost.setdefault(where, []).append(str(rank))
            continue
        for case in ElementTree.parse(file).iter("testcase"):
            test = f"{case.get('classname')}::{case.get('name')}"
            verdicts.setdefault(test, set()).add(verdict(case, f"{at}: {test}", outcome))
    for where, those in lost.items():
        which = f"rank {', '.join(those)}: " if ranks > 1 else ""
        outcome.failed.append(f"{name}: {which}ended {where} ({problem or 'no result file'})")
    outcome.passed = sum("passed" in found and "failed" not in found for found in verdicts.values())
    outcome.skipped = Counter(
        next(iter(found)) for found in verdicts.values() if not found & {"passed", "failed"}
    )
    if not outcome.failed and problem:
        outcome.failed.append(f"{name}: {problem}")
    if not outcome.failed and not outcome.passed:
        outcome.failed.append(f"{name}: no test ran")
    return outcome


def verdict(case: ElementTree.Element, title: str, outcome: Outcome) -> str:
    """Return 'passed', 'failed' (and record it in `outcome`), or the reason of a skip."""
    for child in case:
        if child.tag in ("failure", "error"):
            lines = (child.get("message") or "").splitlines()
            outcome.failed.append(f"{title}: {lines[0] if lines else child.tag}")
            if "rank 0" not in title and "rank" in title:
                print(f"\n{title}\n{child.text}")  # rank 0's own output has appeared already
            return "failed"
        if child.tag == "skipped":
            return child.get("message") or "no reason given"
    return "passed"


def report(outcomes: list[Outcome], load: float) -> int:
    """Print seconds, skips, failures and the closing line; returns the exit status.

    Args:
        outcomes: of all jobs.
        load: the number of other programs that wanted a core before the first job.
    """
    print(f"\n{'':28}{'seconds':>8}{'core-s':>8}{'passed':>8}{'failed':>8}{'skipped':>8}")
    for one in outcomes:
        skips = sum(one.skipped.values())
        took = f"{one.seconds:8.1f}{one.core_seconds:8.1f}"
        print(f"{one.name:28}{took}{one.passed:8}{len(one.failed):8}{skips:8}")
    reasons = sum((one.skipped for one in outcomes), Counter())
    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}")
    failures = [failure for one in outcomes for failure in one.failed]
    for failure in failures:
        print(f"FAILED {failure}")
    if failures and (busy := cpu.busy(load)):
        print(f"Before the tests {busy}, so limits of time mean little. Try when less runs here.")
    passed = sum(one.passed for one in outcomes)
    tally.add(passed, reasons)
    print(f"{passed} passed, {len(failures)} failed, {reasons.total()} skipped")
    return 1 if failures or not passed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--ranks", help="numbers of ranks, unless given 2,3, for devices 2; '' for none"
    )
    parser.add_argument("--no-unit", action="store_true", help="leave out the tests without MPI")
    parser.add_argument("--torch", action="store_true", help="only tests/pytorch, with ranks")
    parser.add_argument("--tensorflow", action="store_true", help="only tests/tf, with ranks")
    parser.add_argument("--devices", action="store_true", help="only tests/gpu, with ranks")
    parser.add_argument(
        "--on-devices", help="pytest's -k for tests/gpu, which run beside tests/mpi"
    )
    parser.add_argument("--paths", help="with ranks only these files, separated by commas")
    parser.add_argument("--part", choices=WITHOUT_MPI, help="only these of the tests without MPI")
    parser.add_argument(
        "--full",
        action="store_true",
        help="what the small sweep leaves out, and nothing else",
    )
    parser.add_argument(
        "--whole", action="store_true", help="with 3 or 4 ranks also what they do as two do"
    )
    parser.add_argument("--timeout", type=float, default=400, help="seconds for one job")
    options = parser.parse_args()
    os.chdir(ROOT)
    load = cpu.load()
    if options.part:
        return 1 if run_pytest(options.part, WITHOUT_MPI[options.part], 0, options).failed else 0
    if options.ranks is None:
        options.ranks = "2" if options.devices else "2,3"
    numbers = [int(number) for number in options.ranks.split(",") if number]
    if options.paths:
        paths = options.paths.split(",")
        chosen = [run_pytest(f"chosen, {ranks} ranks", paths, ranks, options) for ranks in numbers]
        return report(chosen, load)
    if options.devices:
        return report([run_on_devices(ranks, options) for ranks in numbers], load)
    outcomes = [] if options.no_unit else run_without_mpi(options)
    on_devices = max((ranks for ranks in numbers if ranks <= MOST_ON_A_DEVICE), default=0)
    for ranks in numbers:
        if options.tensorflow:
            name = f"tensorflow, {ranks} ranks"
            outcomes.append(run_pytest(name, ["tests/tf"], ranks, options))
            continue
        if options.torch:
            outcomes.append(run_pytest(f"torch, {ranks} ranks", ["tests/pytorch"], ranks, options))
            if ranks == 3 and os.geteuid() == 0:
                paths = ["tests/mpi/test_named.py", "tests/pytorch"]
                outcomes.append(
                    run_pytest("torch, 3 ranks on 2 hosts", paths, ranks, options, ON_HOSTS)
                )
            continue
        paths = tests_of(ranks, whole=options.whole)
        outcomes.append(run_pytest(f"MPI, {ranks} ranks", paths, ranks, options))
        if options.on_devices and ranks == on_devices:
            outcomes.append(run_on_devices(ranks, options))
        if ranks == BESIDE_FOUR_DEVICES:
            outcomes.append(
                run_pytest("devices, 4 ranks", ["tests/gpu/test_workspaces.py"], 4, options)
            )
    return report(outcomes, load)


if __name__ == "__main__":
    sys.exit(main())
