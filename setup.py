"""Builds the extension gradred._core with CMake; everything else stands in pyproject.toml."""

import hashlib
import importlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


def stop_on_unsupported_system():
    """MPI's own packages exist for Linux with glibc alone (their musl wheels hold no library)."""
    if sys.platform != "linux":
        sys.exit(f"gradred needs Linux with glibc, and this is {platform.system()}.")
    host = str(sysconfig.get_config_var("HOST_GNU_TYPE"))
    if "musl" in host or platform.libc_ver()[0] != "glibc":
        sys.exit("gradred needs Linux with glibc, and this Python is built for another C library.")


def program(name, folder):
    """Returns the path of CMake or Ninja: in its Python package, or on PATH (conda, Spack)."""
    try:
        return str(Path(getattr(importlib.import_module(name), folder)) / name)
    except ImportError:
        found = shutil.which(name)
        return found or sys.exit(f"gradred needs {name} to build: pip install {name}")


class CMakeBuild(build_ext):
    """Configures and builds csrc/; the environment variable CMAKE_ARGS adds options."""

    def run(self):
        stop_on_unsupported_system()
        super().run()

    def build_extension(self, ext):
        import numpy  # here, because the build environment has these and a mere sdist needs none
        import pybind11

        # One folder per place, environment and target: a copied or moved tree never meets the
        # absolute paths of another, and a second build of the same is incremental.
        asked = [os.environ.get(name, "") for name in ("CXX", "CMAKE_ARGS")]
        key = f"{ROOT} {sys.prefix} {asked}".encode()
        build = ROOT / "build" / f"cmake-{hashlib.sha256(key).hexdigest()[:8]}"
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        command = program("cmake", "CMAKE_BIN_DIR")
        # Tests run in a checkout, which an editable install builds for: in no wheel.
        testing = self.get_ext_filename("_core_testing") if self.editable_mode else ""
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": program("ninja", "BIN_DIR"),
            "GRADRED_MODULE": target.name,
            "GRADRED_PYTHON_INCLUDE": sysconfig.get_path("include"),
            "GRADRED_PYBIND11_INCLUDE": pybind11.get_include(),
            "GRADRED_NUMPY_INCLUDE": numpy.get_include(),
            "GRADRED_TESTING_MODULE": testing,
        }
        configure = [command, "-S", str(ROOT / "csrc"), "-B", str(build), "-G", "Ninja"]
        configure += [f"-D{name}={value}" for name, value in options.items()]
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
        for step in (configure, [command, "--build", str(build), "-j", jobs]):
            if subprocess.run(step, check=False).returncode:
                sys.exit("gradred's extension was not built: see the first error above.")

        # Replace, never overwrite: running processes keep the file that they have mapped.
        package = ROOT / "src" / "gradred" if testing else target.parent
        places = {target.name: target.parent, "libgradred_mpi.so": package}
        places["_tensorflow_ops.so"] = package / "tensorflow"
        if testing:
            places |= {testing: ROOT / "tests", "libsimulated_cuda.so": ROOT / "tests"}
        for name, folder in places.items():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(build / name, folder / f"{name}.new")
            os.replace(folder / f"{name}.new", folder / name)


setup(
    ext_modules=[Extension("gradred._core", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
)
