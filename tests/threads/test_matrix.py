"""Every algorithm on threads, against NumPy: sizes, counts, types, ops, slices, protocols."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_testing import run_threads
from threads.reference import make_inputs, owners, reduction, view

from gradred import schedules

ALGORITHMS = [(row["collective"], row["name"]) for row in schedules.algorithms()]
SIZES = [1, 2, 3, 4, 5, 7, 8]
TYPES = [
    ("float32", "sum"),
    ("int64", "prod"),
    ("bfloat16", "sum"),
    ("uint8", "bxor"),
    ("float64", "min"),
    ("float16", "max"),
    ("complex64", "sum"),
    ("int16", "band"),
    ("bool", "lor"),
    ("complex128", "prod"),
    ("float8_e4m3fn", "max"),
    ("float8_e5m2", "min"),
]


def parameters_of(collective: str, name: str, size: int) -> dict[str, int | str]:
    """Arguments with which the algorithm differs from its simple form on `size` ranks."""
    if name == "hierarchical":
        inside = {"inside": "circulant"} if collective == "allreduce" else {}
        return {"local": next((n for n in (2, 3) if size % n == 0), 1), **inside}
    return {"k": 3} if name == "recursive_multiplying" else {}


def counts_of(size: int) -> list[int]:
    return sorted({0, 1, size - 1, size, size + 1, 1009})


def run(
    collective: str,
    name: str,
    inputs: list[Any],
    dtype: str,
    op: str,
    in_place: bool = True,
    **options: Any,
) -> tuple[list[schedules.Schedule], list[Any]]:
    """Run the schedules. Returns them and the work buffers; asserts that inputs do not change."""
    plans = schedules.make_all(
        name, len(inputs), collective=collective, **parameters_of(collective, name, len(inputs))
    )
    work = [array.copy() for array in inputs]
    if in_place:
        run_threads(plans, view(work), dtype, op, **options)
        return plans, work
    given = [array.copy() for array in inputs]
    for vector in view(work):
        vector.fill(99)
    plans = [schedules.from_input(plan) for plan in plans]
    run_threads(plans, view(work), dtype, op, **options, inputs=view(given))
    assert [array.tobytes() for array in given] == [array.tobytes() for array in inputs]
    return plans, work


def expected(
    plan: schedules.Schedule, inputs: list[Any], op: str, slices: int
) -> tuple[list[Any], list[Any]]:
    """By rank the right result, and the elements that must be right: all, or those it owns."""
    count, ranks = len(inputs[0]), range(plan.size)
    everything, nothing = slice(None), slice(0)
    if plan.collective == "bcast":
        return [inputs[plan.root]] * plan.size, [everything] * plan.size
    if plan.collective == "scan":
        return [reduction(inputs[: r + 1], op) for r in ranks], [everything] * plan.size
    if plan.collective == "exscan":
        before = [reduction(inputs[: max(r, 1)], op) for r in ranks]
        return before, [everything if r > 0 else nothing for r in ranks]
    if plan.collective == "allreduce":
        return [reduction(inputs, op)] * plan.size, [everything] * plan.size
    owner = owners(plan, count, slices)
    if plan.collective in ("allgather", "gather"):
        gathered = np.stack(inputs)[owner, np.arange(count)]
        has_it = [plan.collective == "allgather" or r == plan.root for r in ranks]
        return [gathered] * plan.size, [everything if has else nothing for has in has_it]
    whole = inputs[plan.root] if plan.collective == "scatter" else reduction(inputs, op)
    return [whole] * plan.size, [owner == rank for rank in ranks]


def check(collective: str, name: str, inputs: list[Any], dtype: str, op: str, slices: int) -> None:
    wanted = None
    for rendezvous, in_place in ((True, True), (False, True), (True, False)):
        options = {"slices": slices, "rendezvous": rendezvous, "timeout": 20.0}
        options["in_place"] = in_place
        plans, work = run(collective, name, inputs, dtype, op, **options)
        wanted = wanted or expected(plans[0], inputs, op, slices)
        for rank, (found, right, its) in enumerate(zip(work, *wanted, strict=True)):
            assert np.array_equal(found[its], right[its]), f"rank {rank} of {plans[0]}, {options}"


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_result_equals_numpy(collective: str, name: str, size: int, slices: int) -> None:
    for turn, count in enumerate(counts_of(size)):
        dtype, op = TYPES[(turn + size + slices) % len(TYPES)]
        check(collective, name, make_inputs(size, count, dtype, op), dtype, op, slices)


@pytest.mark.full
@pytest.mark.parametrize(("dtype", "op"), TYPES)
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_result_equals_numpy_for_every_type(
    collective: str, name: str, dtype: str, op: str
) -> None:
    """Only few sizes: a type affects the length and the addition of elements, not the messages."""
    for size in (2, 3, 8):
        for count in [*counts_of(size), 100_003 if size == 3 else 10_007]:
            inputs = make_inputs(size, count, dtype, op)
            for slices in (1, 7):
                check(collective, name, inputs, dtype, op, slices)


@pytest.mark.parametrize("name", schedules.names("allreduce"))
@pytest.mark.parametrize("slices", [1, 3])
def test_all_ranks_get_the_same_bits(name: str, slices: int) -> None:
    rng = np.random.default_rng(7)
    inputs = [rng.standard_normal(1009).astype(np.float32) for _ in range(6)]
    found = set()
    for in_place in (True, False, True):
        _, work = run("allreduce", name, inputs, "float32", "sum", in_place, slices=slices)
        found.update(array.tobytes() for array in work)
        assert len(found) == 1
        np.testing.assert_allclose(work[0], np.sum(inputs, axis=0), rtol=1e-5, atol=1e-5)


def test_more_slices_than_elements_are_allowed() -> None:
    inputs = make_inputs(3, 2, "int32", "sum")
    check("allreduce", "ring", inputs, "int32", "sum", slices=5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float31"}, "no element type 'float31'"),
        ({"op": "mean"}, "no op 'mean'"),
        ({"slices": 0}, "0 slices"),
        ({"timeout": float("nan")}, "timeout must be"),
        ({"work": [bytearray(8)]}, "2 schedules but 1 inputs"),
        ({"work": [bytearray(7), bytearray(7)]}, "no whole number of float32"),
        ({"inputs": [b"12345678"]}, "2 schedules but 1 inputs of their own"),
        ({"inputs": [b"1234", b"1234"]}, "rank 0 has 1 elements, its result 2"),
        ({"inputs": [b"12345678"] * 2}, "schedule 0 is in place"),
        (
            {"schedules": [schedules.from_input(each) for each in schedules.make_all("ring", 2)]},
            "schedule 0 reads an input of its own, but none was given",
        ),
        ({"op": "band"}, "no band of float32"),
        ({"schedules": schedules.make_all("ring", 3)[:2]}, "for rank 0 of 3"),
        ({"schedules": [None, None]}, "is None"),
    ],
)
def test_wrong_arguments_are_refused_in_words(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "schedules": schedules.make_all("ring", 2),
        "work": [bytearray(8), bytearray(8)],
        "dtype": "float32",
        "op": "sum",
    }
    with pytest.raises(ValueError, match=words):
        run_threads(**(arguments | change))


def test_read_only_input_is_refused() -> None:
    with pytest.raises(BufferError):
        run_threads(schedules.make_all("ring", 1), [b"12345678"], "float32", "sum")
