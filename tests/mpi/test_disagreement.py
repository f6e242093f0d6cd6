"""Ranks that make different calls, or whose arguments are refused: an error on every rank.

Each case runs where the ranks share memory and where only messages connect them. Afterwards the
communicator must serve the next call.
"""

from __future__ import annotations

import dataclasses
import random
import re
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from mpi.knobs import use
from mpi.place import ON_ONE_HOST
from mpi4py import MPI

import gradred
from gradred import UsageError, _core

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size

pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")

COUNTS = {"small": 5, "medium": 3000, "large": 300_000}


@dataclasses.dataclass(frozen=True)
class Call:
    """One collective call in words."""

    function: str = "allreduce"
    size: str = "small"
    more: int = 0
    dtype: str = "float64"
    op: str = "sum"
    plan: str | None = None
    root: int = 0
    fortran: bool = False

    def run(self, comm: gradred.Comm) -> bool:
        """Make the call. Returns whether the results are right."""
        count = COUNTS[self.size] + self.more
        x = np.full(count, RANK + 1.0, self.dtype)
        y = np.zeros_like(x)
        total = SIZE * (SIZE + 1) // 2 if self.op == "sum" else SIZE
        if self.function == "allreduce":
            y = gradred.allreduce(x, self.op, comm=comm, plan=self.plan)
        elif self.function == "allreduce_many":
            matrix = np.ones((4, 3), self.dtype, "F" if self.fortran else "C")
            ones, y = gradred.allreduce_many([matrix, x], self.op, comm=comm)
            return bool((ones == (SIZE if self.op == "sum" else 1)).all() and (y == total).all())
        elif self.function == "Allreduce":
            comm.Allreduce(x, y, self.op)
        elif self.function == "Iallreduce":
            comm.Iallreduce(x, y, self.op).Wait()
        elif self.function == "Allreduce_init":
            persistent = comm.Allreduce_init(x, y, self.op)
            persistent()
            persistent.Free()
        elif self.function == "allgather":
            gathered = gradred.allgather(x, comm=comm).reshape(SIZE, count)
            return bool((gathered == np.arange(1, SIZE + 1)[:, None]).all())
        elif self.function == "Reduce_scatter_block":
            y = np.zeros(3 + self.more, self.dtype)
            comm.Reduce_scatter_block(np.resize(x, (SIZE, y.size)), y, self.op)
        elif self.function == "Bcast":
            comm.Bcast(x, self.root)
            return bool((x == self.root + 1).all())
        elif self.function == "left to the MPI":
            comm.Allreduce(x, y, OWN)
            total = SIZE * (SIZE + 1) // 2
        elif self.function == "refused":
            comm.Allreduce(x, y[:-1])
        elif self.function == "refused, started":
            comm.Iallreduce(x, y[:-1])
        else:
            gradred.allreduce(np.array([None]), comm=comm)
        return bool((y == total).all())

    def raises_beside(self, other: Call) -> bool | None:
        """Whether every rank must raise if one rank makes `other`; None if either is allowed."""
        if other.function in ("refused", "of objects"):
            return True
        if {self.function, other.function} == {"Allreduce", "Iallreduce"}:
            # It is not legal, but harmless where both go the same way.
            same = dataclasses.replace(other, function=self.function)
            return self.raises_beside(same) or None
        names = ["function", "dtype", *COUNTING[self.function]]
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return True
        if self.function != "allreduce" or self.plan == other.plan:
            return False
        # gradred may choose the same plan as the other
        return True if self.plan and other.plan else None


def add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    x, y = (np.frombuffer(memory, datatype.typestr) for memory in (a, b))
    y += x


OWN = MPI.Op.Create(add, commute=True)

# What ranks have to agree on besides the type; plans are compared separately.
COUNTING = {
    "allreduce": ["size", "more", "op"],
    "allreduce_many": ["size", "more", "op", "fortran"],
    "Allreduce": ["size", "more", "op"],
    "Iallreduce": ["size", "more", "op"],
    "Allreduce_init": ["size", "more", "op"],
    "allgather": ["size", "more"],
    "Reduce_scatter_block": ["more", "op"],
    "Bcast": ["size", "more", "root"],
    "left to the MPI": ["size", "more"],
}

CHOICES: dict[str, list[Any]] = {
    "function": [
        *("allreduce", "allreduce_many", "Allreduce", "Iallreduce", "Allreduce_init", "allgather"),
        *("Reduce_scatter_block", "Bcast", "left to the MPI", "refused", "of objects"),
    ],
    "size": list(COUNTS),
    "more": [0, 1],
    "dtype": ["float64", "int32", "float32"],
    "op": ["sum", "max"],
    "plan": [None, "ring", "direct", "mpi"],
    "root": [0, 1],
    "fortran": [False, True],
}


def outcome(call: Call, comm: gradred.Comm) -> str:
    return attempt(call, comm)[0]


def attempt(call: Call, comm: gradred.Comm) -> tuple[str, bool]:
    """The error, and whether there is a right result instead."""
    try:
        return "", call.run(comm)
    except UsageError as error:
        return str(error), False


def assert_usable(comm: gradred.Comm) -> None:
    x = np.arange(1000.0) + RANK
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (x == np.arange(1000.0) * SIZE + SIZE * (SIZE - 1) / 2).all()


needs_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI is below THREAD_MULTIPLE"
)


@needs_threads
@pytest.mark.parametrize("seed", range(4))
def test_ranks_raise_exactly_if_one_asks_for_something_else(comm: gradred.Comm, seed: int) -> None:
    draw = random.Random(seed)  # the same random numbers on all ranks
    for turn in range(40):
        common = {name: draw.choice(values) for name, values in CHOICES.items()}
        common["function"] = draw.choice(list(COUNTING))
        counting = ["function", "dtype", *COUNTING[common["function"]]]
        changed = draw.choice(draw.choice([counting, list(CHOICES)]))
        other = common | {changed: draw.choice(CHOICES[changed])}
        odd = draw.randrange(SIZE)
        found = WORLD.allgather(attempt(Call(**(other if odd == RANK else common)), comm))
        title = f"turn {turn}: {common}, but {changed}={other[changed]} on rank {odd}: {found}"
        must_raise = Call(**common).raises_beside(Call(**other))
        for text, right in found:
            assert bool(text) != right, title  # either an error, or the right result
            assert must_raise in (bool(text), None), title
        assert len({right for _, right in found}) == 1, title
        assert_usable(comm)


@needs_threads
@pytest.mark.parametrize("function", COUNTING)
def test_long_message_is_not_received_where_a_short_one_is_due(
    comm: gradred.Comm, function: str
) -> None:
    # Open MPI would write behind the buffer, and the process would crash later.
    for odd in range(SIZE):
        call = Call("Allreduce", size="large") if odd == RANK else Call(function, more=1)
        assert outcome(call, comm)
    assert_usable(comm)


Who = Literal["refused", "refused, started", "of objects"]


@needs_threads
@pytest.mark.parametrize("function", ["refused", "refused, started", "of objects"])
@pytest.mark.parametrize("times", [1, 3])
def test_peers_hear_which_rank_refused_its_arguments_and_why(
    comm: gradred.Comm, function: Who, times: int
) -> None:
    odd = SIZE - 1
    for _ in range(times):
        right = "Iallreduce" if function == "refused, started" else "Allreduce"
        text = outcome(Call(function if odd == RANK else right), comm)
        assert text
        if odd != RANK:
            assert f"rank {odd} refused its arguments: " in text
            assert ("dtype('O')" if function == "of objects" else "4") in text
    assert_usable(comm)


def test_message_names_both_ranks_and_what_they_asked_for(comm: gradred.Comm) -> None:
    text = outcome(Call("Allreduce", op="max" if RANK == 0 else "sum"), comm)
    assert "rank 0 asked for allreduce of 5 float64 with max" in text or "rank 0 for" in text
    assert "with sum" in text
    assert_usable(comm)


def lies_otherwise(shape: tuple[int, ...] = (3, 4)) -> np.ndarray[Any, Any]:
    """Column by column on rank 0, row by row elsewhere."""
    return np.ones(shape, order="F" if RANK == 0 else "C")


OWN_ORDER = r"This rank passed float64 of shape \(3, 4\), axes in the order " + (
    r"\(1, 0\)$" if RANK == 0 else r"\(0, 1\)$"
)
MISMATCHES: dict[str, tuple[Callable[[gradred.Comm], object], str]] = {
    "layouts": (
        lambda comm: gradred.allreduce(lies_otherwise(), comm=comm),
        rf"but with another shape, order of axes or plan\. .*{OWN_ORDER}",
    ),
    "factors": (
        lambda comm: gradred.allreduce(np.ones(3), gradred.premul(RANK + 1.0), comm=comm),
        r"but with another factor, shape, order of axes or plan\. .*float64 of shape \(3,\)$",
    ),
    "roots": (
        lambda comm: comm.Bcast(np.ones((2, 2)), root=int(RANK == 0)),
        r"but with another root(: (1 and 0|0 and 1)|, shape, order of axes or plan)\. .*"
        r"float64 of shape \(2, 2\), axes in the order \(0, 1\)$",
    ),
    "counts": (
        lambda comm: comm.Allreduce(MPI.IN_PLACE, np.ones(2 + (RANK == 0))),
        r"(?<!but with another).*float64 of shape \((2|3),\)$",
    ),
    "specifications": (
        lambda comm: comm.Allreduce(MPI.IN_PLACE, [np.ones((3, 3)), 2 + (RANK == 0), MPI.DOUBLE]),
        r"allreduce of (2|3) float64 .*float64 of shape \(3, 3\), axes in the order \(0, 1\)$",
    ),
    "requests": (
        lambda comm: comm.Iallreduce(MPI.IN_PLACE, np.ones(2 + (RANK == 0))).Wait(),
        r"allreduce of (2|3) float64 .*float64 of shape \((2|3),\)$",
    ),
    "blocks": (
        lambda comm: gradred.allgather(np.ones((2, 3) if RANK == 0 else (3, 2)), comm=comm),
        r"but with another shape or plan\. .*float64 of shape \((2, 3|3, 2)\), axes in",
    ),
}
"""Calls, and the text of each rank's error: what can still differ, and what it has passed."""


@needs_threads
@pytest.mark.parametrize("what", MISMATCHES)
def test_an_error_names_what_can_still_differ_and_what_this_rank_passed(
    comm: gradred.Comm, what: str
) -> None:
    call, text = MISMATCHES[what]
    with pytest.raises(UsageError, match=text):
        call(comm)
    assert_usable(comm)


def start_and_end(how: str, comm: gradred.Comm, x: Any) -> None:
    """A non-blocking allreduce in place, and one form of waiting for its end."""
    if how == "iallreduce":
        gradred.iallreduce(x, comm=comm).wait()
        return
    request = comm.Iallreduce(MPI.IN_PLACE, x)
    if how == "Waitall":
        gradred.Request.Waitall([request])
    while how == "Test" and not request.Test():
        pass
    if how == "Wait":
        request.Wait()


@pytest.mark.parametrize("plan", ["before the first blocking call", "mpi"])
@pytest.mark.parametrize("how", ["Wait", "Test", "Waitall", "iallreduce"])
def test_started_calls_that_the_mpi_carries_out_are_compared(plan: str, how: str) -> None:
    """The data have moved by then, with any sum; the communicator remains usable."""
    torch = pytest.importorskip("torch")
    use(plan=plan if plan == "mpi" else None)
    comm = gradred.Comm(WORLD.Dup())
    try:
        if plan == "mpi":
            comm.Allreduce(MPI.IN_PLACE, np.ones(1))
        x = torch.ones(3, 4) if RANK == 0 else torch.ones(4, 3).T
        with pytest.raises(UsageError, match=r"order of axes, wire or plan") as caught:
            start_and_end(how, comm, x)
        own = "This rank passed float32 of shape (3, 4)"  # a request knows this
        assert (own in str(caught.value)) == (how != "iallreduce")
        y = np.ones(4)
        comm.Iallreduce(MPI.IN_PLACE, y).Wait()
        comm.Allreduce(MPI.IN_PLACE, y)
        assert (y == SIZE * SIZE).all()
    finally:
        use()
        comm.Free()


@needs_threads
def test_buffers_are_untouched_after_a_disagreement(comm: gradred.Comm) -> None:
    """Even if the longer vector would not fit into the shorter one's memory."""
    count = COUNTS["large"] + (500 if RANK == 0 else 0)
    guarded = np.full(count + 1000, 7.0)
    x = np.ones(count)
    with pytest.raises(UsageError, match="disagree"):
        comm.Iallreduce(x, guarded[:count]).Wait()
    assert (guarded[count:] == 7.0).all()
    assert (x == 1.0).all()
    assert_usable(comm)


def test_operations_in_flight_survive_a_refused_one(comm: gradred.Comm) -> None:
    x = np.ones(COUNTS["medium"])
    before, after = np.empty_like(x), np.empty_like(x)
    first = comm.Iallreduce(x, before)
    text = outcome(Call("refused" if RANK == 0 else "Allreduce"), comm)
    second = comm.Iallreduce(x, after)
    first.Wait()
    second.Wait()
    assert text
    assert (before == SIZE).all()
    assert (after == SIZE).all()


def test_rank_0_decides_about_plan_and_slices() -> None:
    """If ranks used their own settings, they would choose different plans."""
    comm = gradred.Comm(WORLD.Dup())
    use(plan="ring" if RANK == 0 else None, slices=3 if RANK == 0 else None)
    x = np.ones(1000)
    comm.Allreduce(MPI.IN_PLACE, x)
    use()
    call = _core.Call("allreduce", None, x.__array_interface__["data"][0], 1000, "float64")
    plan = _core.plan_for(comm, call)
    assert (plan["plan"], plan["slices"]) == ("ring", 3)
    assert (x == SIZE).all()
    comm.Free()


@pytest.mark.parametrize("change", [{"op": "max"}, {"more": 1}, {"dtype": "int32"}, {"plan": None}])
def test_calls_by_the_plan_of_the_mpi_are_compared_as_all_others(
    comm: gradred.Comm, change: dict[str, Any]
) -> None:
    common: dict[str, Any] = {"function": "allreduce", "plan": "mpi"}
    text = outcome(Call(**(common | change if RANK == 0 else common)), comm)
    assert "disagree" in text
    assert_usable(comm)


@needs_threads
def test_refusing_twice_in_a_row_lets_the_mpi_get_on(comm: gradred.Comm) -> None:
    """The peer comes to the calls only after it has received this rank's messages."""
    if RANK == 0:
        sent = np.ones(1 << 20)
        requests = [WORLD.Isend(sent, peer, tag=3) for peer in range(1, SIZE)]
        assert outcome(Call("refused"), comm)
        assert outcome(Call("refused"), comm)
        MPI.Request.Waitall(requests)
    else:
        WORLD.Recv(np.empty(1 << 20), 0, tag=3)
        assert outcome(Call("Allreduce"), comm)
        assert outcome(Call("Allreduce"), comm)
    assert_usable(comm)


@needs_threads
def test_communicator_can_be_freed_right_after_a_refused_first_call() -> None:
    for _ in range(3):
        fresh = gradred.Comm(WORLD.Dup())
        with pytest.raises(UsageError):
            fresh.Iallreduce(np.ones(3), np.ones(2))
        fresh.Free()
        again = gradred.Comm(WORLD.Dup())
        assert_usable(again)
        again.Free()


@needs_threads
def test_notices_of_impatient_ranks_are_read(comm: gradred.Comm) -> None:
    """A rank that is always the last to come never waits, and still receives notices."""
    handle = _core.comm_info(comm)
    if handle["shares_memory"]:
        pytest.skip("nobody sends notices where the ranks share memory")
    x = np.ones(4)
    for _ in range(3):
        if RANK == 0:
            time.sleep(0.12)
        comm.Allreduce(MPI.IN_PLACE, x)
    for _ in range(40):
        comm.Allreduce(MPI.IN_PLACE, x)
    assert _core.in_flight() == 0
    assert_usable(comm)


def test_reason_that_is_too_long_for_its_place_ends_with_a_whole_word(comm: gradred.Comm) -> None:
    if RANK == 0:
        _core.refuse(comm, "words " * 400, blocking=True)
    else:
        text = outcome(Call(), comm)
        assert "words words ..." in text
        assert text.count("words") == text.count("words ")
    assert_usable(comm)


@pytest.mark.parametrize("shared_memory", [True, False], ids=["shared memory", "messages"])
def test_error_names_ranks_of_a_renumbered_communicator_by_both_numbers(
    shared_memory: bool,
) -> None:
    split = WORLD.Split(0, -RANK)
    comm = gradred.Comm(split)
    use(shm=shared_memory)
    gradred.allreduce(np.ones(1), comm=comm)  # finds out that the ranks share memory
    with pytest.raises(UsageError, match=r"COMM_WORLD rank \d\)") as raised:
        gradred.allreduce(np.ones(2 if comm.rank == 0 else 3), comm=comm)
    named = re.findall(r"rank (\d+) \(COMM_WORLD rank (\d+)\)", str(raised.value))
    assert named
    assert all(int(here) + int(there) == SIZE - 1 for here, there in named)
    # Over messages a rank learns of some two that differ; the middle rank keeps its number.
    if ((shared_memory and ON_ONE_HOST) or SIZE == 2) and comm.rank != RANK:
        assert f"rank {comm.rank} (COMM_WORLD rank {RANK}) asked for" in str(raised.value)
    comm.Free()
    use()
