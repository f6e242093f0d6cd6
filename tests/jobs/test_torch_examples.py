"""The examples for PyTorch do what they say, as programs of a job."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from gradred import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = {"horovod_digits.py": ["--horovod"], "ddp.py": []}

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_learn(example: str) -> None:
    command = [sys.executable, "-m", "gradred", "run", *EXAMPLES[example], "-np", "2"]
    command += [sys.executable, str(ROOT / "examples" / example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = [float(right) for right in re.findall(r"([\d.]+) % of the test", done.stdout)]
    assert found[-1] > 85, done.stdout
    assert found[-1] > found[0]
