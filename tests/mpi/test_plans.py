"""Every plan by its name: exact results at every count, in place and out of place, in slices.

`--full` runs the whole product. Otherwise types and in place alternate over the counts.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from float_mode import needs_modes, unusual
from mpi.exact import Array, differences, make_input, reduced
from mpi.knobs import use
from mpi.place import ON_ONE_HOST
from mpi4py import MPI

import gradred
from gradred import UsageError, _core, config, schedules
from gradred.schedules import Schedule

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size

COUNTS = sorted({0, 1, SIZE - 1, SIZE, SIZE + 1, 1009, 65537})
TYPES = [("float32", "sum"), ("int8", "max"), ("complex128", "prod"), ("uint16", "bxor")]
TYPES += [("bfloat16", "sum"), ("int64", "avg"), ("float64", "min")]


def plans(collective: str) -> list[str]:
    return ["node", "mpi", *schedules.names(collective)]


def cases(plan: str, full: bool) -> Iterator[tuple[int, str, str, bool]]:
    """Count, type, operation, in place or not."""
    if full:
        for count, (dtype, op), in_place in product(COUNTS, TYPES, (False, True)):
            yield count, dtype, op, in_place
    else:
        for turn, count in enumerate(COUNTS):
            for in_place in (False, True):
                dtype, op = TYPES[(2 * turn + in_place + SIZE) % len(TYPES)]
                yield count, dtype, op, in_place


@pytest.fixture(scope="module")
def shares_memory() -> bool:
    COMM.Allreduce(MPI.IN_PLACE, np.zeros(1))  # the first call sets up the communicator
    return SIZE == 1 or _core.comm_info(COMM)["shares_memory"]


@pytest.fixture(autouse=True)
def only_where_the_plan_can_be(request: pytest.FixtureRequest, shares_memory: bool) -> None:
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if parameters.get("plan") == "node" and not shares_memory:
        pytest.skip("the ranks share no memory")


@functools.cache
def configured(plan: str = "", slices: int = 0, deterministic: str = "0") -> gradred.Comm:
    """A communicator that was made with these settings."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(plan=plan or None, slices=slices or None, tune=False, deterministic=deterministic)
    _core.comm_info(comm)  # gradred reads the settings here
    use()
    return comm


def chosen(kind: Any, count: int, plan: str = "", comm: gradred.Comm = COMM) -> str:
    x = np.zeros(max(count, 1) * SIZE, "float32")
    address = x.__array_interface__["data"][0]
    call = _core.Call(kind, None, address, count, "float32", plan=plan)
    return _core.plan_for(comm, call)["plan"]


def same_everywhere(y: Array) -> bool:
    mine = hashlib.sha256(y.tobytes()).digest()
    return len(set(MPI.COMM_WORLD.allgather(mine))) == 1


@pytest.mark.wider
@pytest.mark.parametrize("plan", plans("allreduce"))
def test_allreduce_is_exact_and_leaves_its_input(plan: str, full: bool) -> None:
    wrong: list[str] = []
    for count, dtype, op, in_place in cases(plan, full):
        title = f"{count} {dtype} {op}{' in place' if in_place else ''}"
        x = make_input(RANK, count, dtype, op)
        y = x if in_place else np.empty_like(x)
        gradred.allreduce(x, op, out=y, plan=plan, comm=COMM)
        wrong += differences(y, reduced(SIZE, count, dtype, op), title)
        if not in_place:
            wrong += differences(x, make_input(RANK, count, dtype, op), f"input of {title}")
    assert not wrong


@pytest.mark.parametrize("plan", plans("allreduce"))
def test_all_ranks_get_the_same_bits_each_time(plan: str) -> None:
    """The order of summation affects these bits, so every rank must use the same order."""
    x = np.random.default_rng(RANK).standard_normal(1009).astype("float32")
    first = gradred.allreduce(x, plan=plan, comm=COMM)
    assert same_everywhere(first)
    if plan != "mpi":  # the MPI's own call does not promise this
        again = [gradred.allreduce(x, plan=plan, comm=COMM) for _ in range(3)]
        again.append(gradred.allreduce(x.copy(), out=x.copy(), plan=plan, comm=COMM))
        in_place = x.copy()
        again.append(gradred.allreduce(in_place, out=in_place, plan=plan, comm=COMM))
        assert {y.tobytes() for y in again} == {first.tobytes()}
    everyone = [np.random.default_rng(rank).standard_normal(1009) for rank in range(SIZE)]
    np.testing.assert_allclose(first, np.sum(everyone, axis=0), rtol=1e-5, atol=1e-5)


@needs_modes
@pytest.mark.parametrize("plan", [plan for plan in plans("allreduce") if plan != "mpi"])
def test_rank_in_another_floating_point_mode_gets_the_same_bits(plan: str) -> None:
    """Rank 0 flushes denormals and rounds up. The MPI's own call promises nothing here."""
    wrong = []
    for count, (dtype, op) in product(
        (3, 1009, 40_000),
        [("float32", "sum"), ("float64", "avg"), ("float16", "sum"), ("float32", "max")],
    ):
        least = float(np.finfo(dtype).smallest_normal)
        x = (np.random.default_rng(RANK).uniform(-1, 1, count) * least).astype(dtype)
        expected = gradred.allreduce(x, op, plan=plan, comm=COMM)
        with unusual(RANK == 0):
            found = gradred.allreduce(x, op, plan=plan, comm=COMM)
            later = COMM.Iallreduce(x, y := np.empty_like(x), op)
            later.Wait()
        if not same_everywhere(found) or found.tobytes() != expected.tobytes():
            wrong.append(f"{count} {dtype} {op}")
        if not same_everywhere(y):
            wrong.append(f"{count} {dtype} {op}, non-blocking")
        assert np.any(expected)
    assert not wrong


def test_duplicate_is_made_with_the_knobs_of_its_time() -> None:
    config.set("shm", False)
    without = COMM.Dup()
    without.Allreduce(MPI.IN_PLACE, np.zeros(1))
    config.reset("shm")
    usual = COMM.Dup()
    usual.Allreduce(MPI.IN_PLACE, np.zeros(1))
    shares = [_core.comm_info(comm)["shares_memory"] for comm in (without, usual)]
    for comm in (without, usual):
        comm.Free()
    assert shares == [False, SIZE > 1 and _core.comm_info(COMM)["shares_memory"]]


@pytest.mark.parametrize("plan", plans("allreduce"))
def test_first_call_on_a_new_communicator_may_name_its_plan(plan: str) -> None:
    comm = COMM.Dup()
    y = gradred.allreduce(make_input(RANK, 100, "int32"), plan=plan, comm=comm)
    comm.Free()
    assert not differences(y, reduced(SIZE, 100, "int32"), plan)


@pytest.mark.parametrize("slices", [2, 5])
@pytest.mark.parametrize("plan", schedules.names("allreduce"))
def test_slices_change_nothing(plan: str, slices: int) -> None:
    wrong: list[str] = []
    for count in (0, 1, slices, SIZE + 1, 1009):
        x = make_input(RANK, count, "int32")
        configured(plan, slices).Allreduce(MPI.IN_PLACE, x)
        wrong += differences(x, reduced(SIZE, count, "int32"), f"{count} in {slices} slices")
    assert not wrong


@pytest.mark.skipif(SIZE == 1, reason="one rank only copies")
@pytest.mark.parametrize("plan", schedules.names("allreduce"))
def test_plan_that_is_named_is_the_one_that_runs(plan: str) -> None:
    assert chosen("allreduce", 100, plan) == plan
    comm = configured(plan)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    assert chosen("allreduce", 100, comm=comm) == plan


@pytest.mark.skipif(SIZE == 1, reason="one rank only copies")
def test_setting_whose_plan_cannot_serve_is_named() -> None:
    comm = configured("nccl")
    for call in (comm.Allreduce, lambda *buffers: comm.Iallreduce(*buffers).Wait()):
        with pytest.raises(UsageError, match=r"plan 'nccl' cannot.* It is GRADRED_PLAN that asks"):
            call(MPI.IN_PLACE, np.zeros(3, "float32"))
    with pytest.raises(UsageError, match="plan 'nccl' cannot serve") as caught:
        gradred.allreduce(np.zeros(3, "float32"), plan="nccl", comm=comm)
    assert "GRADRED_PLAN" not in str(caught.value)


@pytest.mark.parametrize(("dtype", "op"), [("bool", "bxor"), ("bool", "min"), ("bfloat16", "sum")])
def test_plan_mpi_serves_what_the_mpi_lacks(dtype: str, op: str) -> None:
    y = gradred.allreduce(make_input(RANK, 9, dtype, op), op, plan="mpi", comm=COMM)
    assert not differences(y, reduced(SIZE, 9, dtype, op), f"{dtype} {op}")


@pytest.mark.wider
@pytest.mark.parametrize("plan", plans("reduce_scatter"))
def test_reduce_scatter_block_is_exact(plan: str, full: bool) -> None:
    wrong: list[str] = []
    for count, dtype, op, in_place in cases(plan, full):
        title = f"{count} {dtype} {op}{' in place' if in_place else ''}"
        x = make_input(RANK, count * SIZE, dtype, op)
        if in_place:
            y = x.copy()
            configured(plan).Reduce_scatter_block(MPI.IN_PLACE, y, op)
            y = y[:count]
        else:
            y = gradred.reduce_scatter_block(x, op, plan=plan, comm=COMM)
        block = slice(RANK * count, (RANK + 1) * count)
        wrong += differences(y, reduced(SIZE, count * SIZE, dtype, op)[block], title)
        wrong += differences(x, make_input(RANK, count * SIZE, dtype, op), f"input of {title}")
    assert not wrong


@pytest.mark.wider
@pytest.mark.parametrize("plan", plans("allgather"))
def test_allgather_is_exact(plan: str, full: bool) -> None:
    wrong: list[str] = []
    for count, dtype, _, in_place in cases(plan, full):
        title = f"{count} {dtype}{' in place' if in_place else ''}"
        x = make_input(RANK, count, dtype)
        if in_place:
            y = np.zeros((SIZE, count), x.dtype)
            y[RANK] = x
            configured(plan).Allgather(MPI.IN_PLACE, y)
        else:
            y = gradred.allgather(x, plan=plan, comm=COMM).reshape(SIZE, count)
        expected = np.array([make_input(rank, count, dtype) for rank in range(SIZE)], x.dtype)
        wrong += differences(y, expected.reshape(SIZE, count), title)
    assert not wrong


@pytest.mark.parametrize("plan", plans("bcast"))
def test_bcast_is_exact_from_every_root(plan: str) -> None:
    wrong: list[str] = []
    for turn, (root, count) in enumerate(product(range(SIZE), (0, 1, SIZE + 1, 65537))):
        dtype = TYPES[turn % 3][0]
        x = make_input(RANK, count, dtype)
        y = gradred.bcast(x, root, out=x if turn % 2 else None, plan=plan, comm=COMM)
        wrong += differences(y, make_input(root, count, dtype), f"{count} {dtype} from {root}")
    assert not wrong


@pytest.mark.parametrize("plan", [plan for plan in plans("bcast") if plan != "mpi"])  # MPICH writes
def test_bcast_only_reads_the_roots_array(plan: str, tmp_path: Path) -> None:
    for root in range(SIZE):
        x = np.zeros(20_000)
        if root == RANK:  # memory that nobody may write to
            np.arange(20_000.0).tofile(tmp_path / "given")
            x = np.memmap(tmp_path / "given", "f8", "r")
        y = gradred.bcast(x, root, plan=plan, comm=COMM)
        assert y[-1] == 19_999
        configured(plan).Bcast(x, root)
        assert x[-1] == 19_999


# ---- schedules of the user's own ----------------------------------------------------------------


def everyone_to_everyone(rank: int, size: int) -> Schedule:
    """Each rank sends its vector to all others and adds what arrives in the order of the ranks."""
    others = [peer for peer in range(size) if peer != rank]
    exchange = [schedules.send(peer, schedules.work(0)) for peer in others]
    exchange += [schedules.recv(peer, schedules.scratch(peer, 0)) for peer in others]
    exchange.append(schedules.copy(schedules.work(0), schedules.scratch(rank, 0)))
    adding = [
        schedules.reduce(schedules.scratch(peer, 0), schedules.scratch(0, 0))
        for peer in range(1, size)
    ]
    adding.append(schedules.copy(schedules.scratch(0, 0), schedules.work(0)))
    return Schedule([exchange, adding], rank=rank, size=size, chunks=1, name="everyone")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_schedule_of_the_user_is_exact(dtype: str) -> None:
    wrong: list[str] = []
    for plan in (everyone_to_everyone, everyone_to_everyone(RANK, SIZE)):
        for count in (0, 1, 1009):
            y = gradred.allreduce(make_input(RANK, count, dtype), plan=plan, comm=COMM)
            wrong += differences(y, reduced(SIZE, count, dtype), f"{count} {dtype}")
    assert not wrong


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to forget")
def test_schedule_that_forgets_a_rank_is_refused_before_it_runs() -> None:
    def forgets(rank: int, size: int) -> Schedule:
        return Schedule([], rank=rank, size=size, chunks=1, name="forgets")

    with pytest.raises(UsageError, match="schedule 'forgets' is wrong"):
        gradred.allreduce(np.ones(3), plan=forgets, comm=COMM)
    y = gradred.allreduce(np.ones(3), comm=COMM)  # the communicator remains usable
    assert y.tolist() == [SIZE] * 3


@pytest.mark.parametrize("kind", ["allreduce", "reduce_scatter_block", "allgather", "bcast"])
@pytest.mark.parametrize(
    ("plan", "deterministic"), [("", "0"), ("ring", "0"), ("", "size"), ("ring", "size")]
)
def test_choice_without_ranks_is_that_of_the_ranks(
    kind: str, plan: str, deterministic: str
) -> None:
    comm = configured(plan, deterministic=deterministic)
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # sets up the values on which a choice depends
    info = _core.comm_info(comm)
    collective = kind.removesuffix("_block")
    named = plan if plan in schedules.names(collective) else ""
    for nbytes in (4, 8 << 10, (8 << 10) + 4, 4 << 20, 64 << 20):
        choice = _core.choose_plan(
            collective,
            nbytes,
            info["host_of"] if SIZE > 1 else [0],
            shared_memory=SIZE == 1 or info["shares_memory"] or info["hosts_share_memory"],
            plan=named,
            slices=1 if collective in ("reduce_scatter", "allgather") else 0,
            one_order=deterministic == "size",
        )
        call = _core.Call(kind, None, 0, nbytes // 4, "float32")  # type: ignore[arg-type]
        found = _core.plan_for(comm, call)
        assert {name: choice[name] for name in found} == found  # type: ignore[literal-required]


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to choose")
@pytest.mark.parametrize("memory", ["shared", "not shared"])
def test_plan_asked_for_before_the_first_call_is_not_that_of_the_call(memory: str) -> None:
    """The ranks' hosts are unknown at that time; the plan of one rank would not reduce."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(**({} if memory == "shared" else {"shm": False}))
    x, y = np.full(1009, RANK + 1, "float32"), np.zeros(1009, "float32")
    send, recv = (a.__array_interface__["data"][0] for a in (x, y))
    early = _core.plan_for(comm, _core.Call("allreduce", send, recv, 1009, "float32"))["plan"]
    use()
    assert early != "copy"
    comm.Allreduce(x, y)
    assert (y == SIZE * (SIZE + 1) // 2).all()
    found = _core.plan_for(comm, _core.Call("allreduce", send, recv, 1009, "float32"))["plan"]
    assert (found == "node") == _core.comm_info(comm)["shares_memory"]
    comm.Free()


def summed_after(warm_up: bool, deterministic: bool) -> tuple[str, bytes]:
    """Plan and bits of a started sum whose bits depend on the order.

    It starts before or after a blocking call.
    """
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    use(deterministic=deterministic)
    _core.comm_info(comm)
    use()
    x = np.random.default_rng(RANK).standard_normal(1009).astype("float32")
    y = np.empty_like(x)
    if warm_up:
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    comm.Iallreduce(x, y).Wait()
    send, recv = (a.__array_interface__["data"][0] for a in (x, y))
    call = _core.Call("allreduce", send, recv, 1009, "float32")
    plan = _core.plan_for(comm, call, blocking=False)["plan"]
    comm.Free()
    return plan, y.tobytes()


@pytest.mark.skipif(SIZE == 1, reason="one rank has nothing to choose")
def test_deterministic_started_calls_have_the_same_bits_each_time() -> None:
    assert summed_after(True, True) == summed_after(True, True)
    plan, before = summed_after(False, True)
    everyone = [np.random.default_rng(rank).standard_normal(1009) for rank in range(SIZE)]
    in_order = functools.reduce(np.add, [one.astype("float32") for one in everyone])
    assert plan == "mpi"
    assert before == in_order.tobytes()
    if ON_ONE_HOST:
        assert before == summed_after(True, True)[1]
    assert summed_after(False, False)[0] == "mpi"
    assert summed_after(True, False)[0] != "mpi"
