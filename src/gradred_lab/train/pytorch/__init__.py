"""PyTorch as a framework of `gradred train`. Importing this does not import PyTorch."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from typing import Any

from gradred.errors import UsageError
from gradred_lab import packages
from gradred_lab.train.framework import Session
from gradred_lab.train.pytorch.table import BUILDERS, MODELS, PEERS


class _PyTorch:
    models = MODELS
    peers = PEERS

    @staticmethod
    def check(models: Sequence[str], device: str, compiled: Sequence[bool]) -> None:
        packages.require("torch", "--framework pytorch", "it is not installed")
        of_images = [name for name in models if BUILDERS[name][0] == "vision"]
        if of_images:
            others = ", ".join(name for name, one in BUILDERS.items() if one[0] != "vision")
            asked, found = f"--models {','.join(of_images)}", "torchvision is not installed"
            packages.require("torchvision", asked, found, f", or name others: {others}")
        if device == "cuda":
            import torch

            if not torch.cuda.is_available():
                found = "PyTorch finds no CUDA device here"
                raise UsageError("--device cuda", found, "Leave it out")
        if True in compiled and device == "cpu" and not any(map(shutil.which, ("g++", "clang++"))):
            found = "torch.compile needs a C++ compiler, and there is none here"
            raise UsageError("--compile on", found, "Install g++, or leave it out")

    @staticmethod
    def begin(world: Any, device: str) -> Session:
        session: Session = importlib.import_module("gradred_lab.train.pytorch.session").Torch(
            world, device
        )
        return session


FRAMEWORK = _PyTorch()
