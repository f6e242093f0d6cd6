"""Environment of test jobs that need PyTorch without its compiler: lean_torch/sitecustomize.py."""

from pathlib import Path

LEAN = {"PYTHONPATH": str(Path(__file__).with_name("lean_torch"))}
