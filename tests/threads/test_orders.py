"""The order in which an algorithm adds: the table's claim, at each place in the vector."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from core_testing import run_threads
from threads.reference import view

from gradred import schedules

ALLREDUCES = [row for row in schedules.algorithms() if row["collective"] == "allreduce"]
ONE_ORDER = [row["name"] for row in ALLREDUCES if row["one_order"]]
# The order of "hierarchical" depends on its algorithm between the groups.
OTHERS = [row["name"] for row in ALLREDUCES if row["name"] not in (*ONE_ORDER, "hierarchical")]
COUNT = 97  # several elements for each chunk, not the same number in each
TRIES = 12


@functools.cache
def bits_of(name: str, size: int, count: int) -> list[tuple[int, ...]]:
    """The distinct bits of a sum of one number of each rank, over all places of a vector."""
    made = np.random.default_rng(7)
    numbers = made.standard_normal((TRIES, size)) * 2.0 ** made.integers(-9, 9, (TRIES, size))
    found = []
    for given in numbers.astype("float32"):
        work = [np.full(count, number) for number in given]
        run_threads(schedules.make_all(name, size), view(work), "float32", "sum")
        found.append(tuple(np.unique(work[0].view("uint32")).tolist()))
    return found


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("name", ONE_ORDER)
def test_one_order_is_that_of_every_place_length_and_such_algorithm(name: str, size: int) -> None:
    assert bits_of(name, size, COUNT) == bits_of("recursive_doubling", size, 1)


@pytest.mark.parametrize("name", OTHERS)
def test_algorithms_of_other_orders_do_not_claim_the_one(name: str) -> None:
    """Otherwise they would be chosen where lengths must not change bits."""
    assert bits_of(name, 12, COUNT) != bits_of("recursive_doubling", 12, 1)


def test_two_algorithms_have_the_one_order_for_long_and_short_vectors() -> None:
    assert ONE_ORDER == ["recursive_doubling", "rabenseifner"]
