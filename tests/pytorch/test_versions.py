"""Autograd sees every tensor that a call of Horovod, of arrays or of Comm writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mpi4py import MPI
from pytorch.given import RANKS, hvd, name, torch

import gradred
from gradred.buffers import torch_versions

pytestmark = pytest.mark.usefixtures("initialised")
COMM = gradred.Comm(MPI.COMM_WORLD)
ROOT = RANKS - 1

# Calls that read their first tensor and write their second one, or one tensor in place.
IN_PLACE: dict[str, Callable[[Any], object]] = {
    "hvd.allreduce_": lambda x: hvd.allreduce_(x, name=name()),
    "hvd.allreduce_ without a name": hvd.allreduce_,
    "hvd.allreduce_ in another layout": lambda x: hvd.allreduce_(x.reshape(2, 2).t(), name=name()),
    "hvd.grouped_allreduce_": lambda x: hvd.grouped_allreduce_([x], name=name()),
    "hvd.broadcast_": lambda x: hvd.broadcast_(x, ROOT, name=name()),
    "gradred.allreduce": lambda x: gradred.allreduce(x, out=x),
    "gradred.allreduce in another layout": lambda x: gradred.allreduce(
        x.reshape(2, 2).t(), out=x.reshape(2, 2).t()
    ),
    "gradred.allreduce_many": lambda x: gradred.allreduce_many([x], out=[x]),
    "gradred.iallreduce": lambda x: gradred.iallreduce(x, out=x).wait(),
    "Allreduce": lambda x: COMM.Allreduce(MPI.IN_PLACE, x),
    "Iallreduce": lambda x: COMM.Iallreduce(MPI.IN_PLACE, x).Wait(),
}
if RANKS & (RANKS - 1) == 0:  # which Adasum takes
    IN_PLACE["hvd.allreduce_ by Adasum"] = lambda x: hvd.allreduce_(x, op=hvd.Adasum, name=name())
READS_AND_WRITES: dict[str, Callable[[Any, Any], object]] = {
    "gradred.allreduce": lambda x, y: gradred.allreduce(x, out=y),
    "gradred.allreduce_many": lambda x, y: gradred.allreduce_many([x], out=[y]),
    "gradred.scan": lambda x, y: gradred.scan(x, out=y),
    "gradred.reduce_scatter_block": lambda x, y: gradred.reduce_scatter_block(
        torch.ones(RANKS, 4), out=y.reshape(1, 4)
    ),
    "Allreduce": lambda x, y: COMM.Allreduce(x, y),
    "Allreduce of a list": lambda x, y: COMM.Allreduce([x, MPI.FLOAT], [y, MPI.FLOAT]),
    "Allreduce of a tuple": lambda x, y: COMM.Allreduce((x, MPI.FLOAT), (y, MPI.FLOAT)),
    "Iallreduce": lambda x, y: COMM.Iallreduce(x, y).Wait(),
}


@pytest.mark.parametrize("call", IN_PLACE.values(), ids=IN_PLACE)
def test_calls_in_place_raise_the_version(call: Callable[[Any], object]) -> None:
    x = torch.ones(4)
    call(x)
    assert x._version > 0


@pytest.mark.parametrize("call", READS_AND_WRITES.values(), ids=READS_AND_WRITES)
def test_calls_raise_the_version_of_the_result_alone(call: Callable[[Any, Any], object]) -> None:
    x, y = torch.ones(4), torch.zeros(4)
    call(x, y)
    assert x._version == 0
    assert y._version > 0


@pytest.mark.parametrize("form", ["x", "list", "tuple"])
@pytest.mark.parametrize("how", ["p()", "Start"])
def test_each_round_of_a_persistent_call_raises_the_version(how: str, form: str) -> None:
    x, y = torch.ones(4), torch.zeros(4)
    result = {"x": y, "list": [y, MPI.FLOAT], "tuple": (y, 4, MPI.FLOAT)}[form]
    p = COMM.Allreduce_init(x, result)
    for _ in range(3):
        before = y._version
        if how == "p()":
            p()
        else:
            p.Start()
            p.Wait()
        assert y._version > before
    p.Free()
    assert x._version == 0


def test_an_input_keeps_its_version() -> None:
    x = torch.ones(4)
    hvd.allreduce(x, name=name())
    hvd.allgather(x, name=name())
    hvd.broadcast(x, ROOT, name=name())
    gradred.allreduce(x)
    assert x._version == 0


@pytest.mark.parametrize("call", IN_PLACE.values(), ids=IN_PLACE)
def test_a_backward_pass_that_needs_the_numbers_from_before_is_an_error(
    call: Callable[[Any], object],
) -> None:
    x = torch.ones(4, requires_grad=True)
    y = x * 2
    loss = (y * y).sum()
    call(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("call", IN_PLACE.values(), ids=IN_PLACE)
def test_calls_write_inference_tensors_which_have_no_version(call: Callable[[Any], object]) -> None:
    with torch.inference_mode():
        x = torch.ones(4)
        call(x)
    assert x.is_inference()
    assert float(x[0]) in (1.0, float(RANKS))


@pytest.mark.parametrize("elements", [1, 4])
def test_negated_views_are_no_plain_tensors(elements: int) -> None:
    with pytest.raises(ValueError, match="negated"):
        hvd.allreduce_(torch._neg_view(torch.ones(elements)), name=name())


@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13),
    reason="not tried with older PyTorch, of which Python's functions may have to ask",
)
def test_the_functions_of_pytorch_are_found() -> None:
    assert len(torch_versions.functions_of(torch)) == 4
    with torch.inference_mode():  # in which all new tensors are without a version
        assert len(torch_versions.functions_of(torch)) == 4
    with torch.device("meta"):
        assert len(torch_versions.functions_of(torch)) == 4
