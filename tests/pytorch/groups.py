"""Helpers of the tests of torch.distributed: this rank, and the group of all ranks.

mpiexec starts the ranks, or torchrun does: tests/jobs/test_torchrun.py.
"""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from gradred import torch_backend

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

torch_backend.register()
_BY_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ
if _BY_TORCHRUN:  # torchrun initialises no MPI
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
else:
    from mpi4py import MPI

    RANK, SIZE = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()


def since(*version: int) -> Any:
    """Marks a test of a function that PyTorch has had since this version."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    name = ".".join(map(str, version))
    return pytest.mark.skipif(found < version, reason=f"PyTorch {name} and newer")


@pytest.fixture(scope="module", autouse=True)
def group_of_all() -> Iterator[None]:
    method: dict[str, Any] = {}
    if not _BY_TORCHRUN:
        folder = MPI.COMM_WORLD.bcast(tempfile.mkdtemp() if RANK == 0 else None)
        method = {"init_method": f"file://{folder}/store", "rank": RANK, "world_size": SIZE}
    dist.init_process_group("gradred", timeout=datetime.timedelta(seconds=30), **method)
    yield
    dist.destroy_process_group()


def learned(*shape: int) -> Any:
    """A leaf of the graph for results in pipelines."""
    return torch.zeros(shape, requires_grad=True)
