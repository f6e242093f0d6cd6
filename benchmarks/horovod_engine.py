"""Measure the cost of named operations: `gradred.torch` against blocking allreduces of the tensors.

    gradred run -np 2 python benchmarks/horovod_engine.py --json out.json      (needs PyTorch)

The sets of tensors are: one tensor of 4 KB, 1 MB and 64 MB, 161 of 1 KB, and the gradients of
ResNet-50 in backward order. In each round all variants ("way" in the record) reduce the same set,
one after the other, in an order that changes:

- named: `allreduce_async_` of each tensor under its name, then `synchronize` of each;
- views: the same tensors as views of buckets (`gradient_as_bucket_view=True`), with
  `allreduce_async_` of a bucket when its last tensor is there;
- blocking: `comm.Allreduce` of each tensor, in place;
- mpi: the MPI's own `Allreduce` of each tensor, in place.

Each variant begins a round with a set that does not count, since the variant before has left the
same tensors in other caches. A round's time is that of its slowest rank. Results are checked first.
The JSON record
(`schema` = "gradred-horovod-engine/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    sets     [{set, tensors, bytes, rounds_us{way: [...]}, us{way}, of_blocking, of_mpi, of_named}];
             of_blocking and of_mpi: the median of named divided by that of blocking and mpi;
             of_named: the median of views divided by that of named
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from arguments import options, parse_once, read
from models import resnet50
from mpi4py import MPI

import gradred
import gradred.torch as hvd
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json
from gradred.torch.buckets import buckets_of

SCHEMA = "gradred-horovod-engine/1"
Way = Callable[[], None]


def arguments() -> argparse.Namespace:
    return read(options("named operations and blocking ones", rounds=60))


SETS = {
    "4 KB": [1024],
    "1 MB": [1 << 18],
    "64 MB": [1 << 24],
    "161 of 1 KB": [256] * 161,
    "ResNet-50's gradients": resnet50()[::-1],
}


def views_of(tensors: list[torch.Tensor], label: str) -> tuple[Way, list[torch.Tensor]]:
    """Return the variant, and the gradients that it reduces."""
    parameters = [torch.nn.Parameter(torch.zeros_like(tensor)) for tensor in tensors]
    buckets = buckets_of(parameters)
    bucket_of = {parameter: one for one in buckets for parameter in one.parameters}

    def views() -> None:
        started = []
        for parameter in parameters:
            bucket = bucket_of[parameter]
            if bucket.take(parameter):
                bucket.begin_anew()
                name = f"{label}.bucket.{len(started)}"
                started.append(hvd.allreduce_async_(bucket.vector, name=name, op=hvd.Sum))
        for handle in started:
            hvd.synchronize(handle)

    views()
    return views, [one.grad for one in parameters if one.grad is not None]


def ways_of(tensors: list[torch.Tensor], comm: gradred.Comm, label: str) -> dict[str, Way]:
    arrays = [tensor.numpy() for tensor in tensors]
    names = [f"{label}.{index}" for index in range(len(tensors))]
    plain = MPI.Intracomm(comm).Dup()

    def named() -> None:
        handles = [
            hvd.allreduce_async_(tensor, name=name, op=hvd.Sum)
            for tensor, name in zip(tensors, names, strict=True)
        ]
        for handle in handles:
            hvd.synchronize(handle)

    def blocking() -> None:
        for array in arrays:
            comm.Allreduce(MPI.IN_PLACE, array)

    def mpi() -> None:
        for array in arrays:
            plain.Allreduce(MPI.IN_PLACE, array)

    return {"named": named, "blocking": blocking, "mpi": mpi}


def measure(label: str, counts: list[int], given: Any, comm: gradred.Comm) -> dict[str, Any]:
    tensors = [torch.zeros(count) for count in counts]
    ways = ways_of(tensors, comm, label)
    ways["views"], gradients = views_of(tensors, label)
    for way, carry_out in ways.items():
        reduced = gradients if way == "views" else tensors
        for index, tensor in enumerate(reduced):
            tensor.fill_(comm.rank + index % 5)
        carry_out()
        for index, tensor in enumerate(reduced):
            expected = sum(rank + index % 5 for rank in range(comm.size))
            if not bool((tensor == expected).all()):
                sys.exit(f"{way}, {label}: wrong result")
            tensor.zero_()
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    calls = max(1, min(200, 4_000_000 // (4 * sum(counts) + 2000 * len(counts))))
    for turn in range(given.rounds):
        order = list(ways)[turn % len(ways) :] + list(ways)[: turn % len(ways)]
        for way in order:
            carry_out = ways[way]
            carry_out()  # the variant before has left the tensors in other caches
            comm.Barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                carry_out()
            seconds = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
            rounds[way].append(1e6 * seconds / calls)
    medians = {way: statistics.median(all_of_it) for way, all_of_it in rounds.items()}
    return {
        "set": label,
        "tensors": len(counts),
        "bytes": 4 * sum(counts),
        "calls": calls,
        "rounds_us": rounds,
        "us": medians,
        "of_blocking": medians["named"] / medians["blocking"],
        "of_mpi": medians["named"] / medians["mpi"],
        "of_named": medians["views"] / medians["named"],
    }


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    hvd.init()
    comm = gradred.Comm(world)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["torch"] = torch.__version__
    record["flag"] = one_way_latency(world)
    say(world, f"# {world.size} ranks, {mpi_name()}; us, medians; flag {record['flag']}")
    record["sets"] = []
    for label, counts in SETS.items():
        row = measure(label, counts, given, comm)
        record["sets"].append(row)
        found = "  ".join(f"{way} {us:.1f}" for way, us in row["us"].items())
        ratios = f"x{row['of_blocking']:.2f} of blocking, x{row['of_mpi']:.2f} of the MPI"
        ratios += f"; views: x{row['of_named']:.2f} of named"
        say(world, f"{label:24} {found}  named: {ratios}")
    hvd.barrier()
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
