"""`gradred run`: start a program as the ranks of an MPI job on this host."""

from __future__ import annotations

import argparse
import pathlib
import shlex
import subprocess
import sys
import tempfile

from gradred import _processes, config, launch
from gradred.errors import UsageError, explain


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.usage = "gradred run -np N [options] program [arguments...]"
    parser.epilog = (
        "The launcher is that of the MPI which mpi4py loads in this interpreter. A program that "
        "ends in .py runs with this interpreter, and `python` names it. The exit status is that of "
        "the first rank that failed."
    )
    parser.add_argument(
        "-np", "-n", type=_positive, required=True, metavar="N", dest="ranks", help="ranks to start"
    )
    parser.add_argument(
        "--bind",
        choices=("none", "core", "numa"),
        default="none",
        help="bind each rank to one core or memory node (default: none)",
    )
    parser.add_argument(
        "--mpi-option",
        action="append",
        default=[],
        metavar="=OPTION",
        help="pass this on to mpiexec, for example --mpi-option='-hosts h1,h2'; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command of mpiexec and end"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print it, then run it")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def main(arguments: argparse.Namespace) -> int:
    """Start the job; the first failing rank's exit status."""
    config.load()  # a misspelt knob ends here, once, and not in every rank
    program = arguments.program[1:] if arguments.program[:1] == ["--"] else arguments.program
    if not program:
        raise UsageError(
            explain("no program", "there is nothing to start", "Name one after the options")
        )
    launch.refuse_inside_job("starting a job")
    mpi = launch.find_mpi()
    environment = launch.rank_environment(mpi, arguments.ranks, arguments.bind)
    program = launch.program_command(program, environment["PATH"])
    options = [word for text in arguments.mpi_option for word in shlex.split(text)]
    launcher = launch.launcher_command(
        mpi, arguments.ranks, options=options, binding=arguments.bind, environment=environment
    )
    if arguments.dry_run:
        print(launch.quoted(launcher + program))
        return 0
    if arguments.verbose:
        print(f"gradred run: {mpi}\n{launch.quoted(launcher + program)}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gradred-") as folder:
        record = pathlib.Path(folder) / "failures"
        stdin = launch.readable_stdin(mpi, options)
        command = launcher + launch.recorded(program, record, stdin)
        ended = _processes.run_in_foreground(
            command,
            environment,
            # What rank 0 opens itself the launcher must not read.
            stdin=None if stdin == "-" else subprocess.DEVNULL,
        )
        failed = launch.failures(record)
    if ended.interrupted_by is not None:
        return 128 + ended.interrupted_by
    return failed[0].status if failed else ended.status


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks")
    return int(text)
