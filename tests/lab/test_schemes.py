"""The comparison of schemes without ranks: its cases, the network, table, plot and command."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradred import cli
from gradred.errors import UsageError
from gradred.schemes.table import SCHEMES, Options
from gradred_lab import pictures
from gradred_lab.cli import schemes
from gradred_lab.schemes import report, settings, workload
from gradred_lab.schemes.settings import Settings


def test_each_scheme_takes_the_options_that_it_has() -> None:
    chosen, refused = settings.cases(["bsp", "ssp"], ["mpi"], ["none"], [1], staleness=5)
    assert ([(one.scheme, one.staleness) for one in chosen], refused) == (
        [("bsp", 3), ("ssp", 5)],
        [],
    )
    with pytest.raises(UsageError, match="it has no staleness"):
        settings.cases(["bsp", "ps"], ["mpi"], ["none"], [1], staleness=5)


def test_combinations_are_all_that_are_possible_and_the_others_are_named() -> None:
    chosen, refused = settings.cases(
        ["bsp", "ps", "local"], ["mpi", "tcp"], ["none", "int8"], [1, 2], priority=False
    )
    found = [(one.scheme, one.transport, one.compression, one.servers) for one in chosen]
    assert found == [
        ("bsp", "mpi", "none", 1),
        ("bsp", "mpi", "int8", 1),
        ("bsp", "tcp", "none", 1),
        *(("ps", "mpi", how, number) for how in ("none", "int8") for number in (1, 2)),
        *(("ps", "tcp", how, number) for how in ("none", "int8") for number in (1, 2)),
        ("local", "mpi", "none", 1),
        ("local", "tcp", "none", 1),
    ]
    assert [one.partition(":")[0] for one in refused] == [
        "bsp, tcp, int8",
        "local, mpi, int8",
        "local, tcp, int8",
    ]
    given = Settings(hidden=(8, 8), stragglers={1: 0.5}, loss=0.5)
    assert settings.from_text(settings.to_text(given, chosen)) == (given, chosen)


# ---- what is trained -----------------------------------------------------------------------------


def test_batches_of_a_pass_hold_each_row_once_and_passes_differ() -> None:
    batches = workload.Batches(rows=10, size=4, seed=3)
    rows = np.concatenate([batches.of(step) for step in range(5)])
    assert sorted(rows[:10]) == sorted(rows[10:]) == [*range(10)]
    assert rows[:10].tolist() != rows[10:].tolist()
    again = workload.Batches(rows=10, size=4, seed=3)
    np.testing.assert_array_equal(again.of(2), batches.of(2))


def test_gradients_are_the_slopes_of_the_loss_and_come_from_the_last_to_the_first() -> None:
    weights = workload.initial((5, 7, 3), 0)
    drawn = np.random.default_rng(0)
    x, y = drawn.standard_normal((20, 5)).astype(np.float32), drawn.integers(0, 3, 20)
    gradients = [np.empty_like(one) for one in weights]
    ready: list[int] = []
    needed: list[int] = []
    network = workload.NumpyNetwork(weights, gradients)
    network.backward(x, y, ready.append, needed.append)
    assert ready == [3, 2, 1, 0]
    assert needed == [0, 1, 2, 3]
    exact = [one.astype(np.float64) for one in weights]
    for weight, gradient in zip(exact, gradients, strict=True):
        norm = np.linalg.norm(gradient)
        before, direction = weight.copy(), 1e-4 * gradient / norm
        weight[...] = before + direction
        above, _ = workload.evaluate(exact, x, y)
        weight[...] = before - direction
        below, _ = workload.evaluate(exact, x, y)
        weight[...] = before
        assert (above - below) / 2e-4 == pytest.approx(norm, rel=0.01)


def test_rows_come_from_a_file_and_a_fifth_of_them_is_for_tests(tmp_path: Path) -> None:
    x, y = np.arange(40.0).reshape(20, 2, 1), np.arange(20) % 4
    np.savez(tmp_path / "a.npz", x=x, y=y)
    data = workload.load(str(tmp_path / "a.npz"))
    assert data.x.shape == (20, 2)
    assert data.x.dtype == np.float32
    assert (data.training, data.classes) == (16, 4)
    np.testing.assert_array_equal(data.x[:, 0] / 2 % 4, data.y)


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.ones((9, 2))},
        {"x": np.ones(9), "y": np.ones(9, int)},
        {"x": np.ones((9, 2)), "y": np.ones(8, int)},
        {"x": np.ones((9, 2)), "y": np.ones(9)},
        {"x": np.ones((9, 2)), "y": np.full(9, -1)},
        None,
    ],
)
def test_file_without_rows_and_classes_is_an_error_that_says_how_to_save_one(
    arrays: dict[str, Any] | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.npz"
    if arrays is None:
        path.write_text("no archive")
    else:
        np.savez(path, **arrays)
    with pytest.raises(UsageError, match=r"numpy\.savez"):
        workload.load(str(path))


# ---- table, plot and command -------------------------------------------------------------------


def row(**values: Any) -> dict[str, Any]:
    curve = {"seconds": [1.0, 2.0], "iterations": [5.0, 10.0], "loss": [2.0, 0.1]}
    found = {**vars(Options()), "workers": 2, "server_ranks": 0, "iterations": 10, "seconds": 2.0}
    found |= {"given_bytes": 2000.0, "sent_bytes": None, "iterations_to_loss": 10.0}
    found |= {"seconds_to_loss": 2.0, "loss": 0.1, "accuracy": 0.975, "curve": curve}
    return found | values


def test_line_of_the_table_has_name_times_bytes_and_loss() -> None:
    words = " ".join(report.line(row(), 20).split())
    assert words == "bsp mpi - 200.00 2.0 - 10 2.00 0.1000 97.50%"
    other = row(
        scheme="ssp", server_ranks=2, sent_bytes=9100.0, compression="topk:0.1", priority=True,
        contiguous=False, aggregate="once", iterations_to_loss=None, seconds_to_loss=None,
    )  # fmt: skip
    assert report.name(other) == "ssp mpi topk:0.1 once scattered priority s=3"
    words = " ".join(report.line(other, 20).split())
    assert words.endswith(" s=3 2 200.00 2.0 9.1 - - 0.1000 97.50%")
    heading = report.heading({"workers": 2}, Settings(stragglers={1: 0.02}, jitter=0.001), 20)
    assert "worker 1 20 ms, each worker 1 ms at random" in heading
    assert len(report.line(row(), 20)) == len(heading.splitlines()[-1])


def test_plot_draws_the_loss_of_each_row_over_time_and_iterations(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = {"rows": [row(), row(scheme="asp")], "workers": 2}
    record["arguments"] = {"loss": 0.2, "data": "digits"}
    pictures.losses(record, ["bsp mpi", "asp mpi"], tmp_path / "new" / "plot.svg")
    text = (tmp_path / "new" / "plot.svg").read_text()
    for said in ("bsp mpi", "asp mpi", "seconds", "iterations of all workers"):
        assert f">{said}<" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "-np"),
        ("-np 2 --schemes star", "there is none"),
        ("-np 2 --straggler 1", "WORKER:TIME"),
        ("-np 2 --straggler 1:soon", "not"),
        ("-np 2 --momentum 1", "below 1"),
        ("-np 2 --rate 0", "above 0"),
        ("-np 2 --plot a.gif", "its ending says no format"),
        ("-np 2 --data {file} --straggler 2:1s", "there are 2 workers"),
        ("-np 2 --data {file} --batch 9", "give a smaller batch"),
        ("-np 2 --data /none.npz", "cannot be read"),
        ("-np 2 --schemes local --compression int8", "it sends parameters"),
    ],
)
def test_refused_command_lines_start_nothing(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.npz"
    np.savez(file, x=np.ones((20, 2)), y=np.arange(20) % 2)
    try:
        status = cli.main(["schemes", *words.format(file=file).split()])
    except SystemExit as ended:  # argparse's own exit
        status = int(ended.code or 0)
    assert status == 2
    assert said.lower() in capsys.readouterr().err.lower()


def test_help_names_every_scheme() -> None:
    parser = argparse.ArgumentParser()
    schemes.configure(parser)
    text = parser.format_help()
    assert all(name in text for name in SCHEMES)
    json.dumps(vars(Options()))  # options travel as JSON
