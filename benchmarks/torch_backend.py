"""Compare torch.distributed's all_reduce and DistributedDataParallel with gradred and with gloo.

    gradred run -np 2 python benchmarks/torch_backend.py --json out.json       (needs PyTorch)

Both backends are groups of one job, on the same tensors. They alternate round by round, in an order
that changes. A round's time is that of its slowest rank. Results are checked first. `blocking` is
`comm.Allreduce` of the same array, without torch. The step of DistributedDataParallel is a backward
pass with as many parameters as ResNet-50, with very little computation, in torch's default buckets.
The JSON record (`schema` = "gradred-torch-backend/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    sets     [{set, bytes, rounds_us{way: [...]}, us{way}, gloo_over_gradred}]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from arguments import options, parse_once, read
from in_turn import measure
from models import resnet50
from mpi4py import MPI
from torch.nn.parallel import DistributedDataParallel

import gradred
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-torch-backend/1"
SIZES = {"4 KB": 1 << 10, "1 MiB": 1 << 18, "24 MiB": 6 << 20}
Ways = dict[str, Callable[[], None]]


def arguments() -> argparse.Namespace:
    return read(options("torch.distributed on gradred and on gloo", rounds=40))


class Weights(torch.nn.Module):
    """A module whose gradients need little computation."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros(count) for count in counts[::-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a number that depends on all parameters."""
        return sum(((weight * x).sum() for weight in self.all), torch.zeros(()))


def reductions(count: int, groups: dict[str, Any], comm: gradred.Comm) -> Ways:
    tensor = torch.full((count,), float(comm.rank))
    ways: Ways = {}
    for name, group in groups.items():
        dist.all_reduce(tensor.fill_(comm.rank + 1), group=group)
        if not bool((tensor == comm.size * (comm.size + 1) / 2).all()):
            sys.exit(f"{name}: wrong result")

        def carry_out(group: Any = group) -> None:
            dist.all_reduce(tensor, group=group)

        ways[name] = carry_out
    ways["blocking"] = lambda: comm.Allreduce(MPI.IN_PLACE, tensor.numpy())
    tensor.zero_()
    return ways


def steps(groups: dict[str, Any], comm: gradred.Comm) -> Ways:
    ways: Ways = {}
    for name, group in groups.items():
        model = DistributedDataParallel(Weights(resnet50()[::-1]), process_group=group)
        x = torch.full((1,), float(comm.rank + 1))
        model(x).backward()
        for weight in model.parameters():
            if not bool((weight.grad == (comm.size + 1) / 2).all()):
                sys.exit(f"{name}: wrong gradient")

        def carry_out(model: Any = model, x: Any = x) -> None:
            model.zero_grad()
            model(x).backward()

        ways[name] = carry_out
    return ways


def row_of(label: str, ways: Ways, size: int, given: Any, comm: gradred.Comm) -> dict[str, Any]:
    calls = max(3, min(100, 2_000_000 // size))
    row = measure(label, ways, size, calls, given.rounds, comm)
    return row | {"gloo_over_gradred": row["us"]["gloo"] / row["us"]["gradred"]}


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    torch.set_num_threads(1)
    dist.init_process_group("gradred")
    groups = {"gradred": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    comm = gradred.Comm(world)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["torch"] = torch.__version__
    record["flag"] = one_way_latency(world)
    say(world, f"# {world.size} ranks, {mpi_name()}; us, medians; flag {record['flag']}")
    sets = [(f"all_reduce of {label}", 4 * count, count) for label, count in SIZES.items()]
    record["sets"] = [
        row_of(label, reductions(count, groups, comm), size, given, comm)
        for label, size, count in sets
    ]
    size = 4 * sum(resnet50())
    record["sets"].append(row_of("DDP, ResNet-50", steps(groups, comm), size, given, comm))
    for row in record["sets"]:
        found = "  ".join(f"{way} {us:.1f}" for way, us in row["us"].items())
        say(world, f"{row['set']:24} {found}  gloo takes x{row['gloo_over_gradred']:.2f}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
