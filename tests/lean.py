"""What jobs of tests get that need PyTorch and not its compiler: lean_torch/sitecustomize.py."""

from pathlib import Path

LEAN = {"PYTHONPATH": str(Path(__file__).with_name("lean_torch"))}
