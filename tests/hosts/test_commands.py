"""Commands that start a job on several hosts by themselves: bench and doctor."""

import json

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
