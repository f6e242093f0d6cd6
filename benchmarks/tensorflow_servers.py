"""Steps by `tf.distribute.ParameterServerStrategy`, for benchmarks/tensorflow_step.py.

    with ParameterServers(workers=2) as servers:
        servers.step("MLP")     # each worker makes a step, and the call waits for all of them

The strategy takes a process of its own for each worker, for the parameter server and for the
coordinator, which this file is the program of. A step reads the variables from the server, and
applies the worker's gradients there. Workers do not wait for each other within a step.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

from tensorflow_network import MLP, SETS, data_of, loss_of, start_values

RATE = 0.01


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


class ParameterServers:
    """The processes of the strategy; used with `with`.

    Args:
        workers: number of workers.
    """

    def __init__(self, workers: int) -> None:
        chief, server, *others = [f"127.0.0.1:{port}" for port in free_ports(workers + 2)]
        self._cluster = {"chief": [chief], "ps": [server], "worker": others}
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> ParameterServers:
        for role in ("worker", "ps", "chief"):
            for index in range(len(self._cluster[role])):
                self._processes.append(self._start(role, index))
        self._coordinator = self._processes[-1]
        self._read("ready")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.communicate()

    def step(self, label: str) -> None:
        """Let each worker make a step of this set, and wait for all of them."""
        assert self._coordinator.stdin is not None
        self._coordinator.stdin.write(label + "\n")
        self._coordinator.stdin.flush()
        self._read("done")

    def _start(self, role: str, index: int) -> subprocess.Popen[str]:
        task = {"cluster": self._cluster, "task": {"type": role, "index": index}}
        environment = os.environ | {"TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "3"}
        for name in list(environment):  # these processes are no ranks
            if name.startswith(("PMI", "OMPI_", "PMIX", "GRADRED_", "HYD")):
                del environment[name]
        return subprocess.Popen(
            [sys.executable, __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _read(self, word: str) -> None:
        assert self._coordinator.stdout is not None
        found = self._coordinator.stdout.readline()
        if found.strip() != word:
            raise RuntimeError(f"the coordinator of the parameter servers has ended: {found!r}")


# ---- the processes -------------------------------------------------------------------------------


def steps_of(strategy: Any, tf: Any) -> dict[str, Any]:
    """The step of a worker, for each set."""

    def sums(counts: list[int]) -> Any:
        with strategy.scope():
            totals = [tf.Variable(tf.zeros([count])) for count in counts]
            sources = [tf.ones([count]) for count in counts]

        def add() -> None:
            for total, source in zip(totals, sources, strict=True):
                total.assign_add(source * 2.0)

        return tf.function(add)

    def training() -> Any:
        with strategy.scope():
            weights = [tf.Variable(one) for one in start_values()]

        def step() -> None:
            x, y = data_of(0, tf)
            with tf.GradientTape() as tape:
                loss = loss_of(weights, x, y, tf)
            for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                weight.assign_sub(RATE * gradient)

        return tf.function(step)

    return {label: sums(counts) for label, counts in SETS.items()} | {MLP: training()}


def coordinate(tf: Any) -> None:
    """Make steps as asked by lines of the standard input."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    steps = steps_of(strategy, tf)
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(workers):
            coordinator.schedule(steps[line.strip()])
        coordinator.join()
        print("done", flush=True)


def main() -> None:
    import tensorflow as tf

    given = json.loads(os.environ["TF_CONFIG"])
    role, index = given["task"]["type"], given["task"]["index"]
    if role == "chief":
        coordinate(tf)
    else:
        server = tf.distribute.Server(given["cluster"], role, index, protocol="grpc", start=True)
        server.join()


if __name__ == "__main__":
    main()
