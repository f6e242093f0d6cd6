"""Groups of gradred under torchft: after a death the survivors go on in a new group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchft")

from torch.distributed import TCPStore

PROGRAM = """
import datetime, os, signal, sys
import torch
import torch.distributed as dist
import gradred
from gradred.torchft import ProcessGroupGradred

rank, address = int(sys.argv[1]), sys.argv[2]
group = ProcessGroupGradred(timeout=datetime.timedelta(seconds=20))

def configure(quorum, size):
    group.configure(f"{address}/{quorum}", f"replica {rank}", rank, size, quorum)

def total_of_ranks():
    x = torch.full((1000,), rank + 1.0)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    group.allreduce([x], options).wait()
    return x.unique().tolist()

configure(0, 3)
assert total_of_ranks() == [6]
try:
    while True:
        total_of_ranks()
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
except gradred.PeerLost as error:
    assert "rank 2" in str(error), error
for quorum in (1, 2):  # the second is as after a replica has come back
    configure(quorum, 2)
    assert total_of_ranks() == [3]
print(group.getBackendName(), "goes on")
"""


def test_survivors_go_on_in_a_new_group(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program)]
    started = [
        subprocess.Popen(
            [*command, str(rank), f"127.0.0.1:{store.port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for rank in range(3)
    ]
    done = [process.communicate(timeout=50) for process in started]
    assert [process.returncode for process in started] == [0, 0, -signal.SIGKILL], done
    assert [out for out, _ in done[:2]] == ["torchft-gradred goes on\n"] * 2
