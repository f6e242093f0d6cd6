"""One rank of two that train; rank 1 fails: `torch_failing.py WHAT HOW`.

Each surviving rank prints a line of JSON with the error that it got and the time until then.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

WHAT, HOW = sys.argv[1:]
RANK = int(os.environ["RANK"])
LIMIT = datetime.timedelta(seconds=1.5 if HOW == "sleeps" else 30)
X = torch.ones(4, 6)


def trouble(*_: Any) -> None:
    """Fail as HOW says, on rank 1 only."""
    if RANK == 0:
        return
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "sleeps":
        time.sleep(8)
        os._exit(0)
    if HOW == "differs":
        dist.all_reduce(torch.ones(17))


def trouble_in_backward(y: torch.Tensor) -> torch.Tensor:
    y.register_hook(trouble)
    return y


def model() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def ddp() -> Callable[[], None]:
    parallel = torch.nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.0001)
    parallel.module[1].register_forward_hook(lambda _, __, y: trouble_in_backward(y))
    return lambda: parallel(X).sum().backward()


def fsdp2() -> Callable[[], None]:
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    sharded[1].register_forward_hook(lambda _, __, y: trouble_in_backward(y))
    for layer in (sharded[0], sharded[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    return lambda: sharded(X).sum().backward()


def functional() -> Callable[[], None]:
    from torch.distributed import _functional_collectives

    torch.ops._c10d_functional.wait_tensor(X)  # loads what the operation needs

    def step() -> None:
        trouble()
        # the addition waits for the result
        _functional_collectives.all_reduce(X, "sum", dist.group.WORLD) + 0

    return step


def recv() -> Callable[[], None]:
    def step() -> None:
        trouble()
        dist.recv(X, 1)

    return step


def report(step: Callable[[], None]) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        step()
    except Exception as error:
        seconds = time.monotonic() - begin
        return {"error": type(error).__name__, "text": str(error), "seconds": seconds}
    return {"error": None}


dist.init_process_group("gradred", timeout=LIMIT)
step = {"ddp": ddp, "fsdp2": fsdp2, "functional": functional, "recv": recv}[WHAT]()
dist.barrier()
print(json.dumps({"rank": RANK, **report(step)}), flush=True)
time.sleep(0.5)  # so that the other rank gets its own error, not one from this rank's end
