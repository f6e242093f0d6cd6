"""One rank of a job over several hosts: `operations.py FOLDER [COUNT [named]]`.

It makes operations of several sizes, COUNT rounds of them or endlessly (-). With `named` they are
named operations that each rank submits in its own order. The results are in the folder afterwards,
one file per rank, because no other output arrives from a host that is disconnected.
"""

from __future__ import annotations

import json
import pathlib
import socket
import sys
import time

import numpy as np
from mpi4py import MPI

import gradred
from gradred import named

FOLDER = pathlib.Path(sys.argv[1])
ROUNDS = int(sys.argv[2]) if sys.argv[2:] and sys.argv[2] != "-" else None
WORLD = MPI.COMM_WORLD
COMM = gradred.Comm(WORLD)
NAMED = named.NamedOperations(COMM) if sys.argv[3:] == ["named"] else None
SIZES = (1, 1000, 300_000) if NAMED is None else (1, 1000, 1_700_000)  # two chunks


def one_round(number: int) -> bool:
    """Whether all results were right."""
    arrays = [np.arange(count, dtype="float64") % 1000 + WORLD.rank + number for count in SIZES]
    if NAMED is None:
        for x in arrays:
            COMM.Allreduce(MPI.IN_PLACE, x)
    else:
        order = arrays[WORLD.rank % 3 :] + arrays[: WORLD.rank % 3]
        requests = [
            NAMED.submit(
                "allreduce",
                str(x.size),
                [(x.ctypes.data, x.ctypes.data, "float64", x.shape)],
                priority=WORLD.rank - place,
            )
            for place, x in enumerate(order)
        ]
        for request in requests:
            request.wait()
    return all(
        np.all(x == WORLD.size * (np.arange(x.size) % 1000 + number) + sum(range(WORLD.size)))
        for x in arrays
    )


def report(name: str, **values: object) -> None:
    text = json.dumps({"rank": WORLD.rank, "host": socket.gethostname(), **values})
    (FOLDER / f"{name}-{WORLD.rank}.new").write_text(text)
    (FOLDER / f"{name}-{WORLD.rank}.new").rename(FOLDER / f"{name}-{WORLD.rank}")


right = one_round(0)
report("started")
rounds, last = 1, time.time()
error: gradred.Error | None = None
try:
    while ROUNDS is None or rounds < ROUNDS:
        right = one_round(rounds) and right
        rounds += 1
        last = time.time()
except gradred.Error as caught:
    error = caught
report(
    "ended",
    error=type(error).__name__ if error else None,
    text=str(error) if error else "",
    seconds=time.time() - last,
    right=right,
)
sys.exit(3 if error else 0)
