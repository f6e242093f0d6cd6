"""Gathers and scatters of arrays: every plan and root, next to the MPI's own calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi.exact import DTYPES, Array, differences, make_input
from mpi4py import MPI

import gradred
from gradred import UsageError, schedules

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size

# Of a block: in the announcement, in a slot, and chunk by chunk; odd ones, and none at all.
COUNTS = (0, 1, 5, 1009, 65_537, 300_007)
PLANS = (None, "mpi", *schedules.names("gather"))


def same_on_all(errors: list[str]) -> None:
    """Fail on all ranks alike, so that no rank goes on alone."""
    found = [error for of_rank in COMM.allgather(errors) for error in of_rank]
    assert not found, found[:4]


def whole(count: int, dtype: str = "int32") -> Array:
    """The blocks of all ranks."""
    return np.concatenate([make_input(rank, count, dtype) for rank in range(SIZE)])


def on_root(found: Any, wanted: Array, root: int, title: str) -> list[str]:
    if root == RANK:
        return differences(found, wanted, title)
    return [] if found is None else [f"{title}: {type(found)} and not None on rank {RANK}"]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("root", range(SIZE))
def test_gather_at_every_length(plan: str | None, root: int) -> None:
    errors = []
    for count in COUNTS:
        x, title = make_input(RANK, count, "int32"), f"{plan}, {count} to rank {root}"
        wanted = whole(count)
        errors += on_root(gradred.gather(x, root, plan=plan), wanted, root, title)
        request = gradred.igather(x, root, plan=plan)
        errors += on_root(request.wait(), wanted, root, f"{title}, started")
        out = np.zeros(SIZE * count, "int32") if root == RANK else None
        found = gradred.gather(x, root, out=out, plan=plan)
        errors += on_root(found, wanted, root, f"{title}, into out")
        if root == RANK:
            assert found is out
        theirs = np.zeros(SIZE * count, "int32") if root == RANK else None
        MPI.COMM_WORLD.Gather(x, theirs, root)
        if theirs is not None:
            errors += differences(theirs, wanted, f"{title}, by the MPI")
    same_on_all(errors)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("root", range(SIZE))
def test_scatter_at_every_length(plan: str | None, root: int) -> None:
    errors = []
    for count in COUNTS:
        wanted, title = make_input(RANK, count, "int32"), f"{plan}, {count} from rank {root}"
        x = whole(count) if root == RANK else np.zeros(count, "int32")
        kept = x.copy()
        errors += differences(gradred.scatter(x, root, plan=plan), wanted, title)
        request = gradred.iscatter(x, root, plan=plan)
        errors += differences(request.wait(), wanted, f"{title}, started")
        out = np.zeros(count, "int32")
        found = gradred.scatter(x if root == RANK else None, root, out=out, plan=plan)
        assert found is out
        errors += differences(out, wanted, f"{title}, into out")
        errors += differences(x, kept, f"{title}: x")
        theirs = np.zeros(count, "int32")
        MPI.COMM_WORLD.Scatter(x if root == RANK else None, theirs, root)
        errors += differences(theirs, wanted, f"{title}, by the MPI")
    same_on_all(errors)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(dtype: str) -> None:
    x = make_input(RANK, 7, dtype)
    everything = gradred.gather(x)
    errors = on_root(everything, whole(7, dtype), 0, dtype)
    back = gradred.scatter(everything if RANK == 0 else x)
    same_on_all(errors + differences(back, x, dtype))


def test_blocks_are_joined_and_cut_along_the_first_axis() -> None:
    x = np.full((2, 3), RANK)
    joined = gradred.gather(x, SIZE - 1)
    if joined is not None:
        assert joined.shape == (2 * SIZE, 3)
        assert joined[:, 0].tolist() == [rank for rank in range(SIZE) for _ in range(2)]
    back = gradred.scatter(x if joined is None else joined, SIZE - 1)
    assert back.tolist() == x.tolist()
    scalars = gradred.gather(np.float64(RANK))
    assert RANK != 0 or scalars.tolist() == list(range(SIZE))


def test_started_calls_before_the_first_blocking_call() -> None:
    """The MPI carries these out."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = make_input(RANK, 1009, "bfloat16")
    gathers = gradred.igather(x, SIZE - 1, comm=comm)
    given = whole(1009, "bfloat16") if RANK == 0 else x
    scatters = gradred.iscatter(given, comm=comm)
    errors = on_root(gathers.wait(), whole(1009, "bfloat16"), SIZE - 1, "gather")
    same_on_all(errors + differences(scatters.wait(), x, "scatter"))
    comm.Free()


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.full((2, 3), float(RANK))
    joined = gradred.gather(x)
    back = gradred.scatter(joined if RANK == 0 else x)
    assert isinstance(back, torch.Tensor)
    assert back.tolist() == x.tolist()


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=f"root={SIZE}: the communicator has"):
        gradred.gather(np.ones(1), SIZE)
    y = np.ones(SIZE + 1)
    with pytest.raises(UsageError, match=r"overwrite a part|refused"):
        gradred.gather(y[:1], out=y[:SIZE])
    if SIZE > 1:
        with pytest.raises(UsageError, match=rf"does not make {SIZE} equal blocks|refused"):
            gradred.scatter(np.ones(SIZE + 1) if RANK == 0 else np.ones(1))
        with pytest.raises(UsageError, match=r"x and out are None|refused"):
            gradred.scatter(np.ones(SIZE) if RANK == 0 else None)
    assert gradred.allreduce(np.ones(1))[0] == SIZE


def call_of(kind: str, count: int = 8, root: int = 0, dtype: str = "f8") -> Callable[[], Any]:
    block = np.ones(count, dtype)
    if kind == "gather":
        return lambda: gradred.gather(block, root)
    return lambda: gradred.scatter(np.ones(SIZE * count, dtype) if root == RANK else block, root)


@pytest.mark.skipif(SIZE == 1, reason="needs peers")
@pytest.mark.parametrize("kind", ["gather", "scatter"])
@pytest.mark.parametrize(
    "others", [{}, {"root": 1}, {"count": 9}, {"dtype": "f4"}, {"count": 100_000}], ids=str
)
def test_ranks_that_differ_get_an_error_on_every_rank(kind: str, others: dict[str, Any]) -> None:
    """Without other arguments, one rank makes the other kind of call."""
    for odd in range(min(SIZE, 3)):
        other = {"kind": "scatter" if kind == "gather" else "gather"}
        wrong = others or other
        call = call_of(**({"kind": kind} | (wrong if odd == RANK else {})))
        with pytest.raises(UsageError, match=r"disagree|refused"):
            call()
        assert gradred.allreduce(np.ones(1))[0] == SIZE


@pytest.mark.skipif(SIZE == 1, reason="needs peers")
@pytest.mark.parametrize("starts", [False, True])
def test_ranks_that_differ_over_messages_get_an_error_on_every_rank(starts: bool) -> None:
    gradred.allreduce(np.ones(1))
    for odd in range(min(SIZE, 3)):
        x = np.ones(8 + (odd == RANK))
        with pytest.raises(UsageError, match="disagree"):
            gradred.igather(x, plan="binomial").wait() if starts else gradred.gather(
                x, plan="binomial"
            )
        assert gradred.allreduce(np.ones(1))[0] == SIZE


@pytest.mark.skipif(SIZE == 1, reason="needs peers")
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("kind", ["gather", "scatter", "bcast"])
def test_own_schedule_for_another_root_is_refused(kind: str, starts: bool) -> None:
    """It would put other elements into the result."""

    def make(rank: int, size: int) -> schedules.Schedule:
        return schedules.make("binomial", rank, size, collective=kind, root=1)

    if starts and kind == "bcast":
        pytest.skip("a broadcast of arrays blocks")
    gradred.allreduce(np.ones(1))
    x = np.ones(SIZE if kind != "scatter" or RANK == 0 else 1)
    with pytest.raises(UsageError, match="is for root 1, and the call for root 0"):
        getattr(gradred, f"i{kind}" if starts else kind)(x, 0, plan=make)
    assert gradred.allreduce(np.ones(1))[0] == SIZE
