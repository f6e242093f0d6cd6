"""One rank of a run of mpi4py's own tests, on plain mpi4py or with gradred in its place.

    python one_rank.py TESTS OUT plain|preload|copies|gradred [-TEST ...] [TEST ...]

imports the modules of the folder TESTS and runs their tests: all except those named with a `-`, or
only those named without one. OUT/RANK.json holds each test's verdict (`passed`, `skipped`, or the
failure), OUT/RANK.log the output, OUT/RANK.running the test that runs. `copies` replaces COMM_WORLD
and COMM_SELF by mpi4py's own copies of them. A test that fails there requires the very objects that
mpi4py exports, and no other communicator can pass it. For `preload` the caller has set LD_PRELOAD,
and gradred is not imported: with its extension the library would leave all calls to the MPI.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import traceback
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mpi4py
import mpi4py.util.pkl5
import mpi4py.util.sync
from mpi4py import MPI

# gradred implements or wraps communicators, collective calls and requests. Messages between two
# ranks, files, windows, datatypes and spawned processes are the MPI's alone.
MODULES = (
    *("test_cco_buf", "test_cco_nb_buf", "test_cco_pr_buf", "test_cco_vec", "test_cco_nb_vec"),
    *("test_cco_pr_vec", "test_cco_obj", "test_cco_ngh_obj", "test_cco_buf_inter"),
    *("test_cco_vec_inter", "test_cco_obj_inter", "test_comm", "test_comm_inter"),
    *("test_comm_topo", "test_request", "test_grequest", "test_p2p_obj", "test_msgzero"),
    *("test_attributes", "test_errhandler", "test_group", "test_handle", "test_objmodel"),
    *("test_pickle", "test_subclass", "test_ctypes", "test_cffi", "test_threads"),
    *("test_util_pkl5", "test_util_sync"),
)


class Verdicts(unittest.TestResult):
    """Every test's verdict by name; the first failure counts for a test with several parts."""

    def __init__(self, running: Path) -> None:
        super().__init__()
        self.by_test: dict[str, str] = {}
        self._running = running

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's names)
        super().startTest(test)
        self._running.write_text(test.id())
        self.by_test[test.id()] = "passed"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.by_test[test.id()] = "skipped"

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._fail(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._fail(test, err)

    def addSubTest(self, test: unittest.TestCase, part: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self._fail(test, err)

    def _fail(self, test: unittest.TestCase, err: Any) -> None:
        # A module or class that could not be set up is reported as a test that never started.
        if self.by_test.get(test.id(), "passed") == "passed":
            self.by_test[test.id()] = "".join(traceback.format_exception(*err))


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for member in suite:
        if isinstance(member, unittest.TestSuite):
            yield from tests_of(member)
        else:
            yield member


class Replaced(types.ModuleType):
    """The module mpi4py.MPI, but each use of COMM_WORLD or COMM_SELF makes a new communicator.

    So a test that frees its object does not affect the objects of other tests.
    """

    def __init__(self, mpi: Any, intracomm: type[MPI.Intracomm]) -> None:
        super().__init__("mpi4py.MPI")
        self._mpi, self._intracomm = mpi, intracomm

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._mpi, name)
        return self._intracomm(found) if name in ("COMM_WORLD", "COMM_SELF") else found


def load(kind: str) -> unittest.TestSuite:
    """The tests. Only they see the replaced names, if `kind` replaces any."""
    intracomm = MPI.Intracomm
    if kind == "gradred":
        import gradred

        intracomm = gradred.Comm
    if kind not in ("plain", "preload"):
        mpi4py.MPI = sys.modules["mpi4py.MPI"] = Replaced(MPI, intracomm)
    try:
        found = unittest.defaultTestLoader.loadTestsFromNames(MODULES)
    finally:
        mpi4py.MPI = sys.modules["mpi4py.MPI"] = MPI
    if kind == "gradred":
        allow_what_gradred_promises()
    return found


def allow_what_gradred_promises() -> None:
    """Relax the tests where gradred promises something else."""
    topologies = sys.modules["test_comm_topo"]

    def check_handle(case: unittest.TestCase, comm: MPI.Comm) -> None:
        """MPI.Comm returns objects of mpi4py's classes; gradred's classes are derived from them."""
        for made in (MPI.Comm.fromint(comm.toint()), MPI.Comm.f2py(comm.py2f())):
            assert made == comm
            assert isinstance(comm, type(made))

    topologies.BaseTestTopo.checkHandle = check_handle


def main(tests: str, out: str, kind: str, *names: str) -> None:
    sys.path.insert(0, tests)
    home, rank = Path(out), MPI.COMM_WORLD.rank
    log = os.open(home / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    alone = {name for name in names if not name.startswith("-")}
    wanted = [
        test
        for test in tests_of(load(kind))
        if f"-{test.id()}" not in names and (not alone or test.id() in alone)
    ]
    verdicts = Verdicts(home / f"{rank}.running")
    unittest.TestSuite(wanted).run(verdicts)
    (home / f"{rank}.json").write_text(json.dumps(verdicts.by_test))


if __name__ == "__main__":
    main(*sys.argv[1:])
