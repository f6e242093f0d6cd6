"""One rank of a test of shrink(): `elastic.py SCENARIO [ARGUMENT]`.

Each surviving rank prints one line of JSON. A rank contributes 2 to the power of its rank in
COMM_WORLD, so every sum shows which ranks contributed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import gradred

SCENARIO = sys.argv[1]
ARGUMENT = sys.argv[2] if len(sys.argv) > 2 else ""
WORLD = MPI.COMM_WORLD
RANK = WORLD.rank
MINE = 2**RANK

shrinks: list[float] = []  # how long each shrink took, in seconds


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(seconds: float) -> None:
    """Kill this process after `seconds`, wherever the program is."""
    threading.Timer(seconds, die).start()


def total(comm: gradred.Comm) -> int:
    """The sum over all members, by a small allreduce."""
    return int(gradred.allreduce(np.array([MINE]), comm=comm)[0])


def train(comm: gradred.Comm, steps: int, expected: int | None = None) -> None:
    """A loop of allreduces, the last ones large."""
    for step in range(steps):
        count = 2 if step % 5 else 300_000
        y = gradred.allreduce(np.full(count, MINE), comm=comm)
        assert expected is None or (y == expected).all(), (step, y[0], expected)


def shrink(comm: gradred.Comm) -> gradred.Comm:
    begin = time.monotonic()
    try:
        return comm.shrink()
    finally:
        shrinks.append(time.monotonic() - begin)


def shrunk(comm: gradred.Comm) -> gradred.Comm:
    """Shrink, and try again if another rank ends meanwhile."""
    while True:
        try:
            return shrink(comm)
        except gradred.PeerLost:
            continue


def check(comm: gradred.Comm, members: list[int]) -> None:
    """Every plan of a shrunk communicator computes the sum of these ranks."""
    everybody = sum(2**rank for rank in members)
    assert comm.Get_size() == comm.size == len(members)
    assert members[comm.rank] == RANK, (members, comm.rank)
    assert total(comm) == everybody
    large = np.full((64 << 20) // 8, float(MINE))
    comm.Allreduce(MPI.IN_PLACE, large)
    assert (large == everybody).all()
    for count in (3, 200_000):
        x, y = np.full(count, MINE), np.zeros(count, int)
        requests = [comm.Iallreduce(x, y), comm.Iallreduce(x, z := np.zeros(count, int))]
        gradred.Request.Waitall(requests)
        assert (y == everybody).all()
        assert (z == everybody).all()
        p = comm.Allreduce_init(x, y)
        for turn in range(3):
            y[:] = 0
            if turn % 2:
                p.Start()
                p.Wait()
            else:
                p()
            assert (y == everybody).all()
    root = len(members) - 1
    for count in (2, 500_000):
        x = np.full(count, MINE)
        comm.Bcast(x, root)
        assert (x == 2 ** members[root]).all()
        gathered = np.zeros((len(members), count), int)
        comm.Allgather(np.full(count, MINE), gathered)
        assert gathered[:, -1].tolist() == [2**rank for rank in members]
    assert gradred.allreduce(np.full(2, MINE), comm=comm, plan="node")[0] == everybody


def lose_rank_1(comm: gradred.Comm) -> None:
    """Rank 1 ends in the middle of a loop, and the others notice it."""
    try:
        train(comm, 3)
        if RANK == 1:
            die()
        train(comm, 1000)
        raise AssertionError("a rank has ended, and there was no error")
    except gradred.PeerLost:
        pass


def say(error: str = "", **values: object) -> None:
    seconds = max(shrinks, default=0.0)
    print(json.dumps({"rank": RANK, "error": error, "seconds": seconds, **values}), flush=True)


def once(comm: gradred.Comm) -> None:
    """The victim, ARGUMENT, ends in the middle of a loop."""
    victim = int(ARGUMENT)
    try:
        train(comm, 7)
        if victim == RANK:
            die()
        train(comm, 1000)
        raise AssertionError("a rank has ended, and there was no error")
    except gradred.PeerLost:
        pass
    comm = shrink(comm)
    members = [rank for rank in range(WORLD.size) if rank != victim]
    check(comm, members)
    time.sleep(3.5)  # longer than the grace period of gradred run
    train(comm, 10, sum(2**rank for rank in members))
    say(members=members)


def twice(comm: gradred.Comm) -> None:
    """Two ranks fail one after the other: 4 -> 3 -> 2."""
    members = list(range(WORLD.size))
    for victim in (1, 3):
        try:
            train(comm, 7, sum(2**rank for rank in members))
            if victim == RANK:
                die()
            train(comm, 1000)
        except gradred.PeerLost:
            members.remove(victim)
        comm = shrink(comm)
    check(comm, members)
    say(members=members)


def meanwhile(comm: gradred.Comm) -> None:
    """Rank 2 ends at a random moment while the others shrink without rank 1."""
    lose_rank_1(comm)
    if RANK == 2:
        die_in(random.Random(ARGUMENT).uniform(0.0, 0.06))
    while True:
        comm = shrunk(comm)
        try:
            while total(comm) != 0b1001:
                pass
            break
        except gradred.PeerLost:
            continue
    check(comm, [0, 3])
    say(members=[0, 3])


def never(comm: gradred.Comm) -> None:
    """Rank 2 is alive and does not call shrink."""
    lose_rank_1(comm)
    if RANK == 2:
        time.sleep(4)
        return
    try:
        shrink(comm)
    except gradred.Error as error:
        say(error=type(error).__name__, text=str(error))


def without_memory(comm: gradred.Comm) -> None:
    """The ranks share no memory."""
    lose_rank_1(comm)
    try:
        shrink(comm)
    except gradred.Error as error:
        say(error=type(error).__name__, text=str(error))


def half(comm: gradred.Comm) -> None:
    """Ranks 0 and 1 have a separate communicator; the others wait for a failed rank in the MPI."""
    pair = gradred.Comm(WORLD.Split(RANK // 2))
    total(pair)
    if RANK == 1:
        die()
    if RANK > 1:
        WORLD.Barrier()
    try:
        train(pair, 1000)
    except gradred.PeerLost:
        pair = shrink(pair)
    say(members=[0])
    time.sleep(20)


def exits(comm: gradred.Comm) -> None:
    """Rank 1's program ends, by an exception or by sys.exit."""
    try:
        train(comm, 3)
        if RANK == 1 and ARGUMENT == "raise":
            raise RuntimeError("on purpose")
        if RANK == 1:
            sys.exit(7)
        train(comm, 1000)
    except gradred.PeerLost:
        comm = shrink(comm)
    check(comm, [0, 2, 3])
    say(members=[0, 2, 3])


def fails_later(comm: gradred.Comm) -> None:
    """A rank fails by an exception of its own after a shrink."""
    lose_rank_1(comm)
    comm = shrink(comm)
    if RANK == 3:
        sys.exit(7)
    try:
        train(comm, 1000)
    except gradred.PeerLost as lost:
        say(error="PeerLost", text=str(lost))


globals()[SCENARIO](gradred.Comm(WORLD))
