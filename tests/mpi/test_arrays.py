"""gradred.allreduce and its like: any array in, the same kind of array out."""

from __future__ import annotations

import array
import mmap
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from lenders import Lender
from mpi4py import MPI

import gradred
from gradred import UsageError, _core, schedules
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype
from gradred.schedules import Schedule

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2


@pytest.mark.parametrize("dtype", [name for name in ITEMSIZES if name != "bool"])
def test_numpy_arrays_of_every_type(dtype: str) -> None:
    few_digits = ELEMENT_TYPES[dtype].digits < 6
    mine, total = (1, SIZE) if few_digits else (RANK + 1, TOTAL)
    x = np.full((2, 3), mine, numpy_dtype(dtype))
    y = gradred.allreduce(x)
    assert (type(y), y.dtype, y.shape) == (type(x), x.dtype, x.shape)
    assert (y == np.full((2, 3), total, numpy_dtype(dtype))).all()
    assert (x == np.full((2, 3), mine, numpy_dtype(dtype))).all()


@pytest.mark.parametrize("op", gradred.OPS)
def test_every_operation_by_name(op: str) -> None:
    x = np.array([RANK + 1, 2, RANK % 2], "int32")
    everyone = np.array([[rank + 1, 2, rank % 2] for rank in range(SIZE)], "int32")
    ufunc = {
        **{"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum},
        **{"land": np.logical_and, "lor": np.logical_or, "lxor": np.logical_xor},
        **{"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor},
    }.get(op, np.add)
    expected = everyone[0] if op[0] != "l" else everyone[0].astype(bool)
    for row in everyone[1:]:
        expected = ufunc(expected, row)
    if op == "avg":
        expected = np.trunc(expected / SIZE)
    y = gradred.allreduce(x, op)
    assert (y.astype(bool) if op[0] == "l" else y).tolist() == expected.astype(int).tolist()


def test_premul_multiplies_first() -> None:
    assert gradred.allreduce(np.ones(2), gradred.premul(0.25)).tolist() == [SIZE / 4] * 2


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (1, 5, 1)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    y = gradred.allreduce(np.full(shape, 2.0))
    assert y.shape == shape
    assert (y == 2.0 * SIZE).all()


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_dense_layouts_are_kept(axes: tuple[int, ...]) -> None:
    base = np.arange(24.0).reshape(2, 3, 4).transpose(axes)
    y = gradred.allreduce(base)
    assert y.strides == base.strides
    np.testing.assert_array_equal(y, base * SIZE)


@pytest.mark.parametrize(
    "x", [array.array("f", [1, 2]), bytearray(b"\x01\x02"), memoryview(np.ones(2)), b"\x01\x02"]
)
def test_other_kinds_come_back_as_they_are(x: Any) -> None:
    y = gradred.allreduce(x)
    assert type(y) is type(x)
    assert np.asarray(memoryview(y)).tolist() == (np.asarray(memoryview(x)) * SIZE).tolist()


def test_scalars_of_numpy_come_back_as_they_are() -> None:
    y = gradred.allreduce(np.float32(RANK + 1))
    assert (type(y), y) == (np.float32, TOTAL)
    out = np.zeros((), "f4")
    assert gradred.allreduce(np.float32(RANK + 1), out=out) is out
    assert out == TOTAL


def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        x = jnp.full((2, 3), RANK + 1, dtype)
        y = gradred.allreduce(x)
        assert isinstance(y, type(x))
        assert y.dtype == x.dtype
        assert (y == jnp.asarray(TOTAL, dtype)).all()
        with pytest.raises(UsageError, match="out is read-only"):
            gradred.allreduce(x, out=x)


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        x = torch.full((2, 3, 4, 5), RANK + 1.0).to(dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        y = gradred.allreduce(x)
        assert (y.dtype, y.stride()) == (x.dtype, x.stride())
        assert (y.float() == torch.tensor(TOTAL).to(dtype).float()).all()
        assert gradred.allreduce(x, out=x) is x
        assert (x.float() == y.float()).all()
    with pytest.raises(UsageError, match=r"x\.detach\(\)"):
        gradred.allreduce(torch.ones(2, requires_grad=True))


@pytest.mark.filterwarnings("error")
def test_methods_of_mpi4py_take_dense_arrays_with_axes_in_any_order() -> None:
    torch = pytest.importorskip("torch")
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = torch.full((2, 3, 4, 5), RANK + 1.0).contiguous(memory_format=torch.channels_last)
    turned = np.full((4, 3, 2), RANK + 1.0).transpose(1, 0, 2)
    for given, empty in ((x, torch.empty_like(x)), (turned, np.empty_like(turned))):
        comm.Allreduce(given, empty)
        assert (empty == TOTAL).all()
        empty[:] = 0
        comm.Iallreduce(given, empty).Wait()
        assert (empty == TOTAL).all()
        request = comm.Allreduce_init(MPI.IN_PLACE, empty)
        request.Start()
        request.Wait()
        assert (empty == TOTAL * SIZE).all()
        with pytest.raises(UsageError, match="axes in different orders"):
            comm.Allreduce(given, np.ascontiguousarray(empty))
    if SIZE > 1:
        mine = x if RANK == 0 else x.contiguous()
        with pytest.raises(UsageError, match="order of axes"):
            comm.Allreduce(MPI.IN_PLACE, mine)
        square = torch.ones(3, 4) if RANK == 0 else torch.ones(4, 3).T
        with pytest.raises(UsageError, match="order of axes"):
            comm.Allreduce(MPI.IN_PLACE, square)
    columns = torch.full((4 * SIZE, 3), RANK + 1.0)
    part = torch.zeros(3, 4).T  # the MPI sees bytes
    comm.Reduce_scatter_block(columns.T, part)
    assert (part == TOTAL).all()
    turned_twice = torch.full((4, 3), RANK + 1.0).T
    comm.Allreduce(MPI.IN_PLACE, turned_twice)
    assert (turned_twice == TOTAL).all()
    with pytest.raises(UsageError, match="axes in different orders"):
        comm.Allreduce(turned_twice, torch.ones(3, 4))
    with pytest.raises(UsageError, match="axes are in another order"):
        comm.Bcast(x)
    # Types that only the MPI has.
    wide = np.full((4, 3, 2), RANK + 1.0, np.longdouble).transpose(1, 0, 2)
    comm.Allreduce(MPI.IN_PLACE, wide)
    assert (wide == TOTAL).all()
    if SIZE > 1:
        mine = wide if RANK == 0 else np.ascontiguousarray(wide)
        with pytest.raises(UsageError, match="disagree"):
            comm.Allreduce(MPI.IN_PLACE, mine)
    with pytest.raises(UsageError, match="axes are in another order"):
        comm.Iallreduce(MPI.IN_PLACE, wide)
    comm.Free()


GAPS = {
    "NumPy": lambda: np.zeros((4, 2))[:, 0],
    "memoryview": lambda: memoryview(bytearray(8))[::2],
    "torch": lambda: pytest.importorskip("torch").zeros(8)[::2],
}


@pytest.mark.parametrize("kind", GAPS)
def test_the_remedy_for_gaps_suits_input_and_result_and_names_the_call(kind: str) -> None:
    """The result would go to a copy of the array, which the program would not see."""
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    x: Any = GAPS[kind]()
    y: Any = x.contiguous() if kind == "torch" else np.array(x)
    blocks = np.zeros(4 * SIZE, str(y.dtype).removeprefix("torch."))
    calls: list[tuple[str, Any, Any]] = [
        ("Allreduce", comm.Allreduce, (y, x)),
        ("Iallreduce", comm.Iallreduce, (y, x)),
        ("Iallreduce", comm.Iallreduce, (MPI.IN_PLACE, x)),
        ("Allreduce_init", comm.Allreduce_init, (y, x)),
        ("Reduce_scatter_block", comm.Reduce_scatter_block, (blocks, x)),
        ("Ireduce_scatter_block", comm.Ireduce_scatter_block, (blocks, x)),
    ]
    for name, method, arguments in calls:
        place = rf"^{name}'s recvbuf: .*in its place, and copy the result"
        with pytest.raises(UsageError, match=place):
            method(*arguments)
        if arguments[0] is MPI.IN_PLACE:
            continue
        with pytest.raises(UsageError, match=rf"^{name}'s sendbuf: .*Pass a contiguous copy"):
            method(x, y)
    with pytest.raises(UsageError, match="in its place, and copy the result"):
        gradred.allreduce(y, out=x, comm=comm)
    with pytest.raises(UsageError, match="Pass a contiguous copy, for example"):
        gradred.allreduce(x, comm=comm)
    comm.Free()


def test_out_receives_the_result() -> None:
    x, y = np.full(3, RANK + 1), np.zeros(3, int)
    assert gradred.allreduce(x, out=y) is y
    assert y.tolist() == [TOTAL] * 3
    assert gradred.allreduce(x, out=x) is x
    assert x.tolist() == [TOTAL] * 3


def read_only() -> npt.NDArray[Any]:
    x = np.zeros((2, 3))
    x.flags.writeable = False
    return x


MEMORY = np.zeros(20)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (np.zeros((2, 3)), read_only(), "out is read-only"),
        (read_only(), None, ""),
        (np.zeros((2, 3)), np.zeros((3, 2)), r"out is float64 of shape \(3, 2\).*result"),
        (np.zeros((2, 3)), np.zeros((2, 3), order="F"), "axes in the order"),
        (np.zeros((2, 3)), np.zeros((2, 3), "float32"), "out is float32"),
        (MEMORY[:10], MEMORY[5:15], "would overwrite a part of the input"),
        (np.zeros((4, 4))[:, ::2], None, "not dense"),
        (np.zeros(3, object), None, "no reductions"),
        (3.0, None, "a float is not an array"),
    ],
)
def test_arrays_that_do_not_fit(x: Any, out: Any, message: str) -> None:
    if not message:
        assert gradred.allreduce(x, out=out).flags.writeable
        return
    with pytest.raises(UsageError, match=message):
        gradred.allreduce(x, out=out)
    assert gradred.allreduce(np.ones(1))[0] == SIZE


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize(
    "different",
    [
        lambda odd: np.zeros(5 if odd else 4),
        lambda odd: np.zeros(4, "float32" if odd else "int32"),
        lambda odd: np.zeros((2, 3) if odd else (3, 2)),
        lambda odd: np.zeros((2, 3), order="F" if odd else "C"),
    ],
)
def test_ranks_that_disagree_all_get_an_error(different: Any) -> None:
    with pytest.raises(UsageError):
        gradred.allreduce(different(RANK == SIZE - 1))
    assert gradred.allreduce(np.ones(1))[0] == SIZE


def test_many_arrays_of_mixed_types_and_sizes() -> None:
    given = [
        np.full((2, 3), RANK + 1, "float32"),
        np.full(4, RANK, "int64"),
        np.zeros(0, "float32"),
        np.array(float(RANK)),
        np.full((3, 2), 1, ml_dtypes.bfloat16).T,
        array.array("f", [1, RANK]),
    ]
    results = gradred.allreduce_many(given)
    for x, y in zip(given, results, strict=True):
        assert type(y) is type(x)
        np.testing.assert_array_equal(np.asarray(y), np.asarray(gradred.allreduce(x)))
    assert results[4].strides == given[4].strides


def test_many_arrays_in_place_and_into_out() -> None:
    a, b, c = np.full(2, 1.0), np.full(3, 2.0), np.zeros(2)
    assert gradred.allreduce_many([a, b], out=[c, b])[0] is c
    assert (a.tolist(), b.tolist(), c.tolist()) == ([1, 1], [2 * SIZE] * 3, [SIZE] * 2)
    with pytest.raises(UsageError, match="2 arrays, but 1 in out="):
        gradred.allreduce_many([a, b], out=[a])
    with pytest.raises(UsageError, match="bool has no 'sum'"):
        gradred.allreduce_many([a, np.ones(2, bool)])
    assert gradred.allreduce_many([]) == []


# Around the sizes up to which arrays are packed; several of them fill more than one vector.
MIXED_SIZES = [1, 1023, 1024, 1025, 0, 65_536, 65_537, 3, 900_000, *[65_000] * 20, 7]


@pytest.mark.parametrize("plan", [None, "ring"])
@pytest.mark.parametrize("op", ["sum", "avg", gradred.premul(2.0)])
@pytest.mark.parametrize("started", [False, True])
def test_small_arrays_are_packed_and_large_ones_reduced_where_they_lie(
    plan: str | None, op: Any, started: bool
) -> None:
    factor = {"sum": SIZE, "avg": 1}.get(op, 2 * SIZE) if isinstance(op, str) else 2 * SIZE
    given = [np.arange(n, dtype="float32") % 512 for n in MIXED_SIZES]
    given[4:4] = [np.arange(2000, dtype="int64"), np.arange(12.0, dtype="float32").reshape(3, 4).T]
    expected = [x * factor for x in given]
    before = [x.copy() for x in given]
    call = gradred.iallreduce_many if started else gradred.allreduce_many
    for out in (None, [np.empty_like(x) for x in given], given):
        found = call(given, op, out=out, plan=plan)
        results = found.wait() if isinstance(found, gradred.ArrayRequest) else found
        for i, (x, y) in enumerate(zip(expected, results, strict=True)):
            assert (y == x).all(), (i, y)
            assert y.strides == given[i].strides
            assert out is None or y is out[i]
        if out is not given:
            assert all((x == y).all() for x, y in zip(given, before, strict=True))


def test_ranks_whose_arrays_are_of_other_kinds_agree() -> None:
    x = np.arange(12, dtype="float32").reshape(1, 3, 1, 4)
    plain = [x, x.transpose(3, 0, 1, 2), np.asfortranarray(x), np.ones((5, 1, 2), order="F")]
    lent: list[Any] = [Lender(each) for each in plain]  # Python reads the memory of these
    given: Any = plain if RANK % 2 == 0 else lent
    outs = [np.empty_like(each) for each in plain]
    gradred.allreduce_many(given, out=outs)
    assert all((y == each * SIZE).all() for each, y in zip(plain, outs, strict=True))


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize(
    "lists",
    [
        ([np.ones(2), np.ones(3)], [np.ones(3), np.ones(2)]),
        ([np.ones(2), np.ones(2, "i4")], [np.ones(2, "i4"), np.ones(2)]),
        ([np.ones(2)], [np.ones(2), np.ones(2, "i4")]),
        ([], [np.ones(2)]),
    ],
)
def test_ranks_with_different_lists_all_get_an_error(lists: Any) -> None:
    with pytest.raises(UsageError):
        gradred.allreduce_many(lists[RANK == SIZE - 1])
    assert gradred.allreduce(np.ones(1))[0] == SIZE


@pytest.mark.parametrize("comm", [None, MPI.COMM_WORLD, gradred.Comm(MPI.COMM_WORLD)])
def test_any_communicator_serves(comm: Any) -> None:
    assert gradred.allreduce(np.ones(2), comm=comm).tolist() == [SIZE] * 2


def test_what_is_no_stream_and_what_is_no_communicator_is_refused() -> None:
    with pytest.raises(UsageError, match="Pass 1 for the legacy default stream"):
        gradred.allreduce(np.ones(2), stream=0)
    with pytest.raises(TypeError, match=r"Pass an MPI\.Intracomm"):
        gradred.allreduce(np.ones(2), comm="world")  # type: ignore[call-overload]


# ---- plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["ring", "recursive_doubling", "mpi"])
def test_plan_by_name(plan: str) -> None:
    assert gradred.allreduce(np.arange(7.0), plan=plan).tolist() == [i * SIZE for i in range(7)]


def test_unknown_plan_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"Did you mean 'ring'\?$"):
        gradred.allreduce(np.ones(2), plan="rang")
    with pytest.raises(TypeError, match="a float is not a plan"):
        gradred.allreduce(np.ones(2), plan=1.0)  # type: ignore[call-overload]


def my_ring(rank: int, size: int) -> Schedule:
    return schedules.make("ring", rank, size)


def test_schedule_of_the_users_own() -> None:
    for plan in (my_ring, my_ring(RANK, SIZE)):
        for _ in range(2):
            y = gradred.allreduce(np.arange(7.0), plan=plan)
            assert y.tolist() == [i * SIZE for i in range(7)]


def test_wrong_schedules_are_refused() -> None:
    def does_nothing(rank: int, size: int) -> Schedule:
        return Schedule([], rank=rank, size=size, chunks=1)

    if SIZE > 1:
        with pytest.raises(UsageError, match="is wrong"):
            gradred.allreduce(np.ones(2), plan=does_nothing)
    with pytest.raises(UsageError, match=f"by rank {RANK} of {SIZE}"):
        gradred.allreduce(np.ones(2), plan=my_ring(0, SIZE + 1))
    with pytest.raises(TypeError, match="it made a list"):
        gradred.allreduce(np.ones(2), plan=lambda rank, size: [])  # type: ignore[call-overload]


# ---- the parts of an allreduce --------------------------------------------------------------


def test_reduce_scatter_block_gives_each_rank_its_block() -> None:
    x = np.arange(2.0 * SIZE * 3).reshape(2 * SIZE, 3)
    y = gradred.reduce_scatter_block(x)
    np.testing.assert_array_equal(y, SIZE * x[2 * RANK : 2 * RANK + 2])
    out = np.zeros((2, 3))
    assert gradred.reduce_scatter_block(x, "max", out=out) is out
    np.testing.assert_array_equal(out, x[2 * RANK : 2 * RANK + 2])
    with pytest.raises(UsageError, match="equal blocks"):
        gradred.reduce_scatter_block(np.array(1.0))
    with pytest.raises(UsageError, match="not in C order"):
        gradred.reduce_scatter_block(np.asfortranarray(np.ones((2 * SIZE, 2))))


def test_allgather_puts_arrays_one_after_the_other() -> None:
    y = gradred.allgather(np.full((2, 3), RANK))
    assert y.shape == (2 * SIZE, 3)
    assert y[:, 0].tolist() == [rank for rank in range(SIZE) for _ in range(2)]
    assert gradred.allgather(np.array(RANK)).tolist() == list(range(SIZE))
    assert list(gradred.allgather(array.array("i", [RANK]))) == list(range(SIZE))


@pytest.mark.parametrize("root", range(SIZE))
def test_bcast_gives_the_array_of_root(root: int) -> None:
    x = np.full((2, 3), RANK, ml_dtypes.bfloat16, order="F")
    y = gradred.bcast(x, root)
    assert (y.astype(int) == root).all()
    assert (x.astype(int) == RANK).all()
    assert (y is x) == (root == RANK)
    assert gradred.bcast(x, root, out=x) is x
    assert (x.astype(int) == root).all()


@pytest.mark.parametrize("count", [10_000, 300_007])
@pytest.mark.parametrize("root", range(SIZE))
def test_long_bcast_makes_new_arrays_but_on_its_root(root: int, count: int) -> None:
    for turn in range(20):  # by each data path
        x = np.arange(count) + turn if root == RANK else np.zeros(count, int)
        x.flags.writeable = False
        y = gradred.bcast(x, root)
        assert np.shares_memory(x, y) == (root == RANK)
        assert (y == np.arange(count) + turn).all()
        assert x[-1] == (count - 1 + turn if root == RANK else 0)
        z = np.zeros_like(x)
        assert gradred.bcast(x, root, out=z) is z
        assert (z == y).all()


# ---- memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_empty_begins_at_a_page(dtype: str) -> None:
    for shape in [(3, 5), 7, (), (0, 2)]:
        x = gradred.empty(shape, dtype)
        assert x.shape == ((shape,) if isinstance(shape, int) else shape)
        assert x.ctypes.data % mmap.PAGESIZE == 0 or x.size == 0
        assert (x.dtype, x.flags.c_contiguous) == (numpy_dtype(dtype), True)
    assert gradred.zeros(1000, dtype).astype(float).sum() == 0
    with pytest.raises(UsageError, match="gradred does not reduce it"):
        gradred.empty(3, "datetime64[s]")


def test_empty_like_a_tensor_on_the_host_is_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(2, 3, 4, dtype=dtype).permute(1, 2, 0)
        y = gradred.empty_like(x)
        assert (y.shape, y.stride(), y.dtype) == (x.shape, x.stride(), dtype)
        assert y.data_ptr() % mmap.PAGESIZE == 0
    assert gradred.empty_like(array.array("d", [1, 2])).dtype == np.float64


def test_empty_like_keeps_the_layout() -> None:
    x = np.zeros((2, 3, 4), "int16").transpose(1, 2, 0)
    y = gradred.empty_like(x)
    assert (y.shape, y.strides, y.dtype) == (x.shape, x.strides, x.dtype)
    assert y.ctypes.data % mmap.PAGESIZE == 0


PLAIN = [
    *(np.arange(24, dtype="f4").reshape(shape) for shape in ((24,), (6, 4), (6, 2, 1, 2))),
    np.ones((6, 0), "f4"),
    np.array(3, "f4"),
]


@pytest.mark.parametrize("x", PLAIN, ids=lambda x: str(x.shape))
@pytest.mark.parametrize("in_out", ["new", "out", "in place"])
def test_ranks_whose_arrays_take_a_closer_look_agree_with_the_others(
    x: npt.NDArray[np.float32], in_out: str
) -> None:
    x = x.copy()
    closer = RANK % 2 == 1
    given: Any = memoryview(x) if closer else x

    def out(shape: tuple[int, ...]) -> Any:
        if in_out == "new":
            return None
        made = x if in_out == "in place" else np.full(shape, -1, x.dtype)
        return memoryview(made) if closer else made

    def same(found: Any, expected: npt.NDArray[np.float32]) -> bool:
        return np.array_equal(np.asarray(found), expected)

    before = x.copy()
    assert same(gradred.allreduce(given, out=out(x.shape)), before * SIZE)
    x[...] = before + RANK
    assert same(gradred.bcast(given, SIZE - 1, out=out(x.shape)), before + SIZE - 1)
    x[...] = before
    assert same(gradred.scan(given, out=out(x.shape)), before * (RANK + 1))
    if in_out == "in place":
        return
    x[...] = before
    rest = x.shape[1:]
    whole = np.concatenate([before.reshape(x.shape[0] if x.shape else 1, *rest)] * SIZE)
    assert same(gradred.allgather(given, out=out(whole.shape)), whole)
    gathered = gradred.gather(given, SIZE - 1, out=out(whole.shape))
    assert gathered is None if RANK != SIZE - 1 else same(gathered, whole)
    sent = whole if RANK == 0 else np.atleast_1d(x)
    sent = memoryview(sent) if closer else sent
    block = gradred.scatter(sent, out=out((len(whole) // SIZE, *rest)))
    assert same(block, whole[: len(whole) // SIZE])
    x = whole
    given = memoryview(x) if closer else x
    block = whole[: len(whole) // SIZE]
    found = gradred.reduce_scatter_block(given, out=out(block.shape))
    assert same(found, whole.reshape(SIZE, *block.shape)[RANK] * SIZE)


@pytest.mark.parametrize("x", [np.timedelta64(2, "s"), np.datetime64("2020")], ids=str)
def test_scalars_of_times_are_refused_as_arrays_of_them(x: Any) -> None:
    with pytest.raises(UsageError, match="no reductions for"):
        gradred.allreduce(x)


def test_plain_arrays_take_no_closer_look() -> None:
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    for x in PLAIN:
        out = np.empty_like(x)
        assert _core.allreduce_array(comm, x, "sum", out) is out
        assert _core.allreduce_array(comm, x, MPI.MAX, x) is x
        assert _core.bcast_array(comm, x, 0, None).shape == x.shape
        assert _core.scan_array(comm, x, "sum", out) is out
        if RANK > 0:  # the first rank writes what changes nothing
            assert _core.exscan_array(comm, x, "sum", None).shape == x.shape
        else:
            gradred.scan(x, exclusive=True, comm=comm)
        if x.size == 0:
            continue
        whole = np.concatenate([np.atleast_1d(x)] * SIZE)
        found = _core.gather_array(comm, x, SIZE - 1, None)
        assert found is None if RANK != SIZE - 1 else np.array_equal(found, whole)
        assert (_core.gather_call(comm, x, 0, None)[1] is None) == (RANK != 0)
        block = whole[: len(whole) // SIZE]
        found = _core.scatter_array(comm, whole if RANK == 0 else block, 0, None)
        assert np.array_equal(found, block)
    # None of these is a collective call.
    x, read_only = np.ones(6), np.ones(6)
    read_only.flags.writeable = False
    refused = [
        (x, "sum", read_only),
        (x, "sum", np.ones(7)),
        (x, "sum", np.ones((6, 1))),
        (x, "sum", np.ones(6, "f4")),
        (x[:4], "sum", x[1:5]),
        (x, "nonsense", None),
        (x, gradred.premul(2.0), None),
        (x, "band", None),
        (x[::2], "sum", None),
        (np.asfortranarray(np.ones((3, 2))), "sum", None),
        (np.ones(3, ">f8"), "sum", None),
        (np.matrix(x), "sum", None),
        (memoryview(x), "sum", None),
        (None, "sum", None),
        ([1.0], "sum", None),
    ]
    for asked in refused:
        assert _core.allreduce_array(comm, *asked) is NotImplemented
    assert _core.bcast_array(comm, x, SIZE, None) is NotImplemented
    assert _core.bcast_array(comm, x, 2**80, None) is NotImplemented
    assert _core.bcast_array(comm, x, -1, None) is NotImplemented
    odd = np.ones(SIZE + 1) if SIZE > 1 else x
    assert _core.reduce_scatter_block_array(comm, odd, 3, None) is NotImplemented
    assert (
        _core.reduce_scatter_block_array(comm, np.ones(SIZE), "sum", np.ones(2)) is NotImplemented
    )
    assert _core.allgather_array(comm, x, None, np.ones(6 * SIZE + 1)) is NotImplemented
    assert _core.scan_array(comm, x, "nonsense", None) is NotImplemented
    assert _core.gather_array(comm, x[::2], 0, None) is NotImplemented
    assert _core.gather_array(comm, x, SIZE, None) is NotImplemented
    assert _core.scatter_array(comm, None, 0, None) is NotImplemented
    assert _core.scatter_array(comm, x, RANK, np.ones(7)) is NotImplemented
    assert _core.scatter_array(comm, x, (RANK + 1) % SIZE, x[::2]) is NotImplemented
    comm.Free()


def test_plain_tensors_of_torch_take_no_closer_look() -> None:
    torch = pytest.importorskip("torch")
    comm = gradred.Comm(MPI.COMM_WORLD.Dup())
    # the first use of a tensor imports what is needed for torch
    gradred.allreduce(torch.ones(2), comm=comm)
    for x in (torch.ones(3, 5), torch.nn.Parameter(torch.ones(4), requires_grad=False)):
        y = _core.allreduce_array(comm, x, "sum", None)
        assert (type(y), y.shape, y.dtype) == (torch.Tensor, x.shape, x.dtype)
        assert (y == SIZE).all()
        assert _core.allreduce_array(comm, x, "sum", y) is y
        assert _core.allreduce_array(comm, x, "sum", x) is x
        assert (x == SIZE).all()
    shrunk = torch.ones(100)
    shrunk.untyped_storage().resize_(40)
    for x in (
        torch.ones(4, requires_grad=True),
        torch.nn.Parameter(torch.ones(4)),
        torch.ones(4).expand(3, 4),
        torch.ones(4, 4).T,
        torch.ones(4, dtype=torch.complex64).conj(),
        torch.complex(torch.ones(4), torch.ones(4)).conj().imag,  # a view with the negative bit
        torch.ones(4).to_sparse(),
        torch.ones(4, device="meta"),
        torch.ones(0),
        shrunk,
    ):
        assert _core.allreduce_array(comm, x, "sum", None) is NotImplemented
    comm.Free()


def test_arrays_that_disagree_are_refused_with_what_this_rank_has_passed() -> None:
    if SIZE == 1:
        pytest.skip("nobody to disagree with")
    x = np.ones((2, 3 + RANK % 2))
    with pytest.raises(UsageError, match=rf"This rank passed float64 of shape \(2, {3 + RANK % 2}"):
        gradred.allreduce(x)


def test_memory_of_a_long_result_that_was_let_go_serves_the_next_one() -> None:
    x = np.full(1 << 18, RANK + 1, np.float32)  # 1 MiB
    total = SIZE * (SIZE + 1) / 2

    def where() -> int:
        return int(gradred.allreduce(x).ctypes.data)

    assert where() == where()
    held = gradred.allreduce(x)
    other = gradred.allreduce(x)
    assert held.ctypes.data != other.ctypes.data, "what the program holds is not given again"
    other[:] = 0
    assert (held == total).all()
    view = held[5:9]
    del held
    gradred.allreduce(x)[:] = 0
    assert (view == total).all(), "a view holds its array's memory"


def test_a_long_result_is_an_array_as_any_other() -> None:
    x = np.full(1 << 18, RANK + 1, np.float32)
    result = gradred.allreduce(x)
    total = result[0]
    assert result.flags.owndata
    result.resize(1 << 19, refcheck=False)
    assert (result[: 1 << 18] == total).all()
    assert not result[1 << 18 :].any(), "resize fills with zeros"
    where = result.ctypes.data
    result.resize(10, refcheck=False)
    assert (result == total).all()
    assert result.ctypes.data != where, "the rest of the pages is free again"
    assert np.empty_like(result).flags.owndata
    assert (pickle.loads(pickle.dumps(gradred.allgather(x))) == gradred.allgather(x)).all()
