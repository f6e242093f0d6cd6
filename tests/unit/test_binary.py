"""The extension contains its C++ library, needs no MPI, and exports what others look for.

So does the library of TensorFlow's operations, which needs no TensorFlow. The library for programs
in other languages exports functions of the MPI.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradred import _core
from gradred.launch import preload

assert _core.__file__ is not None
TENSORFLOW = Path(_core.__file__).parent / "tensorflow" / "_tensorflow_ops.so"
PRELOAD = preload.library()
needs_binutils = pytest.mark.skipif(shutil.which("readelf") is None, reason="needs binutils")


def readelf(*options: str, file: str | Path = _core.__file__) -> list[str]:
    command = ["readelf", "--wide", *options, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@needs_binutils
@pytest.mark.parametrize(
    "file", [Path(_core.__file__), TENSORFLOW, PRELOAD], ids=lambda path: path.stem
)
def test_extension_needs_only_the_c_library(file: Path) -> None:
    lines = readelf("-d", file=file)
    needed = [line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line]
    allowed = ("libc.", "libm.", "libdl.", "libpthread.", "librt.", "ld-linux")
    assert needed
    assert [name for name in needed if not name.startswith(allowed)] == []


def exported_by(file: str | Path) -> list[str]:
    lines = readelf("--dyn-syms", file=file)
    symbols = [line.split() for line in lines if line.strip()[:1].isdigit()]
    return sorted(row[7] for row in symbols if len(row) > 7 and row[6] != "UND")


@needs_binutils
def test_extension_exports_what_python_and_mpitrampoline_look_for() -> None:
    assert _core.__file__ is not None
    exported = exported_by(_core.__file__)
    of_an_mpi = ("MPIABI_", "MPIXABI_", "mpiabi_version_", "mpiwrapper_")
    assert [name for name in exported if not name.startswith(of_an_mpi)] == ["PyInit__core"]
    # of MPItrampoline's ABI 2.10: one that were missing would end each process that loads JAX
    assert len([name for name in exported if name.startswith("MPIABI_")]) == 631
    functions = [f"gradred_tensorflow_{name}" for name in ("missing", "use", "waits")]
    assert exported_by(TENSORFLOW) == functions


@needs_binutils
def test_library_for_other_programs_exports_functions_of_the_mpi_alone() -> None:
    exported = exported_by(PRELOAD)
    assert {"MPI_Allreduce", "MPI_Allreduce_c", "MPI_Finalize", "mpi_allreduce_"} <= set(exported)
    others = [name for name in exported if not name.lower().startswith("mpi_")]
    assert others == ["gradred_stand_aside"]


def test_library_for_other_programs_is_below_six_megabytes() -> None:
    assert PRELOAD.stat().st_size < 6e6


def test_library_of_tensorflows_operations_says_what_it_lacks() -> None:
    """In a process without TensorFlow it is loaded, and registers nothing."""
    program = f"import ctypes; f = ctypes.CDLL({str(TENSORFLOW)!r}).gradred_tensorflow_missing\n"
    program += "f.restype = ctypes.c_char_p; print(f().decode())"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "libtensorflow_framework.so.2"


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
