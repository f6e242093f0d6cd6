"""Functions for the children in test_workers.py, which a new interpreter can import."""

from __future__ import annotations

import sys
from typing import Any


def use_gradred(_: int = 0) -> tuple[bool, float, int]:
    """Import gradred and use functions without communication.

    Returns whether mpi4py.MPI is loaded, and two results.
    """
    import numpy as np

    import gradred
    from gradred import _core, schedules

    x = gradred.zeros(1000, "float32")
    x += 1
    _core.reduce_pair("sum", "float32", x, x.copy(), x.copy())
    report = schedules.verify(schedules.make_all("ring", 5))
    return "mpi4py.MPI" in sys.modules, float(np.sum(x)), report.rounds


def compute(shard: list[int]) -> list[int]:
    """The work of a data loader, without gradred."""
    return [item * item for item in shard]


def read_knobs(_: int) -> dict[str, Any]:
    """The settings as a child sees them."""
    from gradred import config

    return {name: entry.value for name, entry in config.snapshot().items()}


def import_mpi(_: int) -> bool:
    """Import as a program does at its top. Returns whether that has initialised MPI."""
    from mpi4py import MPI

    import gradred

    assert gradred.zeros(3).sum() == 0
    return MPI.Is_initialized()


def communicate(_: int) -> str:
    """The error of a call that only ranks can make."""
    import numpy as np

    import gradred

    try:
        return f"the result {gradred.allreduce(np.ones(2))}"
    except gradred.UsageError as error:
        return str(error)
