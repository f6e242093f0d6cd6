"""An elastic job on several hosts. One is lost, and another one is removed."""

from __future__ import annotations

import json
import pathlib
import sys
import time

import pytest
from hosts.jobs import finish, start, why_not
from hosts.machines import Machines
from lean import LEAN

pytest.importorskip("torch")

PROGRAM = pathlib.Path(__file__).parents[1] / "jobs" / "elastic_training.py"

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("how", ["killed", "removed"])
def test_training_goes_on_without_a_host(tmp_path: pathlib.Path, how: str) -> None:
    listed = tmp_path / "listed"
    listed.write_text("h1:2\nh2:1\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\nexec cat {listed}\n")
    script.chmod(0o755)
    states = tmp_path / "states"
    options = ["--horovod", "-np", "3", "--min-np", "1", "--host-discovery-script", str(script)]
    options += ["--elastic-dir", str(states), sys.executable, str(PROGRAM)]
    with Machines(2) as hosts:
        variables = {"MARK": str(tmp_path / "ended"), "PAUSE": "0.05", "STEPS": "100"}
        variables |= {**LEAN, "OMP_NUM_THREADS": "1"}
        process = start(hosts, tmp_path, *options, where="", **variables)
        until(lambda: states.exists() and len(list(states.glob("*.pt"))) > 1)
        listed.write_text("h1:2\n")
        if how == "killed":
            hosts.kill("h2")
        out, err, status = finish(process, 120)
    assert status == 0, (out, err)
    report = json.loads(out[-1])
    assert report["ranks"] == 2, (out, err)
    assert report["starts"][0] > 0
    assert report["loss"] < 1e-3
    assert any("starting again with 2 ranks" in line for line in err), err
