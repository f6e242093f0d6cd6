"""Tests against SimGrid are skipped, with the reason, where it is not installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that runs a table of steps, compiled for SMPI."""
    if shutil.which("smpicc") is None or shutil.which("smpirun") is None:
        pytest.skip("SimGrid is not installed (apt-get install libsimgrid-dev)")
    program = tmp_path_factory.mktemp("smpi") / "replay"
    source = Path(__file__).with_name("replay.c")
    subprocess.run(["smpicc", "-O1", "-o", program, source], check=True)
    return program
