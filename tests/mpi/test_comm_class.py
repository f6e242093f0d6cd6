"""Comm is a communicator of mpi4py, and so are the communicators that it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import mpi4py
import numpy as np
import pytest
from mpi4py import MPI

import gradred
import gradred.comm

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size


def test_comm_shares_the_handle_and_keeps_nothing_in_python() -> None:
    assert COMM == MPI.COMM_WORLD
    assert COMM.handle == MPI.COMM_WORLD.handle
    assert isinstance(COMM, MPI.Intracomm)
    assert not hasattr(COMM, "__dict__")
    with pytest.raises(TypeError):
        gradred.Comm(3)  # type: ignore[arg-type]


NEW: dict[str, Callable[[gradred.Comm], Any]] = {
    "Dup": lambda c: c.Dup(),
    "Clone": lambda c: c.Clone(),
    "Dup_with_info": lambda c: c.Dup_with_info(MPI.INFO_NULL),
    "Split": lambda c: c.Split(c.rank % 2, -c.rank),
    "Split_type": lambda c: c.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda c: c.Create(c.group),
    "Create_group": lambda c: c.Create_group(c.group),
    "Create_from_group": lambda c: gradred.Comm.Create_from_group(c.group),
    "Create_cart": lambda c: c.Create_cart([c.size]),
    "Sub": lambda c: c.Create_cart([c.size, 1]).Sub([True, False]),
    "Create_graph": lambda c: c.Create_graph([], []) if c.size < 0 else ring_graph(c),
    "Create_dist_graph": lambda c: c.Create_dist_graph([c.rank], [1], [(c.rank + 1) % c.size]),
    "Create_dist_graph_adjacent": lambda c: c.Create_dist_graph_adjacent([c.rank], [c.rank]),
}


def ring_graph(comm: gradred.Comm) -> gradred.comm.GraphComm:
    edges = [(rank + 1) % comm.size for rank in range(comm.size)]
    return comm.Create_graph(list(range(1, comm.size + 1)), edges)


@pytest.mark.parametrize("name", NEW)
def test_new_communicators_are_gradreds(name: str) -> None:
    try:
        new = NEW[name](COMM)
    except NotImplementedError:
        pytest.skip(f"this MPI has no {name}")
    assert isinstance(new, gradred.Comm)
    y = np.full(2, 1, ml_dtypes.bfloat16)  # the MPI itself cannot reduce this type
    new.Allreduce(MPI.IN_PLACE, y)
    assert y.astype(int).tolist() == [new.size] * 2
    new.Free()
    assert new == MPI.COMM_NULL


def test_idup_keeps_the_type() -> None:
    new, request = COMM.Idup()
    request.Wait()
    assert type(new) is gradred.Comm
    new.Free()


def test_split_may_give_no_communicator() -> None:
    new = COMM.Split(MPI.UNDEFINED if RANK else 0)
    assert (new == MPI.COMM_NULL) == (RANK > 0)
    if RANK == 0:
        new.Free()


def test_cart_keeps_the_methods_of_both() -> None:
    cart = COMM.Create_cart([SIZE], [True])
    assert (cart.dims, type(cart.Dup())) == ([SIZE], gradred.comm.CartComm)
    y = np.ones(1)
    cart.Allreduce(MPI.IN_PLACE, y)
    assert y[0] == SIZE
    cart.Free()


def test_merged_intercommunicators_are_gradreds() -> None:
    if SIZE < 2:
        pytest.skip("an intercommunicator needs two ranks")
    half = COMM.Split(RANK % 2)
    inter = half.Create_intercomm(0, COMM, 1 - RANK % 2)
    merged = inter.Merge()
    assert type(merged) is gradred.Comm
    assert merged.size == SIZE
    for comm in (merged, inter, half):
        comm.Free()


def returns(function: ast.FunctionDef) -> set[str]:
    names = ast.walk(function.returns) if function.returns else ()
    return {node.id for node in names if isinstance(node, ast.Name)}


def test_every_method_that_makes_an_intracommunicator_is_overridden() -> None:
    """mpi4py's stub lists them; methods that return the class itself need no override."""
    stub = ast.parse(Path(mpi4py.__file__).with_name("MPI.pyi").read_text())
    makers = {"Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm"}
    classes = {"Comm": "Comm", "Intracomm": "Comm", "Cartcomm": "CartComm"}
    classes |= {"Topocomm": "CartComm", "Graphcomm": "GraphComm", "Distgraphcomm": "DistGraphComm"}
    missing = []
    for node in stub.body:
        if not isinstance(node, ast.ClassDef) or node.name not in classes:
            continue
        ours = getattr(gradred.comm, classes[node.name])
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and returns(method) & makers:
                owner = next(c for c in ours.__mro__ if method.name in vars(c))
                if not owner.__module__.startswith("gradred"):
                    missing.append(f"{node.name}.{method.name}")
    assert missing == []
