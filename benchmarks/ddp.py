"""Time steps of data-parallel training in real programs, beside gloo: the median and the worst.

    gradred run -np 2 python benchmarks/ddp.py --json out.json            (needs PyTorch)
    gradred run -np 2 python benchmarks/ddp.py --model resnet50 --device cuda --bucket 1 25 500

Each variant ("way" in the record) has a model of its own with the same initial values. In each
round all variants make a step on the same data, one after the other, in an order that changes:

- alone: a process without peers, on its own part of the batch, which is the time of computing;
- ddp: DistributedDataParallel, with bucket views, once for each --bucket (bucket_cap_mb), by
  gradred and by gloo;
- fsdp: FSDP2, `fully_shard` of each block, by gradred and by gloo;
- hvd: gradred.torch.DistributedOptimizer.

The ranks start each step at different times: each sleeps for a random time before it, up to --apart
ms. A step counts from the last rank's start to the last rank's end, when the device's work is done.
After the last step the losses of all variants are compared. The models have the shapes of GPT-2
small (Radford et al. 2019) and ResNet-50 (He et al. 2016); --part makes them thinner. The
JSON record (`schema` = "gradred-ddp/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    model    {name, parameters, bytes}
    ways{name: {ms, worst_ms, rounds_ms, over_alone}}: over_alone is ms / alone's ms
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from arguments import options, parse_once, read
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradred.torch as hvd
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-ddp/1"
WORDS, POSITIONS = 50257, 128
WARM = 3  # rounds that do not count: PyTorch rebuilds buckets and loads kernels in them


def arguments() -> argparse.Namespace:
    parser = options("steps of data-parallel training", rounds=12)
    parser.add_argument("--model", choices=("gpt2", "resnet50"), default="gpt2")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=4, help="samples of each rank")
    parser.add_argument("--part", type=float, default=1.0, help="of the model's width")
    parser.add_argument("--bucket", type=int, nargs="+", default=[25], metavar="MB")
    parser.add_argument("--apart", type=float, default=3.0, metavar="MS")
    parser.add_argument("--only", nargs="+", choices=("ddp", "fsdp", "hvd"))
    return read(parser, least_rounds=1)


# ---- models --------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.query(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Gpt2(nn.Module):
    """GPT-2 small: 12 layers, 12 heads, a width of 768, 124 million parameters."""

    def __init__(self, part: float) -> None:
        super().__init__()
        heads = max(1, round(12 * part))
        width = 64 * heads
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(POSITIONS, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(12)])
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> Any:
        y = self.words(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            y = block(y)
        return self.head(y)


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width

        def part(given: int, made: int, size: int, step: int = 1) -> list[nn.Module]:
            return [nn.Conv2d(given, made, size, step, size // 2, bias=False), nn.BatchNorm2d(made)]

        self.body = nn.Sequential(
            *part(inputs, width, 1), nn.ReLU(), *part(width, width, 3, stride), nn.ReLU(),
            *part(width, outputs, 1),
        )  # fmt: skip
        self.side: nn.Module = nn.Identity()
        if inputs != outputs:
            self.side = nn.Sequential(*part(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(self.body(x) + self.side(x))


class Resnet50(nn.Module):
    """ResNet-50: 25.6 million parameters in 161 tensors."""

    def __init__(self, part: float) -> None:
        super().__init__()
        width = max(8, round(64 * part))
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks, inputs = [], width
        for stage, count in enumerate((3, 4, 6, 3)):
            for turn in range(count):
                stride = 2 if stage > 0 and turn == 0 else 1
                blocks.append(Bottleneck(inputs, width << stage, stride))
                inputs = 4 * (width << stage)
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(inputs, 1000)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.stem(x)
        for block in self.blocks:
            y = block(y)
        return self.last(y.mean((2, 3)))


class Task:
    """A model's data and its loss; all variants get the same data of a rank and round."""

    def __init__(self, given: Any, rank: int) -> None:
        self._given, self._rank = given, rank
        self.device = torch.device(given.device)

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        made = Gpt2(self._given.part) if self._given.model == "gpt2" else Resnet50(self._given.part)
        return made.to(self.device)

    def data(self, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.Generator().manual_seed(1_000 * turn + self._rank)
        batch = self._given.batch
        if self._given.model == "gpt2":
            words = torch.randint(0, WORDS, (batch, POSITIONS + 1), generator=numbers)
            words = words.to(self.device)
            return words[:, :-1], words[:, 1:]
        images = torch.randn(batch, 3, 224, 224, generator=numbers)
        labels = torch.randint(0, 1000, (batch,), generator=numbers)
        return images.to(self.device), labels.to(self.device)

    def finish(self) -> None:
        """Block until all work that was given to the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def loss_of(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    answers, wanted = model(data[0]), data[1]
    return nn.functional.cross_entropy(answers.flatten(0, -2), wanted.flatten())


# ---- variants ------------------------------------------------------------------------------------


class Way:
    """A variant: a model of its own with its optimizer."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer
        self.loss = 0.0

    def step(self, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, data)
        loss.backward()
        self.optimizer.step()
        self.loss = float(loss.detach())


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01)


def ways_of(given: Any, task: Task) -> dict[str, Callable[[], Way]]:
    """Return functions that make the variants, by name; all ranks call them in this order."""
    groups = {"gradred": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    wanted = given.only or ["ddp", "fsdp", "hvd"]

    def alone() -> Way:
        model = task.model()
        return Way(model, _optimizer(model))

    def ddp(group: Any, bucket: int) -> Way:
        model = DistributedDataParallel(
            task.model(), process_group=group, bucket_cap_mb=bucket, gradient_as_bucket_view=True
        )
        return Way(model, _optimizer(model))

    def fsdp(group: Any) -> Way:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, given.device)
        model: Any = task.model()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return Way(model, _optimizer(model))

    def horovod() -> Way:
        model = task.model()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return Way(model, hvd.DistributedOptimizer(_optimizer(model), model.named_parameters()))

    made: dict[str, Callable[[], Way]] = {"alone": alone}
    for backend, group in groups.items():
        if "ddp" in wanted:
            for bucket in given.bucket:
                made[f"ddp, {bucket} MB, {backend}"] = lambda g=group, b=bucket: ddp(g, b)  # type: ignore[misc]
        if "fsdp" in wanted:
            made[f"fsdp, {backend}"] = lambda g=group: fsdp(g)  # type: ignore[misc]
    if "hvd" in wanted:
        made["hvd, gradred"] = horovod
    return made


def measure(ways: dict[str, Way], given: Any, task: Task, world: MPI.Comm) -> Any:
    """Return the milliseconds of each round, by variant."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    apart = random.Random(world.rank)
    order = random.Random(0)
    for turn in range(WARM + given.rounds):
        data = task.data(turn)
        for name in order.sample(list(ways), len(ways)):
            task.finish()
            world.Barrier()
            time.sleep(apart.random() * given.apart / 1e3)
            begin = time.perf_counter()
            ways[name].step(data)
            task.finish()
            end = time.perf_counter()
            # The ranks of a host share a clock; with several hosts each rank counts its own step.
            begin = world.allreduce(begin, op=MPI.MAX) if hvd.cross_size() == 1 else begin
            end = world.allreduce(end, op=MPI.MAX) if hvd.cross_size() == 1 else end
            if turn >= WARM:
                found[name].append(1e3 * world.allreduce(end - begin, op=MPI.MAX))
    return found


def compare_losses(ways: dict[str, Way]) -> None:
    """Compare the losses of the variants that reduce: their steps are the same. alone's differ."""
    losses = {name: way.loss for name, way in ways.items() if name != "alone"}
    for name, loss in losses.items():
        expected = next(iter(losses.values()))
        if abs(loss - expected) > 1e-3 * abs(expected):
            raise SystemExit(f"{name}: the last loss is {loss}, of others {expected}")


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    if given.device == "cuda":
        torch.cuda.set_device(device_of(world))
        torch.backends.cuda.matmul.allow_tf32 = False
    else:
        torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("gradred")
    task = Task(given, world.rank)
    ways = {name: make() for name, make in ways_of(given, task).items()}
    rounds = measure(ways, given, task, world)
    compare_losses(ways)
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["torch"] = torch.__version__
    record["flag"] = one_way_latency(world)
    parameters = sum(x.numel() for x in ways["alone"].model.parameters())
    model = {"name": given.model, "parameters": parameters, "bytes": 4 * parameters}
    alone = statistics.median(rounds["alone"])
    shown = {
        name: {
            "ms": statistics.median(found),
            "worst_ms": max(found),
            "over_alone": statistics.median(found) / alone,
            "rounds_ms": found,
        }
        for name, found in rounds.items()
    }
    record |= {"model": model, "ways": shown}
    title = f"# {world.size} ranks, {mpi_name()}; {given.model}, {parameters / 1e6:.1f} million"
    say(world, f"{title} parameters; flag {record['flag']}")
    say(world, f"{'way':24}{'ms a step':>10}{'worst':>10}{'/ alone':>9}")
    for name, one in shown.items():
        say(world, f"{name:24}{one['ms']:10.1f}{one['worst_ms']:10.1f}{one['over_alone']:9.2f}")
    dist.destroy_process_group()
    if world.rank == 0 and given.json == Path("-"):
        print(json.dumps(record), flush=True)
    elif world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


def device_of(world: MPI.Comm) -> int:
    """Return this rank's device; the ranks of a host use its devices in turn."""
    here = world.Split_type(MPI.COMM_TYPE_SHARED)
    number = here.rank % torch.cuda.device_count()
    here.Free()
    return number


if __name__ == "__main__":
    sys.exit(main())
