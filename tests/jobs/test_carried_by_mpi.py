"""Non-blocking calls that the MPI carries out: the properties that still hold there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

BEGIN = """
    import gc, time, weakref
    import mpi4py
    if {level!r}:
        mpi4py.rc.thread_level = {level!r}
    import numpy as np
    from mpi4py import MPI
    import gradred

    world = MPI.COMM_WORLD
"""


def run(
    tmp_path: Path, ranks: int, program: str, level: str = "", grace: int = 20, **knobs: str
) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(BEGIN).format(level=level) + textwrap.dedent(program))
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks)]
    command += ["--grace", str(grace)]
    return subprocess.run(
        [*command, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **knobs},
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the ranks print, by rank, without the launcher's prefix."""
    return sorted(line.partition("says ")[2] for line in done.stdout.splitlines() if "says" in line)


GIVEN_UP = """
    class Array(np.ndarray):  # which can be referred to weakly
        pass

    late, alone = gradred.Comm(world.Dup()), gradred.Comm(MPI.COMM_SELF.Dup())
    if world.rank == 0:
        y = np.ones(1 << 21).view(Array)
        alive = weakref.ref(y)
        try:
            late.Iallreduce(MPI.IN_PLACE, y).Wait()
        except gradred.TimeoutError:
            print("says 0 timed out", flush=True)
        del y
        for _ in range(3):
            alone.Iallreduce(MPI.IN_PLACE, np.ones(3)).Wait()
        gc.collect()
        print("says 0 holds", alive() is not None, flush=True)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            world.Iprobe()  # the peer's data arrive
        print("says 0 lives", flush=True)
    else:
        time.sleep(2)
        try:
            late.Iallreduce(MPI.IN_PLACE, np.ones(1 << 21)).Wait()
        except gradred.Error:
            pass
"""


def test_memory_of_a_call_that_was_given_up_is_held_while_the_mpi_may_write_to_it(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, 2, GIVEN_UP, GRADRED_TIMEOUT="1")
    assert said(done) == ["0 holds True", "0 lives", "0 timed out"], (done.stdout, done.stderr)


FAILED = """
    comm = gradred.Comm(world.Dup())
    if world.rank == 0:
        for call in (
            lambda: first(),
            lambda: comm.Allreduce(MPI.IN_PLACE, np.zeros(1)),
            lambda: comm.Iallreduce(MPI.IN_PLACE, np.zeros(200)),
        ):
            first = lambda: {first}
            try:
                call()
                print("says 0 nothing", flush=True)
            except gradred.TimeoutError:
                print("says 0 TimeoutError", flush=True)
    else:
        time.sleep(2.5)
"""


@pytest.mark.parametrize(
    "first", ["Allreduce", pytest.param("Iallreduce", marks=pytest.mark.one_mpi)]
)
def test_call_after_a_first_one_that_failed_raises_its_error(first: str, tmp_path: Path) -> None:
    wait = ".Wait()" if first == "Iallreduce" else ""
    call = f"comm.{first}(MPI.IN_PLACE, np.zeros(1)){wait}"
    program = FAILED.replace("{first}", call)
    done = run(tmp_path, 2, program, grace=1, GRADRED_TIMEOUT="1")  # rank 1 waits in MPI_Finalize
    assert said(done) == ["0 TimeoutError"] * 3, (done.stdout, done.stderr)


LEAVING = """
    comm = gradred.Comm(world)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    comm = gradred.Comm(world.Dup())
    x, y = np.full(1000, world.rank + 1.0), np.zeros(1000)
    request = comm.Iallreduce(x, y, "avg")
    if world.rank == 2:
        time.sleep(3)
    request.Wait()
    print("says", world.rank, (y == 2.5).all(), flush=True)
"""


@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_peer_that_has_done_its_part_and_left_is_not_lost(level: str, tmp_path: Path) -> None:
    """This rank has that peer's data, and waits for a third, slow rank."""
    done = run(tmp_path, 4, LEAVING, level=level)
    assert said(done) == [f"{rank} True" for rank in range(4)], (done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr


DETERMINISTIC = """
    import functools, ml_dtypes

    comm = gradred.Comm(world.Dup())

    def given(rank, count, dtype):
        made = np.random.default_rng(rank)
        return (made.standard_normal(count) * 2.0 ** made.integers(-9, 9, count)).astype(dtype)

    def in_order(vectors, op):
        # narrow floats in float32, rounded once
        narrow = vectors[0].dtype.itemsize < 4
        wide = [one.astype("float32") if narrow else one for one in vectors]
        if op == "premul":
            halves = [(one * wide[0].dtype.type(0.3)).astype(vectors[0].dtype) for one in wide]
            wide = [one.astype(wide[0].dtype) for one in halves]
        total = functools.reduce(np.add, wide).astype(vectors[0].dtype)
        if op == "avg":
            mean = total.astype(wide[0].dtype) / wide[0].dtype.type(world.size)
            total = mean.astype(total.dtype)
        return total

    wrong, requests = [], []
    for count in (0, 1, 13, 4099, 100_003):
        for dtype in ("float32", ml_dtypes.bfloat16, "float64"):
            everyone = [given(rank, count, dtype) for rank in range(world.size)]
            for op in ("sum", "avg", "premul"):
                x = everyone[world.rank].copy()
                y, asked = np.zeros_like(x), gradred.premul(0.3) if op == "premul" else op
                z = x.copy()
                wanted = in_order(everyone, op)
                requests.append((comm.Iallreduce(x, y, asked), y, wanted))
                requests.append((comm.Iallreduce(MPI.IN_PLACE, z, asked), z, wanted))
            blocks = [given(rank, count * world.size, dtype) for rank in range(world.size)]
            own = slice(world.rank * count, (world.rank + 1) * count)
            y = np.zeros(count, dtype)
            request = comm.Ireduce_scatter_block(blocks[world.rank].copy(), y)
            requests.append((request, y, in_order(blocks, "sum")[own]))
    for request, found, wanted in reversed(requests):
        request.Wait()
        wrong += [found.dtype] if found.tobytes() != wanted.tobytes() else []
    x = given(world.rank, 4099, "float32")
    started, blocking, later = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    comm.Iallreduce(x, started).Wait()
    comm.Allreduce(x, blocking)
    comm.Iallreduce(x, later).Wait()
    alike = [blocking.tobytes() == one.tobytes() for one in (started, later)]
    print("says", world.rank, wrong, alike, flush=True)
"""


@pytest.mark.parametrize("level", ["multiple", "serialized", "single"])
def test_deterministic_non_blocking_calls_before_a_blocking_one_add_up_in_the_order_of_ranks(
    level: str, tmp_path: Path
) -> None:
    done = run(tmp_path, 3, DETERMINISTIC, level=level, GRADRED_DETERMINISTIC="1")
    assert said(done) == [f"{rank} [] [True, True]" for rank in range(3)], done.stderr


def test_deterministic_non_blocking_calls_for_which_no_thread_may_drive_are_served(
    tmp_path: Path,
) -> None:
    """The MPI moves the data of these calls; the blocking call has a plan with another order."""
    knobs = {"GRADRED_DETERMINISTIC": "1", "GRADRED_PROGRESS_THREAD": "0", "GRADRED_SHM": "0"}
    done = run(tmp_path, 3, DETERMINISTIC, **knobs)
    found = said(done)
    assert len(found) == 3, done.stderr
    assert all(line[2:4] == "[]" for line in found), found


SET_ON_ONE_RANK = """
    from gradred import config

    config.set("deterministic", world.rank == 0)
    comm = gradred.Comm(world.Dup())
    x, y = np.ones(5), np.zeros(5)
    try:
        comm.Iallreduce(x, y).Wait()
    except gradred.UsageError as error:
        print("says", world.rank, "set it alike on all ranks" in str(error), flush=True)
"""


@pytest.mark.one_mpi
def test_deterministic_on_some_ranks_is_an_error_of_all(tmp_path: Path) -> None:
    done = run(tmp_path, 2, SET_ON_ONE_RANK)
    assert said(done) == ["0 True", "1 True"], (done.stdout, done.stderr)


FREED = """
    import threading

    shrunk = gradred.Comm(world).shrink()
    x, y = np.ones(100), np.zeros(100)
    if world.rank == 0:
        thread = threading.Thread(target=lambda: shrunk.Allreduce(x, y))
        thread.start()
        time.sleep(0.3)
        try:
            shrunk.Free()
        except gradred.UsageError:
            print("says 0 refused", flush=True)
        thread.join()
    else:
        time.sleep(1)
        shrunk.Allreduce(x, y)
    print("says", world.rank, y[0], flush=True)
"""


def test_shrunk_communicator_is_not_freed_under_another_threads_call(tmp_path: Path) -> None:
    done = run(tmp_path, 2, FREED)
    assert said(done) == ["0 2.0", "0 refused", "1 2.0"], (done.stdout, done.stderr)


DIFFER = """
    comm = gradred.Comm(world.Dup())
    x = np.ones((3, 4, 2)).transpose((1, 0, 2) if world.rank == 0 else (0, 1, 2))
    x = x if world.rank == 0 else np.ones((4, 3, 2))
    for wait in (lambda r: r.Wait(), lambda r: gradred.Request.Waitall([r])):
        try:
            wait(comm.Iallreduce(MPI.IN_PLACE, x))
        except gradred.UsageError as error:
            print("says", world.rank, "order of axes" in str(error), flush=True)
    y, z = np.full(3, 1.0), np.full(3, 10.0)
    MPI.Request.Waitall([comm.Iallreduce(MPI.IN_PLACE, y), comm.Iallreduce(MPI.IN_PLACE, z)])
    print("says", world.rank, y[0], z[0], flush=True)
"""


@pytest.mark.parametrize("level", ["multiple", "serialized", "single"])
def test_ranks_whose_axes_lie_in_other_orders_get_an_error(tmp_path: Path, level: str) -> None:
    done = run(tmp_path, 2, DIFFER, level)
    assert done.returncode == 0, done.stderr
    expected = [f"{rank} {text}" for rank in (0, 1) for text in ("2.0 20.0", "True", "True")]
    assert said(done) == expected


ROOTS = """
    comm = gradred.Comm(world.Dup())
    x = np.ones(3 * world.size)
    try:
        if {kind!r} == "gather":
            gradred.igather(x, world.rank, comm=comm).wait()
        else:
            gradred.iscatter(x, world.rank, out=np.ones(3), comm=comm).wait()
    except gradred.UsageError as error:
        print("says", world.rank, "with another root" in str(error), flush=True)
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_ranks_with_other_roots_get_an_error_and_do_not_wait(kind: str, tmp_path: Path) -> None:
    """Each rank would wait for the blocks that the other one, a root too, does not send."""
    done = run(tmp_path, 2, ROOTS.replace("{kind!r}", repr(kind)), grace=1)
    assert said(done) == ["0 True", "1 True"], (done.stdout, done.stderr)
