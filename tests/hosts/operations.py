"""One rank of a job over several hosts: `operations.py FOLDER [COUNT]`.

Operations of several sizes, COUNT rounds of them or for ever. What became of them lies in the
folder afterwards, a file per rank: nothing else may reach us from a host that is cut off.
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

FOLDER = pathlib.Path(sys.argv[1])
ROUNDS = int(sys.argv[2]) if sys.argv[2:] else None
WORLD = MPI.COMM_WORLD
COMM = gradred.Comm(WORLD)
SIZES = (1, 1000, 300_000)


def one_round(number: int) -> bool:
    """Whether all results were right."""
    right = True
    for count in SIZES:
        x = np.arange(count, dtype="float64") % 1000 + WORLD.rank + number
        expected = WORLD.size * (np.arange(count) % 1000 + number) + sum(range(WORLD.size))
        COMM.Allreduce(MPI.IN_PLACE, x)
        right = right and bool(np.all(x == expected))
    return right


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
