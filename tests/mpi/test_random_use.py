"""Random mixed use of everything; tools/random_jobs.py runs hundreds of longer jobs."""

from __future__ import annotations

import pytest
from mpi.random_use import play
from mpi4py import MPI

OPERATIONS = 100 if MPI.COMM_WORLD.size <= 3 else 40


@pytest.mark.parametrize("seed", range(3))
def test_random_use_gives_exact_results(seed: int) -> None:
    assert not play(seed, OPERATIONS)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1300))
def test_random_use_gives_exact_results_for_hundreds_of_seeds(seed: int) -> None:
    assert not play(seed, 100)
