"""`gradred simulate allreduce --calibrate`: a network that is fitted to a record of bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradred import cli
from gradred.simulate import presets
from gradred.simulate.plans import Layout, simulate
from gradred.simulate.presets import NETWORKS
from gradred_lab.simulate.calibration import Factors, calibrate


def run(words: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> tuple[str, str]:
    assert cli.main(words.split()) == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def bench_record(network: presets.Network, ranks_on_hosts: list[int]) -> dict[str, Any]:
    """What `gradred bench --plan all` would write on this network."""
    layout = Layout(tuple(h for h, n in enumerate(ranks_on_hosts) for _ in range(n)))
    names = ("ring", "recursive_doubling", "rabenseifner")
    rows = []
    for nbytes in (8, 512, 8192, 1 << 16, 1 << 20, 1 << 22):
        times = {name: simulate(name, network, layout, nbytes).seconds * 1e6 for name in names}
        results = {name: {"avg_us": time} for name, time in times.items()}
        rows.append({"bytes": nbytes, "results": {**results, "mpi": {"avg_us": 1.0}}})
    return {
        "schema": "gradred-bench/1",
        "arguments": {"collective": "allreduce", "mode": "blocking"},
        "ranks_on_hosts": ranks_on_hosts,
        "rows": rows,
    }


def test_a_fit_finds_the_network_that_was_measured(tmp_path: Path) -> None:
    wanted = Factors(latency=3.0, speed=0.4, memory=2.0)
    network = NETWORKS["25GbE-RoCE"]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_record(wanted.applied(network), [2, 2, 2, 2])))
    found = calibrate(network, path)
    assert found.rows == 18
    assert found.factors.latency == pytest.approx(3.0, rel=0.1)
    assert found.factors.speed == pytest.approx(0.4, rel=0.1)
    assert found.median_error < 0.05
    assert "of 18 times in bench.json" in found.network.error


def test_a_calibrated_network_says_its_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_record(NETWORKS["10GbE"], [1, 1, 1])))
    out, _ = run(
        f"simulate allreduce --net 10GbE -np 64 --algorithm ring --calibrate {path}", capsys
    )
    assert "# error of simulated times: median 0%, 95th percentile 0% of 18 times" in out
    assert "(8 B to 4 MiB, 3 ranks on 3 hosts)" in out
    assert "; on more ranks and at other lengths not known" in out
    words = f"simulate allreduce --net 10GbE -np 4 --algorithm ring --json - --calibrate {path}"
    record = json.loads(run(words, capsys)[0])
    path.write_text(json.dumps(bench_record(NETWORKS["10GbE"], [3])))
    error = json.loads(run(words, capsys)[0])["error"]
    assert "3 ranks on 1 host), " in error
    assert "; between hosts, on more ranks and at other lengths not known" in error
    assert record["calibration"]["rows"] == 18
    assert record["calibration"]["factors"]["speed"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema":\n nonsense}', "line 2, column 2: Expecting value"),
        ('{"schema": "gradred-allreduce/2"}', "its schema is 'gradred-allreduce/2'"),
        ('{"schema": "gradred-bench/1"}', "it lacks what such a record has (KeyError"),
        ("[1]", "it lacks what such a record has (TypeError"),
        (None, "it cannot be read (No such file or directory)"),
    ],
)
def test_bad_records_are_refused(
    text: str | None, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    if text is not None:
        path.write_text(text)
    _, err = run(f"simulate allreduce --net 10GbE --calibrate {path}", capsys, status=2)
    assert message in err


def test_records_of_something_else_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    record = bench_record(NETWORKS["10GbE"], [1, 1])
    for changed, message in (
        ({"arguments": {"collective": "bcast", "mode": "blocking"}}, "it measured blocking bcast"),
        ({"rows": [{"bytes": 8, "results": {"ring": {}}}]}, "rows[0].results.ring lacks what such"),
        ({"rows": record["rows"][:1]}, "no two lengths at which plans over messages"),
    ):
        path.write_text(json.dumps(record | changed))
        _, err = run(f"simulate allreduce --net 10GbE --calibrate {path}", capsys, status=2)
        assert message in err
        assert err.count("--calibrate") == 1, "an error within an error"
