"""Measure how much of the gradients' reduction overlaps with the backward pass.

    gradred run -np 2 python benchmarks/training_step.py --json out.json      (needs PyTorch)

A step of a network of linear layers (forward, backward, SGD) runs with one computing thread per
rank. In each round all variants ("way" in the record) make the same step, one after the other, in
an order that changes:

- alone: no reduction, which is the time of the computation;
- after: one blocking call reduces each gradient after the backward pass;
- tensors: `DistributedOptimizer`, which reduces each gradient during the backward pass;
- buckets: `DistributedOptimizer` with `gradient_as_bucket_view=True`.

With --elsewhere nothing is computed. Each layer's backward pass takes so many ms and its forward
pass half of that, during which the rank's thread sleeps. So its core is free, as if a GPU computed.

A round's time is that of its slowest rank. `hidden` is (after - way) / (after - alone): 1 if the
step takes no longer than without a reduction. `bound` follows from a model of synchronous SGD (S.
Shi et al., A DAG Model of Synchronous Stochastic Gradient Descent in Distributed Deep Learning,
ICPADS 2018). In it all but the reduction of the first layer can overlap, if communication needs no
core of the computation. So `bound` is 1 minus that layer's part of the bytes. Gradients are
compared first. The JSON record
(`schema` = "gradred-training-step/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    free_cores   of this host, beyond one for each of its ranks
    network  {layers, width, batch, bytes}
    elsewhere_ms   of a layer's backward pass; 0: the ranks' cores compute
    rounds_ms{way: [...]}, ms{way}, hidden{way}, bound
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from arguments import options, parse_once, read
from mpi4py import MPI

import gradred
import gradred.torch as hvd
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-training-step/1"


def arguments() -> argparse.Namespace:
    parser = options("reductions behind a backward pass", rounds=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1792)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--elsewhere", type=float, default=0.0, metavar="MS")
    given = read(parser)
    if given.layers < 3:
        parser.error("needs --layers of 3 or more")
    return given


class _Elsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: ComputedElsewhere) -> Any:
        ctx.layer = layer
        time.sleep(layer.seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(ctx.layer.seconds)
        return gradient, ctx.layer.gradient, None


class ComputedElsewhere(torch.nn.Module):
    """A layer whose passes take time, but use no core of this host."""

    def __init__(self, width: int, seconds: float, rank: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width, width))
        self.gradient = torch.full((width, width), rank + 1.0)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> Any:
        return _Elsewhere.apply(x, self.weight, self)


class Way:
    """A variant: a model of its own, and how its gradients are reduced."""

    def __init__(self, given: Any, comm: gradred.Comm, name: str) -> None:
        torch.manual_seed(1)
        layers: list[torch.nn.Module] = []
        for _ in range(given.layers):
            if given.elsewhere:
                layers.append(ComputedElsewhere(given.width, given.elsewhere / 1e3, comm.rank))
            else:
                layers += [torch.nn.Linear(given.width, given.width, bias=False), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.blocking = comm if name == "after" else None
        if name in ("tensors", "buckets"):
            named = [(f"{name}.{key}", x) for key, x in self.model.named_parameters()]
            given_too = {"op": hvd.Sum, "gradient_as_bucket_view": name == "buckets"}
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, **given_too)
        self.input = torch.randn(given.batch, given.width) + comm.rank

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self.model(self.input).sum().backward()
        if self.blocking is not None:
            for parameter in reversed(list(self.model.parameters())):
                assert parameter.grad is not None
                self.blocking.Allreduce(MPI.IN_PLACE, parameter.grad.numpy())
        self.optimizer.step()

    def gradients(self) -> list[torch.Tensor]:
        return [x.grad for x in self.model.parameters() if x.grad is not None]


def keep_memory() -> None:
    """Make malloc keep memory that PyTorch frees.

    Otherwise some variants cause page faults in it in each step. Which variant this affects depends
    on the places of small blocks in the heap, not on how the variant reduces.
    """
    trim_threshold, mmap_threshold = -1, -3  # parameters of glibc's mallopt
    library = ctypes.CDLL(None)
    if not library.mallopt(trim_threshold, 2**31 - 1) or not library.mallopt(mmap_threshold, 2**25):
        sys.exit("malloc cannot be set to keep memory")


def measure(steps: dict[str, Callable[[], None]], rounds: int, comm: gradred.Comm) -> Any:
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds):
        first = turn % len(steps)
        for name in [*list(steps)[first:], *list(steps)[:first]]:
            comm.Barrier()
            begin = time.perf_counter()
            steps[name]()
            seconds = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
            found[name].append(1e3 * seconds)
    return found


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    torch.set_num_threads(1)
    keep_memory()
    hvd.init()
    comm = gradred.Comm(world)
    ways = {name: Way(given, comm, name) for name in ("alone", "after", "tensors", "buckets")}
    for way in ways.values():
        way.step()
    for name in ("tensors", "buckets"):
        for mine, expected in zip(ways[name].gradients(), ways["after"].gradients(), strict=True):
            torch.testing.assert_close(mine, expected, msg=f"{name}: wrong gradients")
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["torch"] = torch.__version__
    record["flag"] = one_way_latency(world)
    record["free_cores"] = len(os.sched_getaffinity(0)) - hvd.local_size()
    sizes = [4 * x.numel() for x in ways["alone"].model.parameters()]
    record["network"] = {name: getattr(given, name) for name in ("layers", "width", "batch")}
    record["network"]["bytes"] = sum(sizes)
    record["elsewhere_ms"] = given.elsewhere
    rounds = measure({name: way.step for name, way in ways.items()}, given.rounds, comm)
    ms = {name: statistics.median(all_of_them) for name, all_of_them in rounds.items()}
    exposed = ms["after"] - ms["alone"]
    hidden = {name: (ms["after"] - ms[name]) / exposed for name in ("tensors", "buckets")}
    record |= {"rounds_ms": rounds, "ms": ms, "hidden": hidden, "bound": 1 - sizes[0] / sum(sizes)}
    say(world, f"# {world.size} ranks, {mpi_name()}; ms a step, medians; flag {record['flag']}")
    say(world, "  ".join(f"{name} {value:.1f}" for name, value in ms.items()))
    found = "  ".join(f"{name} {100 * part:.0f} %" for name, part in hidden.items())
    cores = record["free_cores"]
    say(world, f"hidden: {found}; bound {100 * record['bound']:.0f} %; {cores} free cores")
    hvd.barrier()
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
