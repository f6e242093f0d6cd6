"""GRADRED_THREADS in a job: the same sums, and one line where ranks have too few cores for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradred import launch

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

PROGRAM = """
import numpy as np
from mpi4py import MPI
import gradred

x = np.arange(700_001, dtype="float32") * (MPI.COMM_WORLD.rank + 1)
for _ in range(20):
    found = gradred.allreduce(x)
assert found.tobytes() == (np.arange(700_001, dtype="float32") * 3).tobytes()
gradred.allreduce(x, comm=MPI.COMM_WORLD.Dup())
"""


@pytest.mark.parametrize("threads", [2, 5000])
def test_threads_are_ignored_with_one_line_where_cores_are_few(
    threads: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "gradred", "run", "-np", "2", sys.executable, str(program)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **variables, "GRADRED_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "GRADRED_THREADS" in line]
    enough = len(os.sched_getaffinity(0)) >= 2 * threads
    ignored = (
        f"gradred: GRADRED_THREADS={threads} is ignored: this host has no {threads} cores for each "
        "of 2 ranks"
    )
    assert lines == ([] if enough else [ignored])
