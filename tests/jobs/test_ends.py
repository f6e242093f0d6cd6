"""MPI programs that end in unusual ways while gradred's threads and operations are still active."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


def run(program: str, folder: pathlib.Path) -> tuple[list[str], str, int]:
    """Two ranks of a program: the lines they print, stderr and the job's status."""
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", "--timeout", "20"]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, timeout=50)
    return done.stdout.splitlines(), done.stderr, done.returncode


DAEMON = """
import sys, threading, time
import numpy as np
from mpi4py import MPI
import gradred

comm = gradred.Comm(MPI.COMM_WORLD)
x, y = np.ones(4), np.zeros(4)
comm.Allreduce(x, y)

def call():
    try:
        comm.Allreduce(x, y)
    except gradred.Error:  # or the result: the peer may have done its part
        pass
    print("went on", flush=True)

if comm.rank == 0:
    time.sleep(1)
    call()
else:  # ends while it waits for rank 0
    threading.Thread(target=CALL, daemon=True).start()
    time.sleep(0.3)
    sys.exit(0)
"""
STARTED = "lambda: comm.Iallreduce(x, y).Wait()"


@pytest.mark.parametrize("call", ["call", STARTED], ids=["blocking", "non-blocking"])
def test_program_ends_while_a_daemon_thread_is_in_a_call(call: str, tmp_path: pathlib.Path) -> None:
    out, err, status = run(DAEMON.replace("CALL", call), tmp_path)
    assert status == 0, err
    assert "terminate called" not in err
    assert any("went on" in line for line in out), (out, err)


FINALIZED = """
import numpy as np
from mpi4py import MPI
import gradred

comm = gradred.Comm(MPI.COMM_WORLD)
x, y = np.ones(4), np.zeros(4)
half, twice = np.zeros(2), np.zeros(8)
comm.Allreduce(x, y)
persistent = comm.Allreduce_init(x, y)
persistent()
started = comm.Allreduce_init(x, y)
started.Start()
comm.Allreduce(x, y)  # ends what was started before
MPI.Finalize()
started.Free()  # of a request that the MPI no longer knows
calls = {
    "Allreduce": lambda: comm.Allreduce(x, y),
    "Allreduce of lists": lambda: comm.Allreduce([x, 4], [y, 4]),
    "Iallreduce": lambda: comm.Iallreduce(x, y),
    "Allreduce_init": lambda: comm.Allreduce_init(x, y),
    "Reduce_scatter_block": lambda: comm.Reduce_scatter_block(x, half),
    "Ireduce_scatter_block": lambda: comm.Ireduce_scatter_block(x, half),
    "Allgather": lambda: comm.Allgather(x, twice),
    "Bcast": lambda: comm.Bcast(x),
    "shrink": comm.shrink,
    "p()": persistent,
    "p.Start": persistent.Start,
}
for given in (comm, None):
    calls |= {
        f"allreduce {given}": lambda: gradred.allreduce(x, comm=given),
        f"allreduce_many {given}": lambda: gradred.allreduce_many([x], comm=given),
        f"gradred.Allreduce {given}": lambda: gradred.Allreduce(x, y, comm=given),
        f"reduce_scatter_block {given}": lambda: gradred.reduce_scatter_block(x, comm=given),
        f"allgather {given}": lambda: gradred.allgather(x, comm=given),
        f"bcast {given}": lambda: gradred.bcast(x, comm=given),
    }
    for name, call in calls.items():
        try:
            call()
            print(name, "returned", flush=True)
        except Exception as error:
            if "MPI is already finalised" not in str(error):
                print(name, repr(error), flush=True)
            elif not isinstance(error, gradred.UsageError):
                print(name, type(error), flush=True)
print("refused", len(calls), flush=True)
"""


def test_every_call_after_finalize_is_refused_alike(tmp_path: pathlib.Path) -> None:
    out, err, status = run(FINALIZED, tmp_path)
    assert sorted(line.split("] ")[-1] for line in out) == ["refused 23"] * 2, (out, err)
    assert status == 0


SLOW_TO_END = """
import atexit, sys, time
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 1:
    atexit.register(time.sleep, 1.5)  # before gradred's, hence called after it
import gradred
import numpy; gradred.allreduce(numpy.ones(1))
if MPI.COMM_WORLD.rank == 1:
    sys.exit(7)
time.sleep(0.6)
sys.exit(3)
"""


def test_rank_that_leaves_first_is_the_first_cause_however_long_its_end_takes(
    tmp_path: pathlib.Path,
) -> None:
    _, err, status = run(SLOW_TO_END, tmp_path)
    assert status == 7, err
    assert err.splitlines()[-1].endswith(
        "rank 1 on " + os.uname().nodename + " exited with status 7"
    )


REFUSED = """
import os, time
import numpy as np
from mpi4py import MPI
import gradred

comm = gradred.Comm(MPI.COMM_WORLD)
comm.Allreduce(MPI.IN_PLACE, np.ones(1))
x = np.ones(1000)
request = comm.Iallreduce(MPI.IN_PLACE, x)
while not request.Test():
    time.sleep(0.01 * comm.rank)
for _ in range(2):  # the second cannot be announced before the peers have come to the first
    try:
        comm.Iallreduce(np.ones(3), np.empty(4))
    except gradred.UsageError:
        pass
print("right" if x[0] == comm.size else "wrong", flush=True)
"""


def test_refused_calls_at_the_end_of_a_program_lose_nobody(tmp_path: pathlib.Path) -> None:
    for _ in range(3):
        out, err, status = run(REFUSED, tmp_path)
        assert status == 0, err
        assert sum("right" in line for line in out) == 2, (out, err)


FATAL = """
import os, signal
import numpy as np
from mpi4py import MPI
import gradred

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_ARE_FATAL)
comm = gradred.Comm(world)
x = np.ones(100_000)
comm.Allreduce(MPI.IN_PLACE, x)
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
request = comm.Iallreduce(MPI.IN_PLACE, x)
try:
    WAIT
except gradred.PeerLost:
    print("PeerLost", flush=True)
"""


@pytest.mark.parametrize("wait", ["request.Wait()", "gradred.Request.Waitall([request])"])
def test_lost_peer_is_no_error_for_the_programs_handler_of_the_mpi(
    wait: str, tmp_path: pathlib.Path
) -> None:
    out, err, status = run(FATAL.replace("WAIT", wait), tmp_path)
    assert out == ["PeerLost"], err
    assert status == 128 + 9


THREAD_GOES_ON = """
import sys, threading, time
import numpy as np
from mpi4py import MPI
import gradred

comm = gradred.Comm(MPI.COMM_WORLD)
x = np.ones(4)
comm.Allreduce(MPI.IN_PLACE, x)
if comm.rank == 1:
    threading.Thread(target=time.sleep, args=(6,)).start()
    sys.exit(0)
try:
    comm.Allreduce(MPI.IN_PLACE, x)
except gradred.TimeoutError as error:
    print(error, flush=True)
"""


def test_report_of_a_hang_says_that_a_main_thread_has_ended_beside_another(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADRED_TIMEOUT", "2")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    out, err, _ = run(THREAD_GOES_ON, tmp_path)
    cause = "its main thread has ended and other threads go on"
    assert any(f"sleeping, {cause}, last left operation" in line for line in out), (out, err)
    (report,) = tmp_path.glob("gradred-*-job-*.txt")
    assert cause in report.read_text()
