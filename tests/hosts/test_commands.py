"""Commands that start a job on several hosts by themselves: bench, schemes, train and doctor."""

import json

import numpy as np
import pytest
from hosts import jobs, machines
from hosts.jobs import finish

WHY_NOT = jobs.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
    pytest.mark.timeout(90),
]


@pytest.fixture(scope="module")
def hosts():
    with machines.Machines(2) as made:
        yield made


@pytest.mark.one_mpi
def test_bench_measures_the_ranks_of_the_hosts_that_are_named(hosts, tmp_path):
    words = ["-m", "8:8", "-i", "3", "-x", "1", "--bind", "none", "--json", "record.json"]
    process = jobs.start(hosts, tmp_path, *words, command="bench", where="h1:1,h2:1")
    out, err, status = finish(process)
    assert status == 0, err
    assert out[-1].split()[0] == "8"
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["ranks"], record["hosts"]) == (2, 2)
    assert record["rows"][0]["results"]["gradred"]["checked"]


@pytest.mark.one_mpi
def test_schemes_reach_servers_and_workers_on_other_hosts(hosts, tmp_path):
    drawn = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", x=drawn.standard_normal((90, 4)), y=np.arange(90) % 3)
    words = ["-np", "2", "--schemes", "bsp,ps,mesh", "--transport", "mpi,tcp"]
    words += ["--data", str(tmp_path / "rows.npz"), "--iterations", "20", "--json", "record.json"]
    process = jobs.start(hosts, tmp_path, *words, command="schemes", where="h1:1,h2:2")
    _, err, status = finish(process)
    assert status == 0, err
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["ranks_on_hosts"] == [1, 2]
    losses = {(row["scheme"], row["transport"]): row["loss"] for row in record["rows"]}
    assert len(losses) == 6
    assert max(losses.values()) - min(losses.values()) < 1e-5


@pytest.mark.one_mpi
def test_train_measures_ranks_on_two_hosts_and_simulates_none_from_them(hosts, tmp_path):
    words = ["-np", "2", "--framework", "jobs.numpy_training", "--models", "first"]
    words += ["--skip", "1", "--steps", "2", "--repeats", "1", "--peers", "single,compute,gradred"]
    process = jobs.start(hosts, tmp_path, *words, command="train", where="h1:1,h2:1")
    _, err, status = finish(process)
    assert status == 0, err
    record = json.loads((tmp_path / "gradred-train" / "results.json").read_text())
    assert record["jobs"]["2"]["ranks_on_hosts"] == [1, 1]
    (row,) = record["rows"]
    assert row["hosts"] == 2
    assert row["summary"]["gradred"]["right"]
    assert "on one host" in record["simulated"]["why_not"]


def test_doctor_runs_a_job_across_the_hosts(hosts, tmp_path):
    words = ["--json", "--timeout", "50"]
    process = jobs.start(hosts, tmp_path, *words, command="doctor", where="h1:2,h2:1")
    out, err, _ = finish(process)
    checks = {check["name"]: check for check in json.loads("\n".join(out))["checks"]}
    names = ["ssh h1", "ssh h2", "across", "ranks", "versions", "messages", "allreduce"]
    assert list(checks)[-7:] == names
    assert {checks[name]["status"] for name in names} == {"ok"}, (checks, err)
    assert checks["ranks"]["found"] == "h1: ranks 0, 1; h2: rank 2"


def test_doctor_names_a_host_that_is_cut_off(tmp_path):
    with machines.Machines(2) as made:
        made.cut("h2")
        words = ["--json", "--timeout", "8"]
        process = jobs.start(made, tmp_path, *words, command="doctor", where="h1:1,h2:1")
        out, err, _ = finish(process)
    checks = {check["name"]: check for check in json.loads("\n".join(out))["checks"]}
    assert checks["across"]["status"] in ("fail", "warn"), (checks, err)
    assert "2 ranks on h1:1, h2:1 " in checks["across"]["found"], checks
    assert checks["allreduce"]["status"] == "warn"
    assert "see the line across" in checks["allreduce"]["found"]
