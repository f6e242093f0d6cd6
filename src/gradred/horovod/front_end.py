"""The front ends: which frameworks have one."""

from __future__ import annotations

FRONT_ENDS = ("torch",)
"""Frameworks with a front end. That of "torch" is `gradred.torch`."""
