"""Commands that start a job on several hosts by themselves: `gradred bench -H`."""

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


def test_bench_measures_the_ranks_of_the_hosts_that_are_named(hosts, tmp_path):
    words = ["-m", "8:8", "-i", "3", "-x", "1", "--bind", "none", "--json", "record.json"]
    process = jobs.start(hosts, tmp_path, *words, command="bench", where="h1:1,h2:1")
    out, err, status = finish(process)
    assert status == 0, err
    assert out[-1].split()[0] == "8"
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["ranks"], record["hosts"]) == (2, 2)
    assert record["rows"][0]["results"]["gradred"]["checked"]
