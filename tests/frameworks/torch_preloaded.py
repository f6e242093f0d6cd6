"""Imported by the process that forks the ranks of teams: with PyTorch and its tests, once."""

from __future__ import annotations

from frameworks.torch_team import theirs

theirs()
