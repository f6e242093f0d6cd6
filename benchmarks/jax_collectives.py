"""Compare sums in JAX programs with gradred and with jax.distributed on gloo.

    gradred run -np 2 python benchmarks/jax_collectives.py --json out.json       (needs JAX)

Both ways are in one job, on the same arrays. They alternate round by round, in an order that
changes. A round's time is that of its slowest rank. Results are checked first. gloo's way is
`lax.psum` under `shard_map` over the processes. The training step is that of a network of
matrices, once more without any sum. The JSON record (`schema` = "gradred-jax/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    flag     {what, us}: the time of one signal between ranks 0 and 1
    sets     [{set, bytes, rounds_us{way: [...]}, us{way}, gloo_over_gradred}]
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import sys
from collections.abc import Callable
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

SCHEMA = "gradred-jax/1"
SIZES = {"4 KB": 1 << 10, "64 KiB": 1 << 14, "1 MiB": 1 << 18, "8 MiB": 2 << 20, "64 MiB": 16 << 20}
WIDTH, LAYERS, BATCH = 512, 6, 64
Ways = dict[str, Callable[[], None]]
RANKS = PartitionSpec("ranks")


def arguments() -> argparse.Namespace:
    return read(options("sums in JAX programs: gradred and gloo", rounds=30))


def join(world: MPI.Intracomm) -> Mesh:
    """Connect the processes by jax.distributed, and return a mesh with one device of each."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = world.bcast(one.getsockname()[1], root=0)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", world.size, world.rank)
    return Mesh(np.array(jax.devices()), ("ranks",))


def over_processes(mesh: Mesh, tree: Any) -> Any:
    """Arrays whose first axis has one entry for each process: that of this process is `tree`."""
    sharding = NamedSharding(mesh, RANKS)
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)[None]), tree
    )


def by_gloo(mesh: Mesh, function: Callable[..., Any], arguments: int) -> Any:
    """Compile a function of one process's arrays that may use psum over "ranks"."""

    def on_one(*given: Any) -> Any:
        first = [jax.tree.map(lambda x: x[0], one) for one in given]
        return jax.tree.map(lambda x: x[None], function(*first))

    specs = (RANKS,) * arguments
    return jax.jit(shard_map(on_one, mesh=mesh, in_specs=specs, out_specs=RANKS))


def local(array: Any) -> Any:
    """This process's part of an array over the processes."""
    return array.addressable_shards[0].data[0]


def sums(count: int, mesh: Mesh, world: MPI.Intracomm) -> Ways:
    x = jnp.full(count, world.rank + 1.0)
    spread = over_processes(mesh, x)
    psum = by_gloo(mesh, functools.partial(jax.lax.psum, axis_name="ranks"), 1)
    allreduce = jax.jit(gradred.jax.allreduce)
    expected = world.size * (world.size + 1) / 2
    for name, found in {"gradred": allreduce(x), "gloo": local(psum(spread))}.items():
        if not bool((found == expected).all()):
            sys.exit(f"{name}: wrong result")
    return {
        "gradred": lambda: jax.block_until_ready(allreduce(x)),
        "gloo": lambda: jax.block_until_ready(psum(spread)),
    }


def steps(mesh: Mesh, world: MPI.Intracomm) -> Ways:
    """A step of training: forward, backward, the mean of the gradients, and the new weights."""
    keys = jax.random.split(jax.random.key(0), LAYERS)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys]
    images = jax.random.normal(jax.random.key(world.rank + 1), (BATCH, WIDTH))

    def loss(weights: Any, images: Any) -> Any:
        for weight in weights:
            images = jnp.tanh(images @ weight)
        return jnp.mean(images**2)

    def step(mean: Callable[[Any], Any], weights: Any, images: Any) -> Any:
        grads = mean(jax.grad(loss)(weights, images))
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)

    ours = jax.jit(functools.partial(step, gradred.jax.pmean_tree))
    alone = jax.jit(functools.partial(step, lambda grads: grads))
    pmean = functools.partial(jax.lax.pmean, axis_name="ranks")
    theirs = by_gloo(mesh, functools.partial(step, pmean), 2)
    spread = over_processes(mesh, (weights, images))
    for mine, other in zip(ours(weights, images), theirs(*spread), strict=True):
        np.testing.assert_allclose(mine, local(other), rtol=1e-3, atol=1e-5)
    return {
        "gradred": lambda: jax.block_until_ready(ours(weights, images)),
        "gloo": lambda: jax.block_until_ready(theirs(*spread)),
        "no sum": lambda: jax.block_until_ready(alone(weights, images)),
    }


def row_of(label: str, ways: Ways, size: int, given: Any, world: Any) -> dict[str, Any]:
    calls = max(3, min(50, 2_000_000 // size))
    row = measure(label, ways, size, calls, given.rounds, world)
    return row | {"gloo_over_gradred": row["us"]["gloo"] / row["us"]["gradred"]}


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    mesh = join(world)
    gradred.jax.init()
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["jax"] = jax.__version__
    record["flag"] = one_way_latency(world)
    say(world, f"# {world.size} ranks, {mpi_name()}; us, medians; flag {record['flag']}")
    record["sets"] = []
    for label, count in SIZES.items():
        ways = sums(count, mesh, world)
        record["sets"].append(row_of(f"sum of {label}", ways, 4 * count, given, world))
    size = 4 * LAYERS * WIDTH * WIDTH
    record["sets"].append(row_of("training step", steps(mesh, world), size, given, world))
    for row in record["sets"]:
        found = "  ".join(f"{way} {us:.1f}" for way, us in row["us"].items())
        say(world, f"{row['set']:24} {found}  gloo takes x{row['gloo_over_gradred']:.2f}")
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    world.Barrier()
    jax.distributed.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
