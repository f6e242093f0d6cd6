"""What mpi4jax's pages and issues warn of gives the right result here.

Its issues: https://github.com/mpi4jax/mpi4jax/issues. (Inputs stay unchanged:
test_collectives.py. Programs that exit early: tests/jobs/test_jax.py.)
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from mpi4py import MPI

import gradred.jax as collectives
from gradred import _core
from gradred.jax.ranks import ffi


def test_mpi4py_uses_the_same_communicator_meanwhile(rank: int, size: int) -> None:
    """mpi4jax: "Do not use mpi4jax and mpi4py with the same communicator!"."""
    if size == 1:
        pytest.skip("one rank has no peer")
    world = MPI.COMM_WORLD
    large = jnp.full(1 << 20, rank + 1.0)
    total = jax.jit(collectives.allreduce)(large)
    if rank == 0:
        world.send("a message", dest=1, tag=3)
    if rank == 1:
        assert world.recv(source=0, tag=3) == "a message"
    assert world.allreduce(1) == size
    assert float(total[-1]) == size * (size + 1) / 2


def test_large_arrays_under_jit(rank: int, size: int) -> None:
    """mpi4jax #229: wrong numbers under jit for large arrays."""

    @jax.jit
    def program(x: Any) -> Any:
        y = x * 3.0 + 1.0
        total = collectives.allreduce(y)
        return total - y, jnp.max(total), jnp.min(total)

    for _ in range(3):
        others, most, least = program(jnp.full(6_000_000, float(rank)))
        expected = 3.0 * size * (size - 1) / 2 + size
        assert (float(most), float(least)) == (expected, expected)
        np.testing.assert_array_equal(others, expected - (3.0 * rank + 1.0))


def test_calls_without_tokens_keep_their_partners(rank: int, size: int) -> None:
    """mpi4jax #212: calls without tokens are reordered, and meet those of other lines."""

    xs = [jnp.full((200, 200), float(i)) for i in range(16)]

    @jax.jit
    def program(xs: Any) -> Any:
        totals: dict[int, Any] = {}
        for i in range(16):
            which = (i + rank * 5) % 16  # a compiler could reorder the calls like this
            totals[which] = collectives.allreduce(xs[which] + 1.0, name=f"token {which}")
        return [jnp.sqrt(totals[i]) for i in range(16)]

    for _ in range(5):
        for i, found in enumerate(program(xs)):
            np.testing.assert_allclose(found, np.full((200, 200), (size * (i + 1.0)) ** 0.5))


def test_result_that_one_rank_alone_reads(rank: int, size: int) -> None:
    """All ranks run the call, whether or not the program looks at its result."""
    total = jax.jit(collectives.allreduce)(jnp.ones(10))
    if rank == 0:
        time.sleep(0.05)
        assert total.tolist() == [size] * 10
    del total
    assert float(collectives.allreduce(1.0)) == size


def test_unused_result_of_a_program_is_dropped_on_all_ranks(size: int) -> None:
    function = jax.jit(lambda x: (collectives.allreduce(x), x + 1)[1])
    assert function(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert "gradred_collective" not in function.lower(jnp.ones(2)).compile().as_text()


def test_array_of_a_device_is_refused_with_a_remedy() -> None:
    """mpi4jax #309: an MPI that is not CUDA-aware ends the process."""
    _, on_device = _core.jax_handlers()
    ffi.register_ffi_target("gradred_on_device", on_device, platform="cpu")
    call = ffi.ffi_call("gradred_on_device", jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="Set JAX_PLATFORMS=cpu"):
        call(jnp.ones(3)).block_until_ready()
