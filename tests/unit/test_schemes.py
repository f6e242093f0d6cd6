"""Schemes without ranks: layout, the store of a server, options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradred.errors import UsageError
from gradred.schemes.layout import AGGREGATES, Layout
from gradred.schemes.store import Sgd, Store
from gradred.schemes.table import Options

SHAPES = [(6, 4), (4,), (4, 3), (3,), ()]


# ---- layout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_buckets_and_pieces_cover_each_element_once(aggregate: Any, servers: int) -> None:
    layout = Layout(SHAPES, aggregate, 60, servers)
    assert layout.count == 24 + 4 + 12 + 3 + 1
    seen = np.zeros(layout.count, int)
    held = np.zeros(servers, int)
    for bucket in layout.buckets:
        pieces = [layout.pieces[index] for index in bucket.pieces]
        assert (pieces[0].start, pieces[-1].stop) == (bucket.start, bucket.stop)
        for piece in pieces:
            seen[piece.where] += 1
            held[piece.server] += piece.stop - piece.start
            assert math.prod(piece.shape) == piece.stop - piece.start
    assert (seen == 1).all()
    assert held.max() - held.min() <= 1  # shards are equal
    tensors = [tensor for bucket in layout.buckets for tensor in reversed(bucket.tensors)]
    assert tensors == [4, 3, 2, 1, 0]  # the order of backward
    for number, bucket in enumerate(layout.buckets):
        assert all(layout.bucket_of[tensor] == number for tensor in bucket.tensors)


def test_aggregation_makes_a_bucket_per_tensor_a_few_or_one() -> None:
    buckets = {one: Layout(SHAPES, one, 60).buckets for one in AGGREGATES}
    assert [len(bucket.tensors) for bucket in buckets["layer"]] == [1] * 5
    assert [len(bucket.tensors) for bucket in buckets["merged"]] == [3, 2]
    assert [len(bucket.tensors) for bucket in buckets["once"]] == [5]


def test_a_whole_tensor_keeps_its_shape() -> None:
    assert [piece.shape for piece in Layout(SHAPES).pieces] == SHAPES[::-1]


# ---- the store of a server -----------------------------------------------------------------------


def counting(workers: int, staleness: float, *, together: bool = False) -> Store:
    """A store whose parameter counts the steps of each worker that it contains."""
    store = Store(range(workers), Sgd(rate=-float(workers)), staleness, together=together)
    store.create(0, np.zeros(workers, np.float32))
    return store


def one_of(worker: int, workers: int) -> Any:
    return np.eye(workers, dtype=np.float32)[worker]


@given(
    workers=st.integers(1, 5),
    staleness=st.integers(0, 4),
    order=st.lists(st.integers(0, 4), max_size=200),
)
def test_no_read_is_older_than_the_staleness_and_some_worker_can_always_go_on(
    workers: int, staleness: int, order: list[int]
) -> None:
    store = counting(workers, staleness)
    steps, reads = [0] * workers, [True] * workers  # whether each has read since its last step

    def read(worker: int) -> None:
        found = store.get(0, steps[worker])
        if found is not None:
            reads[worker] = True
            version, counts = found
            assert version == sum(steps)
            assert counts[worker] == steps[worker]  # its own steps at once
            assert min(counts) >= steps[worker] - staleness

    for number in order:
        worker = number % workers
        if not reads[worker]:
            read(worker)
        else:
            store.put(0, worker, steps[worker], one_of(worker, workers))
            steps[worker] += 1
            reads[worker] = False
            read(worker)
        assert max(steps) - min(steps) <= staleness + 1
        assert any(reads) or store.get(0, min(steps)) is not None


@given(st.lists(st.integers(0, 2), max_size=60))
def test_without_a_bound_no_worker_ever_waits(order: list[int]) -> None:
    store, steps = counting(3, math.inf), [0, 0, 0]
    for worker in order:
        store.put(0, worker, steps[worker], one_of(worker, 3))
        steps[worker] += 1
        found = store.get(0, steps[worker])
        assert found is not None
        assert found[1].tolist() == steps


def test_a_worker_that_is_done_is_not_waited_for() -> None:
    store = counting(2, 0)
    store.put(0, 0, 0, one_of(0, 2))
    assert store.get(0, 1) is None
    store.finish(1)
    assert store.get(0, 1) is not None


def test_gradients_of_one_step_become_one_update_in_the_order_of_workers() -> None:
    store = Store([3, 5, 8], Sgd(rate=1.0, momentum=0.5), 0.0, together=True)
    store.create(0, np.zeros(2, np.float32))
    big = np.array([1e8, 3], np.float32), np.array([-1e8, 3], np.float32)
    small = np.array([1, 3], np.float32)
    for step, order in enumerate(([0, 1, 2], [2, 1, 0])):
        gradients = {3: big[0], 5: big[1], 8: small}
        for place in order[:2]:
            worker = [3, 5, 8][place]
            assert not store.put(0, worker, step, gradients[worker])
            assert store.get(0, step + 1) is None
        worker = [3, 5, 8][order[2]]
        assert store.put(0, worker, step, gradients[worker])
        found = store.get(0, step + 1)
        assert found is not None
        assert found[0] == step + 1
    # (1e8 - 1e8) + 1 is 1, in any other order it is 0; then with momentum 1.5 of it
    np.testing.assert_allclose(found[1], [-2.5 / 3, -7.5], rtol=1e-6)


@pytest.mark.parametrize("puts_first", [True, False])
def test_unequal_steps_of_a_synchronous_server_are_an_error(puts_first: bool) -> None:
    store = counting(2, 0, together=True)
    if puts_first:
        store.put(0, 0, 0, one_of(0, 2))
        with pytest.raises(UsageError, match="others make more"):
            store.finish(1)
    else:
        store.finish(1)
        with pytest.raises(UsageError, match="same number of steps"):
            store.put(0, 0, 0, one_of(0, 2))


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"scheme": "star"}, "scheme 'star': there is none. Use one of bsp"),
        ({"transport": "rdma"}, "transport 'rdma': there is none"),
        ({"aggregate": "half"}, "aggregate 'half'"),
        ({"compression": "topk:2"}, "no share"),
        ({"servers": 0}, "servers: it is 0. Give at least 1"),
        ({"staleness": -1}, "staleness: it is -1"),
        ({"every": 0}, "every: it is 0"),
        ({"scheme": "local", "compression": "int8"}, "it sends parameters"),
        ({"scheme": "bsp", "transport": "tcp", "compression": "int8"}, "sums of several ranks"),
        ({"scheme": "ps", "plan": "ring"}, "it has no plan, which is an option of bsp"),
        ({"staleness": 5}, "it has no staleness, which is an option of ssp. Leave staleness out"),
        ({"scheme": "asp", "staleness": 0}, "it has no staleness"),
        ({"servers": 2}, "it has no servers, which is an option of ps, ssp, asp"),
        ({"scheme": "mesh", "groups": 3}, "it has no groups, which is an option of hierarchical"),
        ({"scheme": "hierarchical", "every": 4}, "it has no every"),
        ({"plan": "ring", "compression": "fp16"}, "neither compressed"),
        ({"scheme": "hierarchical", "priority": True}, "independently"),
    ],
)
def test_options_that_exclude_each_other_say_why(options: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError) as refused:
        Options(**options).check()
    assert found in str(refused.value)
