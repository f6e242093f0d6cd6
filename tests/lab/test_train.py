"""`gradred train` without ranks: matrix, record, checks, simulation, report and progress bar."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.machinery
import json
import math
import re
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.numpy_training import FRAMEWORK

from gradred import cli
from gradred.errors import UsageError
from gradred.simulate.presets import NETWORKS
from gradred_lab import pictures
from gradred_lab.cli import train
from gradred_lab.simulate import accuracy
from gradred_lab.train import framework, page, report, simulated, system, table, use
from gradred_lab.train.checks import Checker
from gradred_lab.train.framework import Cell, Peer, Size
from gradred_lab.train.measure import Mine, summary
from gradred_lab.train.progress import Bar
from gradred_lab.train.record import SCHEMA, Record
from gradred_lab.train.settings import Protocol, Settings

NUMPY = "lab.numpy_training"


def settings(**changes: Any) -> Settings:
    values: dict[str, Any] = {"models": ("first", "second"), "ranks": (1, 2)}
    values |= {"peers": ("single", "compute", "gradred"), "protocol": Protocol(1, 4, 3)}
    values |= {"simulated_hosts": (2, 64)}
    return Settings(framework=NUMPY, **(values | changes))


# ---- what is measured ------------------------------------------------------------------------


def test_lists_give_all_combinations() -> None:
    asked = settings(batches=(1, 2), precisions=("fp32", "bf16"), compiled=(False, True))
    cells = list(asked.cells())
    assert len({*cells}) == 2 * 2 * 2 * 2
    assert cells[0] == Cell("first", 1, "fp32", False)
    own = list(settings().cells())
    assert [cell.batch for cell in own] == [FRAMEWORK.models["first"].batch] * 2


def test_settings_survive_the_record() -> None:
    asked = settings(size=Size(0.5, 64, 0, 2), batches=(3,), net="Fugaku")
    assert Settings.from_record(json.loads(json.dumps(asked.record()))) == asked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--framework", "nothing.here"], "--framework nothing.here: there is none"),
        (["--models", "resnet5"], "--models resnet5: lab.numpy_training has none such"),
        (["--peers", "single,nccl"], "--peers nccl: lab.numpy_training has none such"),
        (["--precision", "fp8"], "--precision fp8: there is none such"),
        (["--device", "cuda"], "--device cuda: NumPy knows no devices"),
        (["--net", "pigeon"], "--net pigeon: there is no such network"),
        (["--compile", "maybe"], "'maybe' is neither on nor off"),
        (["--scale", "2"], "'2' is not a number above 0 and up to 1"),
        (["--steps", "0"], "--steps: 0 is too few"),
        (["--out", "/dev/null/folder"], "cannot be written"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(["train", "--framework", NUMPY, *words])
    except SystemExit as ended:  # argparse's own
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err


# ---- the record ------------------------------------------------------------------------------


def block(ranks: int, milliseconds: float, **more: Any) -> dict[str, Any]:
    used = {"gpu": ["no GPU: NVML finds no NVIDIA driver"], "rank_cores": 1.5, "other_cores": 0.0}
    used |= dict.fromkeys(
        ("system_percent", "memory_bytes", "switches_per_s", "disk_bytes_per_s"), 1.0
    )
    used |= {"network_bytes_per_s": 0.0, "loopback_bytes_per_s": 0.0}
    times = dict.fromkeys(("step_ms", "p50_ms", "p90_ms", "p99_ms"), milliseconds)
    samples = 1e3 * 8 * ranks / milliseconds
    return {"samples_per_s": samples, **times, "loss": 1.0, "use": used, **more}


RIGHT = {"rank_difference": 0.0, "difference": 1e-7, "drift": 1e-5, "right": True}


def job_facts(ranks: int) -> dict[str, Any]:
    machine = {"cpu": "a processor", "architecture": "x86_64", "cores": 2, "kernel": "6"}
    found = {"ranks": ranks, "hosts": 1, "ranks_on_hosts": [ranks], "load_before": 0.0}
    found |= {"machine": machine | {"memory_bytes": 1e9}, "versions": {"torch": "2"}}
    found |= {"topology": system.topology(), "devices": [[]] * ranks}
    times = {str(1 << 18): 200.0, str(1 << 22): 3000.0, str(1 << 25): 24000.0}
    return found | {"cores_of_ranks": [[0, 1]] * ranks, "allreduce_us": times}


def measured(path: Path, asked: Settings) -> Record:
    """A record in which each repeat takes longer than the one before."""
    record = Record.of(path, asked)
    layers = {"elements": [4_000_000, 1000], "ready": [0.25, 1.0], "backward_share": 0.6}
    facts = {"about": "a model", "unit": "rows", "reduced": "scale 0.5"}
    facts |= {"parameters": 4_001_000, "tensors": 2, "optimizer": "SGD", "arithmetic": "float32"}
    for ranks in asked.ranks:
        record.begin_job(ranks, job_facts(ranks))
        for cell, done in record.pending(asked, ranks):
            row = record.begin_row(cell, ranks, facts | {"layers": layers})
            for number in range(done, asked.protocol.repeats):
                slower = 1 + 0.1 * number
                blocks = {"single": block(1, 50 * slower), "compute": block(ranks, 50 * slower)}
                blocks["gradred"] = block(ranks, 62.5 * slower, check=RIGHT)
                record.add(row, blocks)
    return record


def test_summary_has_medians_and_compares_within_a_repeat(tmp_path: Path) -> None:
    record = measured(tmp_path / "results.json", settings())
    row = record.row(Cell("second", 8), 2)
    assert row is not None
    found = row["summary"]["gradred"]
    assert found["step_ms"] == pytest.approx({"median": 68.75, "low": 62.5, "high": 75})
    assert found["speed_up"] == pytest.approx({"median": 1.6, "low": 1.6, "high": 1.6})
    assert found["efficiency"]["median"] == pytest.approx(0.8)
    assert found["exchange_ms"]["median"] == pytest.approx(12.5 * 1.1)
    assert found["right"] is True
    assert "speed_up" not in row["summary"]["single"]
    assert "right" not in row["summary"]["compute"]


def test_run_continues_with_the_repeats_that_are_missing(tmp_path: Path) -> None:
    path, asked = tmp_path / "results.json", settings()
    record = measured(path, asked)
    assert record.pending(asked, 2) == []
    row = record.row(Cell("second", 8), 2)
    assert row is not None
    del row["repeats"][1:]
    record.write()
    assert Record.of(path, asked).pending(asked, 2) == [(Cell("second", 8), 1)]
    assert Record.of(path, asked).pending(asked, 1) == []
    assert len(Record.of(path, asked, fresh=True).pending(asked, 2)) == 2


def test_other_arguments_machines_and_versions_do_not_continue_a_run(tmp_path: Path) -> None:
    path, asked = tmp_path / "results.json", settings()
    record = measured(path, asked)
    record.write()
    with pytest.raises(
        UsageError, match=r"its run had batches \[\], and this is \[4\]\. .*--fresh"
    ):
        Record.of(path, dataclasses.replace(asked, batches=(4,)))
    for part, name in (("machine", "cpu"), ("versions", "torch")):
        other = job_facts(2)
        other[part][name] = "another"
        with pytest.raises(UsageError, match=f"it began with {name} .*, and here is another"):
            Record.of(path, asked).begin_job(2, other)


def test_another_prediction_needs_no_new_measurement(tmp_path: Path) -> None:
    path, asked = tmp_path / "results.json", settings()
    measured(path, asked).write()
    other = dataclasses.replace(asked, net="Fugaku", simulated_hosts=(4,))
    record = Record.of(path, other)
    assert record.pending(other, 2) == []
    assert record.values["arguments"]["net"] == "Fugaku"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"results.json: line 1, column 2: Expecting"),
        ("[]", r"its schema is None, and this command writes 'gradred-train/1'"),
        ('{"schema": "gradred-bench/1"}', r"its schema is 'gradred-bench/1'"),
        (json.dumps({"schema": SCHEMA, "arguments": {}}), r"it lacks jobs, rows"),
        (json.dumps({"schema": SCHEMA, "arguments": {}, "jobs": {}, "rows": [1]}), r"rows\[0\]"),
        (
            json.dumps({"schema": SCHEMA, "arguments": {}, "jobs": {}, "rows": [{"cell": {}}]}),
            r"it lacks rows\[0\]\.ranks, rows\[0\]\.hosts, rows\[0\]\.repeats",
        ),
        (b"\xff\xfe", r"it is not text"),
    ],
)
def test_file_that_is_no_record_is_refused(text: str | bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=f"{message}.*Name another folder"):
        Record.of(path, settings())


# ---- measuring -------------------------------------------------------------------------------


def test_step_takes_as_long_as_on_its_slowest_rank() -> None:
    reading = {"seconds": 1.0, "gpu": "none"}
    found = summary([Mine([0.1, 0.5], reading, 1.0), Mine([0.3, 0.4], reading, 3.0)], batch=10)
    assert found["step_ms"] == pytest.approx(250)
    assert found["samples_per_s"] == pytest.approx(2 * 10 * 2 / 0.5)
    assert found["p50_ms"] == pytest.approx(350)  # of 300 and 400
    assert found["loss"] == 2
    lost = summary([Mine([0.1], reading, math.nan), Mine([0.1], reading, 1.0)], batch=10)
    assert lost["loss"] is None, "NaN, which is no JSON"
    alone = summary([Mine([0.1, 0.2], reading, 1.0), None], batch=10)
    assert alone["samples_per_s"] == pytest.approx(100)


def test_use_is_that_of_all_ranks_and_without_psutil_says_so() -> None:
    first = {"seconds": 2.0, "core_seconds": 2.0, "system_core_seconds": 1.0, "switches": 10.0}
    host = {"host_core_seconds": 5.0, "disk_read_bytes": 4.0, "network_sent_bytes": 6.0}
    leader = first | host | {"memory_bytes": 10, "gpu": use.NO_GPU}
    found = use.together([leader, first | {"memory_bytes": 20}, {}])
    assert found["rank_cores"] == 2
    assert found["system_percent"] == 50
    assert found["other_cores"] == 0.5
    assert found["memory_bytes"] == 30
    assert found["switches_per_s"] == 10
    assert (found["disk_bytes_per_s"], found["network_bytes_per_s"]) == (2, 3)
    assert found["gpu"] == [use.NO_GPU]
    bare = use.together([{"seconds": 1.0, "gpu": use.NO_NVML}])
    assert bare == {"gpu": [use.NO_NVML], "why_not": use.NO_PSUTIL}


def test_meter_sees_the_work_of_this_process() -> None:
    pytest.importorskip("psutil")
    meter = use.Meter(is_leader=True)
    meter.begin()
    before = time.process_time()
    while time.process_time() < before + 0.05:
        pass
    found = meter.end()
    assert found["core_seconds"] >= 0.04
    assert found["host_core_seconds"] >= 0
    assert found["memory_bytes"] > 1e6
    assert found["gpu"] in (use.NO_GPU, use.NO_NVML) or isinstance(found["gpu"], list)


def test_meter_counts_the_switches_of_all_threads() -> None:
    pytest.importorskip("psutil")
    meter = use.Meter(is_leader=False)
    meter.begin()
    thread = threading.Thread(target=lambda: [time.sleep(1e-4) for _ in range(300)])
    thread.start()
    thread.join()
    assert meter.end()["switches"] >= 250


def fake_nvml(devices: int) -> types.ModuleType:
    """NVML with devices that are busy, the second one more than the first, and without power."""
    made = types.ModuleType("pynvml")
    made.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)

    class NVMLError(Exception):
        pass

    def no_power(handle: int) -> int:
        if handle == 1:
            raise NVMLError("not supported")
        return 75_000

    vars(made).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: devices,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetPowerUsage=no_power,
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=40 * (handle + 1)),
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(used=1 << 30),
    )
    return made


def test_gpus_of_the_host_are_watched_by_its_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2))
    leader, other = use.Meter(is_leader=True), use.Meter(is_leader=False)
    leader.begin()
    found = leader.end()["gpu"]
    assert [one["busy_percent"] for one in found] == [40, 80]
    assert [one.get("watts") for one in found] == [75, None]
    assert found[0]["memory_bytes"] == 1 << 30
    other.begin()
    assert "gpu" not in other.end()


def test_a_gpu_in_parts_has_no_use_and_a_failure_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml(1)

    def refuses(_: object) -> None:
        raise nvml.NVMLError("not supported")

    vars(nvml).update(nvmlDeviceGetUtilizationRates=refuses)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = use.Meter(is_leader=True)
    meter.begin()
    (found,) = meter.end()["gpu"]
    assert {*found} == {"memory_bytes", "watts"}
    vars(nvml).update(nvmlDeviceGetHandleByIndex=refuses)
    meter.begin()
    assert meter.end()["gpu"] == "not measured: NVML failed (not supported)"


def test_use_of_gpus_is_the_mean_of_the_repeats() -> None:
    repeats = [
        {"rank_cores": cores, "gpu": [[{"busy_percent": busy, "watts": 100.0}], use.NO_GPU]}
        for cores, busy in ((1.0, 10.0), (2.0, 20.0), (6.0, 90.0))
    ]
    found = use.mean(repeats)
    assert found == {
        "rank_cores": 3.0,
        "gpu": [[{"busy_percent": 40.0, "watts": 100.0}], use.NO_GPU],
    }


def test_topology_counts_sockets_cores_and_threads(tmp_path: Path) -> None:
    for number in range(8):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{number // 4}\n")
        (folder / "core_id").write_text(f"{number % 4 // 2}\n")
    found = system.topology(tmp_path)
    assert (found["sockets"], found["cores"], found["threads"]) == (2, 4, 8)
    assert found["caches_of_core_0"] == []


class OneRank:
    """A communicator of two ranks that is seen from rank 0; the other has `other`."""

    rank = 0

    def __init__(self, other: str | None = None) -> None:
        self.other = other

    def allgather(self, mine: Any) -> list[Any]:
        return [mine, mine if self.other is None else self.other]

    def bcast(self, mine: Any) -> Any:
        return mine


class Steps:
    """A trial that ends with one vector, and has another one after a step from the start."""

    def __init__(self, trained: Any, stepped: Any) -> None:
        self._now, self._next = np.asarray(trained, np.float32), np.asarray(stepped, np.float32)

    def rewind(self) -> None:
        self._now = self._next

    def step(self) -> None:
        assert self._now is self._next, "a step from anywhere else"

    def parameters(self) -> Any:
        return self._now


def test_peers_that_go_elsewhere_in_one_step_are_wrong_and_those_that_drift_are_not() -> None:
    checker = Checker(OneRank(), np.zeros(4, np.float32), "fp32")
    ours, theirs = Peer("ours", by_gradred=True), Peer("theirs")
    one = np.ones(4)
    found = checker.check(ours, Steps(10 * one, one))
    assert found == {"rank_difference": 0, "difference": 0, "drift": 0, "right": True}
    near = checker.check(theirs, Steps(15 * one, (1 + 5e-5) * one))
    assert near["difference"] == pytest.approx(5e-5, rel=1e-2)
    assert near["drift"] == pytest.approx(0.5)
    assert near["right"]
    assert not checker.check(theirs, Steps(10 * one, 1.01 * one))["right"]
    broken = checker.check(ours, Steps(np.nan * one, np.nan * one))
    assert broken == {"rank_difference": None, "difference": None, "drift": None, "right": False}


def test_parameters_that_do_not_move_are_wrong() -> None:
    first = np.zeros(4, np.float32)
    assert not Checker(OneRank(), first, "bf16").check(Peer("one"), Steps(first, first))["right"]


# ---- the simulator ---------------------------------------------------------------------------


def test_simulated_rows_grow_with_hosts_and_lose_efficiency(tmp_path: Path) -> None:
    asked = settings()
    found = simulated.simulate(measured(tmp_path / "r.json", asked).values, asked)
    assert {(row["cell"]["model"], row["hosts"]) for row in found["rows"]} == {
        ("first", 2), ("first", 64), ("second", 2), ("second", 64),
    }  # fmt: skip
    few, many = found["rows"][:2]
    assert (few["ranks"], many["ranks"]) == (4, 128)
    assert many["samples_per_s"] > 10 * few["samples_per_s"]
    assert many["efficiency"] < few["efficiency"] < 1
    assert found["error_here"]["steps"] == 2
    assert 0 <= found["error_here"]["median_percent"] <= found["error_here"]["largest_percent"]
    assert found["error_between_hosts"] == NETWORKS["10GbE"].error
    slower = simulated.simulate(
        measured(tmp_path / "r.json", asked).values, dataclasses.replace(asked, net="Fugaku")
    )
    assert slower["rows"][0]["samples_per_s"] != few["samples_per_s"]


def test_simulated_steps_begin_where_the_measured_ones_end(tmp_path: Path) -> None:
    asked = settings()
    record = measured(tmp_path / "r.json", asked).values
    for slow in (1.0, 4.0):  # whatever the model says of this host
        for row in record["rows"]:
            row["summary"]["gradred"]["step_ms"]["median"] *= slow
        found = simulated.simulate(record, asked)
        for one in found["rows"]:
            row = next(row for row in record["rows"] if row["cell"] == one["cell"])
            assert one["step_ms"] >= row["summary"]["gradred"]["step_ms"]["median"]
            assert one["samples_per_s_low"] < one["samples_per_s"] < one["samples_per_s_high"]
        few, many = found["rows"][:2]
        assert few["step_ms"] < many["step_ms"]
        assert 0 < few["error_percent"] < 100


def test_every_network_states_its_error_as_a_median() -> None:
    for name, network in NETWORKS.items():
        share = accuracy.stated(network.error)
        assert share is not None, name
        assert 0 < share < 1, name
    assert accuracy.stated("off by medians of 17 to 80 %") == 0.8
    assert accuracy.stated("not known") is None


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (9043.2, 412.0, "9,000 ± 400"),
        (89.43, 4.6, "89 ± 5"),
        (89.43, 25.0, "90 ± 20"),
        (42.7, 118.0, "40 ± 100"),
        (0.0123, 0.00097, "0.012 ± 0.001"),
        (88.43, 0.2, "88.4 ± 0.2"),
        (5.0, 0.0, "5"),
    ],
)
def test_figures_are_rounded_to_what_their_error_allows(
    value: float, error: float, shown: str
) -> None:
    assert table.rounded(value, error) == shown


def test_overlap_that_explains_the_steps_is_found(tmp_path: Path) -> None:
    asked = settings(models=("first", "second", "third"), ranks=(2,))
    record = measured(tmp_path / "r.json", settings(ranks=(2,))).values
    points = simulated._points(record, settings(ranks=(2,)))
    link = simulated._link_here(points[0], record)
    assert link.beta == pytest.approx(21000e-6 / (28 << 20), rel=1e-6)
    exact = points[0].modelled(link, simulated.Fit(0.4, {}))
    for row in record["rows"]:
        row["summary"]["gradred"]["step_ms"]["median"] = 1e3 * exact
    found = simulated.simulate(record, dataclasses.replace(asked, ranks=(2,)))
    assert found["overlap"] == pytest.approx(0.4)
    assert found["error_here"]["largest_percent"] < 1e-6


def test_work_of_a_peer_itself_is_found_from_three_models(tmp_path: Path) -> None:
    asked = settings(ranks=(2,))
    record = measured(tmp_path / "r.json", asked).values
    assert simulated.simulate(record, asked)["own"] == {}  # two models are too few
    record["rows"] = [copy.deepcopy(row) for row in record["rows"] for _ in range(2)]
    own = simulated.Own(by_byte=3e-10, by_tensor=50e-6)
    for number, row in enumerate(record["rows"]):
        row["cell"]["model"] = f"model {number}"
        sizes = [500_000 * (1 + number)] * (1 + number**2)
        ready = [(i + 1) / len(sizes) for i in range(len(sizes))]
        row["layers"] = {"elements": sizes, "ready": ready, "backward_share": 0.6}
    points = simulated._points(record, asked)
    for point in points:
        link = simulated._link_here(point, record)
        seconds = point.modelled(link, simulated.Fit(0.0, {point.name: own}))
        point.row["summary"][point.name]["step_ms"]["median"] = 1e3 * seconds
    found = simulated.simulate(record, asked)
    assert found["overlap"] == 0
    assert found["own"]["gradred"] == pytest.approx(own._asdict(), rel=1e-6)
    assert found["error_here"]["largest_percent"] < 1e-3


def test_without_ranks_that_exchange_nothing_is_simulated(tmp_path: Path) -> None:
    asked = settings(ranks=(1,))
    found = simulated.simulate(measured(tmp_path / "r.json", asked).values, asked)
    assert "two ranks or more on one host" in found["why_not"]


def test_models_may_be_spelled_with_either_stroke() -> None:
    parser = argparse.ArgumentParser()
    train.configure(parser)
    asked = parser.parse_args(["--models", "wide_deep,bert_base,bert-base"])
    assert train._settings(asked).models == ("wide-deep", "bert-base")


# ---- the report ------------------------------------------------------------------------------


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "can_draw", lambda: False)


@pytest.fixture
def complete(tmp_path: Path) -> dict[str, Any]:
    record = measured(tmp_path / "results.json", settings())
    record.values["simulated"] = simulated.simulate(record.values, settings())
    return record.values


@pytest.mark.usefixtures("without_plots")
def test_report_marks_what_is_simulated_reduced_or_measured_on_a_busy_machine(
    complete: dict[str, Any], tmp_path: Path
) -> None:
    report.write(complete, settings(), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "**The models are reduced** (scale 0.5)" in text
    assert "machine was busy" not in text
    assert "| gradred | 232.73 | 18.3% | 68.75 |" in text
    simulated_part = text[text.index("## Beyond") : text.index("## Use")]
    assert "**simulated, not measured**" in simulated_part
    assert "Error on this host: median" in simulated_part
    assert f"Error between hosts: {NETWORKS['10GbE'].error}" in simulated_part
    for title in ("samples/s", "ms/step", "efficiency"):
        assert f"{title} (simulated)" in simulated_part
    busy = copy.deepcopy(complete)
    busy["rows"][0]["summary"]["gradred"]["use"]["other_cores"] = 1.25
    report.write(busy, settings(), tmp_path)
    assert "other programs used up to 1.2 cores" in (tmp_path / "report.md").read_text()


@pytest.mark.usefixtures("without_plots")
def test_html_has_what_markdown_has_in_one_file(complete: dict[str, Any], tmp_path: Path) -> None:
    report.write(complete, settings(), tmp_path)
    text, html = ((tmp_path / f"report.{one}").read_text() for one in ("md", "html"))
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    assert html.count("<tr>") == len(rows)
    assert html.count("<strong>") == text.count("**") / 2
    assert html.count("<table>") == html.count("</table>")
    assert "src=" not in html, "a figure that is not inside"


def test_plots_have_every_peer_and_dotted_lines_for_what_is_simulated(
    complete: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    report.write(complete, settings(), tmp_path)
    drawn = (tmp_path / "scaling-first.svg").read_text()
    assert ">gradred, batch 8, fp32, simulated, 10GbE<" in drawn
    assert ">single, batch 8, fp32<" in drawn
    assert ">Dotted: simulated, not measured. Error on this host: median " in drawn
    assert ">linear, batch 8, fp32<" in drawn
    assert "PolyCollection" in drawn or "FillBetween" in drawn, "no band"
    assert ">gradred<" in (tmp_path / "speed-up.svg").read_text()
    assert "![Speed-up of each peer](speed-up.svg)" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "report.html").read_text().count("<svg") == 3


@pytest.mark.usefixtures("without_plots")
def test_missing_matplotlib_is_said(complete: dict[str, Any], tmp_path: Path) -> None:
    report.write(complete, settings(), tmp_path)
    assert pictures.NO_MATPLOTLIB in (tmp_path / "report.md").read_text()
    assert not list(tmp_path.glob("*.svg"))


def test_text_of_a_page_cannot_become_markup() -> None:
    blocks = [page.Paragraph("a < b, `c<d>` **e**"), page.Table(["x|y"], [["<i>"]])]
    html = page.page("<title>", blocks)
    assert "<p>a &lt; b, <code>c&lt;d&gt;</code> <strong>e</strong></p>" in html
    assert "&lt;i&gt;" in html
    assert "<title>&lt;title&gt;</title>" in html
    assert "| x/y |" in page.markdown(blocks)


# ---- the progress bar ------------------------------------------------------------------------


def test_progress_is_a_bar_on_a_terminal_and_lines_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(*, on_terminal: bool, writes: bool) -> str:
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        bar = Bar(6, on_terminal=on_terminal, writes=writes)
        bar.begin("resnet50")
        for seconds in (10.0, 30.0, 20.0):
            now[0] += seconds
            bar.step("single")
        bar.clear()
        return capsys.readouterr().err

    assert written(on_terminal=True, writes=False) == ""
    in_a_file = written(on_terminal=False, writes=True)
    assert in_a_file == "#  33%, 80 s left: resnet50, single\n", "one line in 30 s"
    *_, shown, cleared, _ = written(on_terminal=True, writes=True).split("\r")
    assert shown.startswith("[############............]  50%, 60 s left: resnet50, single")
    assert cleared.strip() == ""
    assert len(cleared) == len(shown.rstrip()), "the rest of the line stays"


def test_frameworks_of_the_table_have_models_and_peers_to_compare() -> None:
    for name in framework.FRAMEWORKS:
        found = framework.find(name)
        assert len(found.models) >= 8
        assert [peer.everyone for peer in found.peers.values()].count(False) == 1
        for model in found.models.values():
            assert {*model.reads} <= {field.name for field in dataclasses.fields(Size)}
            assert re.fullmatch(r"[a-z]+", model.unit)
