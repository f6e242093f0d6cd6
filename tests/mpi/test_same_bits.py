"""On one host a sum's bits do not depend on length, bucket, fusion or form of the call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi.place import ON_ONE_HOST, WHY_NOT
from mpi4py import MPI
from numpy.typing import NDArray

import gradred
from gradred.element_types import numpy_dtype

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
Array = NDArray[Any]
pytestmark = pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)

COUNT = 1_300_021  # as float32, longer than the threshold of the last data path of shared memory
# The parts use the announcement's cache line, slots, chunks, and peers' memory.
ENDS = (1, 12, 13, 1013, 5112, 45_121, 145_124, 445_131, COUNT)


@functools.cache
def vector(rank: int, dtype: str) -> Array:
    """Numbers whose sum reveals the order in which they were added."""
    made = np.random.default_rng(rank)
    wide = made.standard_normal(COUNT) * 2.0 ** made.integers(-9, 9, COUNT)
    return wide.astype(numpy_dtype(dtype))


@functools.cache
def expected(dtype: str) -> Array:
    """The sum from rank 0 on; narrow floats are added in float32 and rounded once."""
    vectors = [vector(rank, dtype) for rank in range(SIZE)]
    narrow = vectors[0].dtype.itemsize < 4
    total = vectors[0].astype("float32") if narrow else vectors[0].copy()
    for one in vectors[1:]:
        total += one.astype(total.dtype)
    rounded: Array = total.astype(vectors[0].dtype)
    return rounded


def parts(x: Array) -> list[Array]:
    return np.split(x, ENDS[:-1])


def whole(x: Array) -> Array:
    return gradred.allreduce(x, comm=COMM)


def buffers_in_place(x: Array) -> Array:
    y: Array = x.copy()
    for part in parts(y):
        COMM.Allreduce(MPI.IN_PLACE, part)
    return y


def arrays_in_parts(x: Array) -> Array:
    return np.concatenate([gradred.allreduce(part, comm=COMM) for part in parts(x)])


def fused(x: Array) -> Array:
    return np.concatenate(gradred.allreduce_many(parts(x), comm=COMM))


def fused_otherwise(x: Array) -> Array:
    return np.concatenate(gradred.allreduce_many(np.array_split(x, 7), comm=COMM))


def started_in_parts(x: Array) -> Array:
    y = np.empty_like(x)
    given = zip(parts(x), parts(y), strict=True)
    for request in [COMM.Iallreduce(send, recv) for send, recv in given]:
        request.Wait()
    return y


def started_fused(x: Array) -> Array:
    return np.concatenate(gradred.iallreduce_many(parts(x), comm=COMM).wait())


def persistent(x: Array) -> Array:
    y = np.empty_like(x)
    for send, recv in zip(parts(x), parts(y), strict=True):
        operation = COMM.Allreduce_init(send, recv)
        operation()
        operation.Free()
    return y


def scattered(x: Array) -> Array:
    """The blocks of a reduce_scatter, put together, equal the allreduce."""
    y = np.empty_like(x)
    for send, recv in zip(parts(x), parts(y), strict=True):
        length = -(-send.size // SIZE)
        padded = np.zeros(length * SIZE, x.dtype)
        padded[: send.size] = send
        block = gradred.reduce_scatter_block(padded.reshape(SIZE, length), comm=COMM)
        recv[:] = gradred.allgather(np.ravel(block), comm=COMM).ravel()[: send.size]
    return y


def in_shared_memory(x: Array) -> Array:
    """The sum of arrays in memory that peers read where it lies."""
    y = gradred.empty(COUNT, x.dtype)
    y[:] = x
    return gradred.allreduce(y, comm=COMM)


WAYS: tuple[Callable[[Array], Array], ...] = (
    whole,
    buffers_in_place,
    arrays_in_parts,
    fused,
    fused_otherwise,
    started_in_parts,
    started_fused,
    persistent,
    scattered,
    in_shared_memory,
)


def differing(found: Array, dtype: str) -> list[int]:
    bits = f"uint{8 * found.dtype.itemsize}"
    where: list[int] = np.flatnonzero(found.view(bits) != expected(dtype).view(bits)).tolist()
    return where[:3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_bits_are_those_of_the_order_of_ranks(way: Callable[[Array], Array], dtype: str) -> None:
    wrong = differing(way(vector(RANK, dtype)), dtype)
    assert not any(MPI.COMM_WORLD.allgather(wrong))


@pytest.fixture
def fewer() -> Iterator[gradred.Comm | None]:
    """A communicator of all ranks but the last."""
    half = COMM.Split(0 if RANK < SIZE - 1 else MPI.UNDEFINED)
    yield None if half == MPI.COMM_NULL else half
    if half != MPI.COMM_NULL:
        half.Free()


@pytest.mark.skipif(SIZE < 3, reason="one rank less adds nothing up")
def test_bits_depend_on_the_number_of_ranks(fewer: gradred.Comm | None) -> None:
    """Not promised: the sum of fewer ranks has the order of these ranks alone."""
    x = vector(RANK, "float32")
    if fewer is None:
        return
    partial = functools.reduce(np.add, [vector(rank, "float32") for rank in range(SIZE - 1)])
    found = gradred.allreduce(x, comm=fewer)
    assert found.tobytes() == partial.tobytes()
