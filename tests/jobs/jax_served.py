"""One process of a JAX program whose collectives gradred carries out: `jax_served.py HOW`.

All sums are exact in any order. Each rank prints a line of JSON: what differs from what it should
be, or the error that it got.
"""

# ruff: noqa: E402 (JAX looks for gradred when it is imported)
from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

import gradred
from gradred import jax_stand_in

HOW = sys.argv[1]
WORLD = MPI.COMM_WORLD
if HOW == "without MPI":
    jax_stand_in.serve(gradred.connect(WORLD.rank, WORLD.size, WORLD.allgather))
else:
    jax_stand_in.serve()

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if hasattr(jax, "shard_map"):
    shard_map = jax.shard_map
else:
    from jax.experimental.shard_map import shard_map

SIZE = WORLD.size
# JAX's number of this process, which need not be the rank's.
RANK = SIZE - 1 - WORLD.rank if HOW == "reversed" else WORLD.rank
Array = np.ndarray[Any, Any]


def join() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = WORLD.bcast(one.getsockname()[1])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    jax.distributed.initialize(f"127.0.0.1:{port}", SIZE, RANK)


class Ranks:
    """The processes as a mesh, and programs that each of them runs on an array of its own."""

    def __init__(self, **axes: int) -> None:
        devices = np.array(jax.devices()).reshape([*axes.values()])
        self.mesh = Mesh(devices, tuple(axes))
        self.spec = PartitionSpec(tuple(axes))

    def run(self, function: Callable[[Any], Any], mine: Any) -> Array:
        def on_one(x: Any) -> Any:
            return function(x[0])[None]

        mapped = shard_map(on_one, mesh=self.mesh, in_specs=self.spec, out_specs=self.spec)
        return local(jax.jit(mapped)(self.spread(np.asarray(mine)[None])))[0]

    def spread(self, mine: Any) -> Any:
        sharding = NamedSharding(self.mesh, self.spec)
        return jax.make_array_from_process_local_data(sharding, np.asarray(mine))


def local(array: Any) -> Array:
    return np.asarray(array.addressable_shards[0].data)


def given(rank: int, count: int, dtype: Any = np.float32) -> Array:
    """Small whole numbers, which differ from rank to rank."""
    return ((np.arange(count) * (rank + 2)) % 11 + rank).astype(dtype)


Compare = Callable[[str, Any, Any], None]


def collectives(equal: Compare) -> None:
    ranks = Ranks(rank=SIZE)
    ring = [(one, (one + 1) % SIZE) for one in range(SIZE)]
    for count in (SIZE, 1000 * SIZE, (SIZE << 20) + SIZE):  # the last: parts of 4 MiB and 4 bytes
        all_ = np.stack([given(one, count) for one in range(SIZE)])
        mine, part = all_[RANK], np.split(all_.sum(0), SIZE)[RANK]
        equal("psum", ranks.run(lambda x: lax.psum(x, "rank"), mine), all_.sum(0))
        equal("pmean", ranks.run(lambda x: lax.pmean(x, "rank"), SIZE * mine), all_.sum(0))
        equal("pmax", ranks.run(lambda x: lax.pmax(x, "rank"), mine), all_.max(0))
        equal("pmin", ranks.run(lambda x: lax.pmin(x, "rank"), mine), all_.min(0))
        scatter = ranks.run(lambda x: lax.psum_scatter(x, "rank", tiled=True), mine)
        equal("psum_scatter", scatter, part)
        equal("all_gather", ranks.run(lambda x: lax.all_gather(x, "rank"), mine), all_)
        parts = mine.reshape(SIZE, -1)
        exchanged = np.stack([np.split(one, SIZE)[RANK] for one in all_])
        equal("all_to_all", ranks.run(lambda x: lax.all_to_all(x, "rank", 0, 0), parts), exchanged)
        equal("ppermute", ranks.run(lambda x: lax.ppermute(x, "rank", ring), mine), all_[RANK - 1])
        last = ranks.run(lambda x: lax.ppermute(x, "rank", [(0, SIZE - 1)]), mine)
        equal("ppermute to the last", last, all_[0] * (RANK == SIZE - 1))


def types(equal: Compare) -> None:
    ranks = Ranks(rank=SIZE)
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bfloat16", "complex64"):
        dtype = jnp.dtype(name)
        all_ = np.stack([given(one, 6 * SIZE, dtype) for one in range(SIZE)])
        equal(name, ranks.run(lambda x: lax.psum(x, "rank"), all_[RANK]), all_.sum(0))


def sharded(equal: Compare) -> None:
    """Sums that the compiler adds to a program on arrays spread over the processes."""
    ranks = Ranks(rank=SIZE)
    all_ = np.stack([given(one, 12) for one in range(SIZE)])
    x = ranks.spread(all_[RANK : RANK + 1])
    everywhere = NamedSharding(ranks.mesh, PartitionSpec())
    sums = jax.jit(lambda a: a.sum(0), out_shardings=everywhere)
    equal("sum", local(sums(x)), all_.sum(0))
    product = jax.jit(lambda a: a.T @ a, out_shardings=everywhere)
    equal("product", local(product(x)), all_.T @ all_)
    some = jax.jit(lambda a: (a > all_.max() - 1).any(), out_shardings=everywhere)
    equal("any", local(some(x)), True)
    import gradred.jax as collectives

    equal("both ways", jax.jit(collectives.allreduce)(all_[RANK]), all_.sum(0))


def groups(equal: Compare) -> None:
    ranks = Ranks(row=2, column=SIZE // 2)
    all_ = np.stack([given(one, 100) for one in range(SIZE)]).reshape(2, SIZE // 2, 100)
    row, column = divmod(RANK, SIZE // 2)
    mine = all_[row, column]
    equal("rows", ranks.run(lambda x: lax.psum(x, "row"), mine), all_[:, column].sum(0))
    equal("columns", ranks.run(lambda x: lax.psum(x, "column"), mine), all_[row].sum(0))
    both = ranks.run(lambda x: lax.psum(x, ("row", "column")), mine)
    equal("both", both, all_.sum((0, 1)))


def wrong() -> list[str]:
    """What differs from what it should be."""
    found: list[str] = []

    def equal(what: str, result: Any, expected: Any) -> None:
        if not np.array_equal(np.asarray(result, np.complex128), np.asarray(expected)):
            found.append(f"{what} of {np.size(expected)}: {np.ravel(result)[:5]}")

    if HOW == "groups":
        groups(equal)
    else:
        collectives(equal)
        types(equal)
        sharded(equal)
    return found


def trouble() -> str:
    """The error that a sum ends with."""
    ranks = Ranks(device=len(jax.devices()))
    begin = time.monotonic()
    try:
        if HOW == "killed":
            ranks.run(lambda x: lax.psum(x, "device"), np.ones(3))
            if RANK == 1:
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
        mine = np.ones((jax.local_device_count(), 3))
        mapped = shard_map(
            lambda x: lax.psum(x, "device"),
            mesh=ranks.mesh,
            in_specs=ranks.spec,
            out_specs=PartitionSpec(),
        )
        jax.block_until_ready(jax.jit(mapped)(ranks.spread(mine)))
    except Exception as error:
        return f"{type(error).__name__}: {error} ({time.monotonic() - begin:.0f} s)"
    return "no error"


def main() -> None:
    if HOW == "several devices":
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    join()
    if HOW in ("killed", "several devices"):
        print(json.dumps({"error": trouble()}), flush=True)
        os._exit(0)  # JAX's own shutdown waits for the other process
    print(json.dumps({"wrong": wrong()}), flush=True)


if __name__ == "__main__":
    main()
