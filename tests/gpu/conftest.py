"""The simulated device of each rank."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from gpu.simulated import LIBRARY, Driver, the_driver

os.environ["SIMULATED_CUDA_DEVICES"] = "4"
os.environ["SIMULATED_CUDA_MPS"] = "1"  # else what is short goes no way between devices
os.environ["NUMBA_CUDA_DRIVER"] = str(LIBRARY)
os.environ["GRADRED_LIBCUDA"] = str(LIBRARY)
os.environ["GRADRED_LIBNVRTC"] = str(LIBRARY)
os.environ["GRADRED_LIBNCCL"] = str(LIBRARY)  # all before gradred reads its knobs


@pytest.fixture
def device() -> Iterator[Driver]:
    """Sound before and after; a test leaves no array behind."""
    driver = the_driver()
    driver.set("most_delay", 50_000)
    yield driver
    driver.set("lost", 0)
