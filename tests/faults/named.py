"""Four ranks that submit named operations: `named.py HOW`; HOW says what happens to rank 1."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import stepped
from mpi4py import MPI

import gradred
from gradred import named
from gradred._util import clock

HOW, SIZE = sys.argv[1].split(",")
COMM = gradred.Comm(MPI.COMM_WORLD)
RANK = COMM.Get_rank()
ALL = named.NamedOperations(COMM)
X = np.ones(1 << (22 if SIZE == "large" else 4), "float32")
DESCRIBED = [(X.ctypes.data, X.ctypes.data, "float32", X.shape)]


def submit() -> None:
    ALL.submit("allreduce", "gradient", DESCRIBED, held=X).wait()


def error_of_the_next() -> dict[str, object]:
    begin = clock.now()
    try:
        while True:
            submit()
    except gradred.Error as error:
        seconds = clock.now() - begin
        return {"error": type(error).__name__, "text": str(error), "seconds": seconds}


for _ in range(3):
    submit()
COMM.Barrier()
if RANK == 1:
    pending = ALL.submit("allreduce", "gradient", DESCRIBED, held=X) if HOW == "killed" else None
    if HOW == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "raises":
        raise ValueError
    if HOW == "never_submits":
        stepped.let_pass(2 * float(os.environ["GRADRED_TIMEOUT"]), ranks=3)
        stepped.await_end_of_others()
    sys.exit(7)
seen = error_of_the_next()
later = error_of_the_next()
seen |= {"rank": RANK, "later": later["error"], "later_seconds": later["seconds"]}
print(json.dumps(seen), flush=True)
