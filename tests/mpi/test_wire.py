"""`gradred.allreduce(x, wire=)` on one host, where nothing is compressed, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size


@pytest.mark.parametrize("wire", gradred.WIRES)
@pytest.mark.skipif(len(set(COMM.allgather(MPI.Get_processor_name()))) > 1, reason="one host")
def test_one_host_compresses_nothing(wire: str) -> None:
    for count in (0, 1, 1000, 100_003):
        x = np.random.default_rng(RANK).standard_normal(count).astype("f4").reshape(-1, 1)
        plain = gradred.allreduce(x, comm=COMM)
        got = gradred.allreduce(x, comm=COMM, wire=wire)
        assert got.shape == x.shape
        assert got.tobytes() == plain.tobytes()
        mean = gradred.allreduce(x, "avg", comm=COMM, wire=wire)
        assert mean.tobytes() == gradred.allreduce(x, "avg", comm=COMM).tobytes()
        tenth = gradred.premul(0.1)
        scaled = gradred.allreduce(x, tenth, comm=COMM, wire=wire)
        assert scaled.tobytes() == gradred.allreduce(x, tenth, comm=COMM).tobytes()


def through_comm(x: Any, op: Any, form: str) -> Any:
    y = np.empty_like(x)
    COMM.Allreduce(x, y, op, wire=form)
    return y


def started_on_comm(x: Any, op: Any, form: str) -> Any:
    y = np.empty_like(x)
    COMM.Iallreduce(x, y, op, wire=form).Wait()
    return y


def persistent(x: Any, op: Any, form: str) -> Any:
    y = np.empty_like(x)
    request = COMM.Allreduce_init(x, y, op, wire=form)
    for _ in range(2):
        request()
    request.Free()
    return y


FORMS_OF_CALLS = {
    "allreduce": lambda x, op, form: gradred.allreduce(x, op, comm=COMM, wire=form),
    "iallreduce": lambda x, op, form: gradred.iallreduce(x, op, comm=COMM, wire=form).wait(),
    "many": lambda x, op, form: gradred.allreduce_many([x], op, comm=COMM, wire=form)[0],
    "imany": lambda x, op, form: gradred.iallreduce_many([x], op, comm=COMM, wire=form).wait()[0],
    "Allreduce": through_comm,
    "Iallreduce": started_on_comm,
    "Allreduce_init": persistent,
}


@pytest.mark.parametrize("form_of_call", FORMS_OF_CALLS)
@pytest.mark.parametrize("op", ["sum", "avg", gradred.premul(0.25)], ids=str)
def test_all_forms_of_a_call_get_the_same_bits_on_all_ranks(form_of_call: str, op: Any) -> None:
    COMM.Barrier()
    gradred.allreduce(np.ones(1), comm=COMM)
    for wire in ("int8", "auto"):
        x = np.random.default_rng(RANK).standard_normal(70_001).astype("f4")
        wanted = gradred.allreduce(x, op, comm=COMM, wire=wire)
        got = FORMS_OF_CALLS[form_of_call](x, op, wire)
        assert got.tobytes() == wanted.tobytes()
        assert len(set(COMM.allgather(got.tobytes()))) == 1
        exact = gradred.allreduce(x, op, comm=COMM)
        np.testing.assert_allclose(got, exact, atol=0.03 * SIZE)


@pytest.mark.skipif(SIZE == 1, reason="needs several ranks")
@pytest.mark.parametrize("form_of_call", FORMS_OF_CALLS)
def test_ranks_that_name_different_wires_get_an_error(form_of_call: str) -> None:
    x = np.ones(100, "f4")
    gradred.allreduce(x, comm=COMM)
    with pytest.raises(gradred.UsageError, match=r"disagree.*wire"):
        FORMS_OF_CALLS[form_of_call](x, "sum", "int8" if RANK else "bf16")
    assert gradred.allreduce(x, comm=COMM).tolist() == [SIZE] * 100


@pytest.mark.parametrize("form_of_call", FORMS_OF_CALLS)
def test_every_form_of_a_call_refuses_what_a_wire_does_not_carry(form_of_call: str) -> None:
    for x, op, found in ((np.ones(3), "sum", "not float64"), (np.ones(3, "f4"), "max", "not max")):
        with pytest.raises(gradred.UsageError, match=found):
            FORMS_OF_CALLS[form_of_call](x, op, "int8")


@pytest.mark.parametrize(
    ("x", "how", "found"),
    [
        (np.ones(3, "f4"), {"wire": "int3"}, "is none of"),
        (np.ones(3, "f4"), {"wire": 8}, "is none of"),
        (np.ones(3, "f8"), {"wire": "int8"}, "carries float32, not float64"),
        (np.ones(3, "i4"), {"wire": "bf16"}, "carries float32, not int32"),
        (np.ones(3, "f4"), {"wire": "int8", "op": "max"}, "has sums, means and scaled sums"),
        (np.ones(3, "f4"), {"wire": "int8", "leaves": 3}, "a tree that is the plan"),
    ],
)
def test_what_a_wire_does_not_carry_is_refused(x: Any, how: dict[str, Any], found: str) -> None:
    with pytest.raises(gradred.UsageError, match=found):
        gradred.allreduce(x, comm=COMM, **how)
    assert gradred.allreduce(np.ones(2), comm=COMM).tolist() == [SIZE] * 2
