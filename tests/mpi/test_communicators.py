"""Communicators that are made and freed with operations in flight: results and resources."""

from __future__ import annotations

import mmap
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred

WORLD = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = WORLD.rank, WORLD.size

pytestmark = pytest.mark.timeout(120)

COUNTS = (1, 3, 700, 3000, 40_000)  # in a cache line, a slot, the beginning of one, chunks


@dataclass(eq=False)
class Group:
    """A communicator as every rank of the world records it, whether or not it is a member."""

    members: list[int]
    comm: gradred.Comm | None
    in_flight: list[tuple[MPI.Request, np.ndarray[Any, Any], int]] = field(default_factory=list)

    def allreduce(self, count: int, turn: int, *, blocks: bool) -> None:
        """Start an allreduce or carry it out, if this rank is a member."""
        if self.comm is None:
            return
        expected = sum(rank * 1000 + turn for rank in self.members)
        x, y = np.full(count, RANK * 1000 + turn), np.zeros(count, int)
        if blocks:
            self.comm.Allreduce(x, y)
            assert (y == expected).all(), (self.members, count, turn)
        else:
            self.in_flight.append((self.comm.Iallreduce(x, y), y, expected))

    def end(self) -> None:
        """Wait for what is in flight, and free the communicator."""
        if self.comm is None:
            return
        for request, y, expected in self.in_flight:
            request.Wait()
            assert (y == expected).all(), (self.members, len(y))
        self.comm.Free()


def made_by_split(draw: random.Random) -> list[Group]:
    colours = [draw.randrange(2) for _ in range(SIZE)]
    keys = [draw.random() for _ in range(SIZE)]
    comm = WORLD.Split(colours[RANK], sorted(keys).index(keys[RANK]))
    found = []
    for colour in (0, 1):
        ranks = [rank for rank in range(SIZE) if colours[rank] == colour]
        mine = comm if colours[RANK] == colour else None
        found.append(Group(sorted(ranks, key=lambda rank: keys[rank]), mine))
    return [group for group in found if group.members]


@pytest.mark.parametrize("seed", range(3))
def test_results_are_right_while_communicators_come_and_go(seed: int) -> None:
    draw, own = random.Random(seed), random.Random(100 * seed + RANK)
    alive = [Group(list(range(SIZE)), WORLD.Dup())]
    for turn in range(60):
        what = draw.random()
        group = draw.choice(alive)
        if what < 0.15:
            copy = group.comm.Dup() if group.comm is not None else None
            alive.append(Group(group.members, copy))
        elif what < 0.3:
            alive.extend(made_by_split(draw))
        elif what < 0.45 and len(alive) > 1:
            alive.remove(group)
            group.end()
        else:
            group.allreduce(draw.choice(COUNTS), turn, blocks=draw.random() < 0.7)
        if own.random() < 0.1:
            time.sleep(0.001)
    for group in alive:
        group.end()


@pytest.mark.skipif(SIZE < 2, reason="one rank shares no memory")
def test_ranks_that_share_memory_map_no_more_for_further_communicators() -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as maps:
            return sum("/memfd:gradred" in line for line in maps)

    x, y = np.ones(3000), np.empty(3000)
    WORLD.Allreduce(x, y)
    before = mappings()
    comms = [WORLD.Dup(), WORLD.Split(RANK % 2, -RANK), WORLD.Split(0, -RANK), WORLD.Dup()]
    for comm in comms:
        comm.Allreduce(x, y)
        assert (y == comm.size).all()
    assert mappings() == before
    for comm in comms:
        comm.Free()


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(SIZE not in (2, 3), reason="one rank sends nothing; many have much memory")
def test_what_communicators_keep_for_later_calls_is_bounded_for_all_of_them_together() -> None:
    """The limit is 256 MiB for all of them, not for each."""
    x = np.ones(64 << 17)  # 64 MiB, and as much scratch memory
    comms = [WORLD.Dup() for _ in range(8)]

    def call(comm: gradred.Comm) -> None:
        y = gradred.allreduce(x, plan="recursive_doubling", comm=comm)
        assert (y == SIZE).all()

    call(comms[0])
    before = resident()
    for comm in comms[1:]:
        call(comm)
    grown = resident() - before
    for comm in comms:
        comm.Free()
    assert grown < 330 << 20


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to agree on")
def test_program_that_makes_no_blocking_call_is_reported_once_by_rank_zero() -> None:
    def printed(comm: gradred.Comm, count: int) -> list[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for turn in range(count):
                x, y = np.full(3, 1.0), np.zeros(3)
                if turn % 2 == 0:
                    comm.Iallreduce(x, y).Wait()
                else:
                    y = gradred.iallreduce(x, comm=comm).wait()
                assert (y == SIZE).all()
        assert {warning.filename for warning in found} <= {__file__}
        return [str(warning.message) for warning in found]

    comm = WORLD.Dup()
    assert printed(comm, 15) == []
    (text,) = printed(comm, 20) or [""]
    assert ("may wait for ever. Begin with a blocking call" in text) == (RANK == 0)
    assert printed(comm, 40) == []
    comm.Free()
    comm = WORLD.Dup()
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    assert printed(comm, 40) == []
    comm.Free()


def memory_of_all_ranks() -> int:
    """Bytes, counted once where ranks share them.

    Without files: other programs' use of a library decides about a rank's share in those.
    """
    MPI.COMM_WORLD.Barrier()
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        own = sum(int(line.split()[1]) for line in lines if line.startswith(kinds)) * 1024
    return int(MPI.COMM_WORLD.allreduce(own))


@pytest.mark.parametrize("made_by", ["Dup", "Split", "Comm(c.Dup())"])
def test_a_communicator_takes_little_memory(made_by: str) -> None:
    make: dict[str, Callable[[MPI.Intracomm], MPI.Intracomm]] = {
        "Dup": lambda comm: comm.Dup(),
        "Split": lambda comm: comm.Split(0, comm.rank),
        "Comm(c.Dup())": lambda comm: type(comm)(MPI.COMM_WORLD.Dup()),
    }
    x, y = np.ones(16), np.empty(16)

    def grown_by(parent: MPI.Intracomm, count: int) -> int:
        before, alive = memory_of_all_ranks(), []
        for _ in range(count):
            alive.append(make[made_by](parent))
            alive[-1].Allreduce(x, y)
            assert (y == SIZE).all()
        grown = memory_of_all_ranks() - before
        for comm in alive:
            comm.Free()
        return grown

    grown_by(WORLD, 5)
    grown_by(MPI.COMM_WORLD, 150)  # the MPI keeps its memory for the next ones
    assert grown_by(WORLD, 150) < 150 * SIZE * 16_000, "beyond the MPI's"


def test_communicators_grow_in_any_order_and_begin_small_again() -> None:
    """Each gets slots, then chunks, when a call needs them; what was freed is used again."""
    draw = random.Random(5)
    for turn in range(3):
        alive = [WORLD.Dup() for _ in range(80)]
        for _ in range(400):
            count = draw.choice((1, 6, 128, 129, 900, 1100, 30_000))
            y = np.full(count, RANK + turn)
            draw.choice(alive).Allreduce(MPI.IN_PLACE, y)
            assert (y == sum(rank + turn for rank in range(SIZE))).all()
        draw.shuffle(alive)
        for comm in alive:
            comm.Free()
