"""Two processes of multiprocessing are the ranks of a JAX program, without an MPI launcher."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.queues import Queue

Queues = list[list["Queue[bytes]"]]


def run(rank: int, queues: Queues) -> None:
    import jax
    import jax.numpy as jnp

    import gradred
    import gradred.jax

    def allgather(mine: bytes) -> list[bytes]:
        for queue in queues[rank]:
            queue.put(mine)
        return [queues[other][rank].get() for other in range(2)]

    gradred.jax.init(gradred.connect(rank, 2, allgather))
    found = jax.jit(gradred.jax.allreduce)(jnp.full(2, rank + 1.0))
    os.write(1, f"{rank}: {found.tolist()}\n".encode())  # in one piece, beside the other rank's


if __name__ == "__main__":
    spawning = multiprocessing.get_context("spawn")
    queues: Queues = [[spawning.Queue() for _ in range(2)] for _ in range(2)]
    ranks = [spawning.Process(target=run, args=(rank, queues)) for rank in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(90)
    sys.exit(any(one.exitcode != 0 for one in ranks))
