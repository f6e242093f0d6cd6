"""Ranks that train under a scheme: `schemes.py SCHEME TRANSPORT VICTIM`; the victim is killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys

import numpy as np
from mpi4py import MPI

import gradred
from gradred._util import clock
from gradred.schemes import Sgd, Training

SCHEME, TRANSPORT, VICTIM = sys.argv[1], sys.argv[2], int(sys.argv[3])
RANK = MPI.COMM_WORLD.rank
START = [np.zeros((100, 1000), np.float32), np.zeros(100, np.float32)]


def report(error: str, text: str = "") -> None:
    found = {"rank": RANK, "error": error, "text": text, "at": clock.now()}
    print(json.dumps(found), flush=True)


def die() -> None:
    report("")
    os.kill(os.getpid(), signal.SIGKILL)


try:
    options = {"every": 1} if SCHEME == "local" else {}
    training = Training(START, SCHEME, rule=Sgd(0.1), transport=TRANSPORT, **options)
    if training.is_server and RANK == VICTIM:
        exchange = training.exchange
        take, taken = exchange.any, itertools.count()
        exchange.any = lambda: die() if next(taken) == 20 else take()
    with training:
        for step in training.steps(10**9):
            if step == 5 and RANK == VICTIM:
                die()
            training.update()
except gradred.Error as error:
    report(type(error).__name__, str(error))
