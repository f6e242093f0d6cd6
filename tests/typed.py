"""Programs typed into an interactive Python, as in a notebook: their functions are in no file."""

from __future__ import annotations

import os
import subprocess
import sys


def typed(program: str, seconds: float = 150) -> str:
    """Type a program into a new interactive Python, and return what it has printed.

    Args:
        program: statements; an empty line ends each block.
        seconds: the time limit.
    """
    command = [sys.executable, "-i", "-q"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONSTARTUP": ""}
    done = subprocess.run(
        command,
        input=program,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout
