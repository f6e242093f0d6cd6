"""`gradred simulate record`: record iterations of a PyTorch program, for `simulate training`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradred._util import cpu
from gradred.bench import options
from gradred.bench.options import positive
from gradred.errors import Error, UsageError
from gradred.launch.variables import THREAD_VARIABLES
from gradred.simulate import sweep
from gradred_lab import packages
from gradred_lab.simulate import trace
from gradred_lab.simulate.trace import Trace

_SHOWN = 12  # gradients of the table: the longest


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "gradred simulate record [OPTIONS] -- python train.py ..."
    parser.add_argument(
        "--iterations", type=positive, default=20, metavar="N",
        help="that are recorded, after the first five; as many others are only timed (default: 20)",
    )  # fmt: skip
    parser.add_argument(
        "--copies", type=positive, default=1, metavar="N",
        help="processes of the program at the same time, which exchange nothing: as many as ranks "
        "will share the cores of this host, each with as many threads as `gradred run` gives to a "
        "rank (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--json", default="trace.json", metavar="FILE", help="the trace (default: trace.json)"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- python train.py ...")


def main(arguments: argparse.Namespace) -> int:
    """Run the program under hooks, write its trace and print it."""
    packages.require("torch", "simulate record", "PyTorch is not installed")
    options.require_writable(arguments.json)
    command = recording(arguments.program, arguments.iterations)
    with tempfile.TemporaryDirectory() as folder:
        found = trace.merge(_run(command, Path(folder), arguments.copies))
    found.write(Path(arguments.json))
    print(table(found))
    return 0


def recording(program: Sequence[str], iterations: int) -> list[str]:
    """The command that records a program; `{}` in it stands for the file of its trace.

    Raises:
        UsageError: the program is not a Python file or module.
    """
    words = list(program[1:] if program[:1] == ["--"] else program)
    remedy = "Give it as: gradred simulate record -- python train.py"
    asked = f"simulate record -- {' '.join(words)}"
    if not words or not Path(words[0]).name.startswith("python"):
        raise UsageError(asked, "it does not start with a Python interpreter", remedy)
    own = 1
    while own < len(words) and words[own].startswith("-") and words[own] not in ("-m", "-c"):
        own += 1
    if own == len(words) or words[own] == "-c":
        raise UsageError(asked, "it names no Python file or module", remedy)
    recorder = ["-m", "gradred_lab.simulate.recorder", "{}", str(iterations)]
    return [*words[:own], *recorder, *words[own:]]


_OF_ONE_RANK = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",  # a free one
}
"""With these torch.distributed is a world of one rank, whatever world the shell belongs to."""


def variables(copies: int) -> dict[str, str]:
    """The environment of each copy: its share of the cores, as `gradred run` gives it to a rank."""
    share = str(max(1, cpu.cores() // copies))
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **_OF_ONE_RANK}
    return {**dict.fromkeys(THREAD_VARIABLES, share), **own}


def _run(command: Sequence[str], folder: Path, copies: int) -> list[Trace]:
    """Run copies at the same time; the first one's output is shown."""
    files = [folder / f"{copy}.json" for copy in range(copies)]
    processes = [
        subprocess.Popen(
            [str(file) if word == "{}" else word for word in command],
            stdout=None if file == files[0] else subprocess.DEVNULL,
            env=variables(copies),
        )
        for file in files
    ]
    try:
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    missing = [number for number, file in enumerate(files) if not file.exists()]
    if missing:
        found = f"process {missing[0]} ended with status {statuses[missing[0]]} and without a trace"
        remedy = "Let it call an optimizer's step() at least ten times"
        if statuses[missing[0]] != 0:
            remedy = "Run it without gradred, and correct what fails"
        raise Error("simulate record", found, remedy)
    return [trace.read(file) for file in files]


def table(found: Trace) -> str:
    """What was recorded: phases, and the tensors that take longest."""
    forward = sum(one.forward_s for one in found.gradients)
    backward = sum(one.backward_s for one in found.gradients)
    total = sum(one.elements * one.itemsize for one in found.gradients)
    lines = [
        f"# measured: {found.program}, batch {found.batch}, {found.device}, "
        f"{found.copies} at the same time",
        f"# {len(found.gradients)} gradients, {sweep.size_text(total)}; medians",
        f"iteration {_ms(found.iteration_s)}: load {_ms(found.load_s)}, forward {_ms(forward)}, "
        f"backward {_ms(backward)}, update {_ms(found.update_s)}; with hooks",
        f"the last process ends {_ms(found.late_s)} later than the median one",
        *(["DistributedDataParallel's own work is part of backward"] if found.packs else []),
        "",
        f"{'gradient, in the order of backward':<44}"
        + "".join(f"{title:>11}" for title in ("elements", "forward", "backward")),
    ]
    shown = sorted(found.gradients, key=lambda one: -(one.forward_s + one.backward_s))[:_SHOWN]
    lines += [
        f"{one.name:<44.44}{one.elements:>11}{_ms(one.forward_s):>11}{_ms(one.backward_s):>11}"
        for one in found.gradients
        if one in shown
    ]
    if len(found.gradients) > _SHOWN:
        lines.append(f"... and {len(found.gradients) - _SHOWN} that take less time")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
