"""horovodrun, found where `import horovod` finds gradred: see `gradred info horovod_path`."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence

from gradred.cli import DONE, main, run
from gradred.horovod import VERSION

_BUILD = f"""Horovod v{VERSION}, on gradred:

Available Frameworks:
    [{"X" if importlib.util.find_spec("tensorflow") else " "}] TensorFlow
    [{"X" if importlib.util.find_spec("torch") else " "}] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [ ] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [X] MPI
    [ ] Gloo"""


def command_line(words: Sequence[str]) -> int:
    """Run `gradred run --horovod` with these words; returns the exit status."""
    asked = _questions(words)
    if asked.version or words[:1] == ["-v"]:
        print(VERSION)
        return DONE
    if asked.check_build:
        print(_BUILD)
        return DONE
    return main(["run", "--horovod", *words])


def _questions(words: Sequence[str]) -> argparse.Namespace:
    """Parse Horovod's flags that only ask for information, from the words before the program."""
    parser = argparse.ArgumentParser(prog="horovodrun", allow_abbrev=False, add_help=False)
    run.configure(parser)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("-cb", "--check-build", action="store_true")
    return parser.parse_known_args(words)[0]
