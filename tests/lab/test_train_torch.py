"""`gradred train` with PyTorch: real networks by all peers, which end with the same parameters."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lean import LEAN

from gradred import launch
from gradred_lab.train.pytorch.table import MODELS, PEERS

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
    ),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
PATHS = os.pathsep.join(filter(None, sys.path))
LEANLY = {"PYTHONPATH": f"{LEAN['PYTHONPATH']}{os.pathsep}{PATHS}"}
EXCHANGING = [name for name, peer in PEERS.items() if peer.exchanges]


def train(out: Path, *words: str, **variables: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "gradred", "train", "--out", str(out), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=580, check=False,
        env=os.environ | {"PYTHONPATH": PATHS} | variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recompile_limit" not in done.stderr  # the compiler gives up, and runs networks as are
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def require_right(record: dict[str, Any]) -> None:
    for row in record["rows"]:
        assert [*row["summary"]] == [*PEERS]
        for one in row["repeats"]:
            checks = {
                peer: found["check"] for peer, found in one["peers"].items() if "check" in found
            }
            assert [*checks] == EXCHANGING
            assert all(check["right"] for check in checks.values()), checks
            assert all(check["rank_difference"] == 0 for check in checks.values()), checks
            losses = [one["peers"][peer]["loss"] for peer in EXCHANGING]
            assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)


def test_all_peers_train_a_residual_network_alike(tmp_path: Path) -> None:
    words = ("--quick", "--models", "resnet50", "--image", "32", "--layers", "1")
    record = train(tmp_path, *words, "--skip", "1", "--steps", "3", "--repeats", "1", **LEANLY)
    require_right(record)
    (row,) = record["rows"]
    assert row["reduced"] == "scale 0.25, image 32, layers 1"
    assert row["cell"]["precision"] == "fp32"
    assert sum(row["layers"]["elements"]) == row["parameters"]
    assert row["layers"]["ready"] == sorted(row["layers"]["ready"])
    versions = record["jobs"]["2"]["versions"]
    assert versions["torch"]
    assert versions["torchvision"] == importlib.metadata.version("torchvision")


@pytest.mark.full
def test_gradred_in_the_place_of_gloo_is_not_called_gloo(tmp_path: Path) -> None:
    words = ("--quick", "--models", "alexnet", "--scale", "0.125", "--skip", "1", "--steps", "1")
    words += ("--repeats", "1", "--peers", "ddp-gloo,ddp-gradred")
    record = train(tmp_path, *words, **LEANLY, GRADRED_TORCH="1")
    assert [*record["rows"][0]["summary"]] == ["ddp-gradred"]


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
def test_all_peers_train_every_network_alike_in_both_precisions(tmp_path: Path, ranks: int) -> None:
    words = ("--quick", "-np", str(ranks), "--scale", "0.125", "--precision", "fp32,bf16")
    # Batch normalisation of 4 images makes rounding a difference of 0.4 % after a third step.
    words += ("--batch", "4", "--skip", "1", "--steps", "1", "--repeats", "1")
    record = train(tmp_path, *words, **LEANLY)
    assert len(record["rows"]) == 2 * len(MODELS)
    require_right(record)


@pytest.mark.full
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_all_peers_train_a_compiled_network_alike(tmp_path: Path) -> None:
    words = ("--quick", "--models", "alexnet", "--scale", "0.125", "--compile", "on")
    # More trials than the compiler compiles variants of one function (8).
    record = train(tmp_path, *words, "--skip", "1", "--steps", "2", "--repeats", "2")
    require_right(record)
    assert record["rows"][0]["cell"]["compiled"]
