"""torch.distributed with the backend "gradred": each collective."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, learned, torch

import gradred
from gradred import _core

__all__ = ["group_of_all"]  # a fixture of this module
TOTAL = SIZE * (SIZE + 1) // 2
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed


DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (7, 3000)])
def test_all_reduce_sums(dtype: Any, shape: tuple[int, ...]) -> None:
    x = torch.full(shape, RANK + 1).to(dtype)
    dist.all_reduce(x)
    assert x.dtype is dtype
    # PyTorch before 2.6 does not compare floats of 8 bits.
    assert torch.equal(x.to(torch.complex128), torch.full(shape, TOTAL).to(torch.complex128))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("AVG", TOTAL / SIZE),
        ("MIN", 1),
        ("MAX", SIZE),
        ("PRODUCT", int(torch.arange(1, SIZE + 1).prod())),
    ],
)
def test_other_reductions(op: str, expected: float) -> None:
    x = torch.full((4, 5), float(RANK + 1)).t()  # dense in another order
    dist.all_reduce(x, op=getattr(dist.ReduceOp, op))
    assert torch.allclose(x, torch.full((5, 4), float(expected)))


def test_a_tensor_may_be_given_other_memory_while_it_is_reduced() -> None:
    x = torch.ones(2_000_000)
    work = None
    if RANK == 0:
        work = dist.all_reduce(x, async_op=True)
        x.data = torch.zeros(1)
    time.sleep(0.05)
    work = dist.all_reduce(x, async_op=True) if work is None else work
    assert work.wait()
    assert RANK == 0 or (x == SIZE).all()


def test_bits_and_truth() -> None:
    x = torch.tensor([1 << RANK, 3])
    dist.all_reduce(x, op=dist.ReduceOp.BOR)
    assert x.tolist() == [2**SIZE - 1, 3]
    y = torch.tensor([RANK == 0, True, False])
    dist.all_reduce(y)
    assert y.tolist() == [True, True, False]


def sparse_of(rank: int, sparse_axes: int, dense_axes: int, dtype: Any) -> Any:
    """Elements 0 to `rank` along the first axis; rank 0 of several ranks has its element twice."""
    several = rank == 0 and SIZE > 1
    indices = torch.zeros(sparse_axes, rank + 1 + several, dtype=torch.int64)
    indices[0, : rank + 1] = torch.arange(rank + 1)
    values = torch.ones(indices.shape[1], *([2] * dense_axes)).to(dtype)
    shape = [SIZE] * sparse_axes + [2] * dense_axes
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("sparse_axes", "dense_axes"), [(1, 0), (3, 0), (1, 2)])
def test_all_reduce_of_sparse_tensors(sparse_axes: int, dense_axes: int, dtype: Any) -> None:
    form = (sparse_axes, dense_axes, dtype)
    x = sparse_of(RANK, *form)
    dist.all_reduce(x)
    assert x.is_sparse
    expected = sum(sparse_of(rank, *form).to_dense() for rank in range(SIZE))
    assert torch.equal(x.to_dense(), expected)


def test_all_reduce_of_sparse_tensors_that_are_empty_or_averaged() -> None:
    x = torch.sparse_coo_tensor(size=(4, 3), check_invariants=False)
    dist.all_reduce(x)
    assert x._nnz() == 0
    x = sparse_of(SIZE - 1 if RANK == 0 else 0, 1, 1, torch.float32)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(x.to_dense()[-1], torch.full((2,), 1 / SIZE))


@pytest.mark.skipif(SIZE == 1, reason="takes ranks that differ")
def test_sparse_tensors_that_differ_are_an_error_on_all_ranks() -> None:
    x = torch.eye(3 + (RANK == 0)).to_sparse()
    with pytest.raises(ValueError, match=r"sizes differ: by rank they are \[\[4, 4\], \[3, 3\]"):
        dist.all_reduce(x)
    with pytest.raises(ValueError, match="Mismatched"):
        dist.all_reduce(torch.eye(3).to_sparse() if RANK == 0 else torch.eye(3))
    with pytest.raises(ValueError, match="sparse, and the operation max"):
        dist.all_reduce(torch.eye(3).to_sparse(), op=dist.ReduceOp.MAX)
    dist.barrier()


def test_all_gather_of_lists_tensors_and_other_shapes() -> None:
    x = torch.full((2, 3), RANK)
    parts = [torch.empty(2, 3, dtype=torch.int64) for _ in range(SIZE)]
    dist.all_gather(parts, x)
    assert [int(part[0, 0]) for part in parts] == list(range(SIZE))
    whole = torch.empty(2 * SIZE, 3, dtype=torch.int64)
    dist.all_gather_into_tensor(whole, x)
    assert torch.equal(whole, torch.cat(parts))
    uneven = [torch.empty(rank + 1) for rank in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    assert all((part == rank).all() for rank, part in enumerate(uneven))


def test_reduce_scatter() -> None:
    out = torch.empty(3)
    dist.reduce_scatter_tensor(out, torch.arange(3.0 * SIZE))
    assert torch.equal(out, torch.arange(3.0 * RANK, 3 * RANK + 3) * SIZE)
    dist.reduce_scatter(out, [torch.full((3,), float(rank)) for rank in range(SIZE)])
    assert (out == RANK * SIZE).all()


def test_broadcast_reduce_gather_scatter() -> None:
    root = SIZE - 1
    x = torch.full((4, 3), RANK).t()
    dist.broadcast(x, root)
    assert (x == root).all()
    y = torch.ones(3)
    dist.reduce(y, root)
    assert (y == (SIZE if root == RANK else 1)).all()
    parts = [torch.empty(2) for _ in range(SIZE)] if root == RANK else None
    dist.gather(torch.full((2,), float(RANK)), parts, root)
    assert parts is None or [part[0].item() for part in parts] == list(range(SIZE))
    mine = torch.empty(2)
    dist.scatter(
        mine, [torch.full((2,), float(r)) for r in range(SIZE)] if root == RANK else None, root
    )
    assert (mine == RANK).all()


def test_all_to_all() -> None:
    out = torch.empty(SIZE)
    dist.all_to_all_single(out, torch.arange(float(SIZE)) + 10 * RANK)
    assert out.tolist() == [10 * rank + RANK for rank in range(SIZE)]
    gives = [(RANK + rank) % 2 + 1 for rank in range(SIZE)]
    uneven = torch.empty(sum(gives), 2)
    dist.all_to_all_single(uneven, torch.full((sum(gives), 2), float(RANK)), gives, gives)
    expected = torch.repeat_interleave(torch.arange(float(SIZE)), torch.tensor(gives))
    assert torch.equal(uneven[:, 0], expected)
    parts = [torch.empty(rank + 1) for rank in range(SIZE)]
    dist.all_to_all(parts, [torch.full((RANK + 1,), float(RANK)) for _ in range(SIZE)])
    assert all((part == rank).all() for rank, part in enumerate(parts))


def test_all_to_all_where_ranks_have_no_rows() -> None:
    gives = [3 * (RANK == 0)] * SIZE  # only rank 0 has any
    gets = [3] + [0] * (SIZE - 1)
    out = torch.empty(3, 2)
    dist.all_to_all_single(out, torch.full((sum(gives), 2), RANK + 5.0), gets, gives)
    assert (out == 5).all()
    dist.all_to_all_single(torch.empty(0, 2), torch.empty(0, 2), [0] * SIZE, [0] * SIZE)
    parts = [torch.empty(size) for size in gets]
    dist.all_to_all(parts, [torch.full((size,), RANK + 5.0) for size in gives])
    assert (parts[0] == 5).all()


def test_empty_tensors() -> None:
    dist.reduce_scatter_tensor(torch.empty(0, 2), torch.empty(0, 2))
    dist.reduce_scatter(torch.empty(0), [torch.empty(0)] * SIZE)
    dist.gather(torch.empty(0), [torch.empty(0)] * SIZE if RANK == 0 else None)
    dist.scatter(torch.empty(0), [torch.empty(0)] * SIZE if RANK == 0 else None)
    dist.all_gather([torch.empty(0)] * SIZE, torch.empty(0))
    dist.all_to_all_single(torch.empty(0), torch.empty(0))
    dist.broadcast(torch.empty(0), 0)
    dist.reduce(torch.empty(0), 0)


@pytest.mark.parametrize("dense", [True, False])
def test_results_may_go_to_leaves_that_require_a_gradient(dense: bool) -> None:
    def leaf(*shape: int) -> Any:
        return learned(*shape) if dense else torch.zeros(shape[::-1]).t().requires_grad_()

    def roots(given: Any) -> Any:
        return given if RANK == 0 else None

    mine = torch.full((2, 3), RANK + 1.0, requires_grad=True)
    x = leaf(2, 3)
    dist.broadcast(x, 0)
    dist.all_reduce(x)
    dist.reduce(x, 0)
    wholes = [leaf(2 * SIZE, 3), leaf(2 * SIZE, 3)]
    dist.all_gather_into_tensor(wholes[0], mine)
    dist.all_to_all_single(wholes[1], wholes[0])
    lists = [[leaf(2, 3) for _ in range(SIZE)] for _ in range(3)]
    dist.all_gather(lists[0], mine)
    dist.all_to_all(lists[1], [mine] * SIZE)
    dist.gather(mine, roots(lists[2]))
    assert all((part == rank + 1).all() for part, rank in zip(lists[0], range(SIZE), strict=True))
    assert torch.equal(torch.cat(lists[0]), wholes[0])
    assert torch.equal(torch.cat(lists[1]), wholes[0])
    assert RANK != 0 or torch.equal(torch.cat(lists[2]), wholes[0])
    parts = [leaf(2, 3), leaf(2, 3), leaf(2, 3)]
    dist.reduce_scatter_tensor(parts[0], wholes[0])
    dist.reduce_scatter(parts[1], lists[0])
    dist.scatter(parts[2], roots(lists[0]))
    assert (parts[0] == SIZE * (RANK + 1)).all()
    assert (parts[1] == SIZE * (RANK + 1)).all()
    assert (parts[2] == RANK + 1).all()


def test_objects() -> None:
    found: list[Any] = [None] * SIZE
    dist.all_gather_object(found, {"rank": RANK, "data": [0] * RANK})
    assert [one["rank"] for one in found] == list(range(SIZE))
    given = [RANK, "x" * RANK]
    dist.broadcast_object_list(given, SIZE - 1)
    assert given == [SIZE - 1, "x" * (SIZE - 1)]


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_messages() -> None:
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.empty(3)
    ops = [
        dist.P2POp(dist.isend, torch.full((3,), float(RANK)), right),
        dist.P2POp(dist.irecv, got, left),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (got == left).all()
    if RANK == 0:
        dist.send(torch.tensor([42], dtype=torch.bfloat16), 1, tag=5)
    if RANK == 1:
        x = torch.empty(1, dtype=torch.bfloat16)
        assert dist.recv(x, tag=5) == 0
        assert x.item() == 42


def test_groups_that_are_destroyed_leave_memory_and_communicators_to_others() -> None:
    def make_and_destroy() -> bool:
        group = dist.new_group()
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert (x == SIZE).all()
        shares_memory = _core.comm_info(group._engine._comm)["shares_memory"]
        dist.barrier()
        dist.destroy_process_group(group)
        return shares_memory

    assert len({make_and_destroy() for _ in range(100)}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_the_group(dtype: Any) -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    x = backend.allocate_tensor(70_000, dtype=dtype, device=torch.device("cpu"))
    assert (x.shape, x.dtype) == ((70_000,), dtype)
    x.fill_(RANK + 1)
    dist.all_reduce(x)
    assert (x == TOTAL).all()


def test_what_a_group_cannot_make_of_itself_is_an_error() -> None:
    group = dist.distributed_c10d._get_default_group()
    with pytest.raises(gradred.UsageError, match=r"dist\.new_group"):
        group.merge_remote_group(None, 2 * SIZE)


def sum_in(group: Any, of: int) -> None:
    """Check a group of as many ranks."""
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert (x == of).all()
    dist.destroy_process_group(group)


@pytest.mark.skipif(not hasattr(dist, "split_group"), reason="an older PyTorch has no split_group")
def test_split_group_of_ranks_that_know_different_numbers_of_groups() -> None:
    dist.new_group([0])
    dist.split_group(None, [[0]])
    for _ in range(2):
        whole = dist.split_group(None, [list(range(SIZE))])
        x = torch.ones(2)
        dist.all_reduce(x, group=whole)
        assert (x == SIZE).all()


@pytest.mark.skipif(not hasattr(dist, "split_group"), reason="an older PyTorch has no split_group")
def test_split_group_on_the_host() -> None:
    turned = [*range(1, SIZE), 0]
    whole = dist.split_group(split_ranks=[turned])
    assert whole.rank() == turned.index(RANK)
    sum_in(whole, SIZE)
    parts = [list(range(0, SIZE, 2)), list(range(1, SIZE, 2))]
    mine = dist.split_group(None, parts, group_desc="halves")
    sum_in(mine, len(parts[RANK % 2]))
    some = dist.split_group(split_ranks=[[0]])
    assert (some == dist.GroupMember.NON_GROUP_MEMBER) == (RANK != 0)
    if RANK == 0:
        sum_in(some, 1)
    for wrong in ([], [[]], [[0, 0]], [[0], [0]], [[SIZE]]):
        with pytest.raises(ValueError, match="split_group"):
            dist.split_group(split_ranks=wrong)
    with pytest.raises(gradred.UsageError, match="no options"):
        dist.split_group(split_ranks=[[0]], pg_options=object())


def test_a_group_splits_by_its_own_method() -> None:
    group = dist.distributed_c10d._get_default_group()
    made = group.split_group([0], datetime.timedelta(seconds=20), group_name="of one")
    assert (made is None) == (RANK != 0)
    if made is not None:
        assert (made.group_name, made._limit) == ("of one", 20)
        sum_in(made, 1)
    with pytest.raises(gradred.UsageError, match="options"):
        group.split_group([0], opts=object())
