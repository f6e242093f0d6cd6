"""Run tests/mpi on Intel MPI, on Debian's MPIs and on the standard ABI, with one binary of gradred.

    python tools/other_mpis.py [--ranks 2] [--wheel FILE] [NAME ...]

Intel MPI comes from its Python package. Debian's Open MPI and MPICH must be installed (apt-get
install openmpi-bin mpich); if they are not, their row says so. The rows of the standard ABI of MPI
5.0 compile mpi4py once for it, with MPICH's compiler, and run it with the libmpi_abi.so.1 of MPICH
and of Intel MPI. Unless a wheel is given, gradred is
built once, in an environment without any MPI, and all rows use that binary. Exit status 0: every
MPI found has passed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tally

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("build", "other-mpis")
MPICH = "mpich>=5"
INTEL = "impi-rt==2021.18.1"  # 2021.19 needs a newer libfabric than its package contains
# Intel's libmpi_abi.so.1 aborts at errors also under MPI.ERRORS_RETURN, so these cause none in it.
OF_INTEL_ABI = tuple(
    f"tests/mpi/test_{name}.py"
    for name in (
        *("collectives", "comm_class", "own_memory", "progress", "requests", "results"),
        *("same_bits", "scans"),
    )
)
DEBIAN_OPEN_MPI = Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")
DEBIAN_MPICH = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")


@dataclass(frozen=True)
class Job:
    """How to start ranks: the launcher's command, and the variables that the ranks need."""

    command: list[str]
    variables: dict[str, str]
    paths: tuple[str, ...] = ("tests/mpi",)


def intel(environment: Path) -> Job | str:
    pip(environment, INTEL)
    launcher = environment / "bin" / "mpiexec"
    return Job([str(launcher)], {"I_MPI_ROOT": str(environment.absolute())})


def debian_open_mpi(environment: Path) -> Job | str:
    launcher = shutil.which("mpiexec.openmpi")
    if launcher is None or not DEBIAN_OPEN_MPI.exists():
        return "not installed (apt-get install openmpi-bin)"
    variables = {"MPI4PY_LIBMPI": str(DEBIAN_OPEN_MPI), "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return Job([launcher, "--oversubscribe", "--bind-to", "none"], variables)


def debian_mpich(environment: Path) -> Job | str:
    launcher = shutil.which("mpiexec.mpich")
    if launcher is None or not DEBIAN_MPICH.exists():
        return "not installed (apt-get install mpich)"
    # Debian's library has another name than that of MPICH's ABI, which mpi4py's wheel looks for.
    folder = (environment / "debian-mpich").absolute()
    folder.mkdir(exist_ok=True)
    link = folder / "libmpi.so.12"
    if not link.exists():
        link.symlink_to(DEBIAN_MPICH)
    return Job([launcher], {"LD_LIBRARY_PATH": str(folder), "MPI4PY_LIBMPI": str(link)})


def mpich_abi(environment: Path) -> Job | str:
    pip(environment, "--force-reinstall", "--no-deps", MPICH, str(mpi4py_of_the_abi()))
    return Job([str(environment / "bin" / "mpiexec")], abi_in(environment))


def intel_abi(environment: Path) -> Job | str:
    pip(environment, "--force-reinstall", "--no-deps", str(mpi4py_of_the_abi()))
    job = intel(environment)
    assert isinstance(job, Job)
    return Job(job.command, job.variables | abi_in(environment), OF_INTEL_ABI)


def abi_in(environment: Path) -> dict[str, str]:
    """Return the variables by which mpi4py loads this environment's library of the standard ABI."""
    folder = (environment / "lib").absolute()
    return {"MPI4PY_LIBMPI": str(folder / "libmpi_abi.so.1"), "LD_LIBRARY_PATH": str(folder)}


def mpi4py_of_the_abi() -> Path:
    """Compile mpi4py for the standard ABI, once; returns its wheel."""
    environment, dist = WORK / "abi", WORK / "abi" / "dist"
    if not list(dist.glob("*.whl")):
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pip(environment, MPICH)
        compiler = (environment / "bin" / "mpicc_abi").absolute()
        command = [str(environment / "bin" / "python"), "-m", "pip", "wheel", "--quiet"]
        command += ["--no-deps", "--no-binary", "mpi4py", "--no-cache-dir", "-w", str(dist)]
        variables = {**os.environ, "MPICC": str(compiler), "CFLAGS": "-O1"}
        subprocess.run([*command, "mpi4py"], check=True, env=variables)
    return next(dist.glob("*.whl"))


MPIS: dict[str, Callable[[Path], Job | str]] = {
    "intel": intel,
    "mpich-abi": mpich_abi,
    "intel-abi": intel_abi,
    "debian-openmpi": debian_open_mpi,
    "debian-mpich": debian_mpich,
}


def pip(environment: Path, *packages: str) -> None:
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", *packages]
    subprocess.run(command, check=True)


def wheel() -> Path:
    """Build gradred once; returns the wheel."""
    dist = WORK / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(dist), "."]
    subprocess.run(command, check=True)
    return next(dist.glob("*.whl"))


def check(name: str, built: Path, ranks: int) -> str:
    """Test one MPI; returns 'passed', 'FAILED ...' or why it was not tried."""
    environment = WORK / name
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    pip(environment, f"{built}[test]")
    job = MPIS[name](environment)
    if isinstance(job, str):
        tally.skip(f"{name}: {job}")
        return job
    python = str((environment / "bin" / "python").absolute())
    variables = {**os.environ, **job.variables}
    if name.endswith("-abi"):
        asked = "import gradred; from gradred import _core; gradred.Comm; print(_core.mpi_family())"
        command = [*job.command, "-n", "1", python, "-c", asked]
        found = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        if found.stdout.strip() != "standard ABI":
            return f"FAILED: the family is {found.stdout.strip()!r}, not the standard ABI"
    command = [*job.command, "-n", str(ranks), python, "-m", "pytest", "-q", "--with-mpi"]
    command += ["-p", "no:cacheprovider", *job.paths]
    done = subprocess.run(command, env=variables, timeout=1200)
    return "passed" if done.returncode == 0 else f"FAILED with status {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--wheel", type=Path, help="of gradred, for this Python")
    parser.add_argument("names", nargs="*", default=list(MPIS), metavar="NAME")
    options = parser.parse_args()
    os.chdir(ROOT)
    built = options.wheel or wheel()
    verdicts = {name: check(name, built, options.ranks) for name in options.names}
    for name, verdict in verdicts.items():
        print(f"{name:16} {verdict}")
    return 1 if any(verdict.startswith("FAILED") for verdict in verdicts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
