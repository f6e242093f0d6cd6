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


@pytest.mark.parametrize(
    ("x", "how", "found"),
    [
        (np.ones(3, "f4"), {"wire": "int3"}, "is none of"),
        (np.ones(3, "f4"), {"wire": 8}, "is none of"),
        (np.ones(3, "f8"), {"wire": "int8"}, "carries float32, not float64"),
        (np.ones(3, "i4"), {"wire": "bf16"}, "carries float32, not int32"),
        (np.ones(3, "f4"), {"wire": "int8", "op": "max"}, "has sums, means and scaled sums"),
        (
            np.ones(3, "f4"),
            {"wire": "int8", "plan": "ring"},
            "Leave out stream= and plan= and leaves=",
        ),
        (np.ones(3, "f4"), {"wire": "int8", "leaves": 3}, "a plan of its own"),
    ],
)
def test_what_a_wire_does_not_carry_is_refused(x: Any, how: dict[str, Any], found: str) -> None:
    with pytest.raises(gradred.UsageError, match=found):
        gradred.allreduce(x, comm=COMM, **how)
    assert gradred.allreduce(np.ones(2), comm=COMM).tolist() == [SIZE] * 2
