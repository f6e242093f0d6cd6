"""Horovod's name for `gradred.keras`; its modules are the same objects under both names."""

import importlib
import sys

import gradred.keras

for _name in gradred.keras.HOROVOD_MODULES:
    sys.modules[f"horovod.keras.{_name}"] = importlib.import_module(f"gradred.keras.{_name}")
sys.modules[__name__] = gradred.keras
