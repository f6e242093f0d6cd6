"""A rank of test_layouts: all kinds of allreduces on faked hosts, each with an exact result."""

import itertools
import os
import signal
import sys
import threading
import time

import faked

LAYOUT = faked.fake_hosts()

import numpy as np  # noqa: E402 (after the host has its name)
import pytest  # noqa: E402
from mpi4py import MPI  # noqa: E402

import gradred  # noqa: E402
from gradred import _core, config  # noqa: E402
from gradred.element_types import numpy_dtype  # noqa: E402

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
# Counts for a cache line, a slot and chunks, and around the numbers of parts and pieces.
COUNTS = (0, 1, 2, 3, 12, 13, 1000, 4099, 40_009, 300_007)


def values(count: int, rank: int, dtype: str) -> np.ndarray:
    return ((np.arange(count) * 7 + rank * 3) % 11 + 1).astype(dtype)


def expected(count: int, dtype: str, op: str) -> np.ndarray:
    everyone = [values(count, rank, dtype) for rank in range(SIZE)]
    if op == "max":
        return np.max(everyone, axis=0)
    total = np.sum(everyone, axis=0).astype(dtype)
    return total // SIZE if op == "avg" else total


def assert_right(x: np.ndarray, op: str, what: object) -> None:
    wanted = expected(x.size, x.dtype.str, op)
    assert np.array_equal(x, wanted), (what, RANK, x[:5], wanted[:5])


def blocking(comm: gradred.Comm) -> None:
    plans = (None, "hierarchical") if len(set(LAYOUT)) < SIZE else (None,)
    for count, dtype, plan in itertools.product(COUNTS, ("int32", "float64"), plans):
        x = values(count, RANK, dtype)
        assert_right(gradred.allreduce(x, comm=comm, plan=plan), "sum", (count, dtype, plan))
        assert np.array_equal(x, values(count, RANK, dtype)), "the input has changed"
        assert_right(gradred.allreduce(x, "max", out=x, comm=comm, plan=plan), "max", (count, plan))
    for count in (5, 30_000):
        x = values(count, RANK, "int64")
        assert_right(gradred.allreduce(x, "avg", comm=comm), "avg", count)
        y = gradred.allreduce(x, gradred.premul(2.0), comm=comm)
        assert np.array_equal(y, 2 * expected(count, "int64", "sum"))


def in_flight(comm: gradred.Comm) -> None:
    """Several calls at once, waited for in another order on each rank, and persistent calls."""
    counts = [1, 100_003, 12, 2000, 300_007, 0, 7]
    results = [np.empty(count, "int32") for count in counts]
    requests = [
        comm.Iallreduce(values(count, RANK, "int32"), result)
        for count, result in zip(counts, results, strict=True)
    ]
    order = np.random.default_rng(RANK).permutation(len(counts))
    for i in order:
        requests[i].Wait()
        assert_right(results[i], "sum", ("in flight", counts[i]))
    for count in (3, 50_000):
        x, y = values(count, RANK, "float32"), np.empty(count, "float32")
        persistent = comm.Allreduce_init(x, y)
        for _ in range(3):
            y[:] = 0
            persistent()
            assert_right(y, "sum", ("persistent", count))
        persistent.Start()
        assert_right(gradred.allreduce(x, comm=comm), "sum", ("beside it", count))
        persistent.Wait()
        persistent.Free()


def blocks_of(count: int, rank: int) -> np.ndarray:
    return np.concatenate([values(count, rank, "int64") * (block + 1) for block in range(SIZE)])


def scattered(comm: gradred.Comm, count: int, plan: str | None) -> None:
    mine = slice(RANK * count, (RANK + 1) * count)
    everyone = [blocks_of(count, rank) for rank in range(SIZE)]
    x, part = everyone[RANK].copy(), np.empty(count, "int64")
    for op, wanted in ("sum", np.sum(everyone, axis=0)), ("max", np.max(everyone, axis=0)):
        got = gradred.reduce_scatter_block(x, op, comm=comm, plan=plan)
        assert np.array_equal(got.ravel(), wanted[mine]), (count, op, plan)
    doubled = gradred.reduce_scatter_block(x, gradred.premul(2.0), comm=comm, plan=plan)
    assert np.array_equal(doubled.ravel(), 2 * np.sum(everyone, axis=0)[mine]), (count, plan)
    comm.Ireduce_scatter_block(x, part, MPI.MAX).Wait()
    assert np.array_equal(part, wanted[mine]), ("started", count)
    assert np.array_equal(x, everyone[RANK]), "the input has changed"
    comm.Reduce_scatter_block(MPI.IN_PLACE, x, MPI.MAX)
    assert np.array_equal(x[:count], wanted[mine]), ("in place", count)


def gathered(comm: gradred.Comm, count: int, plan: str | None) -> None:
    wanted = np.array([values(count, rank, "int32") for rank in range(SIZE)])
    got = gradred.allgather(wanted[RANK].copy(), comm=comm, plan=plan)
    assert np.array_equal(got.ravel(), wanted.ravel()), (count, plan)
    x = np.zeros((SIZE, count), "int32")
    x[RANK] = wanted[RANK]
    comm.Allgather(MPI.IN_PLACE, x)
    assert np.array_equal(x, wanted), ("in place", count)


def leaves(comm: gradred.Comm) -> None:
    """Sums of leaves have the bits that one rank gets which has all of them."""
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for each, count in itertools.product((1, 3, 4), (1, 1000, 300_007)):
        x = np.random.default_rng(count).standard_normal((SIZE * each, count)).astype("float32")
        wanted = gradred.allreduce(x, leaves=len(x), comm=MPI.COMM_SELF).tobytes()
        mine = x[RANK * each : (RANK + 1) * each]
        assert gradred.allreduce(mine, leaves=each, comm=comm).tobytes() == wanted, (each, count)
        started = gradred.iallreduce(mine, leaves=[each] * SIZE, comm=comm)
        assert started.wait().tobytes() == wanted, ("started", each, count)


def plan_of(comm: gradred.Comm, x: np.ndarray, wire: str) -> dict:
    call = _core.Call("allreduce", None, x.ctypes.data, x.size, "float32", wire=wire)
    return _core.plan_for(comm, call)


def reference(x: list[np.ndarray], wire: str, plan: dict) -> np.ndarray:
    """What a compressed wire between hosts makes of the sums inside them."""
    hosts = sorted(set(LAYOUT))
    sums = [np.sum([x[r] for r in range(SIZE) if LAYOUT[r] == h], 0, "float32") for h in hosts]
    lanes = 1 if plan["parameters"].get("leaders") else max(map(LAYOUT.count, hosts))
    result = []
    for piece in np.array_split(np.arange(x[0].size), plan["slices"]):
        for number, part in enumerate(np.array_split(piece, lanes * len(hosts))):
            owner = hosts[number % len(hosts)]
            total = sums[owner][part].copy()
            for host in hosts:
                total += through(sums[host][part], wire) if host != owner else 0
            result.append(through(total, wire))
    return np.concatenate(result)


def through(x: np.ndarray, wire: str) -> np.ndarray:
    coded, y = np.zeros(_core.wire_bytes(wire, x.size), "uint8"), np.empty_like(x)
    x = np.ascontiguousarray(x)
    _core.encode_wire(wire, x.ctypes.data, x.size, coded.ctypes.data)
    _core.decode_wire(wire, coded.ctypes.data, x.size, y.ctypes.data, False)
    return y


def wires(comm: gradred.Comm) -> None:
    """Compressed between hosts: the same bits on all ranks, those of the codec applied in turn."""
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    for wire, count in itertools.product(gradred.WIRES, (0, 1, 127, 128, 1000, 100_003, 900_001)):
        x = [np.random.default_rng(r).standard_normal(count).astype("f4") for r in range(SIZE)]
        mine = x[RANK].copy()
        plan = plan_of(comm, mine, wire)
        assert plan["parameters"]["wire"] == wire
        assert wire in plan["reason"]
        wanted = reference(x, wire, plan).tobytes()
        assert gradred.allreduce(mine, comm=comm, wire=wire).tobytes() == wanted, (wire, count)
        assert np.array_equal(mine, x[RANK]), "the input has changed"
        started = [gradred.iallreduce(mine, comm=comm, wire=wire) for _ in range(3)]
        assert {one.wait().tobytes() for one in started} == {wanted}
        y = np.empty_like(mine)
        comm.Allreduce(mine, y, wire=wire)
        assert y.tobytes() == wanted
        comm.Iallreduce(y, mine, wire="fp16").Wait()  # beside it, on other buffers
        mine[:] = x[RANK]
        persistent = comm.Allreduce_init(mine, y, wire=wire)
        for _ in range(3):
            y[:] = 0
            persistent()
            assert y.tobytes() == wanted
        persistent.Free()
        halves = [one / np.float32(SIZE) for one in x]
        by = gradred.premul(1 / SIZE)
        scaled = gradred.allreduce(mine, by, comm=comm, wire=wire)
        mean = gradred.allreduce(mine, "avg", out=mine, comm=comm, wire=wire)
        assert mean is mine
        assert mean.tobytes() == scaled.tobytes()
        if SIZE == 4:  # exact
            assert mean.tobytes() == reference(halves, wire, plan).tobytes()
    many_on_the_wire(comm)
    half = np.full(3, 40_000, "f4")  # whose sum fp16 does not have
    assert gradred.allreduce(half, "avg", comm=comm, wire="fp16").tolist() == [40_000] * 3
    other = comm.Dup()
    for _ in range(2):
        assert gradred.allreduce(np.ones(3, "f4"), comm=other, wire="int8").tolist() == [SIZE] * 3
    other.Free()
    for mine in (None if RANK else "int8", "bf16" if RANK else "int8"):
        with pytest.raises(gradred.UsageError, match="disagree"):
            gradred.allreduce(np.ones(5, "f4"), comm=comm, wire=mine)
        request = gradred.iallreduce(np.ones(5, "f4"), comm=comm, wire=mine)
        with pytest.raises(gradred.UsageError, match="disagree"):
            request.wait()
    with pytest.raises(gradred.UsageError, match="no compressed wire between hosts"):
        gradred.allreduce(np.ones(5, "f4"), comm=comm, wire="int8", plan="ring")
    assert gradred.allreduce(np.ones(3, "f4"), comm=comm, wire="int4").tolist() == [SIZE] * 3


def many_on_the_wire(comm: gradred.Comm) -> None:
    """Short arrays travel as one vector, whose blocks begin elsewhere: close, and equal bits."""
    arrays = [np.random.default_rng((RANK, n)).standard_normal(n).astype("f4") for n in (5, 700)]
    plain = gradred.allreduce_many(arrays, comm=comm)
    found = gradred.allreduce_many(arrays, comm=comm, wire="bf16")
    started = gradred.iallreduce_many(arrays, comm=comm, wire="bf16").wait()
    for exact, one, other in zip(plain, found, started, strict=True):
        assert not np.array_equal(exact, one)
        np.testing.assert_allclose(one, exact, atol=0.1)
        assert one.tobytes() == other.tobytes()
        assert len(set(comm.allgather(one.tobytes()))) == 1


def lost_on_the_wire(comm: gradred.Comm) -> None:
    """The first rank of the second host is killed while parts travel: all others learn of it."""
    x = np.ones(3_000_000, "f4")
    gradred.allreduce(x, comm=comm, wire="int8")
    if LAYOUT.index(1) == RANK:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGKILL)).start()
    begin = time.monotonic()
    with pytest.raises(gradred.PeerLost, match="rank"):  # noqa: PT012 (a loop until it comes)
        while time.monotonic() - begin < 10:
            gradred.allreduce(x, comm=comm, wire="int8")
    assert time.monotonic() - begin < 5
    print("right", flush=True)
    sys.exit()  # the communicator is gone


def others(comm: gradred.Comm) -> None:
    """Calls on blocks, and broadcasts; some of them go only by messages."""
    plans = (None, "hierarchical", "ring") if len(set(LAYOUT)) < SIZE else (None, "ring")
    for count, plan in itertools.product((0, 1, 5, 13, 100, 1009, 100_003), plans):
        scattered(comm, count, plan)
        gathered(comm, count, plan)
        for root in range(SIZE):
            x = values(count, RANK, "float32")
            got = gradred.bcast(
                x, root=root, comm=comm, plan="binomial" if plan == "ring" else plan
            )
            assert np.array_equal(got, values(count, root, "float32")), (count, root, plan)
        x = values(count, RANK, "float64")
        assert_right(gradred.allreduce(x, comm=comm, plan=plan), "sum", plan)


def others_of_another(comm: gradred.Comm) -> None:
    """A second communicator has less memory at first."""
    made = comm.Dup()
    others(made)
    made.Free()


def scans_and_roots(comm: gradred.Comm) -> None:
    """Calls that some ranks could end early: short ones, and those that ranks compare first."""
    for count, started in itertools.product((0, 1, 13, 700, 5000), (False, True)):
        x = values(count, RANK, "int16")
        before = [values(count, rank, "int16") for rank in range(RANK + 1)]
        wait = (lambda request: request.wait()) if started else (lambda result: result)
        scan = gradred.iscan if started else gradred.scan
        assert np.array_equal(wait(scan(x, comm=comm)), np.sum(before, axis=0))
        scaled = wait(scan(x.astype("f4"), gradred.premul(0.5), comm=comm))
        assert np.array_equal(scaled, np.sum(before, axis=0, dtype="f4") / 2)
        mean = wait(scan(x.astype("f8"), "avg", exclusive=True, comm=comm))
        assert RANK == 0 or np.array_equal(mean, np.sum(before[:-1], axis=0) / RANK)
        for root in range(SIZE):
            everyone = [values(count, rank + root, "int16") for rank in range(SIZE)]
            gather = gradred.igather if started else gradred.gather
            got = wait(gather(everyone[RANK], root, comm=comm))
            assert root != RANK or np.array_equal(got, np.concatenate(everyone)), (count, root)
            scatter = gradred.iscatter if started else gradred.scatter
            rows = np.concatenate(everyone) if root == RANK else np.empty(count, "int16")
            assert np.array_equal(wait(scatter(rows, root, comm=comm)), everyone[RANK])
            comm.Bcast(x, root)
            assert np.array_equal(x, values(count, root, "int16")), (count, root)
            x = values(count, RANK, "int16")
    for count in (3, 5000):
        with pytest.raises(gradred.UsageError, match="disagree"):
            comm.Bcast(np.ones(count + (RANK == SIZE - 1)))
        with pytest.raises(gradred.UsageError, match="disagree"):
            gradred.scan(np.ones(count), "max" if RANK == 0 else "sum", comm=comm)
        with pytest.raises(gradred.UsageError, match="disagree"):
            gradred.gather(np.ones(3 if RANK == 0 else count * 1000), comm=comm)
        assert_right(gradred.allreduce(values(9, RANK, "i4"), comm=comm), "sum", "after an error")


def every_plan(comm: gradred.Comm) -> None:
    """Long messages between hosts go in pieces, whose order matters."""
    families = _core.plan_families()
    names = [
        name
        for one in families
        if one["medium"] == "messages"
        for name in one["plans"]["allreduce"]
        if name != "hierarchical"
    ]
    assert "ring" in names
    for name, count in itertools.product(names, (7_001, 40_009, 400_003)):
        x = values(count, RANK, "float64")
        assert_right(gradred.allreduce(x, comm=comm, plan=name), "sum", (name, count))


LONG = 1_300_021  # float32: several pieces cross hosts
ENDS = (1, 12, 1013, 9112, 45_121, 145_124, 445_131, LONG)


def order_shows(count: int, rank: int, dtype: str) -> np.ndarray:
    """Numbers whose sum reveals the order in which they were added."""
    made = np.random.default_rng(rank)
    wide = made.standard_normal(count) * 2.0 ** made.integers(-9, 9, count)
    return wide.astype(numpy_dtype(dtype))


def any_length(comm: gradred.Comm) -> None:
    """GRADRED_DETERMINISTIC=size: the same bits in one call, in parts and fused."""
    for dtype in ("float32", "bfloat16"):
        x = order_shows(LONG, RANK, dtype)
        parts = np.split(x, ENDS[:-1])
        whole = gradred.allreduce(x, comm=comm)
        by_parts = [gradred.allreduce(part, comm=comm) for part in parts]
        fused = gradred.allreduce_many(parts, comm=comm)
        started = [gradred.iallreduce(part, comm=comm) for part in parts]
        for found in (by_parts, fused, [request.wait() for request in started]):
            assert np.concatenate(found).tobytes() == whole.tobytes(), (dtype, RANK)
        blocks = x[: LONG // SIZE * SIZE].reshape(SIZE, -1)
        block = gradred.reduce_scatter_block(blocks, comm=comm).ravel()
        for count in (1, 13, 1009, 100_003):
            part = gradred.reduce_scatter_block(blocks[:, :count].copy(), comm=comm)
            assert part.tobytes() == block[:count].tobytes(), (dtype, count, RANK)


def disagreeing(comm: gradred.Comm) -> None:
    """Each rank in turn makes another call, or refuses its arguments; small and large."""
    for odd, count, refused in itertools.product(range(SIZE), (5, 200_000), (False, True)):
        more = int(odd == RANK)
        x = np.ones(count + (0 if refused else more), "float32")
        y = np.ones(count + (-more if refused else more), "float32")
        try:
            comm.Allreduce(x, y)
        except (gradred.UsageError, MPI.Exception) as error:
            text = str(error)
        else:
            raise AssertionError(f"no error: rank {odd} was odd, {count} elements, {refused}")
        assert "rank" in text or odd == RANK, text
        x = values(count, RANK, "int32")
        assert_right(gradred.allreduce(x, comm=comm), "sum", "after an error")


def starting_odd(comm: gradred.Comm) -> None:
    """The same for calls in flight; the calls before and after are correct."""
    for odd in range(SIZE):
        good = values(5000, RANK, "int32")
        before, after = np.empty_like(good), np.empty_like(good)
        first = comm.Iallreduce(good, before)
        wrong = comm.Iallreduce(*(np.ones(9 + (odd == RANK)) for _ in range(2)))
        last = comm.Iallreduce(good, after)
        first.Wait()
        last.Wait()
        try:
            wrong.Wait()
        except gradred.UsageError:
            pass
        else:
            raise AssertionError("no error")
        assert_right(before, "sum", "before")
        assert_right(after, "sum", "after")


comm = gradred.Comm(WORLD)
x = values(10, RANK, "int32")
comm.Allreduce(MPI.IN_PLACE, x)
info = _core.comm_info(comm)
assert info["host_of"] == LAYOUT, info
shares_memory = bool(config.get("shm"))
assert info["hosts_share_memory"] == shares_memory, info
for part in sys.argv[1:]:
    globals()[part](comm)
for _ in range(3):  # parts of a pool, allocated again and again
    made = comm.Dup()
    made.Allreduce(MPI.IN_PLACE, values(4, RANK, "int32"))
    assert _core.comm_info(made)["hosts_share_memory"] == shares_memory
    halves = comm.Split(color=RANK % 2)
    half = np.ones(3)
    halves.Allreduce(MPI.IN_PLACE, half)
    assert (half == halves.size).all()
    halves.Free()
    made.Free()
print("right", flush=True)
