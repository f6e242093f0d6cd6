"""horovodrun, on the path where `import horovod` finds gradred: `gradred info horovod_path`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from gradred.cli import DONE, main
from gradred.horovod import VERSION

_BUILD = f"""Horovod v{VERSION}, on gradred:

Available Frameworks:
    [ ] TensorFlow
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
    """horovodrun: `gradred run --horovod` with these words; the exit status."""
    first = words[0] if words else ""
    if first in ("-v", "--version"):
        print(VERSION)
        return DONE
    if first in ("-cb", "--check-build"):
        print(_BUILD)
        return DONE
    return main(["run", "--horovod", *words])
