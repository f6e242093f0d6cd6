"""Measure what it costs ranks of two hosts to agree on a name, and what an idle engine costs.

    gradred run -H h1:1,h2:1 python benchmarks/names_between_hosts.py --json out.json

gradred's engine sends names over TCP connections of its own, at which a thread sleeps. This
compares them with the same words as messages of the MPI. In each round all ways run, one after the
other, on 4 KB:

- named: a named allreduce is submitted and waited for;
- call: `comm.Allreduce`, for which no name is needed;
- words: 64 bytes to rank 0 and 64 bytes back, as messages of the MPI; the ranks poll for them;
- words and call: both, the least that a name costs if the MPI carries the words.

Then it measures the CPU time that each process takes in a second in which the program does nothing:
with the engine idle (named), and with a thread that waits for a message of the MPI as gradred's
progress thread does, by tests with pauses (polling). The JSON record
(`schema` = "gradred-names-between-hosts/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    sets     [the row of in_turn.measure]
    idle     {named, polling: the share of a core, the largest of all ranks}
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from arguments import parse_once
from in_turn import measure
from mpi4py import MPI

import gradred
from gradred import _core
from gradred.bench.machine import describe, mpi_name
from gradred.bench.rank_zero import say, write_json
from gradred.named import NamedOperations

SCHEMA = "gradred-names-between-hosts/1"
WORD_BYTES = 64
LONGEST_S = 60.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the cost of names between hosts")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200, help="of each way in a round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.rounds < 3:
        parser.error("needs --rounds of 3 or more")
    return given


def exchange(world: MPI.Intracomm, word: bytearray) -> None:
    """Send each rank's words to rank 0 and get its answer, by messages of the MPI."""
    if world.rank != 0:
        world.Sendrecv(word, 0, recvbuf=word, source=0)
        return
    for other in range(1, world.size):
        world.Recv(word, other)
    for other in range(1, world.size):
        world.Send(word, other)


def cpu_share(world: MPI.Intracomm) -> float:
    """Return the CPU seconds of this process per second while its main thread sleeps."""
    time.sleep(0.5)  # what has just been given to a thread is done
    begin, cpu = time.perf_counter(), time.process_time()
    time.sleep(2.0)
    share = (time.process_time() - cpu) / (time.perf_counter() - begin)
    return float(world.allreduce(share, op=MPI.MAX))


def polling_share(world: MPI.Intracomm) -> float:
    """Return the same with a thread that waits for a message of the MPI."""
    word, status = bytearray(WORD_BYTES), MPI.Status()
    request = world.Irecv(word, (world.rank - 1) % world.size)
    places = MPI._addressof(request), MPI._addressof(status)
    waiter = threading.Thread(target=_core.wait_for_message, args=(*places, LONGEST_S))
    waiter.start()
    share = cpu_share(world)
    world.Send(bytearray(WORD_BYTES), (world.rank + 1) % world.size)
    waiter.join()
    return share


def main() -> int:
    world = MPI.COMM_WORLD.Dup()
    given = parse_once(arguments, world)
    comm = gradred.Comm(world)
    x, word = np.zeros(1024, "float32"), bytearray(WORD_BYTES)
    comm.Allreduce(MPI.IN_PLACE, x)
    engine = NamedOperations(comm)
    described = (x.ctypes.data, x.ctypes.data, "float32", x.shape)

    def call() -> None:
        comm.Allreduce(MPI.IN_PLACE, x)

    def words_and_call() -> None:
        exchange(world, word)
        call()

    ways = {
        "named": lambda: engine.submit("allreduce", "x", [described]).wait(),
        "call": call,
        "words": lambda: exchange(world, word),
        "words and call": words_and_call,
    }
    record: dict[str, Any] = {"schema": SCHEMA} | describe(world, vars(given))
    row = measure("4 KB", ways, x.nbytes, given.calls, given.rounds, world)
    record["sets"] = [row]
    record["idle"] = {"named": cpu_share(world), "polling": polling_share(world)}
    say(world, f"# {world.size} ranks, {mpi_name()}; us, medians: {row['us']}")
    say(world, f"share of a core while idle: {record['idle']}")
    engine.free()
    if world.rank == 0 and given.json:
        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
