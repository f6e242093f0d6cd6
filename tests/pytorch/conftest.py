"""Initialises `gradred.torch` for the modules that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def initialised() -> Iterator[None]:
    hvd = pytest.importorskip("gradred.torch")
    hvd.init(process_sets="dynamic")
    yield
    hvd.barrier()
