"""Run horovodrun by `python -m horovod.runner.launch -np 2 python train.py`."""

from __future__ import annotations

import sys

from gradred.cli.horovodrun import command_line


def run_commandline() -> None:
    """Run this process's command line, and exit."""
    sys.exit(command_line(sys.argv[1:]))


if __name__ == "__main__":
    run_commandline()
