"""Scans: every type and operation, every plan, in place or not, and next to MPI_Scan."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpi.exact import DTYPES, FACTOR, Array, differences, make_input, numpy_dtype, ops_of, reduced
from mpi.knobs import use
from mpi.place import ON_ONE_HOST, WHY_NOT
from mpi4py import MPI

import gradred
from gradred import UsageError, _core, config, schedules

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size

# In the announcement, in a slot, and chunk by chunk; odd ones, and none at all.
COUNTS = (0, 1, 5, SIZE, 1009, 65_537, 300_007)
PLANS = ("mpi", *schedules.names("scan"))


def same_on_all(errors: list[str]) -> None:
    """Fail on all ranks alike, so that no rank goes on alone."""
    found = [error for of_rank in COMM.allgather(errors) for error in of_rank]
    assert not found, found[:4]


def expected(count: int, dtype: str, op: str, exclusive: bool) -> Array:
    """The reduction over the ranks before this one, and of this one unless it is exclusive."""
    ranks = RANK + (0 if exclusive else 1)
    return reduced(ranks, count, dtype, op) if ranks else neutral(count, dtype, op)


def neutral(count: int, dtype: str, op: str) -> Array:
    """What rank 0 gets from an exclusive scan: adding it to a vector changes nothing."""
    found = gradred.scan(make_input(0, count, dtype, op), op_of(op), exclusive=True, comm=SELF)
    assert isinstance(found, np.ndarray)
    return found


SELF = gradred.Comm(MPI.COMM_SELF)


def op_of(op: str) -> Any:
    return gradred.premul(FACTOR) if op == "premul" else op


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_operation(dtype: str, exclusive: bool) -> None:
    errors = []
    for turn, op in enumerate(ops_of(dtype)):
        count = COUNTS[(turn + SIZE) % len(COUNTS)]
        x = make_input(RANK, count, dtype, op)
        kept, wanted = x.copy(), expected(count, dtype, op, exclusive)
        title = f"{op} of {count} {dtype}"
        found = gradred.scan(x, op_of(op), exclusive=exclusive)
        errors += differences(found, wanted, title) + differences(x, kept, f"{title}: input")
        assert gradred.scan(x, op_of(op), exclusive=exclusive, out=x) is x
        errors += differences(x, wanted, f"{title} in place")
    same_on_all(errors)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("plan", [None, *PLANS])
def test_every_plan_at_every_length(plan: str | None, exclusive: bool) -> None:
    errors = []
    for count, (dtype, op) in product(COUNTS, [("float32", "sum"), ("int32", "max")]):
        wanted = expected(count, dtype, op, exclusive)
        x = make_input(RANK, count, dtype, op)
        title = f"{plan}, {count} {dtype}"
        errors += differences(gradred.scan(x, op, exclusive=exclusive, plan=plan), wanted, title)
        request = gradred.iscan(x, op, exclusive=exclusive, plan=plan)
        errors += differences(request.wait(), wanted, f"{title}, started")
        gradred.scan(x, op, exclusive=exclusive, plan=plan, out=x)
        errors += differences(x, wanted, f"{title}, in place")
    same_on_all(errors)


def mpis(method: str, x: Array, y: Array, op: MPI.Op) -> None:
    """The MPI's own call."""
    getattr(MPI.COMM_WORLD, method)(x, y, op)


@pytest.mark.parametrize("name", ["Scan", "Exscan"])
@pytest.mark.parametrize("op", [MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX, MPI.BXOR])
def test_results_are_those_of_the_mpi(name: str, op: MPI.Op) -> None:
    errors = []
    for count in COUNTS:
        x = make_input(RANK, count, "int32", "prod" if op == MPI.PROD else "sum")
        theirs, ours, started = (np.full(count, -7, "i4") for _ in range(3))
        mpis(name, x, theirs, op)
        if RANK == 0 and name == "Exscan":
            theirs[:] = -7  # the MPI leaves it undefined; gradred leaves it as it is
        getattr(COMM, name)(x, ours, op)
        errors += differences(ours, theirs, f"{name} of {count}")
        getattr(COMM, f"I{name.lower()}")(x, started, op=op).Wait()
        errors += differences(started, theirs, f"I{name.lower()} of {count}")
        here = x.copy()
        getattr(COMM, name)(MPI.IN_PLACE, here, op)
        kept = x if RANK == 0 else theirs  # of a scan it is the same on rank 0
        errors += differences(here, kept, f"{name} of {count} in place")
    same_on_all(errors)


def test_functions_of_the_program_go_to_the_mpi_in_the_order_of_ranks() -> None:
    """The operation is associative, and not commutative: the first input wins."""

    def first(a: Any, b: Any, datatype: Any) -> None:
        x, y = np.frombuffer(a, "f8"), np.frombuffer(b, "f8")
        y[:] = x  # a op b = a

    op = MPI.Op.Create(first, commute=False)
    y = np.zeros(3)
    COMM.Scan(np.full(3, RANK + 1.0), y, op)
    assert y.tolist() == [1.0] * 3
    COMM.Exscan(np.full(3, RANK + 1.0), y, op)
    assert y.tolist() == [1.0] * 3
    op.Free()


def test_types_that_the_mpi_alone_knows() -> None:
    x, y = np.full(3, RANK + 1, "longdouble"), np.zeros(3, "longdouble")
    COMM.Scan(x, y)
    assert y.tolist() == [(RANK + 1) * (RANK + 2) / 2] * 3
    COMM.Iscan(x, y, MPI.MAX).Wait()
    assert y.tolist() == [RANK + 1] * 3


def test_started_scan_of_the_mpis_refuses_axes_in_another_order() -> None:
    x, y = (np.ones((2, 3, 4), "longdouble").transpose(1, 0, 2) for _ in range(2))
    with pytest.raises(UsageError, match="Iscan's recvbuf: the array's axes are in another order"):
        COMM.Iscan(x, y)


def test_started_scans_before_the_first_blocking_call() -> None:
    """The MPI carries these out."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = make_input(RANK, 1009, "float16")
    requests = [gradred.iscan(x, "avg", exclusive=exclusive, comm=comm) for exclusive in (0, 1)]
    y = np.zeros(3)
    comm.Iexscan(np.ones(3), y).Wait()
    errors = differences(y, np.full(3, float(RANK)), "Iexscan")
    for exclusive, request in enumerate(requests):
        wanted = expected(1009, "float16", "avg", bool(exclusive))
        errors += differences(request.wait(), wanted, f"exclusive={exclusive}")
    same_on_all(errors)
    comm.Free()


def test_bits_do_not_depend_on_the_length_nor_on_the_plan() -> None:
    """Each step rounds: sums of 16-bit floats are those of a loop over the ranks.

    Over several hosts the plan that costs least may add in another order.
    """
    one = np.linspace(1, 2, 40_013).astype("f2") * np.float16(1 + RANK / 3)
    vectors = COMM.allgather(one)[: RANK + 1]
    wanted = functools.reduce(lambda a, b: (a + b).astype("f2"), vectors)
    errors = []
    for plan in (*([None] if ON_ONE_HOST else []), "linear", "pipelined"):
        whole = gradred.scan(one, plan=plan)
        errors += differences(whole, wanted, f"{plan}")
        for count in (1, 7, 1000):
            errors += differences(gradred.scan(one[:count], plan=plan), wanted[:count], f"{count}")
    same_on_all(errors)


@pytest.mark.parametrize("deterministic", [True, "size"])
def test_deterministic_scans_are_those_of_a_loop(deterministic: bool | str) -> None:
    try:
        use(deterministic=deterministic)
        comm = gradred.Comm(MPI.COMM_WORLD.Dup())
        x = np.linspace(0, 1, 333).astype("f2") * np.float16(RANK + 1)
        vectors = COMM.allgather(x)[: RANK + 1]
        wanted = functools.reduce(lambda a, b: (a + b).astype("f2"), vectors)
        errors = differences(gradred.iscan(x, comm=comm).wait(), wanted, "by the MPI")
        errors += differences(gradred.scan(x, comm=comm), wanted, "blocking")
        errors += differences(gradred.iscan(x, comm=comm).wait(), wanted, "started")
        same_on_all(errors)
        comm.Free()
    finally:
        config.reset()


def test_mean_is_that_of_the_arrays_before() -> None:
    x = np.full(3, 2.0 * RANK)
    assert gradred.scan(x, "avg").tolist() == [float(RANK)] * 3
    exclusive = gradred.scan(x, "avg", exclusive=True)
    assert exclusive.tolist() == [max(RANK - 1, 0.0)] * 3


def test_rows_of_a_file_begin_at_the_exclusive_sum() -> None:
    begin = gradred.scan(np.int64(RANK + 1), exclusive=True)
    assert (type(begin), begin) == (np.int64, RANK * (RANK + 1) // 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_first_rank_of_an_exclusive_scan_gets_what_changes_nothing(dtype: str) -> None:
    for op in ops_of(dtype):
        if op in ("avg", "premul"):
            continue
        x = make_input(0, 64, dtype, op)
        unit = neutral(64, dtype, op)
        assert unit.dtype == numpy_dtype(dtype)
        both = np.stack([unit, x])
        folded = getattr(np, gradred.ops.UFUNCS[op])(both[0], both[1]).astype(x.dtype)
        wanted = x if op not in ("land", "lor", "lxor") else (x != 0).astype(x.dtype)
        assert np.array_equal(folded, wanted), (op, dtype)


def call_of(kind: str, count: int = 8, op: Any = "sum", dtype: str = "f8") -> Callable[[], Any]:
    x = np.ones(count, dtype)
    if kind == "allreduce":
        return lambda: gradred.allreduce(x, op)
    return lambda: gradred.scan(x, op, exclusive=kind == "exscan")


@pytest.mark.skipif(SIZE == 1, reason="needs peers")
@pytest.mark.parametrize(
    "others",
    [
        {"kind": "exscan"},
        {"kind": "allreduce"},
        {"op": "max"},
        {"count": 9},
        {"dtype": "f4"},
        {"count": 100_000},
    ],
    ids=str,
)
def test_ranks_that_differ_get_an_error_on_every_rank(others: dict[str, Any]) -> None:
    for odd in range(min(SIZE, 3)):
        call = call_of(**({"kind": "scan"} | (others if odd == RANK else {})))
        with pytest.raises(UsageError, match=r"disagree|refused"):
            call()
        assert gradred.allreduce(np.ones(1))[0] == SIZE


@pytest.mark.skipif(SIZE == 1, reason="needs peers")
@pytest.mark.parametrize("plan", ["linear", "recursive_doubling"])
@pytest.mark.parametrize("starts", [False, True])
def test_ranks_that_differ_over_messages_get_an_error_on_every_rank(
    plan: str, starts: bool
) -> None:
    gradred.allreduce(np.ones(1))
    for odd in range(min(SIZE, 3)):
        x = np.ones(8 + (odd == RANK))
        with pytest.raises(UsageError, match="disagree"):
            gradred.iscan(x, plan=plan).wait() if starts else gradred.scan(x, plan=plan)
        assert gradred.allreduce(np.ones(1))[0] == SIZE


@pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)
def test_plan_in_the_memory_of_a_host_is_described_by_the_linear_schedule() -> None:
    gradred.allreduce(np.ones(1))
    if SIZE == 1 or not _core.comm_info(COMM)["shares_memory"]:
        pytest.skip("the ranks share no memory")
    for kind in ("scan", "exscan"):
        plan = _core.plan_for(COMM, _core.Call(kind, None, 0, 8, "float32", "sum"))
        assert plan["plan"] == "node"
        assert plan["specification"] is not None
        assert plan["specification"]["algorithm"] == "linear"


def test_own_schedule_carries_out_a_scan() -> None:
    def make(rank: int, size: int) -> schedules.Schedule:
        return schedules.make("linear", rank, size, collective="scan")

    assert gradred.scan(np.ones(5), plan=make).tolist() == [RANK + 1.0] * 5


def test_setting_of_a_plan_for_allreduces_does_not_apply_to_scans() -> None:
    try:
        use(plan="ring")
        comm = gradred.Comm(MPI.COMM_WORLD.Dup())
        assert gradred.scan(np.ones(2), comm=comm).tolist() == [RANK + 1.0] * 2
        comm.Free()
    finally:
        config.reset()
    if SIZE > 1:
        with pytest.raises(UsageError, match="no plan for scan has that name"):
            gradred.scan(np.ones(2), plan="ring")
