"""Programs of MPI that end in a way of their own: what of gradred is still at work must bear it."""

from __future__ import annotations

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
    assert "terminate" not in err
    assert any("went on" in line for line in out), (out, err)
