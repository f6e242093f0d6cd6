"""Iterations of training as graphs of tasks: hand-computed cases, schemes, servers, the command."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from gradred import cli
from gradred.errors import UsageError
from gradred.schedules import verify
from gradred.simulate.plans import Layout, simulate
from gradred.simulate.presets import NETWORKS
from gradred.simulate.servers import parameter_servers
from gradred_lab.simulate import messages, networks, what_if, work
from gradred_lab.simulate.dag import Message, Phases, Rules, run
from gradred_lab.simulate.exchange import Exchange, Place, Way, started
from gradred_lab.simulate.messages import SCHEMES
from gradred_lab.simulate.work import DEVICES, Work

ROOT = Path(__file__).resolve().parents[2]

# Ten gradients of 4 MB; forward takes 10 ms a tensor, backward 20.
EVEN = Work("even", np.full(10, 4e6), np.full(10, 0.01), np.full(10, 0.02))


def line(alpha: float, beta: float) -> Exchange:
    """A network of which each message costs alpha, and beta a byte."""
    return Exchange.measured({0: alpha, 1 << 30: alpha + beta * (1 << 30)})


def phases(name: str, alpha: float, beta: float, alone: Work = EVEN) -> Phases:
    return messages.iterate(name, alone, line(alpha, beta))


# ---- the graph ----------------------------------------------------------------------------------


def test_without_cost_an_iteration_is_that_of_one_device() -> None:
    for name in SCHEMES:
        found = phases(name, 0.0, 0.0)
        assert found.iteration == pytest.approx(EVEN.seconds) == pytest.approx(0.3)
        assert found.limit(EVEN.seconds) == "the device"


def test_phases_of_every_scheme_add_up() -> None:
    alone = dataclasses.replace(EVEN, load=0.1, copy_in=0.02, update=0.03, packing=1e-10)
    for name in SCHEMES:
        found = phases(name, 1e-3, 1e-8, alone)
        parts = (found.load, found.copy_in, found.forward, found.backward, found.packing)
        assert found.iteration == pytest.approx(sum(parts) + found.exposed + found.update)
        assert found.iteration >= alone.seconds
        assert min(parts) >= 0


def test_one_message_after_backward_is_waited_for_in_full() -> None:
    assert phases("bsp", 1e-3, 1e-9).exposed == pytest.approx(1e-3 + 0.04)
    assert phases("none", 1e-3, 1e-9).exposed == pytest.approx(10e-3 + 0.04)


def test_of_messages_that_overlap_the_last_alone_is_waited_for() -> None:
    assert phases("wfbp", 0.0, 1e-9).exposed == pytest.approx(4e-3)
    slow = phases("wfbp", 0.0, 1e-8)  # 40 ms each, and backward makes one each 20 ms
    assert slow.exposed == pytest.approx(0.4 - 0.18)
    assert slow.limit(EVEN.seconds) == "speed of the network"
    assert phases("wfbp", 0.04, 0.0).limit(EVEN.seconds) == "latency of messages"


def test_what_overlaps_costs_the_share_that_it_takes_of_the_processor() -> None:
    for name in ("wfbp", "bsp", "priority"):
        free, none = (
            phases(name, 0.0, 1e-9, dataclasses.replace(EVEN, overlap=share)) for share in (1, 0)
        )
        assert none.exposed == pytest.approx(none.exchange) == pytest.approx(0.04)
        half = phases(name, 0.0, 1e-9, dataclasses.replace(EVEN, overlap=0.5))
        assert free.exposed <= half.exposed <= none.exposed
        if name != "priority":  # there a slower device gives messages more time
            assert half.exposed == pytest.approx((free.exposed + none.exposed) / 2)


def test_merging_spares_latency_and_costs_nothing_without_it() -> None:
    assert phases("mgwfbp", 0.03, 1e-10).exposed < phases("wfbp", 0.03, 1e-10).exposed
    assert len(messages.merged(EVEN, line(0.0, 1e-9))) == 10
    assert len(messages.merged(EVEN, line(0.05, 1e-10))) < 10


def test_by_priority_messages_go_on_during_forward() -> None:
    assert phases("priority", 0.0, 1e-9).exposed == pytest.approx(4e-3)
    assert phases("priority", 0.0, 7e-9).exposed < phases("wfbp", 0.0, 7e-9).exposed
    # The network is busy but for the first tensor's forward and backward, and a wait before them.
    assert phases("priority", 0.0, 1e-8).iteration == pytest.approx(0.44)
    assert phases("wfbp", 0.0, 1e-8).iteration == pytest.approx(0.52)


def test_by_priority_the_first_layer_goes_before_others_that_wait() -> None:
    alone = Work("two", np.array([8e6, 1.0]), np.array([0.0, 0.1]), np.array([0.1, 0.001]))
    first = [Message(0, 0, 4e6, 0.0), Message(0, 0, 4e6, 0.0), Message(1, 1, 1.0, -1.0)]
    last = [dataclasses.replace(one, turn=-one.turn) for one in first]
    cost = line(0.0, 5e-8)  # 0.2 s each of the long pieces
    rules = Rules(into_forward=True)
    assert run(alone, first, rules, cost).iteration < run(alone, last, rules, cost).iteration


def test_an_input_that_is_slower_than_the_device_is_the_limit() -> None:
    found = phases("bsp", 1e-3, 0.0, dataclasses.replace(EVEN, load=0.5))
    assert found.iteration == pytest.approx(0.5)
    assert found.load > 0.19
    assert found.limit(EVEN.seconds) == "input"
    assert phases("bsp", 0.0, 0.0, dataclasses.replace(EVEN, load=0.29)).load == pytest.approx(0)


def test_a_loader_goes_on_while_others_are_waited_for() -> None:
    alone = dataclasses.replace(EVEN, load=0.31, late=0.02)
    found = phases("bsp", 0.0, 0.0, alone)
    assert found.iteration == pytest.approx(0.32)
    assert found.load == pytest.approx(0)


def test_merged_gradients_are_copied_twice_and_single_ones_not() -> None:
    alone = dataclasses.replace(EVEN, packing=1e-9)
    assert phases("bsp", 0.0, 0.0, alone).packing == pytest.approx(0.08)
    assert phases("contiguous", 0.0, 0.0, alone).packing == 0
    assert phases("wfbp", 0.0, 0.0, alone).packing == 0


def of_types(sizes: list[int], types: list[str]) -> Work:
    ones = np.ones(len(sizes))
    return Work("mixed", np.array(sizes, float), ones, ones, types=tuple(types))


def test_a_message_has_gradients_of_one_type() -> None:
    mixed = of_types([1, 2, 4, 8, 16], ["float32", "bfloat16", "float32", "bfloat16", "float32"])
    exchange = line(0.0, 1e-9)
    assert [one.nbytes for one in messages.once(mixed, exchange)] == [10, 21]
    merged = messages.merged(mixed, line(9.0, 1e-9))
    assert [(one.first, one.last, one.nbytes) for one in merged] == [(1, 3, 10), (0, 4, 21)]
    buckets = messages.buckets(5.0, 1.0)(mixed, exchange)
    assert [(one.first, one.nbytes) for one in buckets] == [(0, 1), (1, 2), (3, 8), (2, 20)]
    rest = messages.buckets(100.0, 2.0)(mixed, exchange)
    assert [(one.first, one.last, one.nbytes) for one in rest] == [
        (1, 1, 2),
        (0, 2, 5),
        (3, 3, 8),
        (4, 4, 16),
    ]


def test_buckets_are_those_of_distributed_data_parallel() -> None:
    torch = pytest.importorskip("torch")
    distributed = pytest.importorskip("torch._C._distributed_c10d")
    random = np.random.default_rng(3)
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    for _ in range(50):
        count = int(random.integers(1, 40))
        types = [str(one) for one in random.choice(list(kinds), count)]
        tensors = [
            torch.empty(int(n), dtype=kinds[kind])
            for n, kind in zip(random.integers(1, 400, count), types, strict=True)
        ]
        limits = [300, 2000]
        sparse, order = [False] * count, list(range(count))
        wanted, _ = distributed._compute_bucket_assignment_by_size(tensors, limits, sparse, order)
        work = of_types([one.numel() * one.element_size() for one in tensors], types)
        found = messages.buckets(limits[1], limits[0])(work, line(0.0, 1e-9))
        by_first = {own[0]: (own[-1], float(work.nbytes[own].sum())) for own in wanted}
        assert {one.first: (one.last, one.nbytes) for one in found} == by_first
        kinds_left = len(set(types))  # whose rests torch puts last, in an order of its own
        assert [one.first for one in found][:-kinds_left] == [own[0] for own in wanted][
            :-kinds_left
        ]


def test_no_message_goes_before_an_earlier_one_is_ready() -> None:
    two = Work("two", np.array([1.0, 1.0]), np.zeros(2), np.array([0.1, 0.2]))
    listed = [Message(1, 1, 1.0, 0.0), Message(0, 0, 1.0, 1.0)]
    cost = line(0.0, 0.15)
    assert run(two, listed, Rules(), cost).exposed == pytest.approx(0.3)
    assert run(two, listed[::-1], Rules(), cost).exposed == pytest.approx(0.15)


def test_best_bucket_is_no_worse_than_one_message_and_than_single_ones() -> None:
    for alpha, beta in ((0.0, 1e-9), (5e-3, 1e-9), (0.02, 1e-10)):
        exchange = line(alpha, beta)
        seconds = messages.best_bucket(EVEN, exchange)[1]
        for nbytes in (1.0, 1e12):
            sent = messages.buckets(nbytes)(EVEN, exchange)
            assert seconds <= run(EVEN, sent, Rules(copies=2.0), exchange).iteration


def test_every_scheme_sends_each_gradient_once() -> None:
    for name, scheme in SCHEMES.items():
        sent = scheme.group(EVEN, line(0.01, 1e-9))
        assert sum(one.nbytes for one in sent) == pytest.approx(EVEN.nbytes.sum()), name
        assert {t for one in sent for t in range(one.first, one.last + 1)} == {*range(10)}
    with pytest.raises(UsageError, match="--scheme bspp: there is no such scheme"):
        messages.find("bspp")


# ---- exchanges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 9))
def test_parameter_servers_are_proved(size: int) -> None:
    for servers in range(1, size + 1):
        report = verify(parameter_servers(size, servers))
        assert report.messages == 2 * servers * (size - 1)
    with pytest.raises(UsageError, match=f"there are {size} ranks"):
        parameter_servers(size, size + 1)


def test_a_server_takes_as_long_as_its_port() -> None:
    place = Place(NETWORKS["Sunway"], Layout.even(32, 32))
    nbytes = 1 << 28
    one = Exchange(place, Way(servers=1))(nbytes)
    assert one > 2 * 31 * nbytes / 14e9
    assert Exchange(place, Way(servers=8))(nbytes) < one / 6
    bare = simulate("ring", place.network, place.layout, 1 << 10).seconds
    assert Exchange(place, Way(servers=1, grpc=True))(1 << 10) > 10 * bare


def test_an_exchange_is_the_fastest_plan_at_its_knots_and_straight_between() -> None:
    place = Place(NETWORKS["10GbE"], Layout.even(8, 8))
    exchange = Exchange(place, Way(("ring", "recursive_doubling")))
    for nbytes, best in ((256, "recursive_doubling"), (1 << 26, "ring")):
        assert exchange.best(nbytes) == best
        seconds = simulate(best, place.network, place.layout, nbytes).seconds
        assert exchange(nbytes) == seconds + started(place.network, place.layout)
    middle = exchange(5 << 25)
    assert middle == pytest.approx((exchange(1 << 26) + exchange(1 << 28)) / 2)
    assert exchange(1 << 31) > exchange(1 << 30) > exchange(1 << 28)
    assert Exchange(Place(NETWORKS["10GbE"], Layout.even(1, 1)), Way())(1 << 20) == 0


def test_a_message_has_a_cost_of_its_own_by_transport() -> None:
    found = []
    for net, hosts in (("10GbE", 8), ("25GbE-RoCE", 8), ("10GbE", 1)):
        place = Place(NETWORKS[net], Layout.even(8, hosts))
        bare = simulate("ring", place.network, place.layout, 256).seconds
        found.append(Exchange(place, Way(("ring",)))(256) - bare)
    assert found == pytest.approx([2.5e-4, 7e-5, 2e-5])


def test_what_serves_nobody_is_refused() -> None:
    place = Place(NETWORKS["10GbE"], Layout.even(8, 8))
    with pytest.raises(UsageError, match="none of these plans serves these ranks"):
        Exchange(place, Way(("nccl_ring",)))
    with pytest.raises(UsageError, match="messages in flight at once"):
        Exchange(Place(NETWORKS["10GbE"], Layout.even(9000, 9000)), Way(servers=8))


def test_more_hosts_exchange_longer() -> None:
    found = [
        Exchange(Place(NETWORKS["10GbE"], Layout.even(p, p)), Way())(1 << 24) for p in (2, 8, 32)
    ]
    assert found == sorted(found)


# ---- devices ------------------------------------------------------------------------------------


def test_work_of_every_network_has_its_gradients_and_its_speed() -> None:
    for name in networks.names():
        alone = work.on_device(name, DEVICES["V100"], 8, rate=100.0)
        assert alone.forward.sum() + alone.backward.sum() + alone.update == pytest.approx(0.08)
        assert alone.backward.sum() == pytest.approx(2 * alone.forward.sum())
        assert alone.nbytes.sum() == 4 * networks.find(name, "").elements.sum()
    by_speed = work.on_device("resnet50", DEVICES["V100"], 391)
    assert by_speed.forward.sum() + by_speed.backward.sum() == pytest.approx(1, rel=0.001)


def test_measured_speed_of_a_device_is_its_speed_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "simulate training --model vgg16 --net 10GbE --gpus 1 --samples-per-s 120 --json -"
    record = json.loads(command(f"{words} --scheme wfbp", capsys)[0])
    assert record["rows"][0]["samples_per_s"] == pytest.approx(120)
    assert record["device"]["source"].startswith("120 samples/s by --samples-per-s; all else: ")


def test_every_device_and_network_and_scheme_has_a_source() -> None:
    for name, device in DEVICES.items():
        assert len(device.source) > 30, name
    assert {network.device for network in NETWORKS.values()} <= {*DEVICES}
    assert all(scheme.source for scheme in SCHEMES.values())


def test_the_printed_error_is_that_of_the_newest_record() -> None:
    path = max((ROOT / "benchmarks" / "results").glob("simulated-iterations-*.json"))
    record = json.loads(path.read_text())
    found = record["all"]
    assert f"median of {found['median_error_percent']:g} %" in what_if.ERROR
    assert f"95th percentile {found['p95_error_percent']:.0f} %" in what_if.ERROR
    assert f"against {found['rows']} published" in what_if.ERROR
    for group in record["ring_by_network"]:
        text = NETWORKS[group["network"]].error
        assert f"median {group['median_error_percent']:.0f} %" in text
        assert f"95th percentile {group['p95_error_percent']:.0f} %" in text
        assert f"against {group['rows']} points" in text


# ---- the command --------------------------------------------------------------------------------

WORDS = "simulate training --model resnet50 --gpus 8 --hosts 2 --net 56Gb-IB --scheme wfbp,bsp,ps"


def command(words: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> tuple[str, str]:
    try:
        found = cli.main(words.split())
    except SystemExit as stop:
        found = int(stop.code or 0)
    captured = capsys.readouterr()
    assert found == status, captured.err
    return captured.out, captured.err


def test_the_table_says_simulated_its_error_and_what_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out, _ = command(f"{WORDS} --plot {tmp_path}/bars.svg", capsys)
    head, table, best = out.split("\n\n")
    assert head.startswith("# simulated, not measured: an iteration of resnet50, batch 32")
    assert f"# error of simulated iterations: {what_if.ERROR}" in head
    rows = [line.split()[0] for line in table.splitlines()[2:]]
    assert rows == ["wfbp", "bsp", "ps"]
    assert best.startswith("simulated: of buckets of 64 KiB to 1 GiB those of")
    drawn = (tmp_path / "bars.svg").read_text()
    ElementTree.fromstring(drawn)
    assert "Simulated, not measured. Error: iterations of 2 to 8 GPUs are off" in drawn


def test_the_record_holds_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = command(f"{WORDS} --json - --batch 64 --load 1s", capsys)
    record = json.loads(out)
    assert err.startswith("# simulated")
    assert (record["schema"], record["simulated"]) == ("gradred-simulate-iteration/1", True)
    assert (record["ranks"], record["hosts"], record["net"]) == (8, 2, "P40-56Gb-IB")
    assert record["error"] == what_if.ERROR
    for row in record["rows"]:
        assert row["iteration_ms"] >= 1000
        assert row["samples_per_s"] == pytest.approx(8 * 64e3 / row["iteration_ms"])
    assert record["rows"][0]["limit"] == "input"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model lenet --net 10GbE", "--model lenet: there are alexnet"),
        ("--model resnet50", "no network is named. Add --net with one of 10GbE"),
        ("--model resnet50 --net 9GbE", "there is no such network"),
        ("--model resnet50 --net 10GbE --scheme x", "there is no such scheme. There are: none"),
        ("--model resnet50 --net 10GbE --algorithm x", "there is no such plan"),
        ("--model resnet50 --net 10GbE --algorithm nccl_ring", "none of these plans serves"),
        ("--model resnet50 --net 10GbE --gpus 2 --hosts 4", "there are 2 devices for 4 hosts"),
        ("--model resnet50 --net 10GbE --plot a.png", "bars are drawn as SVG"),
        ("--model resnet50 --net 10GbE --samples-per-s 0", "is not a number above 0"),
        ("--model resnet50 --net 10GbE --rows x.csv", "Leave out one of both"),
        ("--net 10GbE", "nothing says what is trained. Name --model or --trace"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = command(f"simulate training {words}", capsys, status=2)
    assert message in err


@pytest.mark.full
@pytest.mark.parametrize("net", [name for name in NETWORKS if name != "V100-1000"])
def test_every_model_is_simulated_under_every_scheme_on_every_network(
    net: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = min(NETWORKS[net].hosts, max(2, 64 // NETWORKS[net].local))
    for model in networks.names():
        words = f"simulate training --model {model} --net {net} --hosts {hosts} --json -"
        record = json.loads(command(words, capsys)[0])
        assert [row["scheme"] for row in record["rows"]] == list(SCHEMES)
        assert all(0 < row["efficiency"] <= 1.000001 for row in record["rows"])
