"""Memory that other ranks of the host read: arrays of `gradred.empty`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
TIMES = 10  # calls of a size: the first eight try all data paths, and the first of all cannot read


@pytest.fixture
def comm() -> Iterator[gradred.Comm]:
    made = gradred.Comm(WORLD.Dup())
    yield made
    made.Free()


def array(count: int, dtype: str, *, own: bool) -> Any:
    return gradred.empty(count, dtype) if own else np.empty(count, dtype)


def whose(which: str) -> bool:
    return {"all": True, "none": False, "some": RANK % 2 == 0}[which]


def pages_of_peers() -> int:
    """Bytes of memory behind this process's mappings of its peers' arrays."""
    found, is_theirs = 0, False
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if "-" in words[0]:
                is_theirs = words[1] == "r--s" and "gradred-arrays" in line
            elif is_theirs and words[0] == "Rss:":
                found += int(words[1]) * 1024
    return found


def mapped_files() -> int:
    with open("/proc/self/maps", encoding="ascii") as lines:
        return sum("gradred-arrays" in line and line.split()[1] == "r--s" for line in lines)


@pytest.mark.parametrize("send", ["all", "some", "none"])
@pytest.mark.parametrize("recv", ["all", "some"])
@pytest.mark.parametrize("count", [65_536, 300_007, 2_500_001])
def test_allreduce_is_exact(comm: gradred.Comm, count: int, send: str, recv: str) -> None:
    x, y = array(count, "int32", own=whose(send)), array(count, "int32", own=whose(recv))
    numbers = np.arange(count, dtype="int32") % 1000
    expected = np.empty_like(numbers)
    for turn in range(TIMES):
        np.multiply(numbers, RANK + turn, out=x)
        y.fill(-1)
        comm.Allreduce(x, y)
        total = sum(rank + turn for rank in range(SIZE))
        assert (y == np.multiply(numbers, total, out=expected)).all()
        assert (x == np.multiply(numbers, RANK + turn, out=expected)).all()


@pytest.mark.parametrize("which", ["all", "some"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128", "uint8"])
def test_allreduce_in_place_is_exact_for_parts_of_an_array(
    comm: gradred.Comm, dtype: str, which: str
) -> None:
    whole = array(1_200_000, dtype, own=whose(which))
    x = whole[1003:-5]
    numbers = (np.arange(x.size) % 7).astype(dtype)
    for turn in range(TIMES):
        whole.fill(9)
        np.add(numbers, RANK + turn % 2, out=x)
        comm.Allreduce(MPI.IN_PLACE, x)
        expected = SIZE * numbers + sum(rank + turn % 2 for rank in range(SIZE))
        assert expected.dtype == dtype
        assert (x == expected).all()
        assert (whole[:1003] == 9).all()
        assert (whole[-5:] == 9).all()


@pytest.mark.parametrize("which", ["all", "some"])
def test_other_collectives_are_exact(comm: gradred.Comm, which: str) -> None:
    count = 300_001
    numbers = np.arange(count)
    block, whole = (array(n, "int64", own=whose(which)) for n in (count, count * SIZE))
    for turn in range(TIMES):
        np.add(numbers, RANK * turn, out=block)
        comm.Allgather(block, whole)
        for rank in range(SIZE):
            assert (whole[rank * count :][:count] == numbers + rank * turn).all()
        comm.Bcast(block, root=turn % SIZE)
        assert (block == numbers + turn % SIZE * turn).all()
        comm.Reduce_scatter_block(whole, block)
        assert (block == SIZE * (numbers + RANK * turn)).all()


def test_arrays_that_come_and_go_at_one_place(comm: gradred.Comm) -> None:
    for turn in range(20):
        x = gradred.empty(2_500_000)  # each has its own file, and reuses descriptor and address
        x.fill(turn + RANK)
        comm.Allreduce(MPI.IN_PLACE, x)
        assert (x == SIZE * turn + SIZE * (SIZE - 1) / 2).all()
        del x


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
def test_memory_of_an_array_is_free_when_its_rank_lets_it_go(comm: gradred.Comm) -> None:
    x = gradred.zeros(16_000_000)  # larger than everything that earlier arrays have left mapped
    for _ in range(TIMES):
        comm.Allreduce(MPI.IN_PLACE, x)
    files, pages, nbytes = mapped_files(), pages_of_peers(), x.nbytes
    comm.Barrier()  # all ranks count before one of them frees its array
    if not files:
        pytest.skip("processes may not read each other's memory here")
    assert pages >= 0.9 * nbytes / SIZE  # the kernel leaves out pages that it moves
    del x
    comm.Barrier()
    assert pages_of_peers() < nbytes // 10
    for _ in range(12):  # each has its own file; peers drop the mappings of ended files
        comm.Allreduce(MPI.IN_PLACE, gradred.zeros(2_500_000))
        comm.Barrier()
    assert mapped_files() <= 4 * (SIZE - 1)


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
def test_what_a_forked_child_writes_reaches_no_peer(comm: gradred.Comm) -> None:
    x = gradred.zeros(2_500_000)
    for _ in range(TIMES):
        comm.Allreduce(MPI.IN_PLACE, x)
    child = os.fork()
    if child == 0:
        x.fill(5)
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(TIMES):
        comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == 0).all()
