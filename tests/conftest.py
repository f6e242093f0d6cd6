"""Fixtures and hooks of all tests: sweep size, MPI tests by folder, output of rank 0 only."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sweep
from hosts import faked

if TYPE_CHECKING:
    import stepped

HERE = Path(__file__).parent
faked.fake_hosts()  # TEST_HOSTS=0,0,1 mpiexec -n 3 ... runs any test as if on several hosts

# The launcher's variables give the rank before MPI is initialised. Without a launcher it is 0.
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))

# tools/run_tests.py sets these two: the folder for each rank's results, and the number of ranks
# that it started.
RESULTS = os.environ.get("RUN_TESTS_RESULTS")
RANKS = os.environ.get("RUN_TESTS_RANKS")

TALLY = os.environ.get("CI_TALLY")  # tools/tally.py

SECONDS = 60.0  # limit for a test that has no mark with a limit of its own
STDERR = pytest.StashKey[int]()  # a duplicate of stderr that pytest does not capture
RUNNING = pytest.StashKey[int]()  # a file with the name of the running test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run the whole sweep, not the small one of every day"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    sweep.full = config.getoption("--full")
    # A script starts background processes with these signals ignored, and child processes inherit
    # that. So restore the default handlers.
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, usual)
    config.stash[STDERR] = os.dup(2)
    if RESULTS:
        config.stash[RUNNING] = os.open(Path(RESULTS, f"running-{RANK}"), os.O_CREAT | os.O_WRONLY)
        config.option.xmlpath = str(Path(RESULTS, f"results-{RANK}.xml"))
        config.option.basetemp = str(Path(RESULTS, f"tmp-{RANK}"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report skipped tests to tools/ci.py on rank 0, if no other tool reads the results."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not TALLY or RESULTS or RANK or reporter is None:
        return
    reports = reporter.stats.get("skipped", [])
    named = "CI_TALLY_NAMES" in os.environ
    reasons = Counter(
        str(one.longrepr[2]).removeprefix("Skipped: ") + f": {one.nodeid}" * named
        for one in reports
    )
    with open(TALLY, "a") as file:
        passed = len(reporter.stats.get("passed", []))
        found = {"passed": passed, "skipped": reasons}
        print(json.dumps(found), file=file)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Silence every rank but 0: the failures of the others are in their result files."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if RANK > 0 and reporter is not None:
        reporter._tw._file = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if not {HERE / "mpi", HERE / "gpu"}.isdisjoint(item.path.parents):
            item.add_marker(pytest.mark.mpi)
    if not config.getoption("--full"):
        large = [item for item in items if item.get_closest_marker("full")]
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of thousands of calls if ranks share cores.

    Such a test takes minutes if each call waits until the scheduler runs another rank.
    """
    cores = len(os.sched_getaffinity(0))
    if item.get_closest_marker("rank_per_core") and int(RANKS or 1) > cores:
        pytest.skip(f"more ranks than the {cores} cores")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse N worlds of size 1 (a launcher of another MPI): every test would pass in them."""
    gc.freeze()  # each garbage collection would otherwise scan thousands of tests
    if RANKS is None or session.config.option.collectonly:
        return
    from mpi4py import MPI

    size = MPI.COMM_WORLD.Get_size()
    if size != int(RANKS):
        pytest.exit(f"the launcher was asked for {RANKS} ranks; MPI sees {size}", returncode=4)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write the test's name to a file, so that a hang can be traced, and end the process after one.

    It shows all threads' stacks. A signal handler would wait for ever for a blocking MPI call, and
    a Python thread would wait for the interpreter's lock.
    """
    if RESULTS:
        name = item.nodeid.encode()
        os.ftruncate(item.config.stash[RUNNING], os.pwrite(item.config.stash[RUNNING], name, 0))
    mark = item.get_closest_marker("timeout")
    seconds = mark.args[0] if mark else SECONDS
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def stepped_clock() -> Iterator[stepped.SteppedClock]:
    """The clock of this process, from the first test that steps it. It never goes back."""
    import stepped  # imported here because not every test imports gradred

    made = stepped.SteppedClock()
    made.take()
    yield made
    made.remove()


@pytest.fixture
def clock(
    stepped_clock: stepped.SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> stepped.SteppedClock:
    """A clock that the test steps, for this process and for the jobs that the test starts."""
    monkeypatch.setenv("GRADRED_CLOCK_FILE", stepped_clock.path)
    return stepped_clock


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the full sweep was requested. Tests that only it runs have the mark `full`."""
    return bool(pytestconfig.getoption("--full"))
