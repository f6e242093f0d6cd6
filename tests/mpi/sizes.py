"""Numbers of ranks that tests are for."""

from __future__ import annotations

import pytest
from mpi4py import MPI

# Where each test costs much and the fourth rank differs in nothing from the third.
up_to_three_ranks = pytest.mark.skipif(
    MPI.COMM_WORLD.size > 3, reason="three ranks are enough for this"
)
