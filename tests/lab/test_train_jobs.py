"""`gradred train` with a framework of NumPy: the record, its continuation, checks, the report."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.numpy_training import FAILS_AT

from gradred import config, launch

pytestmark = [
    pytest.mark.one_mpi,
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
PEERS = "single,compute,gradred,mpi"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def train(out: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradred", "train", "--framework", "lab.numpy_training"]
    command += ["--out", str(out), "--skip", "2", "--steps", "5", "--repeats", "3"]
    environment = os.environ | variables
    return subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=110, check=False,
        env=environment,
    )  # fmt: skip


def record_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def test_peers_are_measured_checked_and_reported_in_one_run(tmp_path: Path) -> None:
    done = train(tmp_path, "--models", "first,second", "--peers", f"{PEERS},absent", "-np", "1,2")
    assert done.returncode == 0, done.stderr
    assert "# left out: absent: it is there to be left out" in done.stdout
    assert "\r" not in done.stderr, "a progress bar although this is no terminal"
    record = record_of(tmp_path)
    assert record["schema"] == "gradred-train/1"
    assert record["complete"]
    assert [(row["cell"]["model"], row["ranks"]) for row in record["rows"]] == [
        ("first", 1), ("second", 1), ("first", 2), ("second", 2),
    ]  # fmt: skip
    for row in record["rows"]:
        assert [*row["summary"]] == PEERS.split(",")
        assert len(row["repeats"]) == 3
        for peer, found in row["summary"].items():
            assert found["samples_per_s"]["low"] <= found["samples_per_s"]["median"]
            assert found["p50_ms"]["median"] <= found["p99_ms"]["median"]
            assert ("right" in found) == (peer in ("gradred", "mpi"))
            assert found.get("right", True)
            if importlib.util.find_spec("psutil") is None:
                assert "psutil is not installed" in found["use"]["why_not"]
            else:
                assert found["use"]["rank_cores"] > 0
                assert found["use"]["memory_bytes"] > 1e7
    losses = [row["repeats"][0]["peers"]["gradred"]["loss"] for row in record["rows"]]
    assert all(0 < loss < 2 for loss in losses), losses
    assert record["jobs"]["2"]["topology"]["threads"] == os.cpu_count()
    assert {one["hosts"] for one in record["simulated"]["rows"]} == {2, 4, 8, 16, 32}
    page, html = ((tmp_path / f"report.{suffix}").read_text() for suffix in ("md", "html"))
    assert "**simulated, not measured**" in page
    assert "<strong>" not in page
    assert html.startswith("<!doctype html>")
    assert ("<svg" in html) == (importlib.util.find_spec("matplotlib") is not None)


def test_interrupted_run_continues_where_it_was(tmp_path: Path) -> None:
    words = ("--models", "first,second", "--peers", PEERS)
    failed = train(tmp_path, *words, **{FAILS_AT: "second"})
    assert failed.returncode == 1
    assert "no room for second" in failed.stderr
    assert "the same command continues this run" in failed.stderr
    before = record_of(tmp_path)
    assert not before["complete"]
    report = (tmp_path / "report.md").read_text()
    assert "**The run was interrupted**: 3 of 6 repeats" in report
    assert "first" in report
    before["rows"][0]["repeats"].pop()  # as if it had been interrupted in the first model
    (tmp_path / "results.json").write_text(json.dumps(before))
    done = train(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    after = record_of(tmp_path)
    assert after["complete"]
    assert after["rows"][0]["repeats"][:2] == before["rows"][0]["repeats"]
    assert [len(row["repeats"]) for row in after["rows"]] == [3, 3]
    assert "interrupted" not in (tmp_path / "report.md").read_text()
    again = train(tmp_path, *words)  # only writes the report
    assert again.returncode == 0, again.stderr
    assert record_of(tmp_path)["rows"] == after["rows"]
    other = train(tmp_path, *words, "--batch", "4")
    assert other.returncode == 2
    assert "its run had batches [], and this is [4]" in other.stderr


def test_peers_with_different_parameters_are_found(tmp_path: Path) -> None:
    done = train(tmp_path, "--models", "first", "--peers", "gradred,wrong,sum")
    assert done.returncode == 1, done.stderr
    (row,) = record_of(tmp_path)["rows"]
    assert {peer: found["right"] for peer, found in row["summary"].items()} == {
        "gradred": True, "wrong": False, "sum": False,
    }  # fmt: skip
    checks = [
        {peer: one["check"] for peer, one in found["peers"].items()} for found in row["repeats"]
    ]
    for found in checks:  # whichever peer was the first of the repeat
        assert found["gradred"]["difference"] == 0
        assert found["wrong"]["rank_difference"] > 1e-3
        assert found["sum"]["rank_difference"] == 0
        assert found["sum"]["difference"] == pytest.approx(1, rel=0.01)
    assert "| WRONG |" in (tmp_path / "report.md").read_text()
