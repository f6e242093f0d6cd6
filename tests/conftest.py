"""What every test shares: the size of the sweep, MPI tests by folder, and one rank that speaks."""

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
faked.stand_as_told()  # TEST_HOSTS=0,0,1 mpiexec -n 3 ...: any test, as if on several hosts

# The launcher's variables name the rank before MPI is initialised; without a launcher it is 0.
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))

# tools/run_tests.py sets these two: where each rank leaves its results, and how many ranks it
# started.
RESULTS = os.environ.get("RUN_TESTS_RESULTS")
RANKS = os.environ.get("RUN_TESTS_RANKS")

TALLY = os.environ.get("CI_TALLY")  # tools/tally.py

SECONDS = 60.0  # of one test that is not marked with a limit of its own
STDERR = pytest.StashKey[int]()  # past pytest's capturing
RUNNING = pytest.StashKey[int]()  # a file with the name of the running test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full", action="store_true", help="run the whole sweep, not the small one of every day"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    sweep.full = config.getoption("--full")
    # What a script starts in the background ignores these, and so would what the tests start.
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
    """Tell tools/ci.py what was skipped, where no tool of its own reads the results."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not TALLY or RESULTS or reporter is None:
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
    """Silence every rank but 0: their failures are read from their result files."""
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
    """Thousands of calls take minutes where each waits for the scheduler to run another rank."""
    cores = len(os.sched_getaffinity(0))
    if item.get_closest_marker("rank_per_core") and int(RANKS or 1) > cores:
        pytest.skip(f"more ranks than the {cores} cores")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse N worlds of size 1 (a launcher of another MPI): every test would pass in them."""
    gc.freeze()  # thousands of tests, which each collection would look through
    if RANKS is None or session.config.option.collectonly:
        return
    from mpi4py import MPI

    size = MPI.COMM_WORLD.Get_size()
    if size != int(RANKS):
        pytest.exit(f"the launcher was asked for {RANKS} ranks; MPI sees {size}", returncode=4)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Leave the test's name where a hang can be traced to it, and end the process after a hang.

    All threads' stacks are shown. A signal would wait for a blocking MPI call for ever, and a
    thread of Python's for whoever keeps the interpreter's lock.
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
    """The clock that this process goes by from its first test that steps it: it goes on only."""
    import stepped  # here: not every test imports gradred

    made = stepped.SteppedClock()
    made.take()
    yield made
    made.remove()


@pytest.fixture
def clock(
    stepped_clock: stepped.SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> stepped.SteppedClock:
    """A clock to step: this process's, and that of the jobs that the test starts."""
    monkeypatch.setenv("GRADRED_CLOCK_FILE", stepped_clock.path)
    return stepped_clock


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the whole sweep was asked for (mark tests that only it runs with `full`)."""
    return bool(pytestconfig.getoption("--full"))
