"""Schemes among ranks: like one process on all batches, staleness, compression, connections."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import gradred
from gradred.compression import CODECS, Floats
from gradred.errors import PeerLost, TimeoutError, UsageError  # noqa: A004
from gradred.launch import authentication
from gradred.schemes import Sgd, Training, transport
from gradred.schemes.exchange import Exchange, Key, Stage
from gradred.schemes.table import SCHEMES, TRANSPORTS
from gradred_lab.schemes import workload

WORLD = MPI.COMM_WORLD
SYNCHRONOUS = [name for name, row in SCHEMES.items() if row.synchronous]
WITH_SERVERS = [name for name, row in SCHEMES.items() if row.servers]
LAYERS = (10, 16, 3)
BATCH = 6

pytestmark = pytest.mark.skipif(WORLD.size > 4, reason="four ranks are enough for this")
needs_two = pytest.mark.skipif(WORLD.size < 2, reason="takes a worker and a server")


def servers_of(scheme: str, servers: int = 1) -> int:
    return servers if SCHEMES[scheme].servers else 0


def skip_unless_some_rank_works(scheme: str, servers: int = 1) -> None:
    if WORLD.size <= servers_of(scheme, servers):
        pytest.skip("no rank is left for a worker")


def rows(count: int = 200) -> tuple[Floats, Any]:
    """Rows of three classes, the same on every rank, that a network can learn."""
    drawn = np.random.default_rng(5)
    centres = 2 * drawn.standard_normal((3, LAYERS[0]))
    y = drawn.integers(0, 3, count)
    x = centres[y] + drawn.standard_normal((count, LAYERS[0]))
    return x.astype(np.float32), y


X, Y = rows()


PLAIN = Sgd(0.1)


def trained(
    scheme: str,
    steps: int,
    *,
    rule: Sgd = PLAIN,
    **options: Any,
) -> tuple[list[list[Floats]], Training]:
    """Train on all ranks; returns a worker's parameters after each step, and the training."""
    start = workload.initial(LAYERS, 0)
    seen: list[list[Floats]] = []
    with Training(start, scheme, rule=rule, comm=WORLD, **options) as training:
        contiguous = training.options.contiguous
        weights = training.weights if contiguous else start
        gradients = training.gradients
        if not contiguous:
            gradients = [np.zeros_like(one) for one in start]
        network = workload.NumpyNetwork(weights, gradients)
        workers = len(training.workers)
        batches = workload.Batches(len(X), BATCH * workers, 1)
        for step in training.steps(steps):
            mine = batches.of(step)[training.rank * BATCH : (training.rank + 1) * BATCH]
            hooks = (training.ready, training.need) if contiguous else ()
            network.backward(X[mine], Y[mine], *hooks)
            training.update(None if contiguous else gradients)
            seen.append([one.copy() for one in network.parameters])
    return seen, training


def alone(steps: int, workers: int, rule: Sgd) -> list[list[Floats]]:
    """The parameters of one process that trains on the batches of all workers."""
    weights = workload.initial(LAYERS, 0)
    velocity = [np.zeros_like(one) for one in weights]
    network = workload.NumpyNetwork(weights, [np.zeros_like(one) for one in weights])
    batches = workload.Batches(len(X), BATCH * workers, 1)
    seen = []
    for step in range(steps):
        network.backward(X[batches.of(step)], Y[batches.of(step)])
        for weight, gradient, speed in zip(weights, network.gradients, velocity, strict=True):
            rule.update(weight, gradient, speed)
        seen.append([one.copy() for one in weights])
    return seen


def require_like_one_process(seen: list[list[Floats]], workers: int, rule: Sgd) -> None:
    """Each step adds a few roundings, so the bound grows with the steps."""
    for step, (found, expected) in enumerate(
        zip(seen, alone(len(seen), workers, rule), strict=True)
    ):
        for mine, one in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, one, rtol=0, atol=2e-6 * (step + 1))


# ---- like one process --------------------------------------------------------------------------


@pytest.mark.parametrize("aggregate", ["layer", "merged", "once"])
@pytest.mark.parametrize("transport_name", TRANSPORTS)
@pytest.mark.parametrize("scheme", SYNCHRONOUS)
def test_synchronous_schemes_follow_one_process_step_by_step(
    scheme: str, transport_name: str, aggregate: Any
) -> None:
    skip_unless_some_rank_works(scheme)
    rule = Sgd(0.1, 0.9)
    options = {"transport": transport_name, "aggregate": aggregate, "merge_bytes": 300}
    seen, training = trained(scheme, 12, rule=rule, **options)
    if not training.is_server:
        require_like_one_process(seen, len(training.workers), rule)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("bsp", {"plan": "ring"}),
        ("bsp", {"plan": "rabenseifner"}),
        ("bsp", {"plan": "recursive_doubling", "transport": "tcp"}),
        ("bsp", {"priority": True}),
        ("ps", {"priority": True}),
        ("ps", {"servers": 2}),
        ("ps", {"servers": 2, "aggregate": "once", "transport": "tcp"}),
        ("mesh", {"priority": True}),
        ("hierarchical", {"groups": 1}),
        ("hierarchical", {"groups": 3}),
        ("ssp", {"staleness": 0}),
        ("local", {"every": 1, "groups": 4}),
    ],
)
def test_variants_follow_one_process_too(scheme: str, options: dict[str, Any]) -> None:
    skip_unless_some_rank_works(scheme, options.get("servers", 1))
    rule = Sgd(0.1)  # without momentum single updates add up to a common one
    seen, training = trained(scheme, 8, rule=rule, **options)
    if not training.is_server:
        require_like_one_process(seen, len(training.workers), rule)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scattered_gradients_give_the_same_bits_as_contiguous_ones(scheme: str) -> None:
    skip_unless_some_rank_works(scheme)
    if scheme in ("asp", "ssp") and WORLD.size > 2:
        pytest.skip("the order of updates decides about the bits")
    found = [trained(scheme, 5, contiguous=how)[0] for how in (True, False)]
    for contiguous, scattered in zip(*found, strict=True):
        for one, other in zip(contiguous, scattered, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("scheme", ["bsp", "ps", "mesh"])
def test_a_forward_pass_may_wait_for_each_parameter(scheme: str) -> None:
    skip_unless_some_rank_works(scheme)
    start = workload.initial(LAYERS, 0)
    with Training(start, scheme, rule=Sgd(0.1), comm=WORLD, priority=True) as training:
        network = workload.NumpyNetwork(training.weights, training.gradients)
        workers = len(training.workers)
        batches = workload.Batches(len(X), BATCH * workers, 1)
        for step in training.steps(6):
            mine = batches.of(step)[training.rank * BATCH : (training.rank + 1) * BATCH]
            network.backward(X[mine], Y[mine], training.ready, training.need)
            training.update(wait=False)
        for tensor in range(len(start) if not training.is_server else 0):
            training.need(tensor)
        last = [one.copy() for one in training.weights]
    if not training.is_server:
        require_like_one_process([*alone(5, workers, Sgd(0.1)), last], workers, Sgd(0.1))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_workers_end_with_the_same_parameters(scheme: str) -> None:
    skip_unless_some_rank_works(scheme)
    _, training = trained(scheme, 7, **({"every": 3} if scheme == "local" else {}))
    final = None if training.is_server else [one.tobytes() for one in training.weights]
    found = [one for one in WORLD.allgather(final) if one is not None]
    assert all(one == found[0] for one in found)


@needs_two
@pytest.mark.parametrize("scheme", list(SCHEMES))
@pytest.mark.parametrize("contiguous", [True, False])
def test_arrays_that_were_given_have_the_parameters_after_each_step(
    scheme: str, contiguous: bool
) -> None:
    given = [np.full(5, 2.0, np.float32), np.full((2, 3), 4.0, np.float32)]
    rule = Sgd(rate=0.5)
    with Training(given, scheme, rule=rule, contiguous=contiguous) as training:
        for step in training.steps(3):
            training.update([np.ones_like(array) for array in given])
            for array, weights in zip(given, training.weights, strict=True):
                np.testing.assert_array_equal(array, weights)
            if SCHEMES[scheme].synchronous:
                np.testing.assert_array_equal(given[0], np.float32(2 - 0.5 * (step + 1)))
    if not training.is_server:
        np.testing.assert_array_equal(given[0], training.weights[0])
        assert given[0][0] != 2


def test_read_only_arrays_are_refused_on_all_ranks() -> None:
    given = np.ones(3, np.float32)
    given.flags.writeable = WORLD.rank != 0
    with pytest.raises(UsageError, match="read-only"):
        Training([given], rule=Sgd(rate=0.5))


# ---- staleness ---------------------------------------------------------------------------------


@needs_two
@pytest.mark.parametrize("staleness", [0, 2])
def test_no_worker_reads_parameters_older_than_the_staleness(staleness: int) -> None:
    """The version counts gradients: its own and, of each other worker, all but the last few."""
    start = workload.initial(LAYERS, 0)
    versions = []
    options: dict[str, Any] = {"staleness": staleness, "aggregate": "once"}
    with Training(start, "ssp", rule=Sgd(0.1), comm=WORLD, **options) as training:
        others = len(training.workers) - 1
        for step in training.steps(15):
            if training.rank == 0:
                time.sleep(0.002)
            training.update()
            versions.append(training.version)
            assert training.version >= (step + 1) + others * (step + 1 - staleness)
            assert training.version <= (step + 1) + others * 15
    if not training.is_server:
        assert versions == sorted(versions)


@needs_two
def test_asynchronous_workers_do_not_wait_for_a_late_one() -> None:
    if WORLD.size != 3:
        pytest.skip("takes two workers and a server")
    ahead = []  # steps of worker 0 beyond those of worker 1
    start = workload.initial(LAYERS, 0)
    with Training(start, "asp", rule=PLAIN, comm=WORLD, aggregate="once") as training:
        for step in training.steps(30):
            if training.rank == 1:
                time.sleep(0.03)
            training.update()
            ahead.append(2 * (step + 1) - training.version)
    if training.rank == 0:
        assert max(ahead) > 5


# ---- compression -------------------------------------------------------------------------------


def loss_of(weights: list[Floats]) -> float:
    return workload.evaluate(weights, X, Y)[0]


@functools.cache
def without_compression(scheme: str, steps: int) -> tuple[float, int]:
    """The loss, and the bytes that a worker has given, of uncompressed gradients."""
    _, training = trained(scheme, steps, aggregate="once")
    return loss_of(training.weights), training.given_bytes


@pytest.mark.parametrize(
    "scheme",
    ["bsp", "ps", *(pytest.param(one, marks=pytest.mark.full) for one in ("mesh", "hierarchical"))],
)
@pytest.mark.parametrize("compression", [name for name in CODECS if name != "none"])
def test_compressed_gradients_reach_the_same_loss_with_fewer_bytes(
    compression: str, scheme: str
) -> None:
    skip_unless_some_rank_works(scheme)
    plain, most_bytes = without_compression(scheme, 150)
    _, training = trained(scheme, 150, compression=compression, aggregate="once")
    if training.is_server:
        return
    assert plain < 0.3 * loss_of(workload.initial(LAYERS, 0))
    assert loss_of(training.weights) < 1.1 * plain + 0.02
    share = {"fp16": 0.51, "bf16": 0.51, "int8": 0.3, "int4": 0.2, "onebit": 0.1}
    assert training.given_bytes < share.get(compression, 0.6) * most_bytes


# ---- errors ------------------------------------------------------------------------------------


def test_ranks_with_other_options_get_an_error_on_each() -> None:
    if WORLD.size == 1:
        pytest.skip("takes two ranks")
    rate = 0.1 * (1 + (WORLD.rank == WORLD.size - 1))
    with pytest.raises(UsageError, match=f"rank {WORLD.size - 1} has other options"):
        Training(workload.initial(LAYERS, 0), "mesh", rule=Sgd(rate), comm=WORLD)


def test_parameters_that_are_no_float32_are_refused_on_each_rank() -> None:
    dtype = np.float64 if WORLD.rank == 0 else np.float32
    with pytest.raises(UsageError, match="not a float32 array"):
        Training([np.zeros(3, dtype)], "bsp", rule=Sgd(0.1), comm=WORLD)


@pytest.mark.parametrize("form", ["twice", "part"])
def test_parameters_that_share_memory_are_refused_on_all_ranks(form: str) -> None:
    first = np.ones(8, np.float32)
    other = first if form == "twice" else first[5:]
    with pytest.raises(UsageError, match="parameter 2 is in the memory of parameter 0"):
        Training([first, np.ones(3, np.float32), other], rule=Sgd(rate=1.0), comm=WORLD)


def test_parts_of_an_array_may_be_parameters() -> None:
    whole = np.ones((4, 4), np.float32)
    parts = [whole[:2], whole[2:, :3], whole[2:, 3]]
    with Training(parts, rule=Sgd(rate=1.0), comm=WORLD) as training:
        training.update([np.ones_like(one) for one in parts])
    assert not whole.any()


def test_a_server_that_makes_a_step_is_an_error_that_says_so() -> None:
    """It would wait for workers that wait for it."""
    if WORLD.size == 1:
        pytest.skip("takes a worker and a server")
    training = Training([np.ones(3, np.float32)], "asp", rule=Sgd(rate=1.0), comm=WORLD)
    if training.is_server:
        for call in (training.update, lambda: training.ready(0)):
            with pytest.raises(UsageError, match=r"rank \d is a server .*training.steps"):
                call()
    training.finish()


def test_servers_without_a_worker_are_refused() -> None:
    with pytest.raises(UsageError, match="no worker is left"):
        Training(workload.initial(LAYERS, 0), "ps", rule=Sgd(0.1), comm=WORLD, servers=WORLD.size)


def test_a_gradient_that_is_ready_twice_is_refused() -> None:
    with Training([np.zeros(3, np.float32)], "bsp", rule=Sgd(0.1), comm=WORLD) as training:
        training.ready(0)
        with pytest.raises(UsageError, match="exchanged already"):
            training.ready(0)
        training.update()


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        *((scheme, {"transport": name}) for scheme in SYNCHRONOUS for name in TRANSPORTS),
        ("bsp", {"plan": "ring"}),
        ("bsp", {"compression": "powersgd:4"}),
        ("bsp", {"compression": "topk:1"}),
        ("bsp", {"priority": True}),
        ("hierarchical", {"groups": 3}),
        ("local", {"every": 1, "groups": 4}),
    ],
)
def test_gradients_may_be_ready_in_another_order_on_each_worker(
    scheme: str, options: dict[str, Any]
) -> None:
    skip_unless_some_rank_works(scheme)
    ones, steps = [np.ones((4, 4), np.float32) for _ in range(5)], 4
    with Training(ones, scheme, rule=Sgd(0.25), comm=WORLD, **options) as training:
        worker, workers = training.rank, len(training.workers)
        for step in training.steps(steps):
            for number, gradient in enumerate(training.gradients):
                gradient[...] = (number + 1) * (worker + 1)
            order = np.random.default_rng(10 * step + worker).permutation(5)
            for tensor in order[: 5 - step % 2]:  # one is not reported in every other step
                training.ready(int(tensor))
            training.update()
        mean = (workers + 1) / 2
        for number, weight in enumerate(training.weights if not training.is_server else []):
            expected = 1 - 0.25 * steps * (number + 1) * mean
            np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)


@needs_two
def test_local_workers_with_unequal_numbers_of_steps_get_an_error_each() -> None:
    training = Training([np.ones(3, np.float32)], "local", rule=Sgd(0.1), comm=WORLD, groups=9)

    def train() -> None:
        with training:
            for _ in training.steps(16 - 8 * (WORLD.rank % 2)):
                training.update([np.ones(3, np.float32)])

    with pytest.raises(UsageError, match="Make the same number of steps"):
        train()
    WORLD.Barrier()


# ---- transports --------------------------------------------------------------------------------


@pytest.fixture(params=TRANSPORTS)
def carrier(request: pytest.FixtureRequest) -> Iterator[transport.Transport]:
    made = transport.CLASSES[request.param](WORLD, lambda where: None)
    yield made
    gradred.Comm(WORLD).Allreduce(MPI.IN_PLACE, np.zeros(1))
    made.close(in_order=True)


def payload_of(source: int, to: int, number: int) -> Any:
    drawn = np.random.default_rng((source, to, number))
    length = [0, 1, 1000, 3_000_000][number % 4]
    return drawn.integers(0, 256, length).astype(np.uint8)


@needs_two
def test_messages_of_all_lengths_arrive_under_their_names_in_any_order(
    carrier: transport.Transport,
) -> None:
    exchange = Exchange(carrier, lambda where: None)
    peers = [rank for rank in range(WORLD.size) if rank != WORLD.rank]
    for number in range(8):
        for peer in peers:
            payload = payload_of(WORLD.rank, peer, number)
            exchange.put([peer], Key(Stage.ALL, number, 7), payload, number=number - 3)
            payload[:] = 0  # the exchange has copied it
    for number in reversed(range(8)):
        for peer in reversed(peers):
            message = exchange.get(peer, Key(Stage.ALL, number, 7))
            assert message.number == number - 3
            expected = payload_of(peer, WORLD.rank, number)
            np.testing.assert_array_equal(message.payload, expected)
    exchange.flush()
    assert carrier.sent_bytes == carrier.received_bytes > 8 * 3_000_000 // 4


@needs_two
def test_a_message_that_does_not_come_is_a_timeout_error(carrier: transport.Transport) -> None:
    exchange = Exchange(carrier, lambda where: None)
    exchange._timeout = 0.1
    peer = (WORLD.rank + 1) % WORLD.size
    with pytest.raises(TimeoutError, match=rf"all 0 of step 0 of rank {peer}: it has not come"):
        exchange.get(peer, Key(Stage.ALL))


@needs_two
def test_a_long_wait_says_for_what(
    carrier: transport.Transport, capfd: pytest.CaptureFixture[str]
) -> None:
    exchange = Exchange(carrier, lambda where: None)
    exchange._timeout, exchange._warn_after = 0.35, 0.05
    peer = (WORLD.rank + 1) % WORLD.size
    with pytest.raises(TimeoutError):
        exchange.get(peer, Key(Stage.GRADIENT, 3, 5))
    lines = [line for line in capfd.readouterr().err.splitlines() if "has waited" in line]
    assert 1 <= len(lines) <= 3  # after 0.05, 0.1 and 0.2 s
    assert all(f"rank {WORLD.rank} has waited" in line for line in lines)
    assert all(f"s for gradient 3 of step 5 of rank {peer}" in line for line in lines)


@needs_two
def test_a_rank_that_is_lost_ends_the_wait(carrier: transport.Transport) -> None:
    def look(where: str) -> None:
        raise PeerLost(f"{where}: rank 9 has ended")

    with pytest.raises(PeerLost, match="all 0 of step 0 of rank 0: rank 9"):
        Exchange(carrier, look).get(0, Key(Stage.ALL))


@needs_two
def test_a_closed_connection_is_a_lost_peer() -> None:
    made = transport.TcpConnections(WORLD, lambda where: None)
    if WORLD.rank == 0:
        made.close(in_order=False)
    else:
        with pytest.raises(PeerLost, match="the connection to rank 0 has ended"):
            Exchange(made, lambda where: None).get(0, Key(Stage.ALL))
    WORLD.Barrier()
    if WORLD.rank != 0:
        made.close(in_order=False)


@pytest.mark.parametrize("knows", [True, False])
def test_a_caller_is_admitted_if_it_knows_the_secret(knows: bool) -> None:
    ours, theirs = socket.socketpair()
    came: deque[tuple[int, socket.socket]] = deque()
    prover = threading.Thread(target=transport._prove, args=(ours, b"secret", came))
    prover.start()
    if knows:
        authentication.convince(theirs, b"secret", time.monotonic() + 10)
        theirs.sendall(transport._RANK.pack(3))
    else:
        theirs.sendall(bytes(authentication.CHALLENGE))
        assert len(theirs.recv(1000)) == authentication.CHALLENGE + authentication.PROOF
        theirs.sendall(bytes(authentication.PROOF) + transport._RANK.pack(3))
        with contextlib.suppress(ConnectionResetError):
            assert theirs.recv(1) == b""  # closed
    prover.join(10)
    assert [rank for rank, _ in came] == ([3] if knows else [])
    for one in (ours, theirs):
        one.close()


# ---- real data ---------------------------------------------------------------------------------

needs_images = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn has the images"
)


DIGITS = ("digits", Sgd(0.1, 0.9))
# An archive of tools/images.py. Without momentum and in short steps the averages of local SGD stay
# near the path of one process.
LARGER = (os.environ.get("TEST_IMAGES", ""), Sgd(0.002))
EACH = 16  # rows of a worker in a step


def network_of(data: workload.Data) -> list[Floats]:
    return workload.initial((data.x.shape[1], 32, data.classes), 0)


def by_class(data: workload.Data, rows: Any) -> Any:
    """The rows of a step such that each worker has digits of its own.

    A worker whose gradients are lost or that learns alone does not learn the others' digits.
    """
    return rows[np.argsort(data.y[rows], kind="stable")]


def share_right(weights: list[Floats], data: workload.Data) -> float:
    """The share of the images that were not trained on whose digit is recognised."""
    return workload.evaluate(weights, data.x[data.training :], data.y[data.training :])[1]


def accuracy(scheme: str, steps: int, images: tuple[str, Sgd]) -> float | None:
    """The final accuracy; None on a server."""
    data, rule = workload.load(images[0]), images[1]
    start = network_of(data)
    with Training(start, scheme, rule=rule, comm=WORLD, aggregate="once") as training:
        network = workload.NumpyNetwork(training.weights, training.gradients)
        batches = workload.Batches(data.training, EACH * len(training.workers), 1)
        for step in training.steps(steps):
            rows = by_class(data, batches.of(step))
            mine = rows[training.rank * EACH : (training.rank + 1) * EACH]
            network.backward(data.x[mine], data.y[mine])
            training.update()
    return None if training.is_server else share_right(training.weights, data)


@functools.cache
def accuracy_alone(workers: int, steps: int, images: tuple[str, Sgd]) -> float:
    data, rule = workload.load(images[0]), images[1]
    weights = network_of(data)
    velocity = [np.zeros_like(one) for one in weights]
    network = workload.NumpyNetwork(weights, [np.zeros_like(one) for one in weights])
    batches = workload.Batches(data.training, EACH * workers, 1)
    for step in range(steps):
        rows = by_class(data, batches.of(step))
        network.backward(data.x[rows], data.y[rows])
        for weight, gradient, speed in zip(weights, network.gradients, velocity, strict=True):
            rule.update(weight, gradient, speed)
    return share_right(weights, data)


def require_same_accuracy(scheme: str, steps: int, images: tuple[str, Sgd] = DIGITS) -> None:
    found = accuracy(scheme, steps, images)
    if found is not None:
        alone = accuracy_alone(WORLD.size - servers_of(scheme), steps, images)
        print(f"{scheme}: {found:.2%} of the images that were held back, one process {alone:.2%}")
        assert found == pytest.approx(alone, abs=0.001)
        assert found > 0.9


@needs_images
@pytest.mark.parametrize("scheme", SYNCHRONOUS)
def test_final_accuracy_on_images_is_that_of_one_process(scheme: str) -> None:
    skip_unless_some_rank_works(scheme)
    require_same_accuracy(scheme, 2000)


@needs_images
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", SYNCHRONOUS)
def test_final_accuracy_after_forty_thousand_iterations_is_that_of_one_process(
    scheme: str,
) -> None:
    skip_unless_some_rank_works(scheme)
    require_same_accuracy(scheme, 40_000)


@pytest.mark.skipif(not LARGER[0], reason="TEST_IMAGES names no archive of tools/images.py")
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scheme", ["bsp", "ps", "mesh", "local"])
def test_final_accuracy_on_ten_thousand_images_is_that_of_one_process(scheme: str) -> None:
    if WORLD.size - servers_of(scheme) != 2:
        pytest.skip("takes two workers: a third rank is for a server")
    require_same_accuracy(scheme, 40_000, LARGER)
