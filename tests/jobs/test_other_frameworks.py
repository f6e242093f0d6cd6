"""Jobs of the front ends for PaddlePaddle and MXNet: the examples, and a rank that is killed."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from bounds import within

from gradred import launch

ROOT = pathlib.Path(__file__).resolve().parents[2]

KILLED = {
    "paddle": """
import paddle
model = paddle.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(paddle.optimizer.SGD(0.1, model.parameters()))

def step():
    model(paddle.ones([2, 4])).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
""",
    "mxnet": """
import mxnet as mx
model = mx.gluon.nn.Dense(4, in_units=4)
model.initialize()
trainer = hvd.DistributedTrainer(model.collect_params(), "sgd")

def step():
    with mx.autograd.record():
        loss = model(mx.nd.ones((2, 4))).sum()
    loss.backward()
    trainer.step(2)
""",
}
PROGRAM = """
import os
import signal
import time
import gradred.{name} as hvd
hvd.init()
{model}
step()
begin = time.monotonic()
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    step()
except hvd.HorovodInternalError as error:
    print(f"after {{time.monotonic() - begin:.2f}} s: {{error}}", flush=True)
"""

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


def run(name: str, program: pathlib.Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"there is no {name}")
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", sys.executable, str(program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, env=environment
    )


@pytest.mark.parametrize("name", KILLED)
def test_example_learns(name: str) -> None:
    pytest.importorskip("sklearn")
    done = run(name, ROOT / "examples" / f"{name}_digits.py")
    assert done.returncode == 0, done.stderr
    found = [float(right) for right in re.findall(r"([\d.]+) % of the test", done.stdout)]
    assert found[-1] > 85, done.stdout
    assert found[-1] > found[0]


@pytest.mark.parametrize("name", KILLED)
def test_killed_rank_is_an_error_of_the_other_s_step(name: str, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(name=name, model=KILLED[name]))
    done = run(name, program)
    assert done.returncode == 128 + signal.SIGKILL
    found = re.search(r"after ([\d.]+) s: .*rank 1", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) < within(3)
