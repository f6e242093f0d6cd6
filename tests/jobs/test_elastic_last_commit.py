"""Elastic jobs with too few surviving ranks restart from the survivors' last commit."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from lean import LEAN

from gradred import launch

PROGRAM = pathlib.Path(__file__).with_name("elastic_training.py")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
def test_no_commit_is_lost_with_a_rank(tmp_path: pathlib.Path, rank: int) -> None:
    """Steps are so short that the limit of a tenth of the time forbids writing most states."""
    options = ["-np", "2", "--min-np", "2"]
    ran = [sys.executable, "-m", "gradred", "run", "--horovod", *options]
    own = {"MARK": str(tmp_path / "ended"), "PAUSE": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*ran, sys.executable, str(PROGRAM), f"{rank}:40"],
        env={**os.environ, **LEAN, **own},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done
    report = json.loads([line for line in done.stdout.splitlines() if line[0] == "{"][-1])
    assert report["ranks"] == 2, done
    assert 40 <= report["starts"][0] <= 41, done  # the other rank may have finished the step
