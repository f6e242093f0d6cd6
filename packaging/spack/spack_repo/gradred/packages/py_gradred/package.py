# How to use it: packaging/README.md.

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyGradred(PythonPackage):
    """Fast, safe allreduce for Python programs on any MPI."""

    license("Apache-2.0")

    version("0.1.0")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-pybind11@3:", type="build")

    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-numpy@2:", type="build")
    depends_on("py-numpy@1.22:", type="run")
    depends_on("py-mpi4py@4:", type="run")
    # Nothing is compiled with this MPI or linked to it: gradred finds the one that mpi4py has
    # loaded. So the virtual package is a dependency of the run, for mpiexec, and another provider
    # needs no other build.
    depends_on("mpi", type="run")

    requires("platform=linux", msg="gradred needs Linux with glibc")

    import_modules = ["gradred", "gradred.launch"]
