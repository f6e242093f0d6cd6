"""Views that conjugate or negate, complex numbers, and autograd, in each collective."""

from __future__ import annotations

from typing import Any

import pytest
from pytorch.every_collective import Call, each
from pytorch.groups import RANK, SIZE, dist, group_of_all, torch

__all__ = ["group_of_all"]  # a fixture of this module

SUMMED = torch.complex(torch.arange(1.0, SIZE + 1), torch.arange(SIZE) - 1.0)


def complex_numbers(count: int) -> Any:
    return torch.complex(torch.arange(1.0, count + 1), torch.full((count,), RANK + 2.0))


# A view that is not what lies in memory, by its number of elements.
LAZY = {
    "conjugate": lambda count: complex_numbers(count).conj(),
    "imaginary part of a conjugate": lambda count: complex_numbers(count).conj().imag,
    "negated": lambda count: torch._neg_view(torch.arange(RANK + 1.0, RANK + count + 1)),
}
lazy_views = pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY)


def resolved(x: Any) -> Any:
    return x.resolve_conj().resolve_neg().clone()


@lazy_views
@each(lambda call: call.name not in ("allreduce", "allreduce_coalesced"))
def test_lazy_inputs_give_what_resolved_ones_give(call: Call, lazy: Any) -> None:
    given = [lazy(count) for count in call.reads]
    assert all(x.is_conj() or x.is_neg() for x in given)
    out, expected = ([resolved(lazy(count)) for count in call.writes + call.both] for _ in range(2))
    call.run(dist.group.WORLD, expected, [resolved(x) for x in given])
    call.run(dist.group.WORLD, out, given)
    assert all(torch.equal(x, y) for x, y in zip(out, expected, strict=True))


@lazy_views
@each(lambda call: call.name != "broadcast" or SIZE > 1)  # the root writes nothing
def test_lazy_outputs_are_refused_on_all_ranks(call: Call, lazy: Any) -> None:
    given = [resolved(lazy(count)) for count in call.reads]
    out = [lazy(count) for count in call.writes + call.both]
    before = [x.clone() for x in out]
    with pytest.raises(ValueError, match=r"conjugated or negated view.*resolve_conj\(\)"):
        call.run(dist.group.WORLD, out, given)
    assert all(torch.equal(x, y) for x, y in zip(out, before, strict=True))
    dist.barrier()


@each()
def test_a_call_raises_the_versions_of_the_tensors_that_it_writes(call: Call) -> None:
    given = [torch.ones(count) for count in call.reads]
    out = [torch.ones(count) for count in call.writes + call.both]
    call.run(dist.group.WORLD, out, given)
    assert [x._version for x in given] == [0] * len(given)
    assert all(x._version > 0 for x in out)


def test_a_backward_pass_does_not_use_numbers_of_a_later_sum() -> None:
    x = torch.ones(4, requires_grad=True)
    y = x * (RANK + 2)
    loss = (y * y).sum()
    dist.all_reduce(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def product_on_root() -> Any:
    y = SUMMED + RANK
    dist.reduce(y, 0, op=dist.ReduceOp.PRODUCT)
    return y if RANK == 0 else None


def product_by_method() -> Any:
    y = SUMMED + RANK
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.PRODUCT
    dist.group.WORLD.allreduce([y], options).wait()
    return y


def products_of_parts() -> Any:
    y = torch.zeros(1, dtype=torch.complex64)
    dist.reduce_scatter(y, list((SUMMED + RANK).split(1)), op=dist.ReduceOp.PRODUCT)
    return y


def products_of_parts_of_one() -> Any:
    y = torch.zeros(1, dtype=torch.complex64)
    dist.reduce_scatter_tensor(y, SUMMED + RANK, op=dist.ReduceOp.PRODUCT)
    return y


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_products_of_complex_numbers() -> None:
    expected = torch.stack([SUMMED + rank for rank in range(SIZE)]).prod(0)
    if (found := product_on_root()) is not None:
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(product_by_method(), expected)
    torch.testing.assert_close(products_of_parts(), expected[RANK : RANK + 1])
    torch.testing.assert_close(products_of_parts_of_one(), expected[RANK : RANK + 1])


@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_sums_of_complex_numbers(op: str) -> None:
    expected = torch.stack([SUMMED + rank for rank in range(SIZE)]).sum(0)
    y = SUMMED + RANK
    dist.all_reduce(y, op=getattr(dist.ReduceOp, op))
    torch.testing.assert_close(y, expected / (SIZE if op == "AVG" else 1))


@pytest.mark.parametrize(
    ("op", "x"), [("MIN", SUMMED), ("MAX", SUMMED), ("BAND", SUMMED.real), ("BXOR", SUMMED)]
)
def test_reductions_that_the_type_does_not_have_are_errors(op: str, x: Any) -> None:
    with pytest.raises(RuntimeError, match="is not defined for"):
        dist.reduce(x.clone(), 0, op=getattr(dist.ReduceOp, op))
