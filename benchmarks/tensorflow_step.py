"""Compare what a step's gradients cost with gradred and with TensorFlow's own collectives.

    gradred run -np 2 python benchmarks/tensorflow_step.py --json out.json     (needs TensorFlow)

All variants ("way" in the record) reduce the same gradients in a `tf.function`, round by round, in
an order that changes:

- alone: the step without communication, which makes each gradient;
- gradred: `hvd.grouped_allreduce`, which `DistributedOptimizer` calls;
- named: `hvd.allreduce` of each gradient, one asynchronous operation each;
- grpc: `tf.distribute.MultiWorkerMirroredStrategy` (CollectiveOps over gRPC, its default on CPUs);
- ps: `tf.distribute.ParameterServerStrategy` with one server and as many workers as ranks, in
  processes of their own (`benchmarks/tensorflow_servers.py`), while the ranks sleep.

The set "MLP" is a whole training step of a network instead, and so has no `named`. A round's time
is that of its slowest rank. Results are checked first. The JSON record (`schema` =
"gradred-tensorflow-step/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    sets     [{set, tensors, bytes, rounds_us{way: [...]}, us{way}}]; us: medians of the rounds
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from arguments import options, parse_once, read
from in_turn import measure
from mpi4py import MPI
from tensorflow_network import MLP, SETS, data_of, loss_of, start_values
from tensorflow_servers import RATE, ParameterServers

import gradred
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json

SCHEMA = "gradred-tensorflow-step/1"
Ways = dict[str, Callable[[], Any]]


def arguments() -> argparse.Namespace:
    return read(options("a step's gradients: gradred and gRPC", rounds=20))


def tell_tensorflow_of_the_ranks(world: MPI.Intracomm) -> None:
    """Set TF_CONFIG, by which TensorFlow's strategy finds the ranks. Before it is imported."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    workers = [f"127.0.0.1:{port}" for port in world.allgather(port)]
    task = {"type": "worker", "index": world.rank}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})


def gradients_of(counts: list[int], strategy: Any, hvd: Any, tf: Any) -> Ways:
    """The ways to reduce gradients of these lengths."""
    sources = [tf.Variable(tf.ones([count])) for count in counts]
    factor = tf.constant(float(hvd.rank() + 1))

    def make() -> list[Any]:
        return [source * factor for source in sources]

    def by_strategy() -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, make())

    return {
        "alone": tf.function(make),
        "gradred": tf.function(lambda: hvd.grouped_allreduce(make(), op=hvd.Sum)),
        "named": tf.function(lambda: [hvd.allreduce(one, op=hvd.Sum) for one in make()]),
        "grpc": tf.function(lambda: strategy.run(by_strategy)),
    }


def check(ways: Ways, total: float) -> None:
    """Exit if a way has a wrong result."""
    for way, carry_out in ways.items():
        if way != "alone":
            for one in carry_out():
                if not np.array_equal(one, np.full(one.shape, total)):
                    sys.exit(f"{way}: wrong result")


def training_steps(strategy: Any, hvd: Any, tf: Any) -> tuple[Ways, int, int]:
    """Steps of a multilayer perceptron with 64 samples a rank. Returns its tensors and bytes."""
    start = start_values()
    x, y = data_of(hvd.rank(), tf)

    def step(reduced: Callable[[Any], Any], weights: list[Any]) -> Callable[[], Any]:
        def compute() -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(weights, x, y, tf)
            for weight, gradient in zip(
                weights, reduced(tape.gradient(loss, weights)), strict=True
            ):
                weight.assign_sub(RATE * gradient)
            return loss

        return compute

    def weights() -> list[Any]:
        return [tf.Variable(one) for one in start]

    def by_strategy(gradients: Any) -> Any:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)

    inside = step(by_strategy, weights())
    ways = {
        "alone": tf.function(step(lambda gradients: gradients, weights())),
        "gradred": tf.function(step(hvd.grouped_allreduce, weights())),
        "grpc": tf.function(lambda: strategy.run(inside)),
    }
    return ways, len(start), sum(one.nbytes for one in start)


def step_by_servers(label: str, servers: ParameterServers | None, hvd: Any) -> None:
    """A step of all workers. Rank 0 asks for it, and the other ranks sleep meanwhile."""
    if servers is not None:
        servers.step(label)
    hvd.barrier()


def row_of(label: str, ways: Ways, size: int, given: Any, comm: gradred.Comm) -> dict[str, Any]:
    calls = max(3, min(50, 20_000_000 // size))
    return measure(label, ways, size, calls, given.rounds, comm)


def measure_sets(record: dict[str, Any], given: Any, strategy: Any, hvd: Any, tf: Any) -> None:
    """Measure all sets; adds a row of each to the record."""
    world = MPI.COMM_WORLD
    comm = gradred.Comm(world)

    def add(label: str, ways: Ways, tensors: int, size: int) -> None:
        ways["ps"] = partial(step_by_servers, label, servers, hvd)
        row = {"tensors": tensors} | row_of(label, ways, size, given, comm)
        record["sets"].append(row)
        found = "  ".join(f"{way} {us:.1f}" for way, us in row["us"].items())
        say(world, f"{label:24} {found}")

    with ExitStack() as stack:
        first = world.rank == 0
        servers = stack.enter_context(ParameterServers(world.size)) if first else None
        for label, counts in SETS.items():
            ways = gradients_of(counts, strategy, hvd, tf)
            check(ways, world.size * (world.size + 1) / 2)
            add(label, ways, len(counts), 4 * sum(counts))
        ways, tensors, size = training_steps(strategy, hvd, tf)
        add(MLP, ways, tensors, size)


def main() -> int:
    world = MPI.COMM_WORLD
    given = parse_once(arguments, world)
    tell_tensorflow_of_the_ranks(world)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    import gradred.tensorflow as hvd

    hvd.init()
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    record["versions"]["tensorflow"] = tf.__version__
    say(world, f"# {world.size} ranks, {mpi_name()}, TensorFlow {tf.__version__}; us, medians")
    record["sets"] = []
    measure_sets(record, given, strategy, hvd, tf)
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    hvd.barrier()
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
