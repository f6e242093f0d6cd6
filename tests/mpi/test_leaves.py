"""`leaves=`: the bits of a sum depend on the list of leaves, not on the ranks that share it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mpi.knobs import use
from mpi.place import ON_ONE_HOST, WHY_NOT
from mpi4py import MPI

import gradred
from gradred.element_types import numpy_dtype

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size

pytestmark = pytest.mark.usefixtures("usable")

Vector = npt.NDArray[Any]


def split_of(leaves: int, seed: int) -> list[int]:
    """A number of leaves for each rank; the same on all ranks."""
    rng = random.Random(seed)
    cuts = sorted(rng.randint(0, leaves) for _ in range(SIZE - 1))
    return [b - a for a, b in itertools.pairwise([0, *cuts, leaves])]


def drawn(dtype: str, leaves: int, count: int) -> Vector:
    rng = np.random.default_rng(leaves)
    x = rng.standard_normal((leaves, count)) * np.exp2(rng.integers(-3, 3, (leaves, count)))
    return x.astype(numpy_dtype(dtype))


def own(x: Vector, split: Sequence[int]) -> Vector:
    begin = sum(split[:RANK])
    return np.ascontiguousarray(x[begin : begin + split[RANK]])


def alone(x: Vector, op: Any = "sum") -> Vector:
    """What one rank gets that has all leaves."""
    return gradred.allreduce(x, op, leaves=len(x), comm=MPI.COMM_SELF)


def by_function(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    return gradred.allreduce(x, op, leaves=split, comm=comm)


def by_out(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    out = np.empty(x.shape[1:], x.dtype)
    assert gradred.allreduce(x, op, out=out, leaves=split, comm=comm) is out
    return out


def started(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    return gradred.iallreduce(x, op, leaves=split, comm=comm).wait()


def by_method(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    out = np.empty(x.shape[1:], x.dtype)
    comm.Allreduce(x, out, op, leaves=split)
    return out


def by_started_method(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    out = np.empty(x.shape[1:], x.dtype)
    comm.Iallreduce(x, out, op, leaves=split).Wait()
    return out


def persistent(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    """The result of the second round; the first one has other leaves."""
    given, out = np.zeros_like(x), np.empty(x.shape[1:], x.dtype)
    request = comm.Allreduce_init(given, out, op, leaves=split)
    request()
    given[...] = x
    request.Start()
    request.Wait()
    request.Free()
    return out


def in_a_list(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    short = np.ones((len(x), 2, 3), x.dtype)
    first, found = gradred.allreduce_many([short, x], op, leaves=split, comm=comm)
    assert first.shape == (2, 3)
    return found


def in_a_started_list(comm: gradred.Comm, x: Vector, op: Any, split: Any) -> Vector:
    out = [np.empty(x.shape[1:], x.dtype), None]
    made = gradred.iallreduce_many(
        [x, x[:, :1].copy()], op, out=out, leaves=split, comm=comm
    ).wait()
    assert made[0] is out[0]
    assert made[1].tobytes() == made[0][:1].tobytes()
    return made[0]


WAYS = [
    by_function,
    by_out,
    started,
    by_method,
    by_started_method,
    persistent,
    in_a_list,
    in_a_started_list,
]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_the_split_does_not_matter(comm: gradred.Comm, dtype: str) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))  # later calls are gradred's own
    for leaves, count in [(1, 3), (5, 1), (12, 1000), (24, 100), (6, 300_000)]:
        x = drawn(dtype, leaves, count)
        wanted = alone(x).tobytes()
        for split in (split_of(leaves, count), split_of(leaves, count + 1)):
            for way in WAYS:
                found = way(comm, own(x, split), "sum", split)
                assert found.tobytes() == wanted, (way, leaves, count, split)


@pytest.mark.parametrize("op", ["prod", "min", "avg", gradred.premul(0.3), MPI.MAX])
def test_operations(comm: gradred.Comm, op: Any) -> None:
    for leaves, count in [(4, 50), (7, 300_000)]:
        x = drawn("float32", leaves, count)
        split, wanted = split_of(leaves, 3), alone(x, op).tobytes()
        for way in WAYS:
            assert way(comm, own(x, split), op, split).tobytes() == wanted, way


def test_a_function_of_the_program(comm: gradred.Comm) -> None:
    pytest.importorskip("numba")
    larger = gradred.user_op(lambda a, b: a if abs(a) > abs(b) else b)
    x = drawn("float64", 9, 300)
    split = split_of(9, 5)
    assert by_function(comm, own(x, split), larger, split).tobytes() == alone(x, larger).tobytes()


def test_one_number_of_leaves_for_all_ranks(comm: gradred.Comm) -> None:
    x = drawn("float32", 3 * SIZE, 10).reshape(3 * SIZE, 2, 5)
    mine = x[3 * RANK : 3 * RANK + 3]
    found = gradred.allreduce(mine, leaves=3, comm=comm)
    assert found.shape == (2, 5)
    assert found.tobytes() == alone(x).tobytes()
    for leaves in (np.int64(3), np.full(SIZE, 3), (3,) * SIZE):
        assert gradred.allreduce(mine, leaves=leaves, comm=comm).tobytes() == found.tobytes()


def test_leaves_that_are_numbers(comm: gradred.Comm) -> None:
    x = drawn("float64", 2 * SIZE, 1)[:, 0]
    found = gradred.allreduce(x[2 * RANK : 2 * RANK + 2].copy(), leaves=2, comm=comm)
    assert (found.shape, found[()]) == ((), alone(x)[()])


def test_lists_of_many_types_and_lengths(comm: gradred.Comm) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    split, shapes = split_of(6, 4), [(3,), (0,), (40_000,), (), (2, 500), (1,)]
    xs = [
        drawn(dtype, 6, int(np.prod(shape))).reshape(6, *shape)
        for dtype in ("float32", "float16", "complex128")
        for shape in shapes
    ]
    given = [own(x, split) for x in xs]
    wanted = [alone(x) for x in xs]
    out = [np.empty_like(one) for one in wanted]
    request = gradred.iallreduce_many(given, out=out, leaves=split, comm=comm)
    for found in (gradred.allreduce_many(given, leaves=split, comm=comm), request.wait(), out):
        for one, x, expected in zip(found, xs, wanted, strict=True):
            assert (one.dtype, one.shape) == (x.dtype, x.shape[1:])
            assert one.tobytes() == expected.tobytes()
    assert gradred.allreduce_many([], leaves=split, comm=comm) == []


def test_results_are_there_when_a_started_list_is_done(comm: gradred.Comm) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    xs, split = [drawn("float32", 5, count) for count in (7, 9)], split_of(5, 2)
    out = [np.zeros(count, np.float32) for count in (7, 9)]
    given = [own(x, split) for x in xs]
    request = gradred.iallreduce_many(given, out=out, leaves=split, comm=comm)
    while not request.done():
        pass
    assert [one.tobytes() for one in out] == [alone(x).tobytes() for x in xs]


@pytest.mark.parametrize(
    ("arrays_in", "how", "text"),
    [
        (lambda x: [x, x[:1]], {}, r"array 1: x has shape"),
        (lambda x: {"a": x}, {}, "is not a list of arrays"),
        (lambda x: [x], {"out": []}, "1 arrays, but 0 in out="),
        (lambda x: [x], {"wire": "int8"}, "Leave out stream=, plan= and wire="),
        (lambda x: [x, x], {"out": "one twice"}, "Pass an out= that shares no memory"),
        (lambda x: [x, x], {"out": "an input"}, "Pass an out= that shares no memory"),
    ],
)
def test_lists_that_do_not_fit(
    comm: gradred.Comm, arrays_in: Any, how: dict[str, Any], text: str
) -> None:
    x = np.ones((2, 4), np.float32)
    outs = {"one twice": [x[0].copy()] * 2, "an input": [x[1], x[0].copy()]}
    how = {
        name: outs[value] if isinstance(value, str) and name == "out" else value
        for name, value in how.items()
    }
    for function in (gradred.allreduce_many, gradred.iallreduce_many):
        with pytest.raises(gradred.UsageError, match=text):
            function(arrays_in(x), leaves=2, comm=comm, **how)
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


@pytest.mark.skipif(SIZE == 1, reason="nobody to disagree with")
def test_ranks_with_different_lists_disagree(comm: gradred.Comm) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    x = [np.ones((1, 3)), np.ones((1, 40_000))][: 1 if RANK else 2]
    with pytest.raises(gradred.UsageError, match="disagree"):
        gradred.allreduce_many(x, leaves=1, comm=comm)
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


def test_persistent_sums_may_be_started_in_any_order(comm: gradred.Comm) -> None:
    xs = [drawn("float32", 6, count) for count in (3, 70_000, 500)]
    split = split_of(6, 3)
    given, outs = [own(x, split) for x in xs], [np.empty(x.shape[1], np.float32) for x in xs]
    requests = [
        comm.Allreduce_init(x, out, leaves=split) for x, out in zip(given, outs, strict=True)
    ]
    for _ in range(3):
        MPI.Prequest.Startall(requests if RANK % 2 else requests[::-1])
        MPI.Request.Waitall(requests)
        for x, out in zip(xs, outs, strict=True):
            assert out.tobytes() == alone(x).tobytes()
            out[...] = 0
    requests[0].Start()
    with pytest.raises(gradred.UsageError, match="is started already"):
        requests[0].Start()
    requests[0].Wait()
    for request in requests:
        request.Free()


@pytest.fixture
def by_leaves() -> Iterator[gradred.Comm]:
    """A communicator of a job of 7 leaves that refuses what depends on the number of ranks."""
    use(deterministic="ranks", leaves=7)
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    yield comm
    comm.Free()
    use()


def test_leaves_of_the_job_are_split_by_the_numbers_of_ranks(by_leaves: gradred.Comm) -> None:
    mine = gradred.leaves_of_job(by_leaves)
    every = by_leaves.allgather(mine)
    assert [one for share in every for one in share] == list(range(7))
    assert max(map(len, every)) - min(map(len, every)) <= 1
    by_leaves.Allreduce(np.ones(1, "i4"), np.empty(1, "i4"))
    for count in (3, 300_000):
        x = drawn("float32", 7, count)
        wanted = alone(x).tobytes()
        for way in WAYS:
            found = way(by_leaves, np.ascontiguousarray(x[mine.start : mine.stop]), "sum", "job")
            assert found.tobytes() == wanted, way


def test_a_level_for_any_number_of_ranks_takes_one_leaf_each(by_leaves: gradred.Comm) -> None:
    by_leaves.Allreduce(np.ones(1, "i4"), np.empty(1, "i4"))
    x = drawn("float64", SIZE, 50)
    for way in WAYS:
        assert way(by_leaves, x[RANK : RANK + 1], "sum", 1).tobytes() == alone(x).tobytes(), way


def plain_calls(comm: gradred.Comm, x: Vector) -> list[Callable[[], Any]]:
    y, z = np.empty_like(x), x.copy()
    return [
        lambda: gradred.allreduce(x, comm=comm),
        lambda: gradred.iallreduce(x, comm=comm).wait(),
        lambda: gradred.allreduce_many([x, x], comm=comm)[1],
        lambda: (comm.Allreduce(x, y), y)[1],
        lambda: (comm.Allreduce_init(x, y)(), y)[1],
        lambda: (comm.Allreduce(MPI.IN_PLACE, z), z)[1],
    ]


def test_a_sum_of_as_many_ranks_as_leaves_is_one_of_leaves() -> None:
    use(deterministic="ranks", leaves=SIZE)
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    comm.Allreduce(np.ones(1, "i4"), np.empty(1, "i4"))
    try:
        for dtype, count in (("float32", 5), ("float16", 700), ("complex128", 100_000)):
            x = drawn(dtype, SIZE, count)
            for call in plain_calls(comm, x[RANK]):
                if SIZE & (SIZE - 1) == 0:
                    assert call().tobytes() == alone(x).tobytes(), dtype
                else:
                    with pytest.raises(gradred.UsageError, match="GRADRED_DETERMINISTIC is ranks"):
                        call()
    finally:
        comm.Free()
        use()


def test_sums_that_depend_on_the_number_of_ranks_are_refused(by_leaves: gradred.Comm) -> None:
    by_leaves.Barrier()
    x, y = np.ones((SIZE, 3)), np.empty((SIZE, 3))
    own = MPI.Op.Create(lambda a, b, _: None, commute=True)
    calls: list[Callable[[], Any]] = [
        lambda: by_leaves.Allreduce(x, y),
        lambda: by_leaves.Allreduce(x, y, MPI.PROD),
        lambda: by_leaves.Iallreduce(x, y).Wait(),
        lambda: by_leaves.Allreduce_init(x, y)(),
        lambda: gradred.allreduce(x, "avg", comm=by_leaves),
        lambda: gradred.iallreduce(x, comm=by_leaves).wait(),
        lambda: gradred.allreduce_many([x], comm=by_leaves),
        lambda: gradred.allreduce(x.astype("f4"), comm=by_leaves, wire="int8"),
        lambda: gradred.reduce_scatter_block(x, comm=by_leaves),
        lambda: gradred.scan(x, comm=by_leaves),
        lambda: by_leaves.Allreduce(x, y, own),
        lambda: by_leaves.Iallreduce(x, y, own),
        lambda: by_leaves.Allreduce(x.astype("g"), y.astype("g")),
        lambda: by_leaves.Reduce(x, y),
        lambda: by_leaves.Ireduce(x, y, op=MPI.PROD),
        lambda: by_leaves.allreduce(0.5),
        lambda: by_leaves.reduce(0.5),
        lambda: by_leaves.exscan(0.5),
    ]
    for call in calls:
        with pytest.raises(gradred.UsageError, match="GRADRED_DETERMINISTIC is ranks"):
            call()
    whole = x.astype(int)
    assert gradred.allreduce(whole, comm=by_leaves).tolist() == (SIZE * whole).tolist()
    assert gradred.allreduce(x, "max", comm=by_leaves).tolist() == x.tolist()
    assert gradred.exact_sum(x, comm=by_leaves) == x.size * SIZE
    assert by_leaves.allreduce(2) == by_leaves.allreduce(2.0, MPI.MAX) * SIZE == 2 * SIZE
    by_leaves.Reduce(x, y, MPI.MAX)
    own.Free()


def test_without_a_number_of_leaves_the_job_has_none(comm: gradred.Comm) -> None:
    with pytest.raises(gradred.UsageError, match="gradred run --leaves"):
        gradred.leaves_of_job(comm)
    with pytest.raises(gradred.UsageError, match="gradred run --leaves"):
        gradred.allreduce(np.ones((1, 2)), leaves="job", comm=comm)


def test_many_in_flight(comm: gradred.Comm) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    x = [drawn("float32", 5, count) for count in (1, 700, 40_000, 3, 9_000)]
    split = split_of(5, 9)
    requests = [gradred.iallreduce(own(one, split), leaves=split, comm=comm) for one in x]
    plain = gradred.allreduce(np.ones(3), comm=comm)
    for one, request in reversed(list(zip(x, requests, strict=True))):
        assert request.wait().tobytes() == alone(one).tobytes()
    assert plain.tolist() == [SIZE] * 3


@pytest.mark.skipif(SIZE == 1, reason="one rank needs nobody")
def test_started_before_any_blocking_call_it_is_refused() -> None:
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = drawn("float32", 3, 200_000)
    with pytest.raises(gradred.UsageError, match="leaves and a non-blocking call that the MPI"):
        gradred.iallreduce(x, leaves=3, comm=comm)
    with pytest.raises(gradred.UsageError, match="leaves and a non-blocking call that the MPI"):
        comm.Iallreduce(np.ones((1, 5), np.int16), np.empty(5, np.int16), leaves=1)
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2
    assert gradred.iallreduce(x, leaves=3, comm=comm).wait().shape == (200_000,)
    comm.Free()


@pytest.mark.parametrize("count", [5, 300_000])
@pytest.mark.skipif(not ON_ONE_HOST, reason=WHY_NOT)
def test_on_a_communicator_without_an_mpi(count: int) -> None:
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    alike = comm.shrink()
    x, split = drawn("float32", 7, count), split_of(7, 2)
    wanted = alone(x).tobytes()
    assert by_function(alike, own(x, split), "sum", split).tobytes() == wanted
    assert by_method(alike, own(x, split), "sum", split).tobytes() == wanted
    if SIZE > 1 and max(split) > 1:
        for function in (started, by_started_method):
            with pytest.raises(gradred.UsageError):
                function(alike, own(x, split), "sum", split)
    comm.Free()


def test_tensors(comm: gradred.Comm) -> None:
    torch = pytest.importorskip("torch")
    x = drawn("float32", 2 * SIZE, 100)
    mine = torch.from_numpy(own(x, [2] * SIZE)).bfloat16()
    found = gradred.allreduce(mine, leaves=2, comm=comm)
    everyone = torch.from_numpy(x).bfloat16()
    wanted = gradred.allreduce(everyone, leaves=2 * SIZE, comm=MPI.COMM_SELF)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"leaves": 3}, "The first axis has as many leaves"),
        ({"leaves": [2] * (SIZE + 1)}, "Pass a number for each of the"),
        ({"leaves": [0] * SIZE}, "not all of them 0"),
        ({"leaves": 0}, "not all of them 0"),
        ({"leaves": "two"}, "Pass the number of leaves"),
        ({"leaves": 2.0}, "Pass the number of leaves"),
        ({"leaves": 2, "plan": "ring"}, "Leave out stream=, plan= and wire="),
        ({"leaves": 2, "op": MPI.MINLOC}, "the MPI alone knows this operation"),
        ({"leaves": 2, "out": np.empty(3)}, "Pass an out= of that shape"),
    ],
)
def test_arguments_that_do_not_fit(
    comm: gradred.Comm, arguments: dict[str, Any], text: str
) -> None:
    for function in (gradred.allreduce, gradred.iallreduce):
        with pytest.raises(gradred.UsageError, match=text):
            function(np.ones((2, 4), np.float32), comm=comm, **arguments)
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


@pytest.mark.parametrize(
    ("send", "arguments", "text"),
    [
        (MPI.IN_PLACE, {"leaves": 2}, "Pass them as sendbuf"),
        (np.ones(9), {"leaves": 2}, "Pass 2 times as many in sendbuf"),
        (np.ones(8, "f4"), {"leaves": 2}, "Pass two buffers of one type"),
        (np.ones((2, 4), "f8"), {"leaves": 2, "overlaps": True}, "Pass a recvbuf of its own"),
        (np.ones((2, 4), order="F"), {"leaves": 2}, "not in C order.*numpy.ascontiguousarray"),
        (np.ones(8), {"leaves": 2, "op": MPI.MINLOC}, "the MPI alone knows this operation"),
        (np.ones(8), {"leaves": 2, "stream": 0}, "Leave out stream="),
    ],
)
def test_buffers_that_do_not_fit(
    comm: gradred.Comm, send: Any, arguments: dict[str, Any], text: str
) -> None:
    arguments = dict(arguments)
    out = send[0] if arguments.pop("overlaps", False) else np.empty(4)
    for method in (comm.Allreduce, comm.Iallreduce, comm.Allreduce_init):
        if method == comm.Allreduce_init and "stream" in arguments:
            continue
        with pytest.raises(gradred.UsageError, match=text):
            method(send, out, **arguments)
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


def test_means_of_integers_are_refused(comm: gradred.Comm) -> None:
    with pytest.raises(gradred.UsageError, match="divide the sum"):
        gradred.allreduce(np.ones((1, 3), np.int64), "avg", leaves=1, comm=comm)
    x = np.arange(4 * SIZE).reshape(2 * SIZE, 2)
    assert by_function(comm, own(x, [2] * SIZE), "sum", 2).tolist() == x.sum(0).tolist()


@pytest.mark.skipif(SIZE == 1, reason="nobody to disagree with")
@pytest.mark.parametrize("count", [3, 40_000])
def test_ranks_with_different_splits_disagree(comm: gradred.Comm, count: int) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    split = [2] * SIZE
    if RANK == 0:
        split[1] += 1
    with pytest.raises(gradred.UsageError) as caught:
        gradred.allreduce(np.ones((2, count)), leaves=split, comm=comm)
    assert f"a sum of leaves={tuple(split)}" in str(caught.value)
    assert "disagree" in str(caught.value)
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


@pytest.mark.skipif(SIZE == 1, reason="nobody to disagree with")
@pytest.mark.parametrize("count", [3, 40_000, 300_000])
@pytest.mark.parametrize(
    ("own_op", "others"), [("max", "sum"), (gradred.premul(2.0), gradred.premul(3.0))]
)
def test_ranks_with_different_operations_disagree(
    comm: gradred.Comm, own_op: Any, others: Any, count: int
) -> None:
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    x = np.ones((3, count))
    op = own_op if RANK == 0 else others
    with pytest.raises(gradred.UsageError):
        gradred.allreduce(x, op, leaves=3, comm=comm)
    with pytest.raises(gradred.UsageError):
        gradred.iallreduce(x, op, leaves=3, comm=comm).wait()
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


@pytest.mark.parametrize("op", ["land", "lor", "lxor", "bxor", "min"])
def test_truth_values(comm: gradred.Comm, op: str) -> None:
    x = np.random.default_rng(2).random((3 * SIZE, 50)) < 0.5
    for way in WAYS:
        found = way(comm, own(x, [3] * SIZE), op, [3] * SIZE)
        assert found.tobytes() == alone(x, op).tobytes()


def test_integers_wrap_however_the_ranks_split_them(comm: gradred.Comm) -> None:
    x = np.full((SIZE, 40), 30_000, np.int16)
    for way in WAYS:
        assert way(comm, own(x, [1] * SIZE), "sum", 1).tobytes() == x.sum(0, np.int16).tobytes()


@pytest.mark.skipif(SIZE == 1, reason="one rank has a leaf")
def test_tensor_without_leaves_has_no_memory(comm: gradred.Comm) -> None:
    torch = pytest.importorskip("torch")
    split = [0] * (SIZE - 1) + [2]
    for count in (3, 300_000):
        x = torch.ones(split[RANK], count)
        assert gradred.allreduce(x, leaves=split, comm=comm).tolist() == [2.0] * count
        assert gradred.iallreduce(x, leaves=split, comm=comm).wait().tolist() == [2.0] * count


def test_schedule_of_leaves_is_no_plan(comm: gradred.Comm) -> None:
    def plan(rank: int, size: int) -> gradred.schedules.Schedule:
        return gradred.schedules.leaf_tree(rank, [3] * size)

    with pytest.raises(gradred.UsageError, match="Pass leaves= instead of plan="):
        gradred.allreduce(np.ones(4), comm=comm, plan=plan)


@pytest.mark.skipif(SIZE == 1, reason="nobody to disagree with")
def test_a_rank_that_refuses_its_leaves_is_named(comm: gradred.Comm) -> None:
    rows = 3 if RANK == 1 else 2
    text = "The first axis has as many leaves" if RANK == 1 else "rank 1"
    with pytest.raises(gradred.UsageError, match=text):
        gradred.allreduce(np.ones((rows, 5)), leaves=2, comm=comm)
