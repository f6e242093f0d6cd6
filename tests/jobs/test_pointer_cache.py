"""`gradred bench --pointer-cache`, on the simulated driver."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.one_mpi

LIBRARY = pathlib.Path(__file__).resolve().parents[1] / "libsimulated_cuda.so"
KINDS = ["host", "pinned", "device", "managed", "pool", "mapped"]


def bench(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradred", "bench", "--pointer-cache", *options]
    environment = os.environ | {"GRADRED_LIBCUDA": str(LIBRARY)} | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


def test_each_kind_of_memory_is_measured_and_answered_right(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "record.json"
    done = bench("--json", str(file))
    assert done.returncode == 0, done.stderr
    record = json.loads(file.read_text())
    assert record["schema"] == "gradred-pointer-cache/1"
    assert list(record["rows"]) == KINDS
    for name, row in record["rows"].items():
        assert row["well"], name
        assert min(row["cache"], row["plural"], row["singular"]) > 0
    first_words = [line.split()[0] for line in done.stdout.splitlines()]
    assert first_words == ["Simulated", "memory", *KINDS]


def test_what_the_driver_lacks_is_said_and_the_rest_measured() -> None:
    done = bench("--json", "-", SIMULATED_CUDA_FAIL="cuMemAllocAsync:801")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert "cuMemAllocAsync returned the code 801" in record["rows"]["pool"]["error"]
    assert record["rows"]["mapped"]["well"]
    assert "801" in done.stderr


def test_without_a_driver_it_is_wrong_usage() -> None:
    done = bench(GRADRED_LIBCUDA="libnone.so.1")
    assert done.returncode == 2
    assert "there is no CUDA driver" in done.stderr
