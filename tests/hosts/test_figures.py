"""Links and the MPI are measured once for a layout of hosts, and a file stores the figures."""

import json
import pathlib

import pytest
from hosts import jobs, machines

from gradred import _core

WHY_NOT = jobs.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
    pytest.mark.timeout(90),
]
PROGRAM = str(jobs.HERE / "figures.py")


@pytest.fixture(scope="module")
def hosts():
    with machines.Machines(2) as made:
        yield made


def plans_of(hosts, folder, **variables):
    """Plan and reason for each length of the program."""
    own = {"GRADRED_TUNE": "1", "XDG_CACHE_HOME": str(folder), **variables}
    out, err, status = jobs.finish(jobs.start(hosts, folder, PROGRAM, where="h1:2,h2:1", **own))
    assert status == 0, err
    (line,) = (line for line in out if "[[" in line)
    return json.loads(line[line.index("[[") :])


def kept(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted((folder / "gradred").iterdir()) if (folder / "gradred").exists() else []


@pytest.mark.one_mpi
def test_figures_are_measured_once_and_kept(hosts, tmp_path):
    for plan, reason in plans_of(hosts, tmp_path):
        assert "figures measured on 2" in reason, plan
    (path,) = kept(tmp_path)
    text = path.read_text()
    found = _core.read_figures(text)
    assert (found["hosts"], found["layout"]) == ("h#", "2 on 0, 1 on 1")
    assert found["alpha"] > 0
    assert found["announcement"] > 0
    assert found["sizes"][0][0] == 8
    assert 2 <= max(len(tried) for _, _, tried in found["sizes"]) <= 4
    # The file makes the MPI cheapest for all but the shortest lengths. It is not measured again.
    lines = [line for line in text.splitlines() if not line.startswith(("size ", "plan "))]
    sizes = ["size 8 1", "plan 1e-05 1e-05 x"]
    for nbytes in (1000, 100_000_000):
        sizes += [f"size {nbytes} 1e-09", "plan 1e-03 1e-06 x"]
    path.write_text("\n".join([*lines[:-1], *sizes, "end", ""]))
    plans = [plan for plan, _ in plans_of(hosts, tmp_path)]
    assert plans[0] != "mpi"
    assert plans[2:] == ["mpi"] * 3
    assert kept(tmp_path) == [path]
    # A broken file is measured anew.
    path.write_text("something else")
    assert "figures measured on 2" in plans_of(hosts, tmp_path)[0][1]
    assert _core.read_figures(path.read_text())["layout"] == found["layout"]


@pytest.mark.parametrize("knob", ["GRADRED_DETERMINISTIC=1", "GRADRED_PLAN=ring"])
def test_nothing_is_measured_where_it_would_not_count(hosts, tmp_path, knob):
    name, value = knob.split("=")
    for _, reason in plans_of(hosts, tmp_path, **{name: value}):
        assert "measured on" not in reason
    assert kept(tmp_path) == []
