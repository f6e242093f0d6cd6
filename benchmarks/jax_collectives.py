"""Compare sums in JAX programs with gradred and with jax.distributed on gloo.

    gradred run -np 2 python benchmarks/jax_collectives.py --json out.json       (needs JAX)

All ways are in one job, on equal arrays. They alternate round by round, in an order that changes. A
round's time is that of its slowest rank. Results are checked first. The ways:

    gradred   gradred.jax.allreduce
    gloo      lax.psum under shard_map over the processes
    served    the same after gradred.jax_stand_in.serve(), in a process beside each rank
              (jax_served.py), which sleeps meanwhile
    no sum    the training step, that of a network of matrices, without any sum

The JSON record (`schema` = "gradred-jax/2"; over: gloo's time by that of each way of gradred within
a round, as the median and the 10th and 90th percentile of the rounds):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    sets     [{set, bytes, calls, rounds_us{way: [...]}, us{way}, over{way: [3]}}]
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from arguments import options, parse_once, read
from in_turn import measure
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from mpi4py import MPI

import gradred.jax
from gradred.bench.machine import describe, mpi_name, one_way_latency
from gradred.bench.rank_zero import say, write_json

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map

SCHEMA = "gradred-jax/2"
SIZES = {"4 KB": 1 << 10, "64 KiB": 1 << 14, "1 MiB": 1 << 18, "8 MiB": 2 << 20, "64 MiB": 16 << 20}
WIDTH, LAYERS, BATCH = 512, 6, 64
RANKS = PartitionSpec("ranks")


def arguments() -> argparse.Namespace:
    return read(options("sums in JAX programs: gradred and gloo", rounds=30))


def free_port(world: MPI.Intracomm) -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(world.bcast(one.getsockname()[1], root=0))


def join(port: int, size: int, rank: int, collectives: str) -> Mesh:
    """Connect the processes by jax.distributed, and return a mesh with one device of each."""
    jax.config.update("jax_cpu_collectives_implementation", collectives)
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    return Mesh(np.array(jax.devices()), ("ranks",))


def over_processes(mesh: Mesh, tree: Any) -> Any:
    """Arrays whose first axis has one entry for each process: that of this process is `tree`."""
    sharding = NamedSharding(mesh, RANKS)
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)[None]), tree
    )


def on_mesh(mesh: Mesh, function: Callable[..., Any], arguments: int) -> Any:
    """Compile a function of one process's arrays that may use psum over "ranks"."""

    def on_one(*given: Any) -> Any:
        first = [jax.tree.map(lambda x: x[0], one) for one in given]
        return jax.tree.map(lambda x: x[None], function(*first))

    specs = (RANKS,) * arguments
    return jax.jit(shard_map(on_one, mesh=mesh, in_specs=specs, out_specs=RANKS))


def local(array: Any) -> Any:
    """This process's part of an array over the processes."""
    return array.addressable_shards[0].data[0]


Run = Callable[[], Any]


def psum(count: int, mesh: Mesh, rank: int) -> Run:
    """The sum of one array of each process, by JAX itself."""
    spread = over_processes(mesh, jnp.full(count, rank + 1.0))
    summed = on_mesh(mesh, functools.partial(jax.lax.psum, axis_name="ranks"), 1)
    return lambda: local(jax.block_until_ready(summed(spread)))


def allreduce(count: int, rank: int) -> Run:
    x = jnp.full(count, rank + 1.0)
    summed = jax.jit(gradred.jax.allreduce)
    return lambda: jax.block_until_ready(summed(x))


def state_of(rank: int) -> tuple[list[Any], Any]:
    """The weights, which are equal on all ranks, and this rank's images."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys]
    return weights, jax.random.normal(jax.random.key(rank + 1), (BATCH, WIDTH))


def loss(weights: Any, images: Any) -> Any:
    for weight in weights:
        images = jnp.tanh(images @ weight)
    return jnp.mean(images**2)


def step(mean: Callable[[Any], Any], weights: Any, images: Any) -> Any:
    """A step of training: forward, backward, the mean of the gradients, and the new weights."""
    grads = mean(jax.grad(loss)(weights, images))
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def step_of_one(mean: Callable[[Any], Any], rank: int) -> Run:
    compiled = jax.jit(functools.partial(step, mean))
    weights, images = state_of(rank)
    return lambda: jax.block_until_ready(compiled(weights, images))


def step_on_mesh(mesh: Mesh, rank: int) -> Run:
    pmean = functools.partial(jax.lax.pmean, axis_name="ranks")
    compiled = on_mesh(mesh, functools.partial(step, pmean), 2)
    spread = over_processes(mesh, state_of(rank))
    return lambda: [local(one) for one in jax.block_until_ready(compiled(*spread))]


class Served:
    """The process beside this rank, whose sums by JAX itself are gradred's."""

    def __init__(self, world: MPI.Intracomm) -> None:
        self._pipe, its = multiprocessing.Pipe()
        names = ("PMI", "PMIX", "OMPI", "HYDRA", "MPI")  # it is no rank of the MPI
        environment = {name: os.environ[name] for name in os.environ if not name.startswith(names)}
        program = str(Path(__file__).with_name("jax_served.py"))
        command = [sys.executable, program, str(its.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[its.fileno()], env=environment)
        its.close()
        self._pipe.send((free_port(world), world.size, world.rank))
        while (mine := self._pipe.recv()) is not None:  # of gradred.connect
            self._pipe.send(world.allgather(mine))

    def prepare(self, count: int) -> Any:
        """Choose what it runs: a sum of `count` numbers, or the step (0). Returns the result."""
        self._pipe.send(("prepare", count))
        return self._pipe.recv()

    def run(self, calls: int) -> None:
        self._pipe.send(("run", calls))
        self._pipe.recv()

    def end(self) -> None:
        self._pipe.send(None)
        self._process.wait()


def row_of(
    label: str, ways: dict[str, Run], served: Served, size: int, given: Any, world: Any
) -> dict[str, Any]:
    calls = max(3, min(50, 2_000_000 // size))

    def block(way: Run) -> Run:
        return lambda: [way() for _ in range(calls)]

    blocks = {name: block(way) for name, way in ways.items()}
    blocks["served"] = lambda: served.run(calls)
    row = measure(label, blocks, size, 1, given.rounds, world)
    row["calls"] = calls
    for way, times in row["rounds_us"].items():
        row["rounds_us"][way] = [time / calls for time in times]
        row["us"][way] /= calls
    row["over"] = {way: over(row["rounds_us"], way) for way in ("gradred", "served")}
    return row


def over(rounds: dict[str, list[float]], way: str) -> list[float]:
    """gloo's time by that of a way within a round: the median, the 10th and 90th percentile."""
    ratios = [gloo / ours for gloo, ours in zip(rounds["gloo"], rounds[way], strict=True)]
    tenths = statistics.quantiles(ratios, n=10, method="inclusive")
    return [statistics.median(ratios), tenths[0], tenths[-1]]


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    served = Served(world)
    mesh = join(free_port(world), world.size, world.rank, "gloo")
    gradred.jax.init()
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["jax"] = jax.__version__
    record["flag"] = one_way_latency(world)
    say(world, f"# {world.size} ranks, {mpi_name()}; us, medians; flag {record['flag']}")
    record["sets"] = []
    expected = world.size * (world.size + 1) / 2
    for label, count in SIZES.items():
        ways = {"gradred": allreduce(count, world.rank), "gloo": psum(count, mesh, world.rank)}
        found = {name: way() for name, way in ways.items()} | {"served": served.prepare(count)}
        for name, result in found.items():
            if not bool((np.asarray(result) == expected).all()):
                sys.exit(f"{name}: wrong result")
        record["sets"].append(row_of(f"sum of {label}", ways, served, 4 * count, given, world))
    ways = {
        "gradred": step_of_one(gradred.jax.pmean_tree, world.rank),
        "gloo": step_on_mesh(mesh, world.rank),
        "no sum": step_of_one(lambda grads: grads, world.rank),
    }
    for ours, gloos, theirs in zip(
        ways["gradred"](), ways["gloo"](), served.prepare(0), strict=True
    ):
        np.testing.assert_allclose(ours, gloos, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(theirs, gloos, rtol=1e-3, atol=1e-5)
    size = 4 * LAYERS * WIDTH * WIDTH
    record["sets"].append(row_of("training step", ways, served, size, given, world))
    served.end()
    for row in record["sets"]:
        found = "  ".join(f"{way} {us:.1f}" for way, us in row["us"].items())
        gloo = "  ".join(
            f"x{a:.2f} ({b:.2f} to {c:.2f}) of {way}'s" for way, (a, b, c) in row["over"].items()
        )
        say(world, f"{row['set']:24} {found}  gloo takes {gloo}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    world.Barrier()
    jax.distributed.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
