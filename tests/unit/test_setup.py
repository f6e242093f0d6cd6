"""Where gradred cannot work, setup.py stops before it compiles, with one sentence."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# setuptools is imported before the faked system name is set, because it reads the name itself.
PROGRAM = """
import platform, runpy, subprocess, sys
import setuptools.command.build_ext
FAKE
subprocess.run = lambda command, **__: sys.exit(f"started: {' '.join(command)}")
sys.argv = ["setup.py", "--quiet", "build_ext"]
runpy.run_path("setup.py", run_name="__main__")
"""

SYSTEMS = {
    "macOS": "sys.platform = 'darwin'; platform.system = lambda: 'Darwin'",
    "Windows": "sys.platform = 'win32'; platform.system = lambda: 'Windows'",
    "musl": "platform.libc_ver = lambda *_: ('', '')",
}


def require_setuptools() -> None:
    """Skip without a setuptools that builds gradred.

    It is not imported: on Python 3.10 that failed in the process of all unit tests.
    """
    try:
        found = metadata.version("setuptools")
    except metadata.PackageNotFoundError:
        found = "0"
    if int(found.split(".")[0]) < 77:
        pytest.skip(f"takes setuptools 77, and {found} is here")


def last_line_of_build(fake: str, path: str = os.environ["PATH"]) -> str:
    """The last line that setup.py prints on the system that `fake` simulates."""
    require_setuptools()
    command = [sys.executable, "-c", PROGRAM.replace("FAKE", fake)]
    variables = {**os.environ, "PATH": path}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=variables
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("system", SYSTEMS)
def test_setup_stops_with_one_sentence(system: str) -> None:
    assert last_line_of_build(SYSTEMS[system]).startswith("gradred needs Linux with glibc")


def test_setup_compiles_on_linux_with_glibc_and_a_wheel_has_nothing_of_the_tests() -> None:
    started = last_line_of_build("")
    assert re.match(r"started: .*/cmake -S .* -DGRADRED_MODULE=_core\.", started)
    assert "-DGRADRED_TESTING_MODULE= " in started + " "


def test_programs_of_path_serve_where_python_has_no_packages_of_them(tmp_path: Path) -> None:
    """conda, Spack and EasyBuild have CMake and Ninja as programs alone."""
    without = "sys.modules['cmake'] = sys.modules['ninja'] = None"
    for name in ("cmake", "ninja"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    started = last_line_of_build(without, str(tmp_path))
    assert started.startswith(f"started: {tmp_path}/cmake -S ")
    assert f"-DCMAKE_MAKE_PROGRAM={tmp_path}/ninja " in started
    (tmp_path / "ninja").unlink()
    expected = "gradred needs ninja to build: pip install ninja"
    assert last_line_of_build(without, str(tmp_path)) == expected


def test_editable_install_builds_the_extension_of_the_tests() -> None:
    """The command sets this flag after it has read its own options."""
    editable = """
def finalize_options(self, finalize=setuptools.command.build_ext.build_ext.finalize_options):
    self.editable_mode = True
    finalize(self)
setuptools.command.build_ext.build_ext.finalize_options = finalize_options
"""
    assert "-DGRADRED_TESTING_MODULE=_core_testing." in last_line_of_build(editable)


def test_missing_extension_of_the_tests_is_reported_with_what_builds_it(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests" / "core_testing.py", tmp_path)
    command = [sys.executable, "-c", "import core_testing"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: the tests' own extension is missing or out of date (No module named "
        "'_core_testing'). Build it: python -m pip install --editable . in gradred's folder, "
        "or make test"
    )


def test_make_demo_installs_a_wheel_that_is_given() -> None:
    show = ["make", "--dry-run", "--directory", str(ROOT), "demo"]
    usual = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert "--wheel" not in usual
    given = [*show, "GRADRED_WHEEL=dist/a name.whl"]
    with_wheel = subprocess.run(given, capture_output=True, text=True, check=True).stdout
    assert '--wheel "dist/a name.whl" mpich,demo' in with_wheel
