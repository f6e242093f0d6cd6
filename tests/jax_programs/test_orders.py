"""Calls that ranks reach in different orders, and many calls in flight."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from mpi4py import MPI

import gradred.jax as collectives


def test_threads_reach_calls_in_different_orders(rank: int, size: int) -> None:
    names = [f"order {i}" for i in range(4)]
    found: dict[str, Any] = {}

    def run(name: str, factor: int) -> None:
        function = jax.jit(lambda x: collectives.allreduce(x, name=name))
        found[name] = function(jnp.full(50, float(factor))).tolist()

    order = [(i + rank) % 4 for i in range(4)]
    threads = [threading.Thread(target=run, args=(names[i], i + 1)) for i in order]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert found == {name: [size * (i + 1.0)] * 50 for i, name in enumerate(names)}


def test_many_calls_of_one_program(rank: int, size: int) -> None:
    """XLA runs the calls of a large program at the same time, and in no order."""
    xs = [jnp.full((200, 200 + i), float(rank + i)) for i in range(40)]

    def program(xs: Any) -> Any:
        return [jnp.sum(collectives.allreduce(jnp.sin(x) * 0 + x)) / x.size for x in xs]

    function = jax.jit(program)
    for _ in range(5):
        found = [float(one) for one in function(xs)]
        assert found == pytest.approx([size * i + size * (size - 1) / 2 for i in range(40)])


def test_runs_that_are_dispatched_without_waiting(rank: int, size: int) -> None:
    """All runs use one name: the n-th of a rank meets the n-th of the others."""
    function = jax.jit(lambda x: collectives.allreduce(x * 2.0, name="many runs"))
    results = []
    for i in range(50):
        if i % 7 == rank:
            time.sleep(0.01)
        results.append(function(jnp.full(1000, float(i))))
    assert [float(one[0]) for one in results] == [2.0 * size * i for i in range(50)]


def test_one_name_twice_in_a_program(size: int) -> None:
    """Nothing orders the two calls. Each has its number in the program."""
    function = jax.jit(
        lambda x, y: (
            collectives.allreduce(jnp.sin(x) * 0 + x, name="twice"),
            collectives.allreduce(jnp.cos(y) * 0 + y, name="twice"),
        )
    )
    x, y = jnp.ones((400, 400)), jnp.full((400, 400), 5.0)
    for _ in range(20):
        assert [float(one[3, 3]) for one in function(x, y)] == [size, 5.0 * size]


def test_name_in_flight_is_refused_on_that_rank(rank: int, size: int) -> None:
    """Two threads use one name: ranks could pair their calls differently."""
    if size == 1:
        pytest.skip("one rank waits for nobody")
    function = jax.jit(lambda x: collectives.allreduce(x, name="in flight"))
    assert function(jnp.ones(3)).tolist() == [size] * 3  # threads would wait for the first call
    found: list[Any] = []
    refused = threading.Event()

    def run() -> None:
        try:
            found.append(function(jnp.ones(3)).tolist())
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            found.append("has been submitted and has not ended" in str(error))
            refused.set()

    threads = [threading.Thread(target=run) for _ in range(2 if rank == 0 else 1)]
    if rank == 0:
        for thread in threads:
            thread.start()
        assert refused.wait(50)
        MPI.COMM_WORLD.Barrier()
    else:
        MPI.COMM_WORLD.Barrier()  # only then the call of rank 0 can end
        threads[0].start()
    for thread in threads:
        thread.join()
    assert found == [True] * (rank == 0) + [[size] * 3]


def test_names_of_places_differ_by_kind_line_and_trace(size: int) -> None:
    @jax.jit
    def program(x: Any) -> Any:
        for _ in range(3):
            x = collectives.allreduce(x)
        return collectives.all_gather(x)

    text = program.lower(jnp.ones(2)).as_text()
    names = [f"allreduce at test_orders.py:{line}" for line in _lines("x = collectives.allreduce")]
    assert names
    assert all(f"{names[0]} ({i})" in text for i in (1, 2, 3))
    assert "allgather at test_orders.py" in text
    np.testing.assert_array_equal(program(jnp.ones(2)), [size**3] * 2 * size)


def _lines(text: str) -> list[int]:
    with open(__file__) as file:
        return [number for number, line in enumerate(file, 1) if line.strip().startswith(text)]
