"""Initialises `gradred.tensorflow` for the modules that ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="module")
def initialised() -> Iterator[None]:
    hvd = pytest.importorskip("gradred.tensorflow")
    hvd.init(process_sets="dynamic")
    yield
    hvd.barrier()
