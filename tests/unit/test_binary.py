"""The extension contains its C++ library, needs no MPI, and exports one symbol."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradred import _core

needs_binutils = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")


def readelf(*options: str) -> list[str]:
    assert _core.__file__ is not None
    command = ["readelf", "--wide", *options, _core.__file__]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@needs_binutils
def test_extension_needs_only_the_c_library() -> None:
    needed = [line.split("[")[1].rstrip("]") for line in readelf("-d") if "(NEEDED)" in line]
    allowed = ("libc.", "libm.", "libdl.", "libpthread.", "librt.", "ld-linux")
    assert needed
    assert [name for name in needed if not name.startswith(allowed)] == []


@needs_binutils
def test_extension_exports_its_init_function_alone() -> None:
    symbols = [line.split() for line in readelf("--dyn-syms") if line.strip()[:1].isdigit()]
    exported = [row[7] for row in symbols if len(row) > 7 and row[6] != "UND"]
    assert exported == ["PyInit__core"]


def test_package_is_typed() -> None:
    assert _core.__file__ is not None
    package = Path(_core.__file__).parent
    assert (package / "py.typed").exists()
    assert (package / "_core.pyi").exists()


def test_extension_beside_python_files_of_another_version_says_so(tmp_path: Path) -> None:
    """For example, a checkout that was updated and not built again."""
    assert _core.__file__ is not None
    package = tmp_path / "gradred"
    package.mkdir()
    shutil.copy(_core.__file__, package)
    (package / "_core.pyi").write_text("def of_another_version() -> None: ...\n")
    program = "import importlib.util, sys\n"
    program += "spec = importlib.util.spec_from_file_location('gradred._core', sys.argv[1])\n"
    program += "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
    command = [sys.executable, "-c", program, str(package / Path(_core.__file__).name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = "ImportError: gradred._core was built with another version of the Python files in "
    assert f"{found}{package}. Build it again: " in done.stderr
