"""Helpers of the tests of `gradred.torch`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

RANKS = MPI.COMM_WORLD.size if MPI.Is_initialized() else 0  # 0 in a worker of a data loader
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
_numbers = itertools.count()


def name() -> str:
    return f"test.{next(_numbers)}"


def model_of(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).double()


def batches(steps: int, passes: int = 1) -> Any:
    """Inputs, the same on all ranks: for each step and pass, the part of each rank."""
    made = torch.Generator().manual_seed(7)
    return torch.randn(steps, passes, hvd.size(), 4, 6, generator=made, dtype=torch.float64)
