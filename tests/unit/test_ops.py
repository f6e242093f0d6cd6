"""Operations by name, by MPI.Op and with a factor."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import gradred
from gradred import UsageError, ops


@pytest.mark.parametrize("name", gradred.OPS)
def test_every_name_is_an_operation(name: str) -> None:
    assert ops.resolve(name) == (name, 1.0)


def test_premul_keeps_its_factor() -> None:
    assert ops.resolve(gradred.premul(3)) == ("premul", 3.0)
    assert gradred.premul(0.25) == gradred.premul(1 / 4)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_premul_refuses_what_is_not_finite(factor: float) -> None:
    with pytest.raises(UsageError, match="the factor is not finite"):
        gradred.premul(factor)


@pytest.mark.parametrize("factor", ["half", None, 1j])
def test_premul_refuses_what_is_no_number(factor: Any) -> None:
    with pytest.raises(TypeError, match="not a real number"):
        gradred.premul(factor)


def test_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no such operation\. Did you mean 'prod'\?$"):
        ops.resolve("prods")
    with pytest.raises(UsageError, match=r"Did you mean 'avg'\?$"):
        ops.resolve("mean")
    with pytest.raises(UsageError, match=r"Use one of sum, prod, min"):
        ops.resolve("xyz")


@pytest.mark.parametrize("op", [None, 3, sum])
def test_what_is_no_operation_is_refused(op: Any) -> None:
    with pytest.raises(TypeError, match="is not an operation"):
        ops.resolve(op)


def test_error_says_which_operations_the_type_has() -> None:
    with pytest.raises(UsageError, match=r"bool has no 'sum'\. Use one of .*land, lor, lxor"):
        ops.require("sum", "bool", "allreduce of bool")
    with pytest.raises(UsageError, match=r"float32 has no 'band'"):
        ops.require("band", "float32", "allreduce of float32")


@pytest.mark.parametrize(("op", "dtype"), [("land", "bool"), ("avg", "int8"), ("sum", "bfloat16")])
def test_operations_that_exist_pass(op: str, dtype: str) -> None:
    ops.require(op, dtype, "allreduce")


MPI_OPS = """
from mpi4py import rc
rc.initialize = rc.finalize = False
from mpi4py import MPI
import gradred.comm
from gradred import ops
for name in ops.OPS:
    if name != "avg":
        assert ops.resolve(getattr(MPI, name.upper())) == (name, 1.0), name
assert ops.resolve(MPI.MINLOC) is None
assert ops.resolve(MPI.NO_OP) is None
try:
    ops.resolve(MPI.OP_NULL)
except gradred.UsageError as error:
    assert "null or has been freed" in str(error)
else:
    raise AssertionError("a null operation is none")
"""


def test_predefined_mpi_ops_have_names_and_others_are_the_mpis() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MPI_OPS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", [int, np.int64, np.uint64])
def test_premul_refuses_whole_numbers_that_float64_lacks(kind: Any) -> None:
    with pytest.raises(ValueError, match="the nearest factor that float64 has"):
        gradred.premul(kind(2**60 + 1))
    assert gradred.premul(kind(2**60)).factor == 2.0**60
