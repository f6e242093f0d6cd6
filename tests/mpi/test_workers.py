"""Children of a rank that import gradred and do not communicate: by fork, spawn, or programs."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi import worker
from mpi4py import MPI

import gradred
from gradred import config

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size

METHODS = ["fork", "spawn", "forkserver"]

# Starting children costs seconds on few cores, and more ranks would test nothing new.
starts_children = pytest.mark.skipif(SIZE > 4, reason="four ranks that start children are enough")


@pytest.fixture(autouse=True)
def communicator_works_on() -> Iterator[None]:
    """Communicate before the children, so that they inherit the whole state, and after them."""
    for _ in range(2):
        y = np.full(1000, RANK, "int64")
        COMM.Allreduce(MPI.IN_PLACE, y)
        COMM.Iallreduce(MPI.IN_PLACE, y).Wait()
        assert (y == SIZE * (SIZE - 1) // 2 * SIZE).all()
        if _ == 0:
            yield


def in_children(method: str, function: Any, items: list[Any]) -> list[Any]:
    """`function` of each item, in two children; BrokenProcessPool if one of them ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork are what is tested
        context = multiprocessing.get_context(method)
        with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
            return list(pool.map(function, items, timeout=40))


@starts_children
@pytest.mark.parametrize("method", METHODS)
def test_children_use_gradred_without_mpi(method: str) -> None:
    for loaded, total, rounds in in_children(method, worker.use_gradred, [0, 1]):
        assert (total, rounds) == (2000, 8)
        assert loaded == (method == "fork")  # a forked child has the modules of its parent


@starts_children
@pytest.mark.parametrize("method", METHODS)
def test_children_that_load_data(method: str) -> None:
    shards = [[RANK, 1, 2], [3, 4]]
    assert in_children(method, worker.compute, shards) == [[RANK**2, 1, 4], [9, 16]]


@starts_children
def test_children_see_the_environments_knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADRED_TIMEOUT", "90s")
    (knobs,) = in_children("spawn", worker.read_knobs, [0])
    assert knobs["timeout"] == config.get("timeout") == 90


@starts_children
def test_children_import_mpi4py_where_the_program_says_that_it_begins_no_mpi_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MPI4PY_RC_INITIALIZE", "0")
    assert in_children("spawn", worker.import_mpi, [0, 1]) == [False, False]


@pytest.mark.parametrize("exit_status", [0, 3])
def test_forked_child_leaves_operations_in_flight_alone(exit_status: int) -> None:
    results = [np.full(50_000, RANK + turn, "int64") for turn in range(5)]
    requests = [COMM.Iallreduce(MPI.IN_PLACE, y) for y in results]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _, total, rounds = worker.use_gradred()
        os._exit(exit_status if (total, rounds) == (2000, 8) else 99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == exit_status
    for request in requests:
        request.Wait()
    for turn, y in enumerate(results):
        assert (y == turn * SIZE + SIZE * (SIZE - 1) // 2).all()


@pytest.mark.skipif(SIZE == 1, reason="one rank alone communicates with nobody")
@pytest.mark.parametrize("call", [COMM.Allreduce, COMM.Iallreduce, COMM.Reduce_scatter_block])
def test_forked_child_that_communicates_gets_a_usage_error(call: Any) -> None:
    x, y = np.ones(SIZE), np.zeros(1 if call == COMM.Reduce_scatter_block else SIZE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # the child must not wait for ranks that do not know it
        try:
            call(x, y)
        except gradred.UsageError as error:
            os._exit(0 if "only ranks communicate" in str(error) else 98)
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@starts_children
@pytest.mark.skipif(SIZE == 1, reason="one rank alone communicates with nobody")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_spawned_child_that_communicates_gets_a_usage_error(method: str) -> None:
    (text,) = in_children(method, worker.communicate, [0])
    assert f"this process is a child of rank {RANK}, and only ranks communicate" in text


PROGRAM = """
import sys
import gradred
from gradred import config, schedules
assert "mpi4py.MPI" not in sys.modules
config.load()
print(gradred.__version__, schedules.verify(schedules.make_all("ring", 3)).rounds)
"""


@starts_children
def test_program_that_a_rank_starts_imports_gradred_without_mpi() -> None:
    source = Path(gradred.__file__).parent.parent
    path = os.pathsep.join(filter(None, [str(source), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{gradred.__version__} 4\n", "")


@starts_children
def test_command_line_works_in_a_program_that_a_rank_starts() -> None:
    command = [sys.executable, "-m", "gradred", "info", "version"]
    source = str(Path(gradred.__file__).parent.parent)
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    assert gradred.__version__ in done.stdout
