"""Properties for any input: hypothesis draws sizes, schedules, layouts and texts."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from core_testing import run_threads
from drawn import assume, given, st

from gradred import config, schedules
from gradred.buffers.arrays import describe, in_order, layout_of, new_like
from gradred.errors import UsageError
from gradred.schedules import Schedule, Step, make_all, validate, verify

pytestmark = pytest.mark.wider

ALGORITHMS = [(row["collective"], row["name"]) for row in schedules.algorithms()]


@st.composite
def generated(
    draw: st.DrawFn, largest: int = 16, size: int = 0, collective: str = ""
) -> list[Schedule]:
    """The schedules of any algorithm on any number of ranks, with any parameters."""
    served = [row for row in ALGORITHMS if collective in ("", row[0])]
    collective, name = draw(st.sampled_from(served))
    size = size or draw(st.integers(1, largest))
    parameters: dict[str, int | str] = {}
    if collective in ("bcast", "gather", "scatter"):
        parameters["root"] = draw(st.integers(0, size - 1))
    elif name == "recursive_multiplying":
        parameters["k"] = draw(st.integers(2, 9))
    if name == "hierarchical":
        parameters["local"] = draw(
            st.sampled_from([n for n in range(1, size + 1) if size % n == 0])
        )
    if (collective, name) == ("allreduce", "hierarchical"):
        across = [other for other in schedules.names() if other != "hierarchical"]
        parameters["inside"] = draw(st.sampled_from(["ring", "circulant", "direct"]))
        parameters["across"] = draw(st.sampled_from(across))
    return make_all(name, size, collective=collective, **parameters)


# ---- schedules ----------------------------------------------------------------------------------


@given(generated(largest=40))
def test_whatever_is_generated_is_proved(given_schedules: list[Schedule]) -> None:
    verify(given_schedules)
    for schedule in given_schedules:
        validate(schedule)


@given(generated(largest=24))
def test_where_the_input_lies_changes_no_sum(plans: list[Schedule]) -> None:
    assert verify(map(schedules.from_input, plans)).digest == verify(plans).digest


@given(
    generated(collective="allreduce"),
    st.integers(0, 3000),
    st.integers(1, 9),
    st.booleans(),
    st.data(),
)
def test_every_element_is_reduced_exactly_once(
    plans: list[Schedule], count: int, slices: int, rendezvous: bool, data: st.DataObject
) -> None:
    """The vector is cut into slices and chunks of all lengths, and no element is left out.

    Each rank adds a different bit, so a wrong sum shows which rank is missing or counted twice.
    """
    place = data.draw(st.integers(0, max(count - 1, 0)))
    work = [np.full(count, 1 << (2 * rank), "int64") for rank in range(len(plans))]
    for vector in work:
        vector[place : place + 1] += 1 << 40
    run_threads(plans, work, "int64", "sum", slices=slices, rendezvous=rendezvous)
    expected = np.full(count, sum(1 << (2 * rank) for rank in range(len(plans))), "int64")
    expected[place : place + 1] += len(plans) << 40
    for vector in work:
        np.testing.assert_array_equal(vector, expected)


@given(st.sampled_from(["scatter", "gather"]), st.integers(1, 12), st.integers(0, 500), st.data())
def test_parts_cover_the_vector_exactly_once(
    direction: str, size: int, count: int, data: st.DataObject
) -> None:
    """One rank owns each element, and both halves of an allreduce agree on the owner."""
    collective = "reduce_scatter" if direction == "scatter" else "allgather"
    first = make_all("ring", size, collective=collective)
    chunks = first[0].chunks
    lengths = [len(part) for part in np.array_split(np.empty(count), chunks)]
    owner = np.repeat(np.arange(chunks) * size // chunks, lengths)
    work = [
        np.where(owner == rank, np.arange(count) + 1, 0).astype("int64") for rank in range(size)
    ]
    if collective == "allgather":
        run_threads(first, work, "int64", "sum")
        for vector in work:
            np.testing.assert_array_equal(vector, np.arange(count) + 1)
    else:
        work = [np.arange(count, dtype="int64") + rank for rank in range(size)]
        run_threads(first, work, "int64", "sum")
        total = np.arange(count) * size + size * (size - 1) // 2
        for rank, vector in enumerate(work):
            np.testing.assert_array_equal(vector[owner == rank], total[owner == rank])


@given(generated(), st.data())
def test_a_schedule_without_one_step_is_refused(plans: list[Schedule], data: st.DataObject) -> None:
    places = [
        (rank, number, position)
        for rank, schedule in enumerate(plans)
        for number, steps in enumerate(schedule.rounds)
        for position in range(len(steps))
    ]
    assume(places)
    rank, number, position = data.draw(st.sampled_from(places))
    rounds = [list(steps) for steps in plans[rank].rounds]
    del rounds[number][position]
    changed = rebuilt(plans[rank], rounds)
    with pytest.raises(UsageError, match="is wrong"):
        verify([*plans[:rank], changed, *plans[rank + 1 :]])


def check_verdict(plans: list[Schedule]) -> None:
    """An accepted schedule must sum correctly on threads; a refused one has a clear error."""
    try:
        verify(plans)
    except UsageError as error:
        assert "is wrong" in str(error)  # noqa: PT017 (both outcomes are allowed)
        return
    work = [np.full(50, 1 << (2 * rank), "int64") for rank in range(len(plans))]
    run_threads(plans, work, "int64", "sum")
    for vector in work:
        assert (vector == sum(1 << (2 * rank) for rank in range(len(plans)))).all()


@given(generated(collective="allreduce"), st.data())
def test_ranks_that_swap_schedules_are_judged_by_what_they_compute(
    plans: list[Schedule], data: st.DataObject
) -> None:
    assume(len(plans) > 2)
    a, b = data.draw(st.lists(st.integers(0, len(plans) - 1), min_size=2, max_size=2, unique=True))
    # a schedule with a send to its own rank is refused at once
    with contextlib.suppress(UsageError):
        mixed = list(plans)
        mixed[a], mixed[b] = rebuilt(plans[a], plans[b].rounds), rebuilt(plans[b], plans[a].rounds)
        check_verdict(mixed)


@given(st.data(), st.integers(2, 9))
def test_ranks_with_different_algorithms_are_judged_by_what_they_compute(
    data: st.DataObject, size: int
) -> None:
    a, b = (data.draw(generated(size=size, collective="allreduce")) for _ in range(2))
    check_verdict([*a[:1], *b[1:]])


@pytest.mark.parametrize("size", range(2, 9))
def test_a_rank_with_another_algorithm_is_refused(size: int) -> None:
    ring, doubling = make_all("ring", size), make_all("recursive_doubling", size)
    with pytest.raises(UsageError, match="is wrong"):
        verify([*ring[:1], *doubling[1:]])


@given(generated(), st.integers(0, 1 << 20))
def test_traffic_balances(plans: list[Schedule], nbytes: int) -> None:
    """All sent bytes arrive, and no rank moves more messages than its rounds hold."""
    moved = [schedules.traffic(schedule, nbytes) for schedule in plans]
    assert sum(each.sent for each in moved) == sum(each.received for each in moved)


def rebuilt(schedule: Schedule, rounds: Any) -> Schedule:
    """The same schedule with other rounds."""
    return Schedule(
        rounds,
        rank=schedule.rank,
        size=schedule.size,
        chunks=schedule.chunks,
        collective=schedule.collective,
        root=schedule.root,
        name="changed",
    )


spans = st.builds(
    lambda buffer, first, chunks: (
        schedules.scratch(buffer, first, chunks)
        if buffer > 0
        else (schedules.work if buffer == 0 else schedules.input_)(first, chunks)
    ),
    st.integers(-1, 2),
    st.integers(0, 5),
    st.integers(1, 3),
)
steps = st.one_of(
    st.builds(schedules.send, st.integers(0, 4), spans),
    st.builds(schedules.recv, st.integers(0, 4), spans),
    st.builds(schedules.reduce, spans, spans),
    st.builds(schedules.reduce, spans, spans, spans),
    st.builds(schedules.copy, spans, spans),
)


@given(st.lists(st.lists(st.lists(steps, max_size=4), max_size=3), min_size=2, max_size=4))
def test_random_steps_never_pass_for_an_allreduce(ranks: list[list[list[Step]]]) -> None:
    """They do not crash either: the schedule or the proof refuses each with a clear error."""

    def make(rank: int, size: int) -> Schedule:
        return Schedule(ranks[rank], rank=rank, size=size, chunks=4)

    with pytest.raises(UsageError):
        verify(make(rank, len(ranks)) for rank in range(len(ranks)))


# ---- layouts ------------------------------------------------------------------------------------

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(shapes, st.data())
def test_layout_hash_depends_on_shape_and_order_alone(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    x = np.zeros([shape[axis] for axis in axes], "float32")
    view = in_order(x, tuple(axes))
    assert view.shape == shape
    found = describe(view, "test").layout
    other = np.ones([shape[axis] for axis in axes], "complex128")  # another type and address
    assert describe(in_order(other, tuple(axes)), "test").layout == found
    assert found.count == x.size
    assert sorted(found.order) == list(range(len(shape)))


@given(shapes, st.data())
def test_layouts_that_differ_have_different_hashes(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    """Elements in another order of memory, or another shape, must not be summed."""
    axes = data.draw(st.permutations(range(len(shape))))
    plain = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    memory = np.empty([shape[axis] for axis in axes], plain.dtype)
    view = in_order(memory, tuple(axes))
    view[...] = plain
    same_elements = memory.ravel().tolist() == plain.ravel().tolist()
    one, other = describe(plain, "test").layout, describe(view, "test").layout
    assert (one.hash == other.hash) == same_elements
    longer = describe(np.zeros((*shape, 1)), "test").layout
    assert longer.hash != one.hash


@given(shapes, st.data())
def test_result_has_the_layout_of_its_input(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(len(shape))))
    x = in_order(np.zeros([shape[axis] for axis in axes], "int16"), tuple(axes))
    given_array = describe(x, "test")
    result = new_like(x, given_array, "test")
    assert result.array.layout == given_array.layout
    assert result.finish().shape == shape


@given(shapes.filter(lambda shape: np.prod(shape) > 1), st.data())
def test_arrays_with_gaps_are_no_layout(shape: tuple[int, ...], data: st.DataObject) -> None:
    strides = np.zeros(shape, "float32").strides
    longest = [axis for axis, length in enumerate(shape) if length > 1]
    axis = data.draw(st.sampled_from(longest))
    wider = tuple(s + 4 if i == axis else s for i, s in enumerate(strides))
    assert layout_of(shape, strides, 4) is not None
    assert layout_of(shape, wider, 4) is None


# ---- settings -----------------------------------------------------------------------------------

texts = st.one_of(
    st.text(),
    st.from_regex(r"\A[0-9.:eE+-]{0,12}(ms|s|min|h|k|MiB|GB|die|drop|delay)?\Z"),
    st.integers().map(str),
    st.floats().map(str),
)


@given(st.sampled_from(sorted(config.snapshot())), texts)
def test_any_text_is_a_value_or_a_usage_error(name: str, text: str) -> None:
    try:
        with contextlib.suppress(UsageError):
            config.set(name, text)
        shown = config.show(name, config.get(name))
        config.set(name, shown)  # an accepted value can be written and read again
        assert config.show(name, config.get(name)) == shown
    finally:
        config.reset()


@given(texts)
def test_any_name_is_a_knob_or_a_usage_error(name: str) -> None:
    assume(name not in config.snapshot())
    with pytest.raises(UsageError, match="nearest one is"):
        config.get(name)
    with pytest.raises(UsageError, match="nearest one is"):
        config.set(name, "1")


@given(texts)
def test_durations_raise_value_error_alone(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert config.parse_duration(text) > 0
