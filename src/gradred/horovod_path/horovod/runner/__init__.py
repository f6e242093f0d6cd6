"""Horovod's name for the functions that start ranks: `run`, and `launch` for the command line."""

from gradred.horovod import run

__all__ = ["run"]
