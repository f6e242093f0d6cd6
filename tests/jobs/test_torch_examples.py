"""The PyTorch examples, as programs of a job, do what they promise."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from bounds import within
from jobs.test_device import script_for_a_real_gpu
from lean import LEAN

from gradred import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = {
    "horovod_digits.py": ["--horovod"],
    "horovod_join.py": ["--horovod"],
    "horovod_resnet.py": ["--horovod"],
    "ddp.py": [],
    "fsdp.py": [],
}
SMALL = {"horovod_resnet.py": ["--image-size", "32", "--width", "8"]}

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_learn(example: str) -> None:
    command = [sys.executable, "-m", "gradred", "run", *EXAMPLES[example], "-np", "2"]
    command += [sys.executable, str(ROOT / "examples" / example), *SMALL.get(example, [])]
    lean = {} if example == "fsdp.py" else LEAN
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=os.environ | lean
    )
    assert done.returncode == 0, done.stderr
    found = [float(right) for right in re.findall(r"([\d.]+) % of the test", done.stdout)]
    assert found[-1] > 85, done.stdout
    assert found[-1] > found[0]


STALL = """
import pathlib
import sys
import time
import torch
import horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(1), name="together")
begin = time.monotonic()
if hvd.rank() == 0:
    try:
        hvd.allreduce(torch.ones(1), name="alone")
    except hvd.HorovodInternalError as error:
        print(f"after {time.monotonic() - begin:.2f} s: {error}", flush=True)
    pathlib.Path(sys.argv[1]).touch()
else:
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
"""


def test_stall_ends_in_an_error_after_horovods_limit(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "stall.py"
    program.write_text(STALL)
    limits = ["--stall-check-warning-time-seconds", "1"]
    limits += ["--stall-check-shutdown-time-seconds", "2"]
    command = [sys.executable, "-m", "gradred", "run", "--horovod", *limits, "-np", "2"]
    done = subprocess.run(
        [*command, sys.executable, str(program), str(tmp_path / "over")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    found = re.search(r"after ([\d.]+) s: (.*)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert 1.9 < float(found[1]) < within(5)
    assert "'allreduce.alone', which has not been submitted by rank 1" in found[2]
    before = [line for line in done.stderr.splitlines() if "allreduce.alone" in line]
    assert before, done.stderr  # the report after one second


def test_script_for_a_real_gpu_takes_torchs_tensors(tmp_path: pathlib.Path) -> None:
    """On the simulated driver, so the test checks no times."""
    done, record = script_for_a_real_gpu(tmp_path, "--only", "training")
    assert done.returncode == 0, (done.stdout, done.stderr, record)
    measured = record["sections"]["training"]["jobs"]["2 ranks"]
    assert [row["bytes"] for row in measured["rows"]] == [1 << 10, 1 << 14, 1 << 17, 1 << 20]
    assert measured["gradients"]["tensors"] == 11
