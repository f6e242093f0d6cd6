"""A process beside a rank of jax_collectives.py, whose sums by JAX itself are gradred's.

It gets commands by a pipe, whose number is its argument, and sleeps between them.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Any

import gradred
from gradred import jax_stand_in


def main() -> None:
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))
    port, size, rank = pipe.recv()

    def allgather(mine: bytes) -> list[bytes]:
        pipe.send(mine)
        found: list[bytes] = pipe.recv()
        return found

    jax_stand_in.serve(gradred.connect(rank, size, allgather))
    pipe.send(None)
    import jax_collectives  # imports JAX, which has to find gradred

    mesh = jax_collectives.join(port, size, rank, "mpi")
    run = jax_collectives.psum(1, mesh, rank)
    while (command := pipe.recv()) is not None:
        what, number = command
        if what == "run":
            for _ in range(number):
                run()
            pipe.send(None)
            continue
        if number > 0:
            run = jax_collectives.psum(number, mesh, rank)
        else:
            run = jax_collectives.step_on_mesh(mesh, rank)
        pipe.send(run())


if __name__ == "__main__":
    main()
