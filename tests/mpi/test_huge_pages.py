"""Arrays that come again get huge pages, and never more memory than they have."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
HUGE = 2 << 20
MADV_NOHUGEPAGE, MADV_COLLAPSE = 15, 25
LARGE = 16 * HUGE  # bytes: each call treats one huge page
CALLS = 20  # the first two only notice an array, each of the next sixteen treats a part of it
OWN = 1 << 56  # of an entry in /proc/self/pagemap: no other process has the page


def advise(array: Any, advice: int) -> bool:
    """Advise the kernel about the huge pages between the ends of an array; whether it agrees."""
    begin = -(-array.ctypes.data // HUGE) * HUGE
    length = (array.ctypes.data + array.nbytes) // HUGE * HUGE - begin
    libc = ctypes.CDLL(None)
    return bool(libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), advice) == 0)


def zeros(nbytes: int, access: int = mmap.MAP_PRIVATE) -> Any:
    """Zeros in memory of their own, as malloc gives it: NumPy's asks for huge pages itself."""
    return np.frombuffer(mmap.mmap(-1, nbytes, flags=access | mmap.MAP_ANONYMOUS), "int32")


def in_small_pages(nbytes: int) -> Any:
    made = zeros(nbytes)
    made[:] = 0
    return made


def huge_bytes(array: Any) -> int:
    """Bytes of the mapping with an array that are in huge pages."""
    inside, address = False, array.ctypes.data
    with open("/proc/self/smaps", encoding="ascii") as lines:
        for line in lines:
            words = line.split()
            if "-" in words[0]:
                begin, end = (int(word, 16) for word in words[0].split("-"))
                inside = begin <= address < end
            elif inside and words[0] == "AnonHugePages:":
                return int(words[1]) * 1024
    return 0


def pages(array: Any) -> Any:
    """The kernel's entries for the pages of an array."""
    first, last = array.ctypes.data // 4096, -(-(array.ctypes.data + array.nbytes) // 4096)
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(first * 8)
        return np.frombuffer(file.read((last - first) * 8), "uint64")


def memory_of(array: Any) -> int:
    """Pages that this process has to itself, in place of zeros, of a file or a forked child."""
    return int(np.count_nonzero(pages(array) & np.uint64(OWN)))


def mapped_files() -> int:
    with open("/proc/self/maps", encoding="ascii") as lines:
        return sum("gradred-arrays" in line and line.split()[1] == "r--s" for line in lines)


@pytest.fixture
def reading() -> Iterator[gradred.Comm]:
    """A communicator whose ranks read each other's memory, where huge pages can be had."""
    comm = gradred.Comm(WORLD.Dup())
    x = gradred.zeros(2_500_000)
    for _ in range(10):
        comm.Allreduce(MPI.IN_PLACE, x)
    if not WORLD.allreduce(mapped_files(), MPI.MIN):
        pytest.skip("no peer's memory is read here")
    with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as setting:
        forbidden = "[never]" in setting.read()
    can = not forbidden and advise(in_small_pages(4 * HUGE), MADV_COLLAPSE)
    if not WORLD.allreduce(int(can), MPI.MIN):
        pytest.skip("the kernel makes no huge pages of small ones")
    yield comm
    comm.Free()


def test_an_array_that_comes_again_is_put_into_huge_pages(reading: gradred.Comm) -> None:
    x = in_small_pages(9 * HUGE + 4096)
    numbers = np.arange(x.size, dtype="int32") % 1000
    for turn in range(1, CALLS):
        x[:] = numbers + RANK
        reading.Allreduce(MPI.IN_PLACE, x)
        assert (x == SIZE * numbers + SIZE * (SIZE - 1) // 2).all(), f"call {turn}"
        if turn <= 2:
            assert huge_bytes(x) == 0, "an array may not come again"
    assert huge_bytes(x) >= 8 * HUGE


def test_a_program_may_forbid_huge_pages(reading: gradred.Comm) -> None:
    x = in_small_pages(9 * HUGE)
    assert advise(x, MADV_NOHUGEPAGE)
    for _ in range(CALLS):
        reading.Allreduce(MPI.IN_PLACE, x)
    assert huge_bytes(x) == 0


# ---- memory is never added ----------------------------------------------------------------------


def untouched() -> Any:
    return zeros(LARGE)


def sparse() -> Any:
    """One number in each huge page, as in a map of which a rank hits a part."""
    made = zeros(LARGE)
    made[:: HUGE // 4] = RANK
    return made


def half_written() -> Any:
    """The first half of each huge page."""
    made = zeros(LARGE)
    made[: made.size // (HUGE // 4) * (HUGE // 4)].reshape(-1, HUGE // 4)[:, : HUGE // 8] = RANK
    return made


def of_a_file() -> Any:
    """A file that is mapped to be read, and written for this process alone."""
    with tempfile.TemporaryFile() as file:
        file.truncate(LARGE)
        return np.memmap(file, "int32", mode="c")


def of_a_shared_mapping() -> Any:
    made = zeros(LARGE, mmap.MAP_SHARED)
    made[: made.size // 2] = 0
    return made


@pytest.mark.parametrize("make", [untouched, sparse, half_written, of_a_file, of_a_shared_mapping])
def test_input_gets_no_memory_that_the_program_has_not_touched(
    reading: gradred.Comm, make: Callable[[], Any]
) -> None:
    x = make()
    y = in_small_pages(x.nbytes)
    expected = np.empty_like(x)
    WORLD.Allreduce(np.array(x), expected)  # the copy is touched by the MPI in its place
    before = memory_of(x)
    for _ in range(CALLS):
        reading.Allreduce(x, y)
    assert (y == expected).all()
    assert memory_of(x) == before
    assert huge_bytes(y) >= LARGE * 3 // 4, "the result is the program's own, and all written"


def test_untouched_result_gets_its_memory_by_what_is_written(reading: gradred.Comm) -> None:
    """A root's vector is read by its peers; the other ranks' are written."""
    x = sparse()
    before = memory_of(x)
    for _ in range(CALLS):
        reading.Bcast(x, root=0)
    assert memory_of(x) == (before if RANK == 0 else x.nbytes // 4096)


def test_part_that_is_written_alone_gets_huge_pages(reading: gradred.Comm) -> None:
    x = zeros(LARGE)
    x[: x.size // 2] = RANK
    before = memory_of(x)
    y = gradred.empty(x.size, "int32")  # in a mapping of its own
    for _ in range(CALLS):
        reading.Allreduce(x, y)
    assert memory_of(x) == before
    assert LARGE // 2 - 2 * HUGE <= huge_bytes(x) <= LARGE // 2


@pytest.mark.parametrize("huge", [False, True])
def test_memory_that_a_forked_child_shares_is_left_alone(reading: gradred.Comm, huge: bool) -> None:
    """Since Linux 5.19 the kernel copies such a page for a peer that reads it, and only that."""
    x = in_small_pages(LARGE)
    if huge:
        assert advise(x, MADV_COLLAPSE)
    y = in_small_pages(x.nbytes)
    waiting, end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.read(waiting, 1)
        os._exit(0)
    os.close(waiting)
    try:
        before, of_peers = memory_of(x), x.nbytes // 4096 * (SIZE - 1) // SIZE
        for _ in range(CALLS):
            reading.Allreduce(x, y)
        assert before < 10, "the child has all pages"
        assert memory_of(x) <= before + of_peers + 2 * HUGE // 4096
    finally:
        os.close(end)
        os.waitpid(child, 0)
    again = x[1:]  # an array that has not been seen before
    for _ in range(CALLS):
        reading.Allreduce(again, y[1:])
    assert huge_bytes(x) >= LARGE * 3 // 4, "the child has gone"
