"""`gradred simulate study`: eleven items, as Markdown, JSON and pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from gradred import cli
from gradred.simulate import presets
from gradred_lab import pictures
from gradred_lab.simulate import what_if
from gradred_lab.simulate.study import ITEMS

WORDS = "simulate study --net 56Gb-IB --hosts 1,2 --local 2 --scheme bsp,wfbp"


def study(
    words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[str, dict[str, Any]]:
    """The report and the record."""
    assert cli.main([*f"{WORDS} {words}".split(), "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert (folder / "study.md").read_text() == out
    return out, json.loads((folder / "study.json").read_text())


def section(report: str, number: int) -> str:
    return report.split(f"\n## {number}. ")[1].split("\n## ")[0]


def test_report_has_eleven_items_with_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, record = study("--model resnet50,vgg16", tmp_path / "new", capsys)
    titles = re.findall(r"^## \d+\. (.*)$", report, re.MULTILINE)
    assert titles == list(ITEMS.values())
    assert len(titles) == 11
    assert list(record["items"]) == list(ITEMS)
    for number in range(1, 12):
        assert section(report, number).count("|---") >= 2, number
    for name in re.findall(r"!\[.*\]\((.*)\)", report):
        drawn = (tmp_path / "new" / name).read_text()
        ElementTree.fromstring(drawn)
        assert "Simulated, not measured. Error: iterations of 2 to 8 GPUs" in drawn


def test_simulated_columns_say_so_and_the_report_says_their_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, record = study("--model resnet50", tmp_path, capsys)
    assert record["simulated"] is True
    assert f"Error of simulated iterations: {what_if.ERROR}." in report
    error = presets.find("56Gb-IB").error
    assert f"Error of simulated exchanges: {error}." in report
    for number, columns in ((4, 3), (5, 3), (6, 4), (7, 3), (8, 3), (9, 3), (10, 2), (11, 3)):
        assert section(report, number).count("(simulated)") >= columns, number


def test_items_agree_with_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, record = study("--model resnet50,vgg16", tmp_path, capsys)
    items = record["items"]
    assert len(items["speed"]) == 2 * 2 * 2  # models, hosts, schemes
    assert [one["devices"] for one in items["speed"][:4]] == [2, 2, 4, 4]
    assert items["phases"] == [one for one in items["speed"] if one["hosts"] == 2]
    one = {row["model"]: row["samples_per_s"] for row in items["device"]}
    for row in items["host"]:
        if row["devices"] == 1:
            assert row["samples_per_s"] == pytest.approx(one[row["model"]])
            assert row["efficiency"] == pytest.approx(1)
    for row in items["scaling"]:
        assert row["hosts"] > 1 or row["speedup"] == 1
        assert 0 < row["of_linear"] <= 1.000001
    assert [items[name]["ranks"] for name in ("inside", "across")] == [2, 4]


def test_scaling_is_drawn_as_curves_over_devices_beside_the_linear_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, record = study("--model resnet50,vgg16", tmp_path, capsys)
    shown, *texts = pictures.data_of((tmp_path / "scaling.svg").read_text())
    lines = dict(line.rsplit("; ", 2)[0:2] for line in shown.splitlines())
    schemes = {row["scheme"] for row in record["items"]["scaling"]}
    assert {*lines} == {f"{model}; {one}" for model in ("resnet50", "vgg16") for one in schemes}
    assert {"linear", "devices", "samples per second", *schemes} <= {*texts}
    assert any("Bands: that median." in text for text in texts)


def measured_messages(folder: Path) -> Path:
    """A record of 4 ranks on 2 hosts, where long messages take seconds."""
    rows = [
        {"bytes": nbytes, "results": {"gradred": {"p50_us": us}}}
        for nbytes, us in ((64, 7.0), (1 << 26, 7e6))
    ]
    bench = {
        "schema": "gradred-bench/1",
        "arguments": {"collective": "allreduce", "mode": "blocking"},
        "ranks_on_hosts": [2, 2],
        "rows": rows,
    }
    (folder / "bench.json").write_text(json.dumps(bench))
    return folder / "bench.json"


def test_what_was_measured_stands_beside_what_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"--model resnet50 --messages {measured_messages(tmp_path)}"
    report, record = study(words, tmp_path / "out", capsys)
    assert "| measured |" in section(report, 9)
    assert "measured |" not in section(report, 8)
    across = record["items"]["across"]["rows"]
    assert across[-1]["measured_us"] == pytest.approx(7e6)
    waits = [row for row in record["items"]["speed"] if row["scheme"] == "bsp"]
    assert [row["exposed_ms"] > 7000 for row in waits] == [False, True]


def test_measured_allreduces_do_not_stand_for_a_parameter_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = study("--model resnet50 --scheme ps-once", tmp_path / "simulated", capsys)[1]
    words = f"--model resnet50 --scheme ps-once,bsp --messages {measured_messages(tmp_path)}"
    record = study(words, tmp_path / "out", capsys)[1]
    rows = [row for row in record["items"]["speed"] if row["scheme"] == "ps-once"]
    assert rows == simulated["items"]["speed"]


@pytest.mark.full
def test_a_whole_study_of_several_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "simulate study --model resnet50,vgg16,bert_base,gpt2_small --net V100-100Gb"
    assert cli.main([*words.split(), "--out", str(tmp_path)]) == 0
    report = capsys.readouterr().out
    assert all(len(section(report, number)) > 100 for number in range(1, 12))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model lenet --net 10GbE", "--model lenet: there are alexnet"),
        ("--model resnet50", "no network is named"),
        ("--model resnet50 --net 10GbE --scheme x", "there is no such scheme"),
        ("--model resnet50 --net 10GbE --hosts 0", "0 is too few: give 1 or more"),
        ("--net 10GbE", "one of the arguments --model --trace is required"),
        ("--trace nothing.json --net 10GbE", "it cannot be read"),
        ("--model resnet50 --messages BENCH", "no network is named"),
        (
            "--model resnet50 --net 10GbE --local 3 --messages BENCH",
            "4 ranks on 2 hosts were measured. Choose --hosts and --local",
        ),
    ],
)
def test_what_cannot_be_studied_is_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        words = words.replace("BENCH", str(measured_messages(tmp_path)))
        status = cli.main([*f"simulate study {words}".split(), "--out", str(tmp_path / "out")])
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("")
    words = f"{WORDS} --model resnet50 --out {tmp_path}/out"
    assert cli.main(words.split()) == 2
    assert "it is no folder" in capsys.readouterr().err
