"""Whole programs under `gradred run`: traces, thread levels, forks, exits."""

import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("mpi4py")

LEGAL = pathlib.Path(__file__).parents[1] / "mpi" / "legal.py"


def job(tmp_path, program, *, ranks=2, timeout=60, **environment):
    """Run a program on some ranks; returns the completed `gradred run`."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), sys.executable, str(path)]
    variables = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        command,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=tmp_path,
    )


RING = """
    import numpy as np
    from mpi4py import MPI
    import gradred

    comm = gradred.Comm(MPI.COMM_WORLD)
    x, y = np.full(1000, comm.rank + 1.0), np.empty(1000)
    for _ in range(3):
        comm.Allreduce(x, y)
    assert (y == comm.size * (comm.size + 1) / 2).all()
"""


@pytest.mark.parametrize("name", ["trace.json", "of-{rank}.json"])
def test_trace_has_a_file_per_rank_with_every_message(tmp_path, name):
    done = job(tmp_path, RING, GRADRED_TRACE=str(tmp_path / name), GRADRED_PLAN="ring")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        file = name.format(rank=rank) if "{rank}" in name else f"trace.{rank}.json"
        events = json.loads((tmp_path / file).read_text())["traceEvents"]
        sent = [e for e in events if e["ph"] == "X" and e["name"].startswith("send")]
        assert len(sent) == 3 * 2  # three operations, two rounds each on two ranks
        assert sum(e["args"]["bytes"] for e in sent) == 3 * 8000
        assert {e["pid"] for e in sent} == {rank}


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
def test_every_thread_level_serves_every_kind_of_call(tmp_path, level):
    program = f"""
        import mpi4py
        mpi4py.rc.thread_level = {level!r}
        import time
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        x, y = np.full(1000, comm.rank + 1.0), np.empty(1000)
        total = comm.size * (comm.size + 1) / 2
        comm.Iallreduce(x, y).Wait()
        assert (y == total).all()
        time.sleep(0.2 * comm.rank)
        MPI.Request.Waitall([comm.Iallreduce(x, y, op="avg"), comm.Ibarrier()])
        assert (y == total / comm.size).all()
        comm.Allreduce(x, y)
        assert (y == total).all()
        request = comm.Iallreduce(x, y, op="avg")  # which the MPI does not know
        while not request.Test():
            pass
        assert (y == total / comm.size).all()
        MPI.Request.Waitall([comm.Iallreduce(x, y)])
        assert (y == total).all()
        p = comm.Allreduce_init(x, y)
        p.Start()
        p.Wait()
        p()
        p.Free()
        assert (y == total).all()
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level", ["single", "funneled", "serialized"])
def test_every_way_of_waiting_drives_the_mpi_below_thread_multiple(tmp_path, level):
    """The table of tests/mpi/test_progress.py, which itself runs at MPI_THREAD_MULTIPLE."""
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", "--timeout", "50"]
    done = subprocess.run(
        [*command, str(LEGAL), level], capture_output=True, text=True, timeout=58, cwd=tmp_path
    )
    assert done.returncode == 0, "\n".join([*done.stdout.splitlines()[-3:], done.stderr])


def test_forked_child_of_a_rank_gets_an_error_and_the_rank_goes_on(tmp_path):
    program = """
        import os
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        x, y = np.ones(10), np.empty(10)
        comm.Allreduce(x, y)
        p = comm.Allreduce_init(x, y)
        child = os.fork()
        if child == 0:
            status = 0
            for call in (lambda: comm.Allreduce(x, y), p, lambda: comm.Iallreduce(x, y)):
                try:
                    call()
                    status = 1
                except gradred.UsageError as error:
                    status = status if "fork" in str(error) else 2
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        comm.Allreduce(x, y)
        assert (y == comm.size).all()
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr


def test_requests_dropped_in_flight_do_not_keep_the_program_from_ending(tmp_path):
    program = """
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        for count in (10, 100_000):
            comm.Iallreduce(np.ones(count), np.empty(count))
        comm.Barrier()
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr


def test_plan_for_every_call_leaves_alone_what_does_not_have_it(tmp_path):
    program = """
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        x, y = np.full(1000, comm.rank + 1.0), np.empty(1000)
        comm.Allreduce(x, y)
        assert (y == comm.size * (comm.size + 1) / 2).all()
        every = np.empty(1000 * comm.size)
        comm.Allgather(x, every)
        assert every[0] == 1 and every[-1] == comm.size
        comm.Bcast(y, root=1)
        comm.Reduce_scatter_block(every, x)
        assert x[0] == comm.size * (comm.rank + 1)
    """
    done = job(tmp_path, program, GRADRED_PLAN="rabenseifner")
    assert done.returncode == 0, done.stderr


def test_more_slices_than_tags_are_cut_down(tmp_path):
    done = job(tmp_path, RING, GRADRED_PLAN="ring", GRADRED_SLICES="20000")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("level", ["serialized", "multiple"])
def test_rank_that_refuses_its_arguments_and_leaves_does_not_hang_its_peers(tmp_path, level):
    program = f"""
        import mpi4py
        mpi4py.rc.thread_level = {level!r}
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        comm.Allreduce(MPI.IN_PLACE, np.ones(3))
        x = np.ones(300_000)
        try:
            comm.Allreduce(x, np.ones(299_999 + comm.rank))
        except gradred.UsageError as error:
            line = f"rank {{comm.rank}} raised {{'rank 0 refused' in str(error)}}"
            print(line, flush=True)
    """
    done = job(tmp_path, program, timeout=30, GRADRED_SHM="0")
    assert done.returncode == 0, done.stderr
    lines = sorted(
        line[line.index("rank") :] for line in done.stdout.splitlines() if "raised" in line
    )
    assert lines == ["rank 0 raised False", "rank 1 raised True"], done.stdout


def test_thread_other_than_the_first_may_be_the_first_to_use_gradred(tmp_path):
    """The set-up then must not need the main thread, as Python's signal module does."""
    program = """
        import threading
        import numpy as np
        from mpi4py import MPI

        def communicate():
            import gradred
            print("sum", gradred.allreduce(np.ones(2)))

        thread = threading.Thread(target=communicate)
        thread.start()
        thread.join()
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum [2. 2.]") == 2, (done.stdout, done.stderr)


@pytest.mark.parametrize("end", ["", "MPI.Finalize()", "raise SystemExit(0)"])
def test_program_that_ends_with_operations_in_flight_has_their_callbacks_called(tmp_path, end):
    program = f"""
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        late = comm.Dup()
        late.Allreduce(MPI.IN_PLACE, np.zeros(1))
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        if comm.rank == 0:  # the others never start it
            request = late.Iallreduce(MPI.IN_PLACE, np.ones(3))
            request.add_done_callback(lambda request: print("called 1\\n", end="", flush=True))
        request = comm.Iallreduce(MPI.IN_PLACE, np.ones(3))
        request.add_done_callback(lambda request: print("called 2\\n", end="", flush=True))
        {end}
    """
    done = job(tmp_path, program, timeout=60)
    lines = [line[line.index("called") :] for line in done.stdout.splitlines() if "called" in line]
    assert sorted(lines) == ["called 1", "called 2", "called 2"], (done.stdout, done.stderr)


def test_program_ends_while_a_callback_never_returns(tmp_path):
    program = """
        import threading
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        request = comm.Iallreduce(MPI.IN_PLACE, np.ones(3))
        begun = threading.Event()
        for_ever = lambda _: (begun.set(), threading.Event().wait())
        adding = threading.Thread(target=request.add_done_callback, args=(for_ever,), daemon=True)
        adding.start()  # which calls it by itself where the operation has ended already
        assert begun.wait(20)
        print("ended", flush=True)
    """
    done = job(tmp_path, program, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("ended") == 2


@pytest.mark.parametrize("level", ["single", "funneled", "serialized"])
def test_callbacks_below_thread_multiple_are_called_by_wait_and_test(tmp_path, level):
    program = f"""
        import mpi4py
        mpi4py.rc.thread_level = {level!r}
        import threading
        import numpy as np
        from mpi4py import MPI
        import gradred

        comm = gradred.Comm(MPI.COMM_WORLD)
        threads = []
        here = threading.get_ident()
        for _ in range(2):  # before and after a blocking call
            request = gradred.iallreduce(np.ones(3), comm=comm)
            request.add_done_callback(lambda _: threads.append(threading.get_ident()))
            assert request.wait().tolist() == [comm.size] * 3
            request = comm.Iallreduce(np.ones(3), np.zeros(3), "avg")  # not the MPI's own
            request.add_done_callback(lambda _: threads.append(threading.get_ident()))
            while not request.Test():
                pass
            comm.Allreduce(MPI.IN_PLACE, np.ones(3))
        assert threads == [here] * 4, (threads, here)
        other = comm.Dup()  # no blocking call has set it up
        request = other.Iallreduce(np.ones(3), np.zeros(3))  # the ranks compare it
        request.add_done_callback(lambda _: print("called", flush=True))
        request.Wait()
    """
    done = job(tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("called") == 2
