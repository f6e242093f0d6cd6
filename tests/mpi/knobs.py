"""Settings for some communicators of a test."""

from __future__ import annotations

from typing import Any

from gradred import _rank, config


def use(**knobs: Any) -> None:
    """Set these for communicators first used from now on, and all other settings to defaults."""
    config.reset()
    for name, value in knobs.items():
        config.set(name, value)
    _rank.configure()
