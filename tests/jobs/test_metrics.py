"""`GRADRED_METRICS` of whole jobs: files, a port of each host, OpenTelemetry, stragglers."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gradred import config, launch

pytest.importorskip("mpi4py")
prometheus = pytest.importorskip("prometheus_client.parser")
pytestmark = [
    pytest.mark.one_mpi,
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
HEAD = """
import json, pathlib, sys, time, urllib.request
import numpy as np
from mpi4py import MPI
from gradred.observe import metrics, stragglers
metrics.INTERVAL = metrics._LOOK = 0.1
import gradred
comm = gradred.Comm(MPI.COMM_WORLD)
rank = comm.rank
x, y = np.ones(1024, np.float32), np.empty(1024, np.float32)
"""
FETCH = """
def fetch(accepts="text/plain"):
    asked = urllib.request.Request(URL, headers={"Accept": accepts})
    with urllib.request.urlopen(asked) as answer:
        return answer.headers["Content-Type"], answer.read().decode()
"""


def run(folder: Path, body: str, wanted: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(HEAD + textwrap.dedent(body))
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", sys.executable, str(program)]
    command += [str(folder / "m.0.prom")]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(config.PREFIX)}
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "GRADRED_METRICS": wanted,
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def figures(text: str) -> dict[tuple[str, str], float]:
    """Sums by name and rank."""
    found: dict[tuple[str, str], float] = {}
    for family in prometheus.text_string_to_metric_families(text):
        for one in family.samples:
            key = (one.name, one.labels["rank"])
            found[key] = found.get(key, 0.0) + one.value
    return found


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        number: int = one.getsockname()[1]
    return number


def test_each_rank_has_a_file_with_exact_counts(tmp_path: Path) -> None:
    body = "for _ in range(100): comm.Allreduce(x, y)"
    done = run(tmp_path, body, str(tmp_path / "new" / "%r.prom"))
    assert done.stderr == ""  # no table of a profile
    for rank in ("0", "1"):
        found = figures((tmp_path / "new" / f"{rank}.prom").read_text())
        assert found["gradred_operations_total", rank] == 100
        assert found["gradred_operation_bytes_total", rank] == 100 * 4096
        assert found["gradred_bus_bytes_total", rank] == 100 * 4096  # 2 (p - 1) / p of it
        assert found["gradred_communicators_total", rank] == 1
        assert found["gradred_seconds_since_last_operation", rank] < 30
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["0.prom", "1.prom"]


def test_one_port_serves_all_ranks_while_they_run(tmp_path: Path, port: int) -> None:
    body = f"""
    URL = "http://localhost:{port}/metrics"
    {textwrap.indent(FETCH, "    ").strip()}
    for _ in range(50): comm.Allreduce(x, y)
    time.sleep(0.6)
    if rank == 0:
        kind, text = fetch("application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text"), kind
        from prometheus_client.openmetrics.parser import text_string_to_metric_families
        counted = [one.value for family in text_string_to_metric_families(text)
                   for one in family.samples if one.name == "gradred_operations_total"]
        assert counted == [50, 50], text
    comm.Barrier()
    if rank == 1:
        time.sleep(1)
        kind, text = fetch()
        assert 'gradred_missing_ranks{{rank="0"}} 1' in text, text
        print(text)
    comm.Allreduce(x, y)
    """
    done = run(tmp_path, body, f":{port}")
    found = figures(done.stdout)
    assert found["gradred_waiting_seconds", "0"] > 0.3
    assert found["gradred_seconds_since_last_operation", "1"] > 0.3
    assert done.stderr == ""


def test_status_as_json_has_the_fields_of_ncclras(tmp_path: Path, port: int) -> None:
    body = """
    import os, subprocess
    for _ in range(50): comm.Allreduce(x, y)
    all = np.empty(2048, np.float32)
    for _ in range(3): comm.Allgather(x, all)
    time.sleep(0.6)
    comm.Barrier()
    if rank == 0:
        words = [sys.executable, "-m", "gradred", "ps", "--json", "--no-stacks"]
        shown = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        assert shown["communicators_count"] == len(shown["communicators"])
        own = [c for c in shown["communicators"] if os.getpid() in [r["pid"] for r in c["ranks"]]]
        print(json.dumps(own))
    comm.Barrier()
    """
    (found,) = json.loads(run(tmp_path, body, f":{port}").stdout)
    assert (found["size"], found["ranks_count"], found["missing_ranks_count"]) == (2, 2, 0)
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    for one in found["ranks"]:
        assert one["collective_counts"] == {"AllReduce": 50, "AllGather": 3}
        assert one["status"] == {"finalize_called": False}
        assert one["host"] == platform.node()


def test_port_of_another_program_is_said_once_and_the_job_goes_on(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        wanted = f":{taken.getsockname()[1]}"
        body = """
        from gradred.observe import publishers
        publishers._PATIENCE = 0.2
        for _ in range(20): comm.Allreduce(x, y); time.sleep(0.05)
        """
        done = run(tmp_path, body, wanted)
    said = f"gradred: no metrics on port {wanted[1:]}: another program uses it"
    assert 1 <= done.stderr.count(said) <= 2
    assert len(done.stderr.splitlines()) == done.stderr.count(said)


@pytest.mark.parametrize("wanted", ["otel:", "127.0.0.1:9400"])
def test_what_is_neither_a_file_nor_a_port_is_refused(tmp_path: Path, wanted: str) -> None:
    assert "neither a file nor a port" in run(tmp_path, "", wanted, status=1).stderr


def test_scrapes_beside_publications_are_whole(tmp_path: Path, port: int) -> None:
    body = f"""
    URL = "http://localhost:{port}/metrics"
    {textwrap.indent(FETCH, "    ").strip()}
    for _ in range(50): comm.Allreduce(x, y)
    metrics.INTERVAL = metrics._LOOK = 0.01
    time.sleep(0.5)
    for _ in range(40):
        kind, text = fetch()
        if rank == 0 and text.count("gradred_missing_ranks{{") != 2: print(text)
    comm.Allreduce(x, y)
    """
    done = run(tmp_path, body, f":{port}")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("wanted", [":", ":http", ":99999", ":0"])
def test_port_that_is_none_is_refused(tmp_path: Path, wanted: str) -> None:
    done = run(tmp_path, "", wanted, status=1)
    assert f"GRADRED_METRICS: {wanted!r} is no port" in done.stderr


SLOW = """
stragglers.WINDOW = 2.0
x, y = np.ones(1 << 16, np.float32), np.ones(1 << 16, np.float32)  # arrivals are always looked at
end = time.time() + 4
own = pathlib.Path(sys.argv[1])
comm.Allreduce(x, y)
while not own.exists(): time.sleep(0.01)
while y[0]:
    time.sleep({seconds})
    x[0] = time.time() < end
    comm.Allreduce(x, y, op=MPI.MIN)
    shown = rank == 0 and 'straggler_share{{rank="0",late_rank="1"}} 0.' in own.read_text()
    if shown: print("shown", flush=True)
"""


def test_rank_that_is_slower_by_5_ms_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, SLOW.format(seconds="0.005 * rank"), str(tmp_path / "m.prom"))
    (line,) = done.stderr.splitlines()
    assert "gradred: rank 1 was the last to come to at least 90% of the operations" in line
    assert "shown" in done.stdout


def test_program_that_is_evenly_slow_names_nobody(tmp_path: Path) -> None:
    done = run(tmp_path, SLOW.format(seconds="0.005"), str(tmp_path / "m.prom"))
    assert (done.stderr, done.stdout) == ("", "")


def test_opentelemetry_reads_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    body = """
    from opentelemetry import metrics as otel
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    otel.set_meter_provider(MeterProvider(metric_readers=[reader]))
    for _ in range(30): comm.Allreduce(x, y)
    time.sleep(0.6)
    for of_scope in reader.get_metrics_data().resource_metrics[0].scope_metrics:
        for metric in of_scope.metrics:
            if metric.name == "gradred_operations":
                (point,) = metric.data.data_points
                assert point.value == 30, point
                assert point.attributes["kind"] == "allreduce", point
                print("counted")
    """
    assert run(tmp_path, body, "otel").stdout.split() == ["counted", "counted"]


def test_missing_opentelemetry_is_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ImportError")
    done = run(tmp_path, "", "otel", status=1)
    assert 'pip install "gradred[otel]"' in done.stderr
