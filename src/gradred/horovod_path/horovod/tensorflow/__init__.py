"""Horovod's name for `gradred.tensorflow`; its modules are the same objects under both names."""

import importlib
import sys
from pathlib import Path

import gradred.tensorflow

for _name in gradred.tensorflow.HOROVOD_MODULES:
    _module = importlib.import_module(f"gradred.tensorflow.{_name}")
    sys.modules[f"horovod.tensorflow.{_name}"] = _module
gradred.tensorflow.__path__.append(str(Path(__file__).parent))  # has horovod.tensorflow.keras
sys.modules[__name__] = gradred.tensorflow
