"""Horovod's name for `gradred.torch`; its modules are the same objects under both names."""

import importlib
import sys

import gradred.torch

for _name in gradred.torch.HOROVOD_MODULES:
    sys.modules[f"horovod.torch.{_name}"] = importlib.import_module(f"gradred.torch.{_name}")
sys.modules[__name__] = gradred.torch
