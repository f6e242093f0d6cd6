"""The program of benchmarks/predicted_training.py: trains a network of three wide layers.

    gradred run -np 2 python benchmarks/trained.py bsp              # one allreduce after backward
    gradred run -np 2 python benchmarks/trained.py ddp              # DistributedDataParallel

and each of them as one rank for `gradred simulate record`. The inputs are random numbers. Rank 0
prints the seconds of each iteration after the first ones, in which gradred chooses data paths, as
JSON; an iteration is from the end of one step to the end of the next.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from mpi4py import MPI

import gradred
from gradred import torch_backend

BATCH, WIDTH, LAYERS, CLASSES = 128, 1024, 3, 10
SKIP, TIMED = 120, 60


def network() -> torch.nn.Module:
    """About 3 million parameters."""
    widths = [784, *[WIDTH] * LAYERS]
    parts: list[torch.nn.Module] = []
    for n, m in pairwise(widths):
        parts += [torch.nn.Linear(n, m), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(WIDTH, CLASSES))


def flattened(model: torch.nn.Module) -> Any:
    """Make all gradients parts of one vector, in which backward adds them up."""
    parameters = list(model.parameters())
    vector = torch.zeros(sum(one.numel() for one in parameters))
    at = 0
    for one in parameters:
        one.grad = vector[at : at + one.numel()].view_as(one)
        at += one.numel()
    return vector


def train(model: torch.nn.Module, after_backward: Callable[[], object], steps: int) -> list[float]:
    """Train; return the seconds of each iteration."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ends = []
    for _ in range(steps):
        x, y = torch.randn(BATCH, 784), torch.randint(0, CLASSES, (BATCH,))
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        after_backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return [after - before for before, after in pairwise(ends)]


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    way = sys.argv[1]
    model = network()
    comm = gradred.Comm(MPI.COMM_WORLD)
    if way == "bsp":
        vector = flattened(model).numpy()
        times = train(model, lambda: comm.Allreduce(MPI.IN_PLACE, vector), SKIP + TIMED)
    else:
        torch_backend.register()  # an installed gradred does so by itself
        torch.distributed.init_process_group("gradred")
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        times = train(wrapped, lambda: None, SKIP + TIMED)
    slowest = [max(each) for each in zip(*comm.allgather(times[SKIP - 1 :]), strict=True)]
    if comm.rank == 0:
        print(json.dumps(slowest), flush=True)


if __name__ == "__main__":
    main()
