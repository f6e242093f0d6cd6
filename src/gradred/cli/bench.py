"""`gradred bench`: measure collectives as the OSU benchmarks do, and compare them with peers."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from gradred import config, launch
from gradred._util import cpu
from gradred.bench import options
from gradred.bench.options import Options
from gradred.cli import USAGE, run
from gradred.errors import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Every result is compared with one that is exact in any order. The exit status is 1 if one "
        "was wrong. docs/bench.md says what the columns mean."
    )
    parser.add_argument(
        "-np", "-n", type=options.positive, metavar="N", dest="ranks",
        help="number of ranks that `gradred run` starts; without -np, -H and --hostfile the ranks "
        "of this job are measured",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", "--hosts", metavar="HOST:SLOTS,...",
        help="start the ranks on these hosts, as `gradred run` does",
    )  # fmt: skip
    where.add_argument("--hostfile", metavar="FILE", help="file that names the hosts, one per line")
    parser.add_argument(
        "--bind", choices=("none", "core", "numa"), default="core",
        help="bind each started rank to a core or memory node (default: core)",
    )  # fmt: skip
    parser.add_argument("--as-rank", metavar="OPTIONS", help=argparse.SUPPRESS)
    options.configure(parser)
    if _rank() > 0:
        parser.error = _leave  # type: ignore[method-assign]  # rank 0 prints the error for all


def main(arguments: argparse.Namespace) -> int:
    """Start the ranks, or measure as one of them."""
    if arguments.as_rank is not None:
        return _measure(Options.from_text(arguments.as_rank))
    try:
        config.load()  # reports a misspelt setting here, once, and not in every rank
        asked = options.read(arguments)
        place = _place(arguments)
        if place:
            options.require_writable(asked.json, asked.plot)
            _warn_if_busy(arguments)
            words = [sys.executable, "-m", "gradred", "bench", "--as-rank", asked.text()]
            return start([*place, "--bind", arguments.bind], words)
    except UsageError:
        if _rank() > 0:
            return USAGE
        raise
    return _measure(asked)


def _place(arguments: argparse.Namespace) -> list[str]:
    """Return the options of `gradred run` that place the ranks; empty if none are to start."""
    given = (
        ("-np", arguments.ranks),
        ("-H", arguments.hosts),
        ("--hostfile", arguments.hostfile),
    )
    return [word for name, value in given if value is not None for word in (name, str(value))]


def _warn_if_busy(arguments: argparse.Namespace) -> None:
    """Warn, before the ranks start, if other programs use this host's cores."""
    if arguments.hosts is not None or arguments.hostfile is not None:
        return
    cores, others = os.cpu_count() or 1, cpu.running()
    if others and others + arguments.ranks > cores:
        some = f"{others} other program{'s' * (others > 1)}"
        text = f"{some} and {arguments.ranks} ranks run on {cores} cores: the times mean little"
        print(f"# {text}", file=sys.stderr)  # a comment, like those beside a table


def start(options_of_run: Sequence[str], program: Sequence[str]) -> int:
    """Run a program by `gradred run`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="gradred run", allow_abbrev=False)
    run.configure(parser)
    return run.main(parser.parse_args([*options_of_run, "--", *program]))


def _measure(asked: Options) -> int:
    from gradred.bench import job  # imports mpi4py.MPI, which calls MPI_Init

    # On Ctrl-C a rank must not run its exit code: it would wait in MPI_Finalize for a stuck rank.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return job.run(asked)


def _rank() -> int:
    found = launch.inside_job()
    return 0 if found is None else found[0]


def _leave(message: str) -> NoReturn:
    raise SystemExit(USAGE)
