"""Numbers of ranks for which tests are meant."""

from __future__ import annotations

import pytest
from mpi4py import MPI

# For expensive tests in which a fourth rank would test nothing new.
up_to_three_ranks = pytest.mark.skipif(
    MPI.COMM_WORLD.size > 3, reason="three ranks are enough for this"
)
