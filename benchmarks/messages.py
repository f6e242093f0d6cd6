"""Compare send and recv of torch.distributed, and a pipeline of two stages, with gradred and gloo.

    gradred run -np 2 python benchmarks/messages.py --json out.json            (needs PyTorch)
    torchrun --nproc-per-node 2 benchmarks/messages.py --json out.json         (no MPI)

Both backends are groups of one job, on the same tensors. They alternate round by round, in an order
that changes. A round's time is that of its slowest rank. A ping-pong's time is that of one
direction. In `isend` both ranks send at the same time, each with irecv and isend, and wait for
both. The pipeline is that of `torch.distributed.pipelining` with GPipe's schedule: two linear
layers of --width, 8 microbatches. Results are checked. The JSON record (`schema` =
"gradred-messages/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    started_by   "MPI" or "torchrun"
    sets     [{set, bytes, calls, rounds_us{way: [...]}, us{way}, worst_us{way}, gloo_over_gradred}]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from arguments import options, read
from mpi4py import MPI
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import gradred  # noqa: F401 (registers the backend)
from gradred.bench.machine import describe
from gradred.bench.rank_zero import write_json

SCHEMA = "gradred-messages/1"
SIZES = [4, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20]
MICROBATCHES = 8
Ways = dict[str, Callable[[], None]]


def arguments() -> argparse.Namespace:
    parser = options("messages of torch.distributed", rounds=20)
    parser.add_argument("--width", type=int, default=512, help="of the pipeline's layers")
    return read(parser)


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def ping_pong(nbytes: int, group: Any, name: str) -> Callable[[], None]:
    rank = dist.get_rank()
    mine = torch.full((nbytes,), rank + 1, dtype=torch.uint8)
    got = torch.zeros(nbytes, dtype=torch.uint8)

    def carry_out() -> None:
        if rank == 0:
            dist.send(mine, 1, group=group)
            dist.recv(got, 1, group=group)
        else:
            dist.recv(got, 0, group=group)
            dist.send(mine, 0, group=group)

    carry_out()
    if not bool((got == 2 - rank).all()):
        sys.exit(f"{name}: wrong message of {nbytes} bytes")
    return carry_out


def at_once(nbytes: int, group: Any, name: str) -> Callable[[], None]:
    rank = dist.get_rank()
    mine = torch.full((nbytes,), rank + 1, dtype=torch.uint8)
    got = torch.zeros(nbytes, dtype=torch.uint8)

    def carry_out() -> None:
        receiving = dist.irecv(got, 1 - rank, group=group)
        sending = dist.isend(mine, 1 - rank, group=group)
        for work in (receiving, sending):
            assert work is not None
            work.wait()

    carry_out()
    if not bool((got == 2 - rank).all()):
        sys.exit(f"{name}: wrong message of {nbytes} bytes")
    return carry_out


def pipeline(width: int, group: Any, name: str) -> Callable[[], None]:
    rank = dist.get_rank()
    torch.manual_seed(7)
    layers = [torch.nn.Linear(width, width) for _ in range(2)]
    stage = PipelineStage(layers[rank], rank, 2, torch.device("cpu"), group=group)
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    x = torch.ones(4 * MICROBATCHES, width)
    target = torch.zeros(4 * MICROBATCHES, width)
    losses: list[torch.Tensor] = []

    def carry_out() -> None:
        losses.clear()
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=target, losses=losses)

    carry_out()
    if rank == 1:
        with torch.no_grad():
            loss = torch.nn.functional.mse_loss(layers[1](layers[0](x)), target)
        if not torch.allclose(torch.stack(losses).mean(), loss):
            sys.exit(f"{name}: wrong loss")
    return carry_out


def measure(
    label: str, ways: Ways, nbytes: int, calls: int, given: Any, each: int = 1
) -> dict[str, Any]:
    """Return the microseconds of one operation, for calls that each carry out `each` of them."""
    rounds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(given.rounds):
        order = list(ways) if turn % 2 == 0 else list(ways)[::-1]
        for way in order:
            ways[way]()  # does not count
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                ways[way]()
            took = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            rounds[way].append(1e6 * float(took) / calls / each)
    medians = {way: statistics.median(found) for way, found in rounds.items()}
    row = {
        "set": label,
        "bytes": nbytes,
        "calls": calls,
        "rounds_us": rounds,
        "us": medians,
        "worst_us": {way: max(found) for way, found in rounds.items()},
        "gloo_over_gradred": medians["gloo"] / medians["gradred"],
    }
    found = "  ".join(f"{way} {us:.1f}" for way, us in medians.items())
    say(f"{label:24} {found}  gloo takes x{row['gloo_over_gradred']:.2f}")
    return row


def main() -> int:
    given = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gradred")
    if dist.get_world_size() != 2:
        sys.exit("start two ranks")
    groups = {"gradred": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    record: dict[str, Any] = {"schema": SCHEMA} | describe(MPI.COMM_WORLD, vars(given))
    record["ranks"] = 2
    record["started_by"] = "MPI" if MPI.COMM_WORLD.size > 1 else "torchrun"
    record["versions"]["torch"] = torch.__version__
    say(f"# 2 ranks, started by {record['started_by']}; us, medians")
    rows = []
    for nbytes in SIZES:
        calls = max(3, min(200, 20_000_000 // nbytes))
        text = f"{nbytes // 1024} KiB" if nbytes >= 1024 else f"{nbytes} B"
        for kind, make in {"ping-pong": ping_pong, "isend": at_once}.items():
            ways = {name: make(nbytes, group, name) for name, group in groups.items()}
            label = f"{kind} of {text}"
            each = 2 if make is ping_pong else 1  # one message in each direction
            rows.append(measure(label, ways, nbytes, calls, given, each))
    nbytes = 4 * 4 * given.width
    ways = {name: pipeline(given.width, group, name) for name, group in groups.items()}
    rows.append(measure("pipeline", ways, nbytes, 3, given))
    record["sets"] = rows
    if dist.get_rank() == 0 and given.json:
        write_json(given.json, record)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
