"""Named operations: any order on each rank, one order on all, an error where ranks differ."""

from __future__ import annotations

import itertools
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi.knobs import use
from mpi4py import MPI

import gradred
from gradred import _core, named

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()
TYPES = ["float32", "float64", "float16", "int32", "int64", "uint8"]
numbers = itertools.count()


@pytest.fixture(scope="module")
def engine() -> named.NamedOperations:
    return named.NamedOperations(COMM)


def of(array: np.ndarray[Any, Any], out: np.ndarray[Any, Any] | None = None) -> named.Described:
    """In place, unless there is an array for the result."""
    result = array if out is None else out
    return array.ctypes.data, result.ctypes.data, str(array.dtype), array.shape


def made_by(engine: named.NamedOperations, array: np.ndarray[Any, Any]) -> named.Described:
    return array.ctypes.data, 0, str(array.dtype), array.shape


def name() -> str:
    return f"test{next(numbers)}"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [0, 1, 7, 1000, 40_001])
def test_allreduce_sums_in_place_and_not(
    engine: named.NamedOperations, dtype: str, count: int
) -> None:
    x = (np.arange(count) % 5 + RANK).astype(dtype)
    before, out = x.copy(), np.empty_like(x)
    expected = (SIZE * (np.arange(count) % 5) + SIZE * (SIZE - 1) // 2).astype(dtype)
    apart = engine.submit("allreduce", name(), [of(x, out)])
    apart.wait(30)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(x, before)
    engine.submit("allreduce", name(), [of(x)]).wait(30)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("min", 1), ("max", SIZE), ("prod", np.prod(np.arange(1, SIZE + 1)))],
)
@pytest.mark.parametrize("count", [3, 30_000])
def test_other_operations(
    engine: named.NamedOperations, op: str, expected: int, count: int
) -> None:
    x = np.full(count, RANK + 1.0)
    engine.submit("allreduce", name(), [of(x)], op).wait(30)
    np.testing.assert_array_equal(x, float(expected))


@pytest.mark.parametrize("count", [5, 50_000])
def test_averages_and_factors(engine: named.NamedOperations, count: int) -> None:
    x = np.full(count, RANK + 1, "int32")
    average = engine.submit("allreduce", name(), [of(x)], "sum", 1.0, 1.0 / SIZE)
    average.wait(30)
    np.testing.assert_array_equal(x, (SIZE + 1) // 2)
    y, out = np.full(count, 3.0, "float32"), np.empty(count, "float32")
    engine.submit("allreduce", name(), [of(y, out)], "sum", 2.0, 0.25).wait(30)
    np.testing.assert_array_equal(out, 1.5 * SIZE)
    np.testing.assert_array_equal(y, 3.0)
    z = np.array([3, 5], "int64")  # each element is truncated before the sum
    engine.submit("allreduce", name(), [of(z)], "sum", 0.5).wait(30)
    np.testing.assert_array_equal(z, [SIZE, 2 * SIZE])


@pytest.mark.parametrize("seed", range(8))
def test_any_order_on_any_rank(engine: named.NamedOperations, seed: int) -> None:
    counts = np.random.default_rng(seed).choice([1, 3, 200, 5000, 70_000], 40)
    arrays = [np.full(count, RANK + i, "float32") for i, count in enumerate(counts)]
    order = np.random.default_rng(1000 * seed + RANK).permutation(len(arrays))
    requests = {i: engine.submit("allreduce", f"order{seed}.{i}", [of(arrays[i])]) for i in order}
    for i in np.random.default_rng(RANK).permutation(len(arrays)):
        requests[i].wait(30)
        np.testing.assert_array_equal(arrays[i], SIZE * i + SIZE * (SIZE - 1) // 2)


def test_names_are_used_again_and_again(engine: named.NamedOperations) -> None:
    x = np.empty(10, "float32")
    for turn in range(500):
        x[:] = turn
        engine.submit("allreduce", "again", [of(x)]).wait(30)
        assert (x == SIZE * turn).all()


def test_more_names_in_flight_than_the_board_has_room_for(engine: named.NamedOperations) -> None:
    arrays = np.full((5000, 3), RANK + 1.0, "float32")
    order = np.random.default_rng(RANK).permutation(1000)
    wanted = [*order, *range(1000, 5000)]
    requests = [engine.submit("allreduce", f"many{i}", [of(arrays[i])]) for i in wanted]
    for request in requests:
        request.wait(60)
    np.testing.assert_array_equal(arrays, SIZE * (SIZE + 1) / 2)


def test_groups_are_one_operation(engine: named.NamedOperations) -> None:
    arrays = [np.full(count, RANK, dtype) for count in (2, 9000) for dtype in ("int16", "float32")]
    engine.submit("allreduce", name(), [of(array) for array in arrays]).wait(30)
    for array in arrays:
        np.testing.assert_array_equal(array, SIZE * (SIZE - 1) // 2)


@pytest.mark.parametrize("rows", ["equal", "different", "some have none", "none"])
def test_allgather_of_uneven_rows(engine: named.NamedOperations, rows: str) -> None:
    of_rank = {
        "equal": lambda rank: 3,
        "different": lambda rank: rank + 1,
        "some have none": lambda rank: rank % 2,
        "none": lambda rank: 0,
    }[rows]
    x = np.full((of_rank(RANK), 2), RANK, "int16")
    request = engine.submit("allgather", name(), [made_by(engine, x)])
    request.wait(30)
    expected = [np.full((of_rank(rank), 2), rank, "int16") for rank in range(SIZE)]
    got = request.outputs[0].view("int16").reshape(-1, 2)
    np.testing.assert_array_equal(got, np.concatenate(expected))
    assert request.rows == [[of_rank(rank) for rank in range(SIZE)]]


def test_broadcast(engine: named.NamedOperations) -> None:
    for root, count in itertools.product(range(SIZE), (0, 1, 40_000)):
        x, out = np.full(count, RANK, "float64"), np.empty(count)
        engine.submit("broadcast", name(), [of(x, out)], root=root).wait(30)
        np.testing.assert_array_equal(out, root)
        np.testing.assert_array_equal(x, RANK)


def test_alltoall_of_uneven_rows(engine: named.NamedOperations) -> None:
    splits = [(RANK + other) % 3 for other in range(SIZE)]
    x = np.repeat([100 * RANK + other for other in range(SIZE)], splits).astype("int64")
    request = engine.submit("alltoall", name(), [made_by(engine, x)], splits=splits)
    request.wait(30)
    received = [(other + RANK) % 3 for other in range(SIZE)]
    assert request.rows == [received]
    expected = np.repeat([100 * other + RANK for other in range(SIZE)], received)
    np.testing.assert_array_equal(request.outputs[0].view("int64"), expected)


@pytest.mark.parametrize("rows", [1, 3, 50_000])
def test_long_alltoall(engine: named.NamedOperations, rows: int) -> None:
    splits = [rows * (1 + (RANK + other) % 2) for other in range(SIZE)]
    x = np.repeat([100 * RANK + other for other in range(SIZE)], splits).astype("int32")
    for _ in range(8):  # enough turns to use each data path
        request = engine.submit("alltoall", name(), [made_by(engine, x)], splits=splits)
        request.wait(30)
        received = [rows * (1 + (other + RANK) % 2) for other in range(SIZE)]
        expected = np.repeat([100 * other + RANK for other in range(SIZE)], received)
        np.testing.assert_array_equal(request.outputs[0].view("int32"), expected)


def result_at(x: Any, out: Any) -> tuple[Any, ...]:
    return (*of(x, out), out.nbytes)


@pytest.mark.parametrize("count", [1, 70_001])
def test_results_go_where_the_caller_says(engine: named.NamedOperations, count: int) -> None:
    x = np.full(count, RANK, "int64")
    out = np.empty(count * SIZE, "int64")
    request = engine.submit("allgather", name(), [result_at(x, out)])
    request.wait(30)
    assert request.outputs == []
    np.testing.assert_array_equal(out, np.repeat(range(SIZE), count))
    # The input is a part of the result.
    out[:] = -1
    mine = out[RANK * count : (RANK + 1) * count]
    mine[:] = RANK
    engine.submit("allgather", name(), [result_at(mine, out)]).wait(30)
    np.testing.assert_array_equal(out, np.repeat(range(SIZE), count))
    # An alltoall, and a reduce-scatter.
    whole = np.repeat(range(SIZE), count) + RANK
    got = np.empty(count * SIZE, whole.dtype)
    splits = [count] * SIZE
    engine.submit("alltoall", name(), [result_at(whole, got)], splits=splits).wait(30)
    np.testing.assert_array_equal(got, np.repeat(range(SIZE), count) + RANK)
    sums = np.empty(count, whole.dtype)
    engine.submit("reducescatter", name(), [result_at(whole, sums)]).wait(30)
    np.testing.assert_array_equal(sums, SIZE * RANK + SIZE * (SIZE - 1) // 2)


def test_results_that_do_not_fit_get_memory_of_their_own(engine: named.NamedOperations) -> None:
    x = np.full(5, RANK, "int64")
    small = np.full(3, -1, "int64")
    request = engine.submit("allgather", name(), [result_at(x, small)])
    request.wait(30)
    np.testing.assert_array_equal(request.outputs[0].view("int64"), np.repeat(range(SIZE), 5))
    # A result that shares memory with the input does not fit either.
    whole = np.arange(4 * SIZE)
    before = whole.copy()
    shared = whole[: 4 * SIZE]
    splits = [4] * SIZE
    request = engine.submit("alltoall", name(), [result_at(whole, shared)], splits=splits)
    request.wait(30)
    np.testing.assert_array_equal(whole, before)
    expected = np.tile(np.arange(4 * RANK, 4 * RANK + 4), SIZE)
    np.testing.assert_array_equal(request.outputs[0].view(whole.dtype), expected)
    assert (small == -1).all()


@pytest.mark.parametrize("rows", [0, 1, SIZE, 2 * SIZE + 1])
def test_reducescatter_gives_the_first_ranks_one_row_more(
    engine: named.NamedOperations, rows: int
) -> None:
    x = np.arange(rows * 3, dtype="float32").reshape(rows, 3) + RANK
    request = engine.submit("reducescatter", name(), [made_by(engine, x)], postscale=1.0 / SIZE)
    request.wait(30)
    each, more = divmod(rows, SIZE)
    first = RANK * each + min(RANK, more)
    mine = first + each + (more > RANK)
    whole = np.arange(rows * 3, dtype="float32").reshape(rows, 3) + (SIZE - 1) / 2
    got = request.outputs[0].view("float32").reshape(-1, 3)
    np.testing.assert_allclose(got, whole[first:mine], rtol=1e-6)


def test_large_arrays_and_small_ones_in_any_order_with_any_priority(
    engine: named.NamedOperations, tmp_path: Path
) -> None:
    """Each rank submits in its own order with its own priorities; all end in the same order."""
    own = random.Random(RANK)
    counts = [*(3, 5000, 400_000) * 3, 1_500_001, 3_000_000]
    numbers = np.arange(max(counts), dtype="float32") % 50
    for turn in range(4):
        file = tmp_path / f"{turn}.json"
        engine.write_to(_core.Timeline(os.open(file, os.O_CREAT | os.O_RDWR), False))
        order = list(range(len(counts)))
        own.shuffle(order)
        arrays = [numbers[:count] + RANK for count in counts]
        outs = [x if i % 2 else np.empty_like(x) for i, x in enumerate(arrays)]
        requests = []
        for i in order:
            described = [of(arrays[i], outs[i])]
            scales = {"prescale": 2.0, "postscale": 0.25} if i % 3 == 0 else {}
            how: dict[str, Any] = {"priority": own.randrange(-3, 4), **scales}
            requests.append(engine.submit("allreduce", f"any{i}", described, **how))
        own.shuffle(requests)
        for request in requests:
            request.wait(60)
        engine.write_to(None)
        for i, out in enumerate(outs):
            expected = SIZE * numbers[: counts[i]] + SIZE * (SIZE - 1) // 2
            assert (out == expected * (0.5 if i % 3 == 0 else 1)).all(), i
        orders = MPI.COMM_WORLD.allgather(names_as_they_ended(file))
        assert len(orders[0]) == len(counts)
        assert all(one == orders[0] for one in orders)


def names_as_they_ended(file: Path) -> list[str]:
    """The names in the order of their ends, from the timeline of this rank."""
    events = json.loads(file.read_text())
    ids = [event["pid"] for event in events if event["ph"] == "E"]
    named_ones = [e for e in events if e.get("name") == "process_name" and e["pid"] != 0]
    name_of = {event["pid"]: event["args"]["name"] for event in named_ones}
    return [name_of[one] for one in reversed(dict.fromkeys(reversed(ids)))]


@pytest.mark.skipif(SIZE == 1, reason="a rank alone has nothing to reduce")
def overtakes(engine: named.NamedOperations, priority: int) -> bool:
    """Whether 8 KB with a priority end before 256 MB that all ranks submitted earlier."""
    large, small = np.full(1 << 26, RANK, "float32"), np.full(1000, RANK, "float64")
    first = engine.submit("allreduce", "large", [of(large)])
    second = engine.submit("allreduce", "small", [of(small)], priority=priority)
    second.wait(60)
    overtaken = not first.done()
    first.wait(60)
    for array in (large, small):
        assert (array == SIZE * (SIZE - 1) // 2).all()
    return overtaken


@pytest.mark.skipif(SIZE == 1, reason="one rank is done before it submits the next")
def test_an_urgent_array_does_not_wait_for_a_large_one(engine: named.NamedOperations) -> None:
    before = np.ones(1)
    # from now on large arrays are cut
    engine.submit("allreduce", "before", [of(before)], priority=1).wait(60)
    assert not overtakes(engine, priority=0)
    for _ in range(20):  # a rank may lose its core in between, and then submit too late
        if MPI.COMM_WORLD.allreduce(overtakes(engine, priority=1), MPI.LAND):
            return
    pytest.fail("the urgent one has waited for the large one 20 times")


def test_groups_of_arrays_go_chunk_by_chunk(engine: named.NamedOperations) -> None:
    counts = [7, 900_000, 0, 2_500_001, 3]
    arrays = [np.arange(count, dtype="float64") % 9 + RANK for count in counts]
    engine.submit("allreduce", name(), [of(array) for array in arrays], priority=-1).wait(60)
    for array in arrays:
        expected = SIZE * (np.arange(array.size) % 9) + SIZE * (SIZE - 1) // 2
        np.testing.assert_array_equal(array, expected)


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
def test_large_arrays_that_differ_are_an_error_and_the_rest_goes_on(
    engine: named.NamedOperations,
) -> None:
    right, wrong = np.ones(4_000_000), np.ones(4_000_000 + RANK)
    requests = [
        engine.submit("allreduce", "large and wrong", [of(wrong)], priority=1),
        engine.submit("allreduce", "large and right", [of(right)]),
    ]
    with pytest.raises(gradred.UsageError, match="Mismatched allreduce tensor shapes"):
        requests[0].wait(60)
    requests[1].wait(60)
    assert (wrong == 1).all()
    assert (right == SIZE).all()


def test_a_barrier_does_not_wait_for_earlier_operations(engine: named.NamedOperations) -> None:
    x = np.ones(1)
    late = engine.submit("allreduce", "late", [of(x)]) if RANK == 0 else None
    engine.submit("barrier", "all", []).wait(30)
    assert late is None or SIZE == 1 or not late.done()
    COMM.Barrier()
    late = late or engine.submit("allreduce", "late", [of(x)])
    late.wait(30)
    assert x[0] == SIZE


MISMATCHES: dict[str, Any] = {
    "Mismatched allreduce tensor shapes": ("allreduce", (3,), (4,), {}, {}),
    "Mismatched data types": ("allreduce", (3,), (3,), {"dtype": "int32"}, {"dtype": "float32"}),
    "Mismatched reduction operation": ("allreduce", (3,), (3,), {"op": "min"}, {"op": "max"}),
    "Mismatched prescale": ("allreduce", (3,), (3,), {"prescale": 2.0}, {}),
    "Mismatched broadcast root": ("broadcast", (3,), (3,), {"root": 0}, {"root": 1}),
    "Mismatched allgather tensor shapes": ("allgather", (3, 2), (3, 4), {}, {}),
    "Mismatched operations": ("allreduce", (3,), (3,), {}, {"kind": "broadcast"}),
}

SUBMITTED: dict[str, tuple[str, str]] = {
    "Mismatched allreduce tensor shapes": (
        "allreduce of float32 [3] with sum",
        "allreduce of float32 [4] with sum",
    ),
    "Mismatched data types": (
        "allreduce of int32 [3] with sum",
        "allreduce of float32 [3] with sum",
    ),
    "Mismatched reduction operation": (
        "allreduce of float32 [3] with min",
        "allreduce of float32 [3] with max",
    ),
    "Mismatched prescale": (
        "allreduce of float32 [3] with sum, times 2 before and 1 after",
        "allreduce of float32 [3] with sum",
    ),
    "Mismatched broadcast root": (
        "broadcast of float32 [3] from root 0",
        "broadcast of float32 [3] from root 1",
    ),
    "Mismatched allgather tensor shapes": (
        "allgather of float32 [3, 2]",
        "allgather of float32 [3, 4]",
    ),
    "Mismatched operations": (
        "allreduce of float32 [3] with sum",
        "broadcast of float32 [3] from root 0",
    ),
}
"""The submission of this rank, as each error prints it: on rank 0, and on all others."""


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("text", MISMATCHES)
def test_a_mismatch_is_an_error_on_all_ranks_and_the_rest_goes_on(
    engine: named.NamedOperations, text: str
) -> None:
    kind, mine, others, options, other_options = MISMATCHES[text]
    asked = dict(options if RANK == 0 else other_options)
    x = np.ones(mine if RANK == 0 else others, asked.pop("dtype", "float32"))
    y = np.ones(4)
    wrong = engine.submit(asked.pop("kind", kind), "wrong", [of(x)], **asked)
    right = engine.submit("allreduce", "right", [of(y)])
    with pytest.raises(gradred.UsageError, match=text) as raised:
        wrong.wait(30)
    own = SUBMITTED[text][0 if RANK == 0 else 1]
    assert str(raised.value).startswith(f"'wrong' (on this rank {own}): Mismatched")
    assert "rank 0 has " in str(raised.value)
    right.wait(30)
    np.testing.assert_array_equal(y, SIZE)
    z = np.ones(2)
    engine.submit("allreduce", "wrong", [of(z)]).wait(30)
    np.testing.assert_array_equal(z, SIZE)


GROUPS: dict[str, Any] = {
    r"has (12|6) elements in array 2 of its group, rank \d+ has (12|6) elements in array 2": (
        [(3, 2), (12,)],
        [(3, 2), (6,)],
        {},
    ),
    r"others of other shapes or orders of axes\.": ([(3, 2), (12,)], [(3, 2), (3, 4)], {}),
    r"the first float32 \[3, 2\]": ([(3, 2), (2, 3)], [(2, 3), (2, 3)], {}),
    r"others of other shapes, types or orders of axes": (
        [(3, 2), (6,)],
        [(3, 2), (6,)],
        {"dtype": "int32"},
    ),
    r"others of other lengths, shapes, types or orders of axes": (
        [(1,)] * 18,
        [(1,)] * 17 + [(2,)],
        {},
    ),
}
"""Text: rank 0's shapes, those of the others, and how the last array of rank 0 is made."""


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("text", GROUPS)
def test_a_mismatch_in_a_group_names_what_can_still_differ(
    engine: named.NamedOperations, text: str
) -> None:
    first, others, how = GROUPS[text]
    shapes = first if RANK == 0 else others
    arrays = [np.ones(shape, "float32") for shape in shapes]
    if RANK == 0:
        arrays[-1] = np.ones(shapes[-1], **({"dtype": "float32"} | how))
    with pytest.raises(gradred.UsageError, match=text):
        engine.submit("allreduce", name(), [of(array) for array in arrays]).wait(30)


def test_a_name_in_flight_is_refused_where_it_is_submitted_again(
    engine: named.NamedOperations,
) -> None:
    x, y = np.ones(2), np.ones(2)
    COMM.Barrier()
    if RANK == 0 and SIZE > 1:
        first = engine.submit("allreduce", "twice", [of(x)])
        with pytest.raises(gradred.UsageError, match="twice"):
            engine.submit("allreduce", "twice", [of(y)])
        COMM.Barrier()
    else:
        COMM.Barrier() if SIZE > 1 else None
        first = engine.submit("allreduce", "twice", [of(x)])
    first.wait(30)
    np.testing.assert_array_equal(x, SIZE)
    np.testing.assert_array_equal(y, 1)


def test_what_no_rank_can_carry_out_is_refused_at_once(engine: named.NamedOperations) -> None:
    x = np.ones(4, "bool")
    with pytest.raises(gradred.UsageError, match="sum is not defined for bool"):
        engine.submit("allreduce", name(), [of(x)])
    with pytest.raises(gradred.UsageError, match="root rank"):
        engine.submit("broadcast", name(), [of(x)], root=SIZE)
    with pytest.raises(gradred.UsageError, match="splits"):
        engine.submit("alltoall", name(), [made_by(engine, x)], splits=[5] + [0] * (SIZE - 1))
    with pytest.raises(gradred.UsageError, match="not a kind"):
        engine.submit("scan", name(), [of(x)])


def test_sums_that_depend_on_the_number_of_ranks_are_refused_and_the_rest_goes_on() -> None:
    use(deterministic="ranks", leaves=SIZE + 1)
    engine = named.NamedOperations(gradred.Comm(MPI.COMM_WORLD.Dup()))
    x = np.full(2 * SIZE, RANK + 1.0, "float32")
    try:
        for kind, op in (("allreduce", "sum"), ("allreduce", "avg"), ("reducescatter", "sum")):
            with pytest.raises(gradred.UsageError, match="GRADRED_DETERMINISTIC is ranks"):
                engine.submit(kind, name(), [of(x)], op)
        engine.submit("allreduce", name(), [of(x)], "max").wait(30)
        np.testing.assert_array_equal(x, SIZE)
    finally:
        use()


def test_a_request_says_by_which_way_its_data_went(engine: named.NamedOperations) -> None:
    ways = {"in line", "slots", "chunks", "peers' memory", "messages", "the MPI", "alone"}
    for count in (1, 5_000, 1_000_000):
        x = np.ones(count, "float32")
        request = engine.submit("allreduce", name(), [of(x)])
        request.wait(30)
        assert request.way in ways
    x = np.ones(0, "float32")
    nothing = engine.submit("allreduce", name(), [of(x)])
    nothing.wait(30)
    assert nothing.way == ""


def test_ranks_that_have_joined_take_part_with_zeros(engine: named.NamedOperations) -> None:
    for _ in range(3):
        for turn in range(RANK + 1):
            small, large = np.ones(3, "float32"), np.ones(20_000, "float32")
            requests = [
                engine.submit("allreduce", "small", [of(small)]),
                engine.submit("allreduce", "large", [of(large)], postscale=1 / SIZE),
            ]
            for request in requests:
                request.wait(30)
            np.testing.assert_array_equal(small, SIZE - turn)
            np.testing.assert_allclose(large, (SIZE - turn) / SIZE, rtol=1e-6)
        join = engine.join()
        join.wait(30)
        assert join.last_joined == SIZE - 1


def test_a_rank_that_joins_with_a_submission_under_way_is_counted_once(
    engine: named.NamedOperations,
) -> None:
    for turn in range(20):
        x = np.full(5, RANK + 1.0)
        if turn % SIZE == RANK:
            MPI.COMM_WORLD.Barrier()  # this rank submits last
            time.sleep(0.002)
        request = engine.submit("allreduce", "before the join", [of(x)])
        join = engine.join()
        if turn % SIZE != RANK:
            MPI.COMM_WORLD.Barrier()
        request.wait(30)
        join.wait(30)
        np.testing.assert_array_equal(x, SIZE * (SIZE + 1) / 2)


def test_large_sums_of_ranks_that_have_joined(engine: named.NamedOperations) -> None:
    for turn in range(RANK + 1):
        large = np.ones(5_000_001, "float32")  # two chunks
        how: dict[str, Any] = {"postscale": 0.5, "priority": -1}
        engine.submit("allreduce", "large", [of(large)], **how).wait(60)
        assert (large == 0.5 * (SIZE - turn)).all()
    engine.join().wait(60)


def test_a_join_comes_behind_names_that_wait_for_room(engine: named.NamedOperations) -> None:
    arrays = [np.full(1, RANK + 1.0) for _ in range(4096 + 50)]
    if RANK == SIZE - 1:
        MPI.COMM_WORLD.Barrier()
    requests = [engine.submit("allreduce", f"x{i}", [of(x)]) for i, x in enumerate(arrays)]
    join = engine.join()
    if RANK != SIZE - 1:
        MPI.COMM_WORLD.Barrier()
    for request in [*requests, join]:
        request.wait(60)
    assert {float(x[0]) for x in arrays} == {SIZE * (SIZE + 1) / 2}


@pytest.mark.skipif(SIZE == 1, reason="no rank is left where one has joined")
def test_what_zeros_would_make_wrong_is_an_error_once_a_rank_has_joined(
    engine: named.NamedOperations,
) -> None:
    join = engine.join() if RANK == 0 else None
    engine.submit("barrier", "joined", []).wait(30) if RANK != 0 else None
    if RANK != 0:
        for kind, op in (("allreduce", "max"), ("broadcast", "sum"), ("allgather", "sum")):
            x = np.ones(2)
            with pytest.raises(gradred.UsageError, match="is not supported with join"):
                engine.submit(kind, f"after {kind}", [of(x)], op).wait(30)
        join = engine.join()
    assert join is not None
    join.wait(30)
    assert join.last_joined != 0


def test_a_rank_that_has_joined_submits_nothing_until_all_have(
    engine: named.NamedOperations,
) -> None:
    x = np.ones(3)
    if RANK != 0:
        COMM.Barrier()
    join = engine.join()
    if RANK == 0 and SIZE > 1:
        with pytest.raises(gradred.UsageError, match="has joined"):
            engine.submit("allreduce", "too early", [of(x)])
        COMM.Barrier()
    join.wait(30)
    engine.submit("allreduce", "in time", [of(x)]).wait(30)
    np.testing.assert_array_equal(x, SIZE)


def test_a_forked_child_that_ends_is_no_rank_that_leaves(engine: named.NamedOperations) -> None:
    child = os.fork()
    if child == 0:
        try:
            engine.submit("allreduce", "of a child", [of(np.ones(1))])
        except gradred.UsageError:
            engine.close()  # as at the rank's exit
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    x = np.ones(3)
    engine.submit("allreduce", "of the parent", [of(x)]).wait(30)
    np.testing.assert_array_equal(x, SIZE)


def test_several_threads_submit_and_wait(engine: named.NamedOperations) -> None:
    wrong: list[object] = []

    def work(thread: int) -> None:
        x = np.empty(100, "float32")
        for turn in range(200):
            x[:] = turn
            try:
                engine.submit("allreduce", f"thread{thread}", [of(x)]).wait(60)
            except gradred.Error as error:
                wrong.append(error)
                return
            if not (x == SIZE * turn).all():
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(one,)) for one in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_callbacks_come_after_the_end_and_may_wait(engine: named.NamedOperations) -> None:
    x, y, seen = np.ones(3), np.ones(3), threading.Event()

    def then(request: _core.NamedRequest) -> None:
        request.wait()
        engine.submit("allreduce", "from a callback", [of(y)]).wait(30)
        seen.set()

    engine.submit("allreduce", name(), [of(x)]).add_done_callback(then)
    assert seen.wait(30)
    np.testing.assert_array_equal(y, SIZE)


def test_nobody_has_to_wait_for_it_to_end(engine: named.NamedOperations) -> None:
    x = np.ones(100_000, "float32")
    request = engine.submit("allreduce", name(), [of(x)])
    done = threading.Event()
    request.add_done_callback(lambda _: done.set())
    assert done.wait(30)
    assert request.done()
    np.testing.assert_array_equal(x, SIZE)


def test_a_time_limit_leaves_the_operation_as_it_is(engine: named.NamedOperations) -> None:
    x = np.ones(3)
    if RANK == 0 and SIZE > 1:
        request = engine.submit("allreduce", "slow", [of(x)])
        with pytest.raises(gradred.TimeoutError, match="not been submitted by rank"):
            request.wait(0.05)
    COMM.Barrier()
    if RANK != 0 or SIZE == 1:
        request = engine.submit("allreduce", "slow", [of(x)])
    request.wait(30)
    np.testing.assert_array_equal(x, SIZE)


def test_a_rank_that_leaves_ends_what_is_pending_on_all() -> None:
    engine = named.NamedOperations(COMM)
    x, y = np.ones(3), np.ones(3)
    engine.submit("allreduce", "before", [of(y)]).wait(30)
    if RANK == 0:
        engine.close()
    for what in ("after", "later"):
        with pytest.raises(gradred.Error, match="have been shut down") as caught:
            engine.submit("allreduce", what, [of(x)]).wait(30)
        assert isinstance(caught.value, gradred.PeerLost) == (RANK != 0)
    np.testing.assert_array_equal(x, 1)
    engine.close()
