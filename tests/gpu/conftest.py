"""The simulated device of each rank."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from gpu.simulated import LIBRARY, Driver, the_driver

os.environ["SIMULATED_CUDA_DEVICES"] = "4"
# otherwise short arrays would not use the data path between devices
os.environ["SIMULATED_CUDA_MPS"] = "1"
os.environ["NUMBA_CUDA_DRIVER"] = str(LIBRARY)
os.environ["GRADRED_LIBCUDA"] = str(LIBRARY)
os.environ["GRADRED_LIBNVRTC"] = str(LIBRARY)
os.environ["GRADRED_LIBNCCL"] = str(LIBRARY)  # must be set before gradred reads its settings


@pytest.fixture
def device() -> Iterator[Driver]:
    """The device without injected faults before and after; a test must free all its arrays."""
    driver = the_driver()
    driver.set("most_delay", 50_000)
    yield driver
    driver.set("lost", 0)
