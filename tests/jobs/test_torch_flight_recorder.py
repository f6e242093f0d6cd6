"""Files of the flight recorder that a job leaves: at a time limit, and when a user asks."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
from lean import LEAN

from gradred import launch

pytest.importorskip("torch")
fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

FAILING = pathlib.Path(__file__).with_name("torch_failing.py")


def run(*words: str, **variables: str) -> str:
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", "--grace", "5"]
    done = subprocess.run(
        [*command, sys.executable, *words],
        **{"capture_output": True, "text": True, "timeout": 60, "check": False},
        env=os.environ | LEAN | variables,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("what", [pytest.param("ddp", marks=pytest.mark.full), "recv"])
def test_all_ranks_write_files_at_a_time_limit(what: str, tmp_path: pathlib.Path) -> None:
    output = run(str(FAILING), what, "sleeps", TORCH_FR_DUMP_TEMP_FILE=f"{tmp_path}/rank_")
    assert f"{tmp_path}/rank_0" in output
    fr_trace.main([str(tmp_path), "--prefix", "rank_", "--output", f"{tmp_path}/found"])
    found: Any = pickle.loads((tmp_path / "found").read_bytes())[1]
    last = found.collectives[-1]
    assert last.collective_state == "started", output
    assert last.missing_ranks == {1}, output
    name = {"ddp": "gloo:all_reduce", "recv": "gloo:recv 0<-1"}[what]
    assert last.collective_name == name, output
    assert all(one.collective_state == "completed" for one in found.collectives[:-1]), output


PIPE = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gradred")
dist.all_reduce(torch.ones(5))
dist.barrier()
if dist.get_rank() == 1:
    pipe, file = (f"{os.environ['FOLDER']}/{name}" for name in ("of_0.pipe", "rank_0"))
    while not os.path.exists(pipe):
        time.sleep(0.01)
    with open(pipe, "w") as asks:
        asks.write("1")
    while not os.path.exists(file):
        time.sleep(0.01)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_writes_its_file_when_a_user_writes_to_its_pipe(tmp_path: pathlib.Path) -> None:
    files = {"TORCH_FR_DUMP_TEMP_FILE": "rank_", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "of_"}
    variables = {name: f"{tmp_path}/{stem}" for name, stem in files.items()}
    output = run("-c", PIPE, FOLDER=str(tmp_path), **variables)
    assert sorted(os.listdir(tmp_path)) == ["of_0.pipe", "of_1.pipe", "rank_0"], output
    entries = pickle.loads((tmp_path / "rank_0").read_bytes())["entries"]
    assert [one["input_sizes"] for one in entries] == [[[5]], [], []]
