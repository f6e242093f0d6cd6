"""Every operation on every type, against NumPy; sizes in any order; the same bits each time."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
import pytest
from mpi.exact import (
    DTYPES,
    FACTOR,
    Array,
    differences,
    make_input,
    numpy_dtype,
    ops_of,
    reduced,
)
from mpi.place import IN_MEMORY
from mpi4py import MPI

import gradred
from gradred.element_types import ELEMENT_TYPES

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size


def as_argument(op: str) -> Any:
    return gradred.premul(FACTOR) if op == "premul" else op


def digests(*arrays: Array) -> set[bytes]:
    """The contents on all ranks, one digest for each different content."""
    mine = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).digest()
    return set(MPI.COMM_WORLD.allgather(mine))


# ---- every operation, every type ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_buffers(dtype: str) -> None:
    wrong: list[str] = []
    for turn, op in enumerate(ops_of(dtype)):
        count = (37, 1009, 4099)[turn % 3]
        x = make_input(RANK, count, dtype, op)
        y = np.zeros_like(x)
        COMM.Allreduce(x, y, as_argument(op))
        wrong += differences(y, reduced(SIZE, count, dtype, op), f"{count} {dtype} {op}")
        wrong += differences(x, make_input(RANK, count, dtype, op), f"input of {dtype} {op}")
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_arrays(dtype: str) -> None:
    wrong: list[str] = []
    for turn, op in enumerate(ops_of(dtype)):
        count = (4099, 1, 1009)[turn % 3]
        x = make_input(RANK, count, dtype, op)
        y = gradred.allreduce(x, as_argument(op), comm=COMM)
        wrong += differences(y, reduced(SIZE, count, dtype, op), f"{count} {dtype} {op}")
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_scatter_block(dtype: str) -> None:
    wrong: list[str] = []
    for turn, op in enumerate(ops_of(dtype)):
        count = (1, 1009, 37)[turn % 3]
        x = make_input(RANK, count * SIZE, dtype, op)
        y = np.zeros(count, x.dtype)
        COMM.Reduce_scatter_block(x, y, as_argument(op))
        block = reduced(SIZE, count * SIZE, dtype, op)[RANK * count : (RANK + 1) * count]
        wrong += differences(y, block, f"{count} {dtype} {op}")
    assert not wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_and_bcast(dtype: str) -> None:
    x = make_input(RANK, 1009, dtype)
    gathered = np.zeros((SIZE, 1009), x.dtype)
    COMM.Allgather(x, gathered)
    root = len(dtype) % SIZE
    COMM.Bcast(x, root)
    wrong = differences(x, make_input(root, 1009, dtype), f"from {root}")
    for rank in range(SIZE):
        wrong += differences(gathered[rank], make_input(rank, 1009, dtype), f"of {rank}")
    assert not wrong


def test_non_blocking_and_persistent_calls_do_not_differ() -> None:
    wrong: list[str] = []
    for dtype in DTYPES:
        op = "sum" if dtype != "bool" else "lxor"
        expected = reduced(SIZE, 129, dtype, op)
        x, y, z = make_input(RANK, 129, dtype, op), *np.zeros((2, 129), numpy_dtype(dtype))
        request = COMM.Iallreduce(x, y, op)
        p = COMM.Allreduce_init(x, z, op)
        request.Wait()
        p()
        p.Free()
        wrong += differences(y, expected, f"{dtype}, non-blocking")
        wrong += differences(z, expected, f"{dtype}, persistent")
    assert not wrong


# ---- special values of floats -------------------------------------------------------------------

SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8])
FLOATS = [name for name, row in ELEMENT_TYPES.items() if row.kind == "real"]


def special_input(rank: int, dtype: str) -> Array:
    """All special values on rank 0 meet all on rank 1; other ranks have the values of rank 1."""
    a, b = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)
    return (a if rank == 0 else b).astype(numpy_dtype(dtype))


def bits(array: Array) -> list[int]:
    found: list[int] = array.view(f"uint{8 * array.dtype.itemsize}").tolist()
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["min", "max"])
def test_order_of_special_values(op: str, dtype: str) -> None:
    """NaN wins over all numbers, -0 is less than +0."""
    a, b = special_input(0, dtype), special_input(min(SIZE - 1, 1), dtype)
    with np.errstate(invalid="ignore"):  # ml_dtypes warns at comparisons with NaN
        below = (a < b) | ((a == b) & np.signbit(a))
    expected = np.where(below == (op == "min"), a, b)
    expected[np.isnan(a) | np.isnan(b)] = np.nan
    y = gradred.allreduce(special_input(RANK, dtype), op, comm=COMM)
    if SIZE == 1:
        expected = a  # nothing is compared, so every bit stays
    assert bits(y) == bits(expected)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["sum", "prod", "avg", gradred.premul(-2.0)], ids=str)
def test_special_values_give_the_same_bits_on_all_ranks(op: Any, dtype: str) -> None:
    y = gradred.allreduce(special_input(RANK, dtype), op, comm=COMM)
    assert len(digests(y)) == 1
    nan = np.isnan(special_input(0, dtype)) | np.isnan(special_input(min(SIZE - 1, 1), dtype))
    assert np.isnan(y[nan]).all()
    assert SIZE == 1 or len(set(bits(y[np.isnan(y)]))) == 1  # one canonical NaN for all inputs


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_integers_wrap_around(dtype: str) -> None:
    largest = np.iinfo(dtype).max
    y = gradred.allreduce(np.full(5, largest, dtype), comm=COMM)
    modulus = int(np.iinfo(dtype).max) - int(np.iinfo(dtype).min) + 1
    assert [int(value) % modulus for value in y] == [int(largest) * SIZE % modulus] * 5


@pytest.mark.parametrize("plan", ["ring", "recursive_doubling", None])
@pytest.mark.parametrize("dtype", [name for name in FLOATS if ELEMENT_TYPES[name].itemsize < 4])
def test_sums_of_narrow_floats_stay_within_half_a_unit_per_step(
    dtype: str, plan: str | None
) -> None:
    """Each pairwise step rounds once: at most p - 1 roundings of the running sum."""
    kind = numpy_dtype(dtype)
    vectors = [np.random.default_rng(rank).random(1009).astype(kind) for rank in range(SIZE)]
    y = gradred.allreduce(vectors[RANK], plan=plan, comm=COMM)
    assert len(digests(y)) == 1
    exact = np.sum([vector.astype(np.float64) for vector in vectors], axis=0)
    bound = (1 + 2.0 ** -ELEMENT_TYPES[dtype].digits) ** (SIZE - 1) - 1
    assert (np.abs(y.astype(np.float64) - exact) <= bound * exact).all()


FORMATS = ["float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("plan", [IN_MEMORY, "ring", "recursive_doubling"])
def test_all_pairs_of_8_bit_floats_give_the_same_bits_on_all_ranks(
    plan: str, dtype: str, op: str
) -> None:
    every = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))
    pairs = [np.repeat(every, 256), np.tile(every, 256)]
    x = pairs[min(RANK, 1)]
    y = gradred.allreduce(x, op, plan=plan, comm=COMM)
    assert len(digests(y)) == 1
    if SIZE == 2:
        started = gradred.iallreduce(x, op, comm=COMM).wait()
        assert bits(started) == bits(y)


# ---- many operations, large vectors -------------------------------------------------------------


@pytest.mark.wider
def test_back_to_back_operations_of_all_kinds_and_sizes(full: bool) -> None:
    wrong: list[str] = []
    rng = np.random.default_rng(5)  # the same on all ranks
    for turn in range(400 if full else 40):
        count = int(rng.choice([0, 1, 3, 17, 1009, 4096, 65537, 300_001], p=[0.125] * 8))
        dtype = str(rng.choice(DTYPES))
        op = str(rng.choice(ops_of(dtype)))
        kind = rng.choice(["allreduce", "start", "scatter", "gather", "bcast"])
        title = f"{turn}: {kind} {count} {dtype} {op}"
        x = make_input(RANK, count, dtype, op)
        y = np.zeros_like(x)
        expected = reduced(SIZE, count, dtype, op)
        if kind == "allreduce":
            COMM.Allreduce(x, y, as_argument(op))
        elif kind == "start":
            COMM.Iallreduce(x, y, as_argument(op)).Wait()
        elif kind == "scatter":
            blocks = np.tile(x, SIZE)
            COMM.Reduce_scatter_block(blocks, y, as_argument(op))
        elif kind == "gather":
            gathered = np.zeros((SIZE, count), x.dtype)
            COMM.Allgather(x, gathered)
            y, expected = gathered[-1], make_input(SIZE - 1, count, dtype, op)
        else:
            COMM.Bcast(x, turn % SIZE)
            y, expected = x, make_input(turn % SIZE, count, dtype, op)
        wrong += differences(y, expected, title)
    assert not wrong


@pytest.mark.parametrize("count", [1, 1009, 100_003])
def test_a_repeated_call_gives_the_same_bits(count: int) -> None:
    x = np.random.default_rng(RANK).standard_normal(count).astype("float32")
    results = [gradred.allreduce(x, comm=COMM) for _ in range(4)]
    assert len({result.tobytes() for result in results}) == 1
    assert len(digests(results[0])) == 1


def test_a_sum_does_not_depend_on_the_address_of_the_vector() -> None:
    """Vector instructions start at aligned memory; the result must not depend on that."""
    values = np.random.default_rng(RANK).standard_normal(1009).astype("float32")
    results = set()
    for offset in range(4):
        x = np.zeros(1020, "float32")[offset + RANK % 2 :][:1009]
        x[:] = values
        results.add(gradred.allreduce(x, comm=COMM).tobytes())
    assert len(results) == 1


def free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("plan", [IN_MEMORY, "ring", "mpi"])
def test_more_elements_than_an_int_counts(plan: str) -> None:
    count = 2**31 + 11
    enough = MPI.COMM_WORLD.allreduce(free_bytes(), MPI.MIN) > 3 * SIZE * count
    if not enough:
        pytest.skip(f"needs {3 * SIZE * count / 2**30:.0f} GiB of free memory")
    x = np.zeros(count, np.int8)
    x[[0, 2**30, 2**31 - 1, 2**31, -1]] = RANK + 1
    gradred.allreduce(x, out=x, plan=plan, comm=COMM)
    found = np.flatnonzero(x)
    assert found.tolist() == [0, 2**30, 2**31 - 1, 2**31, count - 1]
    assert set(x[found].tolist()) == {SIZE * (SIZE + 1) // 2}
