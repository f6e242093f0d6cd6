"""Predictions of training: gradients, overlap, a known network found again, the command."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradred import cli
from gradred.errors import UsageError
from gradred_lab.simulate import (
    accuracy,
    divided,
    grouping,
    iteration,
    links,
    messages,
    networks,
    rates,
    throughput,
    training_validation,
    work,
)
from gradred_lab.simulate.accuracy import Trial
from gradred_lab.simulate.exchange import Exchange
from gradred_lab.simulate.iteration import Link, Scheme
from gradred_lab.simulate.left_out import Errors, LeftOut
from gradred_lab.simulate.networks import Network
from gradred_lab.simulate.throughput import Speed, Training
from gradred_lab.simulate.training import DIVIDED, SERVERS, STEPS, STRONG, Trainings
from gradred_lab.simulate.training_validation import Validated

COLUMNS = (
    *("source", "cluster", "model", "batch", "precision", "network", "scheduler"),
    *("framework", "options", "gpus", "nodes"),
)


def setting(gpus: int = 1, nodes: int = 1, **more: object) -> Training:
    given: dict[str, object] = {
        "source": "ours",
        "cluster": "8 nodes x 4 GPUs",
        "model": "ResNet-50",
        "batch": 64,
        "precision": "fp32",
        "network": "PCIe within a node; 10 GbE TCP",
        "scheduler": "BSP",
        "framework": "PyTorch Horovod",
        "options": "allreduce",
        "gpus": gpus,
        "nodes": nodes,
    }
    return Training(**{**given, **more})  # type: ignore[arg-type]


# ---- networks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "options", "elements"),
    [
        ("ResNet-50 v1.5", "", 25_557_032),
        ("VGG-16", "", 138_357_544),
        ("AlexNet", "", 61_100_840),
        ("BERT-Base", "", 109_482_240),
        ("BERT-Base", "sequence length 64", 110_111_042),
        ("BERT-Large", "sequence length 64", 336_232_258),
        ("GPT-2 small", "", 124_439_808),
        ("bert-base", "", 109_482_240),
        ("googlenet-bn-aux", "", 13_004_888),
    ],
)
def test_networks_have_the_known_number_of_parameters(
    model: str, options: str, elements: int
) -> None:
    network = networks.find(model, options)
    assert network.is_known
    assert network.elements.sum() == elements
    assert list(network.ready) == sorted(network.ready)
    assert network.ready[-1] == 1.0


def test_transformer_by_its_numbers_has_about_as_many_parameters_as_its_name_says() -> None:
    network = networks.find("GPT h1536 l16 s2048 v51200 (498M)", "")
    assert 0.9 < float(network.elements.sum()) / 498e6 < 1.1


def test_unknown_network_is_marked_as_a_guess() -> None:
    assert not networks.find("nobody's", "").is_known


# ---- one iteration ----------------------------------------------------------------------------

EVEN = Network("even", True, np.full(10, 1e6), np.arange(1, 11) / 10)


def added(kind: str, link: Link, bucket: float = 0.0, overlap: float = 1.0) -> float:
    scheme = Scheme(kind, bucket)
    return iteration.added(EVEN, 0.3, scheme, link, itemsize=4.0, overlap=overlap)


def test_one_message_after_backward_is_added_in_full_with_its_packing() -> None:
    assert added("whole", Link(1e-3, 1e-9)) == pytest.approx(1e-3 + 0.04, rel=0.05)


def test_of_messages_that_overlap_the_last_one_alone_is_added() -> None:
    assert added("tensor", Link(0.0, 1e-9)) == pytest.approx(4e-3)


def test_of_a_slow_network_what_does_not_fit_into_backward_is_added() -> None:
    link = Link(0.0, 1e-8)  # 40 ms a gradient, and backward makes one each 20 ms
    assert added("tensor", link) == pytest.approx(0.4 - 0.18)
    assert added("tensor", link) < added("whole", link)


def test_merging_spares_latency_and_costs_nothing_without_it() -> None:
    slow = Link(30e-3, 1e-10)
    assert added("merged", slow) < added("tensor", slow)
    quick = Link(0.0, 1e-9)
    assert added("merged", quick) == pytest.approx(added("tensor", quick))


def test_one_bucket_for_all_is_one_message() -> None:
    link = Link(1e-3, 1e-9)
    assert added("bucket", link, bucket=1e12) == pytest.approx(added("whole", link), rel=0.05)
    assert added("bucket", link, bucket=1.0) == pytest.approx(added("tensor", link))


def test_both_models_of_an_iteration_merge_the_same_gradients() -> None:
    alone = work.of_network(EVEN, 0.3)
    link = Link(15e-3, 3e-9)
    exchange = Exchange.measured({0: link.alpha, 1 << 30: link.alpha + link.beta * (1 << 30)})
    lasts = [one.last for one in messages.merged(alone, exchange)]
    assert 1 < len(lasts) < 10
    ready = (EVEN.ready - 1) * 0.2
    cost = functools.partial(np.polyval, (link.beta, link.alpha))
    assert grouping.merged(4 * EVEN.elements, ready, link.alpha, cost) == lasts


def test_pieces_by_priority_go_on_during_forward() -> None:
    slow = Link(0.0, 1e-8)
    assert added("pieces", slow) < added("tensor", slow)
    assert added("pieces", Link(0.0, 1e-12)) >= 0


def test_links_of_more_gpus_and_nodes_cost_more() -> None:
    places = [(1, 1), (4, 1), (8, 2), (16, 4), (32, 8)]
    costs = [links.link(at, links.nominal(at)) for at in (setting(*place) for place in places)]
    assert [cost.beta for cost in costs] == sorted(cost.beta for cost in costs)
    assert [cost.alpha for cost in costs] == sorted(cost.alpha for cost in costs)
    assert costs[0].beta == 0
    at = setting(8, 2)
    faster = setting(8, 2, network="PCIe within a node; 100 Gb InfiniBand RDMA")
    assert links.nominal(faster).between < links.nominal(at).between


# ---- a known cluster --------------------------------------------------------------------------

SCHEDULERS = ("BSP", "WFBP", "MG-WFBP")
NETWORKS = ("PCIe within a node; 10 GbE TCP", "PCIe within a node; 100 Gb InfiniBand RDMA")


def truth(at: Training) -> Speed:
    """By messages that cost half as much again as the network's name says."""
    one = {"ResNet-50": 0.25, "BERT-Base": 0.3}[at.model]
    terms = links.nominal(at).scaled(math.log(1.5), math.log(1.5))
    exposed = 0.0
    if at.gpus > 1:
        exposed = iteration.added(
            networks.find(at.model, at.options),
            one,
            links.scheme(at),
            links.link(at, terms),
            itemsize=4.0,
            overlap=0.7,
        )
    return Speed(at, at.gpus * at.batch / (one + exposed), None)


def cluster(places: tuple[tuple[int, int], ...]) -> list[Speed]:
    speeds = []
    for model in ("ResNet-50", "BERT-Base"):
        given = {"model": model, "network": "none", "scheduler": "none", "framework": "PyTorch"}
        speeds.append(truth(setting(1, 1, **given)))
        speeds += [
            truth(setting(gpus, nodes, model=model, scheduler=scheduler, network=network))
            for gpus, nodes in places
            for scheduler in SCHEDULERS
            for network in NETWORKS
        ]
    return speeds


def test_known_cluster_is_found_again_at_two_and_four_times_the_gpus() -> None:
    model = Trainings(cluster(((4, 1), (8, 2))))
    errors = [
        abs(math.expm1(model.predict(speed.training).mean - math.log(speed.images_per_s)))
        for speed in cluster(((16, 4), (32, 8)))
        if speed.training.gpus > 1
    ]
    assert sorted(errors)[len(errors) // 2] < 0.02
    assert max(errors) < 0.08


def test_what_was_measured_is_predicted_as_measured() -> None:
    fit = cluster(((4, 1), (8, 2)))
    model = Trainings(fit)
    for speed in fit:
        outcome = model.predict(speed.training)
        assert math.exp(outcome.mean) == pytest.approx(speed.images_per_s, rel=0.02)


def test_throughput_does_not_fall_with_more_gpus_on_a_fast_network() -> None:
    model = Trainings(cluster(((4, 1), (8, 2))))
    speeds = [model.predict(setting(p, p // 4, network=NETWORKS[1])).mean for p in (8, 16, 32, 64)]
    assert speeds == sorted(speeds)


def test_cross_validation_leaves_out_the_largest_scale_and_bands_hold() -> None:
    tried = training_validation.attempts(cluster(((4, 1), (8, 2))))
    assert {attempt.speed.training.gpus for attempt in tried} == {8}
    known = [attempt.trial for attempt in tried if attempt.with_it == "setting_left_out"]
    assert len(known) == 12
    assert accuracy.accuracy(known, 1.0).median < 10
    table = Validated(tried).table()
    assert [(line["step"], line["rows"]) for line in table] == [
        ("across", 12),
        ("across unseen", 12),
    ]
    for line in table:
        assert 85 <= line["within_band_percent"] <= 100
        assert line["predicted_by"] == "model"
        assert line["linear"]["median_error_percent"] > line["model"]["median_error_percent"]


def several(speed: Callable[[int], float], systems: tuple[str, ...] = ("one",)) -> list[Speed]:
    """Images per second of a GPU by number of GPUs, of six models on each system."""
    return [
        Speed(at, at.gpus * 100.0 * speed(at.gpus) * (1 + 0.001 * i), None)
        for system in systems
        for i, batch in enumerate((16, 32, 48, 64, 96, 128))
        for gpus, nodes in ((1, 1), (4, 1), (8, 2), (16, 4))
        for at in [setting(gpus, nodes, batch=batch, cluster=system)]
    ]


def test_linear_scaling_predicts_the_steps_that_it_is_less_far_off() -> None:
    linear = Validated(training_validation.attempts(several(lambda _: 1.0)))
    assert linear.is_linear("one", "across unseen")
    by_step = {line["step"]: line for line in linear.table()}
    assert by_step["across unseen"]["predicted_by"] == "linear"
    assert by_step["across unseen"]["median_error_percent"] < 0.1
    assert by_step["across unseen"]["model"]["median_error_percent"] > 1
    known = Validated(training_validation.attempts(cluster(((4, 1), (8, 2)))))
    assert not known.is_linear("8 nodes x 4 GPUs", "across unseen")


def test_rows_that_linear_scaling_predicts_say_so(tmp_path: Path) -> None:
    fit = write(tmp_path / "fit.csv", several(lambda _: 1.0), measured=True)
    one_node = [row for row in several(lambda _: 1.0) if row.training.gpus == 16]
    other = dataclasses.replace(one_node[0].training, gpus=32, nodes=8)
    asked = write(tmp_path / "rows.csv", [Speed(other, 1.0, None)], measured=False)
    out = tmp_path / "out.json"
    words = ["simulate", "training", "--calibrate", fit, "--rows", asked, "--json", str(out)]
    assert cli.main(words) == cli.DONE
    (row,) = json.loads(out.read_text())["rows"]
    assert row["predicted_images_per_s"] == row["linear_images_per_s"] == pytest.approx(3200)
    assert "linear scaling: each GPU is as fast as one of the 16 measured" in row["reason"]
    assert row["error_of"] == "6 rows left out of this system"


def test_error_of_a_step_is_that_of_its_own_rows_alone() -> None:
    def trial(error: float) -> Trial:
        return Trial(0.0, error, 0.01)

    rows = [
        *(LeftOut("one", "inside", i, trial(0.01)) for i in range(12)),
        *(LeftOut("two", "across", i, trial(0.2 + 0.001 * i)) for i in range(12)),
        *(LeftOut("one", "across", i, trial(0.1)) for i in range(4)),
        *(LeftOut("one", "between", i, trial(0.1)) for i in range(2)),
    ]
    errors = Errors(rows)
    inside, across = errors.of("one", "inside"), errors.of("one", "across")
    assert inside is not None
    assert across is not None
    assert inside.median == pytest.approx(1.0, abs=0.1)
    assert across.median > 15, "with four of its own, those of all systems count"
    assert not across.is_own
    assert errors.of("one", "between") is None
    assert errors.columns("one", "between")["error_median_percent"] is None
    elsewhere = errors.of("three", "across")
    assert elsewhere is not None
    assert elsewhere.rows == 16


def test_band_of_a_row_is_not_made_of_its_kin() -> None:
    off = [LeftOut("one", "inside", "a", Trial(0.0, 0.5, 0.01)) for _ in range(5)]
    near = [LeftOut("one", "inside", i, Trial(0.0, 0.01, 0.01)) for i in range(15)]
    (line,) = Errors([*off, *near]).table()
    assert line["within_band_percent"] == 75.0


@pytest.mark.parametrize(
    "strange",
    [
        setting(7, 3, model="nobody's", framework="nobody's", network=""),
        setting(16, 4, precision="amp"),
        setting(16, 4, batch=1),
        setting(1, 1, batch=1 << 20),
        setting(4096, 512, scheduler="nobody's"),
        setting(16, 4, options="parameter server", framework="BytePS"),
        setting(2, 4),
    ],
    ids=lambda at: f"{at.model}-{at.gpus}-{at.batch}",
)
def test_every_row_gets_an_answer_and_a_reason(strange: Training) -> None:
    outcome = Trainings(cluster(((4, 1), (8, 2)))).predict(strange)
    assert math.isfinite(outcome.mean)
    assert 0 < outcome.deviation < 2
    assert outcome.reason
    assert outcome.step.removesuffix(SERVERS) in STEPS


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (setting(16, 4, scheduler="nobody's"), 'scheduler "nobody\'s" is unknown: buckets'),
        (setting(16, 4, framework="another"), "of PyTorch, another setting"),
        (setting(16, 4, batch=32), "on one device (a guess: 4 GPUs less 5 %), "),
    ],
)
def test_what_is_guessed_says_so(at: Training, words: str) -> None:
    fit = [*cluster(((4, 1), (8, 2))), truth(setting(4, 1, batch=32))]
    model = Trainings(fit)
    assert words in model.predict(at).reason
    assert "guess" not in model.predict(setting(16, 4)).reason


@pytest.mark.parametrize(
    ("words", "gigabits", "inside"),
    [
        ("8x 400 Gb InfiniBand per node", 3200, None),
        ("NVLink 1800 GB/s; 4x 400 Gb", 1600, 1800e9),
        ("NVL72 1.8 TB/s, 3.2 Tb/s EFA", 3200, 1800e9),
        ("PCIe within a node; 4x HDR", 800, None),
        ("HDR200", 200, None),
        ("1x 100 Gb EDR InfiniBand", 100, None),
        ("NDR", 400, None),
        ("XDR", 800, None),
        ("2x Slingshot-11", 400, None),
        ("8x400G RoCE", 3200, None),
        ("200 Gbits/s", 200, None),
        ("12.5 GB/s per node", 100, None),
        ("1,600 Gb/s", 1600, None),
        ("80GB A100; 8x HDR", 1600, None),
        ("16 GB V100, dual 100 GbE", 200, None),
        ("NDR 8x", 3200, None),
        ("4xHDR", 800, None),
        ("Slingshot 11", 200, None),
        ("EFA", None, None),
        ("a fast one", None, None),
        ("NVLink 900 GB/s", None, 900e9),
    ],
)
def test_rates_of_links_are_read_as_people_write_them(
    words: str, gigabits: float | None, inside: float | None
) -> None:
    assert rates.between_nodes(words) == (None if gigabits is None else gigabits * 1e9)
    assert rates.inside_node(words) == inside


def test_size_of_an_unknown_network_counts() -> None:
    means = []
    for more in ({"parameters": 10**6}, {"gradient_bytes": 10**9}, {}):
        given: dict[str, object] = {"model": "own", "parameters": 10**9, "tensors": 7, **more}
        alone = Speed(setting(1, 1, **given), 200.0, None)
        outcome = Trainings([*cluster(((4, 1), (8, 2))), alone]).predict(setting(16, 4, **given))
        means.append(outcome.mean)
    assert means == sorted(means, reverse=True)
    assert len(set(means)) == 3
    assert "in 7 tensors of one size, a guess" in outcome.reason
    assert len(networks.find("own", "", (10**9, None)).elements) == 100


@pytest.mark.parametrize(
    ("row", "place", "remedy"),
    [
        ({"network": "fast"}, "line 3, column network", "8x 400 Gb InfiniBand per node"),
        ({"model": "own"}, "line 3, column model", "column parameters"),
        ({"model": "own", "parameters": "many"}, "line 3, column parameters", "whole number"),
    ],
)
def test_what_is_not_understood_is_an_error_with_line_and_column(
    tmp_path: Path, row: dict[str, str], place: str, remedy: str
) -> None:
    pytest.importorskip("pandas")
    right = {name: str(getattr(setting(8, 2), name)) for name in COLUMNS}
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, "parameters"])
        writer.writeheader()
        writer.writerows([right, right | row, right])
    with pytest.raises(UsageError) as caught:
        throughput.read_rows(str(path))
    assert place in str(caught.value)
    assert remedy in str(caught.value)
    path.write_text(path.read_text().replace(row.get("network", "own"), "resnet50 10 GbE"))
    if "parameters" not in row:
        assert len(throughput.read_rows(str(path))) == 3


# ---- divided models ---------------------------------------------------------------------------

DECODER = "h4096 l32 s2048 v51200"


def decoder(gpus: int, nodes: int, **more: object) -> Training:
    given: dict[str, object] = {
        **{"model": DECODER, "batch": 8, "precision": "amp", "scheduler": ""},
        **{"network": "NVLink 600 GB/s; 8x 200 Gb InfiniBand", "options": "", **more},
    }
    return setting(gpus, nodes, **given)


def rows_of(tmp_path: Path, *rows: dict[str, object]) -> str:
    """A table of a decoder's trainings; each row has what it changes."""
    pytest.importorskip("pandas")
    right: dict[str, object] = {name: getattr(decoder(64, 8), name) for name in COLUMNS}
    more = ("sharding", "tensor_parallel", "pipeline_parallel", "micro_batches", "global_batch")
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *more])
        writer.writeheader()
        writer.writerows([right, *({**right, **row} for row in rows)])
    return str(path)


def test_divisions_of_a_model_are_read(tmp_path: Path) -> None:
    path = rows_of(
        tmp_path,
        {"sharding": "FSDP"},
        {"sharding": "ZeRO-1"},
        {"sharding": "none", "tensor_parallel": 4, "pipeline_parallel": 2, "micro_batches": 4},
        {"batch": "", "global_batch": 256, "tensor_parallel": 2},
    )
    plain, fsdp, zero1, parts, strong = throughput.read_rows(path)
    assert not plain.is_divided
    assert [one.sharding for one in (fsdp, zero1, parts)] == ["zero3", "zero1", None]
    assert (parts.replica, parts.replicas, parts.stages) == (8, 8, 2)
    assert (strong.batch, strong.replicas) == (8, 32)
    assert strong.setting == dataclasses.replace(strong, gpus=1, nodes=1, batch=256)


@pytest.mark.parametrize(
    ("row", "place", "words"),
    [
        ({"tensor_parallel": 3}, "column tensor_parallel", "64 are no multiple"),
        ({"pipeline_parallel": 5}, "column pipeline_parallel", "64 are no multiple"),
        ({"nodes": 7, "sharding": "zero1"}, "column nodes", "no multiple of 7 nodes"),
        ({"sharding": "zero9"}, "column sharding", "zero1, zero2, zero3, fsdp"),
        ({"global_batch": 100}, "column global_batch", "64 replicas cannot share"),
        ({"global_batch": 128}, "column global_batch", "64 replicas with a batch of 8 make 512"),
        ({"batch": ""}, "column batch", "so is global_batch"),
        ({"micro_batches": 4}, "column micro_batches", "there is one stage"),
        ({"micro_batches": 3, "pipeline_parallel": 2}, "column micro_batches", "a batch of 8"),
        ({"model": "resnet50", "tensor_parallel": 2}, "column tensor_parallel", "'resnet50'"),
        ({"pipeline_parallel": 64}, "column pipeline_parallel", "32 layers"),
        ({"model": "h36 l8 s8 v8", "tensor_parallel": 8}, "column tensor_parallel", "width of 36"),
        (
            {"gpus": 8192, "nodes": 1024, "sharding": "zero3"},
            "column sharding",
            "8,192 replicas, and at most 4,096",
        ),
        (
            {"options": "parameter server", "sharding": "fsdp"},
            "column sharding",
            "no parameter servers",
        ),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_columns_that_contradict_each_other_are_an_error_with_line_and_column(
    tmp_path: Path, row: dict[str, object], place: str, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        throughput.read_rows(rows_of(tmp_path, row))
    assert f"line 3, {place}: " in str(caught.value)
    assert words in str(caught.value)


def cost(name: str, group: divided.Group, nbytes: float = 2**30) -> float:
    link = divided._link(name, links.nominal(decoder(64, 8)), group)
    return link.alpha + link.beta * nbytes


def test_volumes_of_sharding_are_those_of_its_paper() -> None:
    group = divided.groups(decoder(64, 8)).replicas
    assert group == divided.Group(64, 8, 1)
    reduced, scattered, gathered = (
        cost(name, group) for name in ("allreduce", "reduce_scatter", "allgather")
    )
    assert scattered + gathered == pytest.approx(reduced, rel=0.05)
    at = decoder(64, 8)
    link = links.link(at, links.nominal(at))
    assert reduced == pytest.approx(link.alpha + link.beta * 2**30, rel=0.15)


def test_groups_lie_where_ranks_are_and_share_the_network_of_a_node() -> None:
    at = divided.groups(decoder(64, 8, tensor_parallel=8, pipeline_parallel=2))
    assert at.parts == divided.Group(8, 1, 1)
    assert at.replicas == divided.Group(4, 4, 8)
    assert at.stages == divided.Group(2, 2, 8)
    assert divided.groups(decoder(64, 8, tensor_parallel=16)).parts == divided.Group(16, 2, 1)
    assert divided.groups(decoder(64, 8, tensor_parallel=2)).replicas == divided.Group(32, 8, 2)
    one_node = divided.groups(decoder(8, 1, tensor_parallel=2, pipeline_parallel=4))
    assert one_node.stages.nodes == 1


def alone() -> Trainings:
    return Trainings([Speed(decoder(1, 1), 3.0, None)])


def each(model: Trainings, at: Training) -> float:
    """Samples per second of a GPU."""
    return math.exp(model.predict(at).mean) / at.gpus


def test_tensor_parallel_on_one_node_costs_less_than_across_nodes() -> None:
    speeds = [each(alone(), decoder(64, 8, tensor_parallel=t)) for t in (2, 8, 16, 64)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[2] < 0.8 * speeds[1]


def test_more_micro_batches_leave_less_of_a_pipeline_idle() -> None:
    model = alone()
    speeds = [
        each(model, decoder(64, 8, batch=64, pipeline_parallel=8, micro_batches=m))
        for m in (1, 8, 64)
    ]
    assert speeds == sorted(speeds)
    assert speeds[1] > 3 * speeds[0], "8 / (1 + 7/8) over 8 / (1 + 7)"


def test_parameters_that_are_gathered_twice_are_half_as_many_bytes_again() -> None:
    slow = "NVLink 600 GB/s; 10 GbE TCP"
    whole, third = (
        each(alone(), decoder(64, 8, network=slow, sharding=name, scheduler="BSP"))
        for name in ("zero1", "zero3")
    )
    assert whole == pytest.approx(1.5 * third, rel=0.05)


def test_divided_models_are_set_off_from_what_was_measured_of_their_division() -> None:
    at = {"tensor_parallel": 8, "pipeline_parallel": 2, "micro_batches": 8}
    fit = [Speed(decoder(16, 2, **at), 30.0, None)]
    model = Trainings(fit)
    same = model.predict(decoder(16, 2, **at))
    assert math.exp(same.mean) == pytest.approx(30.0)
    more = model.predict(decoder(64, 8, **at))
    assert more.step == "between" + DIVIDED
    assert 60 < math.exp(more.mean) < 120
    assert "8 parts of each layer x 2 stages; 8 micro-batches" in more.reason
    other = model.predict(decoder(64, 8, sharding="zero3"))
    assert other.step == "divided" + DIVIDED
    assert "what the measured 16 GPUs leave for computing" in other.reason
    assert other.deviation > more.deviation


def test_one_global_batch_on_more_gpus_leaves_each_less_to_do() -> None:
    at = {"global_batch": 64}
    fit = [
        Speed(decoder(1, 1, batch=64), 3.2, None),
        Speed(decoder(1, 1, batch=8), 3.0, None),
        Speed(decoder(8, 1, batch=8, **at), 22.0, None),
    ]
    model = Trainings(fit)
    found = [model.predict(decoder(p, p // 8, batch=64 // p, **at)) for p in (8, 16, 32, 64)]
    speeds = [math.exp(one.mean) for one in found]
    assert speeds[0] == pytest.approx(22.0, rel=0.01)
    assert speeds == sorted(speeds)
    efficiencies = [speed / p for speed, p in zip(speeds, (8, 16, 32, 64), strict=True)]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert found[1].step == "across unseen" + STRONG
    assert "(a guess: by other batches)" in found[2].reason
    assert found[2].linear is not None
    assert math.exp(found[2].linear.mean) == pytest.approx(4 * 22.0)


# ---- links ------------------------------------------------------------------------------------


def test_speeds_of_networks_are_read_in_each_spelling() -> None:
    spellings = ("100 Gb", "100Gbps", "100 Gbit/s", "100 GbE", "100 Gb/s")
    found = {links.nominal(setting(8, 2, network=f"{one} InfiniBand")).between for one in spellings}
    assert max(found) < 1.2e-9


# ---- the command ------------------------------------------------------------------------------


def write(path: Path, speeds: list[Speed], *, measured: bool) -> str:
    pytest.importorskip("pandas")  # reads it
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, "images_per_s", "std"])
        for speed in speeds:
            given = [getattr(speed.training, name) for name in COLUMNS]
            writer.writerow([*given, speed.images_per_s if measured else "", ""])
    return str(path)


def test_record_has_each_row_in_order_and_the_error_of_the_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = write(tmp_path / "fit.csv", cluster(((4, 1), (8, 2))), measured=True)
    wanted = [truth(setting(p, p // 4, scheduler=s)) for s in ("WFBP", "BSP") for p in (32, 16)]
    asked = write(tmp_path / "rows.csv", wanted, measured=False)
    out = tmp_path / "out.json"
    words = ["simulate", "training", "--calibrate", fit, "--rows", asked, "--json", str(out)]
    assert cli.main(words) == cli.DONE
    record = json.loads(out.read_text())
    assert record["schema"] == "gradred-simulate-training/1"
    assert [(one["scheduler"], one["gpus"]) for one in record["rows"]] == [
        (speed.training.scheduler, speed.training.gpus) for speed in wanted
    ]
    for one in record["rows"]:
        assert list(one) == [
            *COLUMNS,
            *("predicted_images_per_s", "low_images_per_s", "high_images_per_s"),
            *("linear_images_per_s", "error_median_percent", "error_p95_percent", "error_of"),
            "reason",
        ]
        assert one["low_images_per_s"] <= one["predicted_images_per_s"] <= one["high_images_per_s"]
        assert one["reason"].startswith("predicted (simulated): ")
    whole = record["cross_validation"]["all"]["setting_left_out"]
    assert whole["rows"] == 12
    assert whole["median_error_percent"] < 10
    assert "4 throughputs predicted (simulated)" in capsys.readouterr().out


def test_steps_that_no_measurement_takes_say_that_their_error_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = write(tmp_path / "fit.csv", cluster(((2, 1), (4, 1))), measured=True)
    wanted = [truth(setting(gpus, nodes)) for gpus, nodes in ((8, 2), (16, 4), (4, 1))]
    asked = write(tmp_path / "rows.csv", wanted, measured=False)
    words = ["simulate", "training", "--calibrate", fit, "--rows", asked, "--json", "-"]
    assert cli.main(words) == cli.DONE
    printed = capsys.readouterr()
    validated = json.loads(printed.out)["cross_validation"]
    unknown = {"system": "8 nodes x 4 GPUs", "step": "across unseen", "rows": 2}
    assert validated["not_compared"] == [unknown]
    assert "Error of 2 of these, on 8 nodes x 4 GPUs: not known. They go from one" in printed.err


def test_table_of_networks_is_part_of_the_package() -> None:
    root = Path(__file__).resolve().parents[2]
    folder = root / "src" / "gradred_lab" / "simulate" / "data"
    assert {path.suffix for path in folder.iterdir()} == {".json"}
    assert '"gradred_lab.simulate" = ["data/*.json"]' in (root / "pyproject.toml").read_text()
    assert "src/gradred_lab/simulate/data *.json" in (root / "MANIFEST.in").read_text()
    table = json.loads((folder / "models.json").read_text())
    assert table["source"]
    assert table["licence"]
