"""Tensors of PaddlePaddle in the functions for arrays."""

from __future__ import annotations

import pytest
from mpi4py import MPI

import gradred

paddle = pytest.importorskip("paddle")
COMM = gradred.Comm(MPI.COMM_WORLD)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_result_is_a_tensor_or_refused(dtype: str) -> None:
    x = paddle.to_tensor([1.0, -2.0, 3.0]).astype(dtype)
    expected = [COMM.size * one for one in (1, -2, 3)]
    found = gradred.allreduce(x, comm=COMM)
    assert type(found) is type(x)
    assert found.dtype == x.dtype
    assert found.astype("float32").tolist() == expected
    y = paddle.zeros([3], dtype)
    assert gradred.allreduce(x, out=y, comm=COMM) is y
    assert y.astype("float32").tolist() == expected
