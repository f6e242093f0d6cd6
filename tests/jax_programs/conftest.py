"""The ranks of tests of JAX programs: `gradred run -np 2 python -m pytest tests/jax_programs`."""

from __future__ import annotations

import os

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"


@pytest.fixture(scope="session")
def rank() -> int:
    jax = pytest.importorskip("gradred.jax")
    return int(jax.rank())


@pytest.fixture(scope="session")
def size() -> int:
    jax = pytest.importorskip("gradred.jax")
    return int(jax.size())
