"""Compare torch.distributed's all_reduce and DistributedDataParallel with gradred and with gloo.

    gradred run -np 2 python benchmarks/torch_backend.py --json out.json       (needs PyTorch)

Both backends are groups of one job, on the same tensors. They alternate round by round, in an order
that changes. A round's time is that of its slowest rank. Results are checked first. `blocking` is
`comm.Allreduce` of the same array, without torch. The step of DistributedDataParallel is a backward
pass with as many parameters as ResNet-50 or GPT-2 small, with very little computation, in torch's
default buckets. A token of tensor-parallel decoding is 96 calls one after the other, as in a model
with 48 layers; `--only` selects sets.
The JSON record (`schema` = "gradred-torch-backend/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    sets     [{set, bytes, rounds_us{way: [...]}, us{way}, gloo_over_gradred}]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
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
SIZES = {
    **{f"{kib} KiB": 256 * kib for kib in (4, 16, 64, 256)},
    **{f"{mib} MiB": mib << 18 for mib in (1, 4, 16, 64, 256)},
}
OF_A_TOKEN = 96  # all_reduces: two of each layer
DECODED = {f"{kib} KiB": 256 * kib for kib in (8, 16, 32, 64)}
Ways = dict[str, Callable[[], None]]


def arguments() -> argparse.Namespace:
    parser = options("torch.distributed on gradred and on gloo", rounds=40)
    parser.add_argument("--only", default="", metavar="WORD", help="sets whose names have it")
    return read(parser)


def gpt2() -> list[int]:
    """Return the numbers of elements of the parameters of GPT-2 small."""
    width = 768
    block = [width, width, 3 * width * width, 3 * width, width * width, width]
    block += [width, width, 4 * width * width, 4 * width, 4 * width * width, width]
    return [50257 * width, 1024 * width, *(block * 12), width, width]


MODELS = {"ResNet-50": resnet50()[::-1], "GPT-2 small": gpt2()}


class Weights(torch.nn.Module):
    """A module whose gradients need little computation."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros(count) for count in counts)

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


def tokens(count: int, groups: dict[str, Any], comm: gradred.Comm) -> Ways:
    """The all_reduces of one token."""

    def repeated(call: Callable[[], None]) -> Callable[[], None]:
        def carry_out() -> None:
            for _ in range(OF_A_TOKEN):
                call()

        return carry_out

    return {way: repeated(call) for way, call in reductions(count, groups, comm).items()}


def steps(counts: list[int], groups: dict[str, Any], comm: gradred.Comm) -> Ways:
    ways: Ways = {}
    for name, group in groups.items():
        model = DistributedDataParallel(Weights(counts), process_group=group)
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


def sets() -> Iterator[tuple[str, int, int, Callable[..., Ways]]]:
    """Label, bytes, calls of a block, and a function that makes the ways, of each set."""
    for label, count in SIZES.items():
        calls = max(3, min(100, 500_000 // count))
        yield f"all_reduce of {label}", 4 * count, calls, partial(reductions, count)
    for label, count in DECODED.items():
        yield (
            f"token of {OF_A_TOKEN} times {label}",
            4 * count * OF_A_TOKEN,
            3,
            partial(tokens, count),
        )
    for label, counts in MODELS.items():
        yield f"DDP, {label}", 4 * sum(counts), 3, partial(steps, counts)


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
    record["sets"] = []
    for label, size, calls, make in sets():
        if given.only not in label:
            continue
        row = measure(label, make(groups, comm), size, calls, given.rounds, comm)
        record["sets"].append(row | {"gloo_over_gradred": row["us"]["gloo"] / row["us"]["gradred"]})
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
