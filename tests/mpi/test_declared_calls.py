"""The functions on arrays, and the methods of Comm that reduce, as type checkers see them.

mypy checks the calls in this file (tools/lint.py).
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from mpi4py import MPI

import gradred
import gradred.comm
from gradred.buffers import messages
from gradred.calls import functions
from gradred.ops import OpLike

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
ALL, BEFORE = SIZE * (SIZE + 1) / 2, RANK * (RANK + 1) / 2

SUMS: dict[str, OpLike] = {"name": "sum", "MPI": MPI.SUM, "premul": gradred.premul(1.0)}


@pytest.mark.parametrize("form", SUMS)
def test_methods_take_each_form_of_an_operation(form: str) -> None:
    op = SUMS[form]
    x, y, every = np.full(3, RANK + 1.0), np.zeros(3), np.full(3 * SIZE, RANK + 1.0)
    COMM.Allreduce(x, y, op=op)
    assert y.tolist() == [ALL] * 3
    COMM.Reduce_scatter_block(every, y, op=op)
    assert y.tolist() == [ALL] * 3
    COMM.Exscan(x, y, op=op)
    assert y.tolist() == [BEFORE if RANK else ALL] * 3  # rank 0 gets no result
    COMM.Scan(x, y, op=op)
    assert y.tolist() == [BEFORE + RANK + 1] * 3


@pytest.mark.parametrize("form", SUMS)
def test_methods_that_start_take_each_form_of_an_operation(form: str) -> None:
    op = SUMS[form]
    x, every = np.full(3, RANK + 1.0), np.full(3 * SIZE, RANK + 1.0)
    COMM.Allreduce(x, np.zeros(3))  # gradred carries out what starts after a blocking call
    results = [np.full(3, ALL) for _ in range(4)]
    requests: list[MPI.Request] = [
        COMM.Iallreduce(x, results[0], op=op),
        COMM.Ireduce_scatter_block(every, results[1], op=op),
        COMM.Iexscan(x, results[2], op=op),
        COMM.Iscan(x, results[3], op=op),
    ]
    MPI.Request.Waitall(requests)
    wanted = [ALL, ALL, BEFORE if RANK else ALL, BEFORE + RANK + 1]
    assert [result.tolist() for result in results] == [[one] * 3 for one in wanted]


def test_what_is_no_operation_is_no_operation_to_type_checkers_either() -> None:
    x, y = np.zeros(3), np.zeros(3)
    with pytest.raises(TypeError):
        COMM.Scan(x, y, op=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        COMM.Iexscan(x, y, op=3)  # type: ignore[arg-type]


def test_functions_return_the_kind_of_array_that_they_get() -> None:
    x, buffer = np.full(SIZE, RANK + 1.0), bytearray(8 * SIZE)
    summed: npt.NDArray[np.float64] = gradred.allreduce(x, comm=COMM, stream=None, plan=None)
    before: npt.NDArray[np.float64] = gradred.iscan(x, exclusive=True, comm=COMM).wait()
    gathered: npt.NDArray[np.float64] | None = gradred.gather(x, SIZE - 1, comm=COMM)
    sent: bytearray = gradred.bcast(bytearray(8 * SIZE), out=buffer, comm=COMM)
    assert summed.tolist() == [ALL] * SIZE
    assert before.tolist() == [BEFORE] * SIZE
    assert (gathered is None) == (RANK != SIZE - 1)
    assert sent is buffer
    with pytest.raises(TypeError):
        gradred.allreduce(x, com=COMM)  # type: ignore[call-overload]
    with pytest.raises(gradred.UsageError):
        gradred.scatter(x, comm=3)  # type: ignore[call-overload]


def documented() -> list[str]:
    return [name for name in gradred.__all__ if inspect.isfunction(getattr(functions, name, None))]


@pytest.mark.parametrize("name", documented())
def test_docstring_explains_each_argument(name: str) -> None:
    function = getattr(gradred, name)
    arguments = re.findall(r"^    (\w+): ", inspect.getdoc(function) or "", re.MULTILINE)
    names = [*inspect.signature(function).parameters]
    assert arguments[: len(names)] == names


def test_each_method_that_reduces_is_declared() -> None:
    """mpi4py declares an MPI.Op alone, so each of these needs a declaration of gradred's."""
    tree = ast.parse(Path(gradred.comm.__file__).read_text())
    comm = next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == "Comm")
    declared = {one.name for one in ast.walk(comm) if isinstance(one, ast.FunctionDef)}
    assert messages.KINDS.keys() - declared == set()
