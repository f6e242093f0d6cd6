"""`gradred schemes`: the table, the record, stragglers, and a run without a job of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradred import config, launch
from gradred.schemes import SCHEMES

pytestmark = [
    pytest.mark.one_mpi,
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A file with rows of four classes that a small network can tell apart."""
    drawn = np.random.default_rng(3)
    centres, y = 3 * drawn.standard_normal((4, 12)), drawn.integers(0, 4, 600)
    x = centres[y] + drawn.standard_normal((600, 12))
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    return str(tmp_path / "rows.npz")


def schemes(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradred", "schemes", *words, "--hidden", "16"]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


def record_of(*words: str) -> dict[str, Any]:
    done = schemes(*words, "--json", "-")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_scheme_learns_on_both_transports_and_has_its_row(rows: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = ("-np", "2", "--data", rows, "--transport", "mpi,tcp", "--iterations", "150")
    done = schemes(*words, "--json", str(path))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    shown = [tuple(line.split()[:2]) for line in lines[1:]]
    assert shown == [(name, how) for name in SCHEMES for how in ("mpi", "tcp")]
    record = json.loads(path.read_text())
    assert record["schema"] == "gradred-schemes/1"
    assert record["complete"]
    assert record["workers"] == 2
    assert record["machine"]["cores"] == os.cpu_count()
    for row in record["rows"]:
        assert row["accuracy"] > 0.9, row["scheme"]
        assert row["seconds_to_loss"] > 0
        assert 0 < row["iterations_to_loss"] <= 150
        assert row["given_bytes"] > 0
        is_inside = (row["scheme"], row["transport"]) == ("bsp", "mpi")
        assert (row["sent_bytes"] is None) == is_inside
        assert row["server_ranks"] == SCHEMES[row["scheme"]].servers
    both = {row["scheme"]: [] for row in record["rows"]}
    for row in record["rows"]:
        both[row["scheme"]].append(row["sent_bytes"])
    both.pop("bsp")
    assert all(mpi == tcp for mpi, tcp in both.values())  # the same messages


def test_a_late_worker_holds_up_synchronous_schemes_and_asynchronous_ones_less(rows: str) -> None:
    words = ("-np", "2", "--data", rows, "--iterations", "60", "--straggler", "1:30ms")
    record = record_of(*words, "--schemes", "bsp,ssp,asp", "--staleness", "5")
    of_worker = {row["scheme"]: row["seconds_of_workers"] for row in record["rows"]}
    assert all(ends[1] > 60 * 0.03 for ends in of_worker.values())
    assert of_worker["bsp"][0] > 59 * 0.03
    assert of_worker["ssp"][0] < of_worker["ssp"][1] - 3 * 0.03
    assert of_worker["asp"][0] < of_worker["asp"][1] / 2


def test_several_servers_compression_and_aggregation_are_rows_of_one_table(rows: str) -> None:
    words = ("-np", "1", "--data", rows, "--schemes", "ps", "--servers", "1,2")
    words += ("--compression", "none,topk:0.1", "--aggregate", "once", "--iterations", "40")
    record = record_of(*words, "--gradients", "scattered", "--momentum", "0.5")
    found = [(row["compression"], row["server_ranks"]) for row in record["rows"]]
    assert found == [("none", 1), ("none", 2), ("topk:0.1", 1), ("topk:0.1", 2)]
    given = [row["given_bytes"] for row in record["rows"]]
    assert given[0] == given[1]
    assert given[2] < 0.25 * given[0]
    whole, sharded = (row["loss"] for row in record["rows"][:2])
    assert whole == pytest.approx(sharded, rel=1e-5)


def test_pytorch_trains_like_numpy(rows: str) -> None:
    pytest.importorskip("torch")
    losses = [
        record_of("-np", "2", "--data", rows, "--schemes", "bsp,ps", "--iterations", "40",
                  "--model", model)["rows"]
        for model in ("numpy", "torch")
    ]  # fmt: skip
    for numpy, torch in zip(*losses, strict=True):
        assert numpy["loss"] == pytest.approx(torch["loss"], rel=1e-4)


def test_plot_is_drawn(rows: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("-np", "2", "--data", rows, "--schemes", "bsp", "--iterations", "20")
    done = schemes(*words, "--plot", str(tmp_path / "plot.svg"))
    assert done.returncode == 0, done.stderr
    assert ">bsp mpi<" in (tmp_path / "plot.svg").read_text()
