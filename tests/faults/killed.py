"""One rank of a job that loses a rank to a signal: `killed.py DOING VICTIM FOLDER`.

Every rank does the same again and again, or once where it can be done only once. The victim writes
to a pipe in FOLDER when the others have begun, too. In two files there it publishes what it is
doing and how much of its result is written. Each survivor prints one line of JSON with the error
that it got.
"""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import gradred

DOING, VICTIM, FOLDER = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LARGE = 1_500_000  # float64: 12 MB


def shared_file(name: str, nbytes: int) -> mmap.mmap:
    """Memory that outlives this process: a file on the victim, anonymous memory on other ranks."""
    if RANK != VICTIM:
        return mmap.mmap(-1, nbytes)
    with (FOLDER / name).open("r+b") as file:
        file.truncate(nbytes)
        return mmap.mmap(file.fileno(), nbytes)


shown = shared_file("doing", 32)
RESULT = np.frombuffer(shared_file("result", 8 * LARGE))


def show(what: str) -> None:
    shown[:32] = what.encode().ljust(32, b"\0")


def say_begun() -> None:
    """Report that all ranks have begun; from now on the victim may end at any moment."""
    show("between calls")
    WORLD.Barrier()
    if RANK == VICTIM:
        with (FOLDER / "begun").open("w") as pipe:
            pipe.write(f"{os.getpid()}\n")


def survive(error: str, text: str, **more: object) -> None:
    now = time.monotonic()
    report = {"rank": RANK, "error": error, "text": text, "at": now, **more}
    print(json.dumps(report), flush=True)


def until_lost(turn: Callable[[gradred.Comm, int], None], comm: gradred.Comm) -> None:
    """Take turns until one fails, then report the error."""
    turns = 0
    try:
        while True:
            turns += 1
            turn(comm, turns)
    except gradred.Error as error:
        survive(type(error).__name__, str(error))


# ---- what the ranks do, each a turn ----------------------------------------------------------


def small(comm: gradred.Comm, turn: int) -> None:
    show("Allreduce")
    comm.Allreduce(np.full(2, turn, float), RESULT[:2])
    show("between calls")


def large(comm: gradred.Comm, turn: int) -> None:
    x = np.full(LARGE, turn, float)
    show("large Allreduce")
    comm.Allreduce(x, RESULT)
    show("between calls")


def non_blocking(comm: gradred.Comm, turn: int) -> None:
    show("Iallreduce")
    request = comm.Iallreduce(np.full(2, turn, float), RESULT[:2])
    show("Wait")
    request.Wait()
    show("between calls")


def large_non_blocking(comm: gradred.Comm, turn: int) -> None:
    x = np.full(LARGE, turn, float)
    show("large Iallreduce")
    request = comm.Iallreduce(x, RESULT)
    show("large Wait")
    request.Wait()
    show("between calls")


def tested(comm: gradred.Comm, turn: int) -> None:
    x = np.full(100_000, turn, float)
    show("Iallreduce")
    request = comm.Iallreduce(x, RESULT[: x.size])
    show("Test")
    while not request.Test():
        time.sleep(0.0001)
    show("between calls")


prepared: list[tuple[np.ndarray, MPI.Prequest]] = []


def persistent(comm: gradred.Comm, turn: int) -> None:
    if not prepared:
        x = np.zeros(20_000)
        prepared.append((x, comm.Allreduce_init(x, RESULT[: x.size])))
    x, request = prepared[0]
    x[:] = turn
    show("Start")
    request.Start()
    show("persistent Wait")
    request.Wait()
    show("between calls")


def arrays(comm: gradred.Comm, turn: int) -> None:
    x = np.full(300_000, turn, float)
    several = [x[:10].astype(np.float32), x.reshape(3, -1), x[:1000].astype(np.int64)]
    show("allreduce of an array")
    gradred.allreduce(x, out=RESULT[: x.size], comm=comm)
    show("allreduce_many")
    gradred.allreduce_many(several, comm=comm)
    show("between calls")


def others(comm: gradred.Comm, turn: int) -> None:
    x = np.full(60_000, turn, float)
    show("Bcast")
    comm.Bcast(x, turn % SIZE)
    show("Allgather")
    comm.Allgather(x, RESULT[: x.size * SIZE])
    show("Reduce_scatter_block")
    comm.Reduce_scatter_block(x, np.empty(x.size // SIZE))
    show("between calls")


def communicators(comm: gradred.Comm, turn: int) -> None:
    show("Dup")
    other = comm.Dup()
    try:
        show("first call")
        other.Allreduce(np.full(2, turn, float), RESULT[:2])
    finally:
        show("Free")
    other.Free()
    show("between calls")


def duplicates(comm: gradred.Comm, turn: int) -> None:
    show("Dup")
    other = comm.Dup()
    show("Free")
    other.Free()
    show("between calls")


def shrinking(comm: gradred.Comm, turn: int) -> None:
    """A rank that shrinks while another ends gets a communicator without it, or an error."""
    show("shrink")
    fewer = comm.shrink()
    if fewer.size < SIZE:
        raise gradred.PeerLost("not in the shrunk communicator")
    show("on a shrunk communicator")
    fewer.Allreduce(np.full(2, turn, float), RESULT[:2])
    fewer.Free()


# ---- what the ranks can do only once -----------------------------------------------------------


def first_call() -> None:
    comm = gradred.Comm(WORLD)
    say_begun()
    until_lost(small, comm)


def first_non_blocking_call() -> None:
    comm = gradred.Comm(WORLD)
    say_begun()
    until_lost(non_blocking, comm)


def going_on() -> None:
    """The survivors shrink and compute a sum on the new communicator.

    Rank r contributes 2 to the r.
    """
    comm = gradred.Comm(WORLD)
    small(comm, 1)
    say_begun()
    members, turn = SIZE, 0
    while members == SIZE:
        turn += 1
        count = 2 if turn % 5 else 300_000
        try:
            show("Allreduce, then shrink")
            total = gradred.allreduce(np.full(count, 2**RANK), comm=comm)
        except gradred.PeerLost:
            while True:  # another rank may still detect the loss in its own call
                try:
                    comm = comm.shrink()
                    break
                except gradred.PeerLost:
                    continue
            total = gradred.allreduce(np.array([2**RANK]), comm=comm)
            members = comm.size
    assert (total == total[0]).all()
    survive("", "went on", members=[rank for rank in range(SIZE) if int(total[0]) >> rank & 1])


def finalize() -> None:
    small(gradred.Comm(WORLD), 1)
    say_begun()
    show("Finalize")
    survive("", "comes to its end")


TURNS = {
    one.__name__: one
    for one in (
        small,
        large,
        non_blocking,
        large_non_blocking,
        tested,
        persistent,
        arrays,
        others,
        communicators,
        duplicates,
        shrinking,
    )
}
ONCE = {one.__name__: one for one in (first_call, first_non_blocking_call, going_on, finalize)}

if DOING in ONCE:
    ONCE[DOING]()
else:
    COMM = gradred.Comm(WORLD)
    # without it the MPI would carry out non-blocking calls
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))
    TURNS[DOING](COMM, 1)
    say_begun()
    until_lost(TURNS[DOING], COMM)
