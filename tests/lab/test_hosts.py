"""The laboratory's commands that start a job on several hosts by themselves: schemes and train."""

import json

import numpy as np
import pytest
from hosts import jobs, machines
from hosts.jobs import finish

WHY_NOT = jobs.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
    pytest.mark.timeout(90),
    pytest.mark.one_mpi,
]


@pytest.fixture(scope="module")
def hosts():
    with machines.Machines(2) as made:
        yield made


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


def test_train_measures_ranks_on_two_hosts_and_simulates_none_from_them(hosts, tmp_path):
    words = ["-np", "2", "--framework", "lab.numpy_training", "--models", "first"]
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
