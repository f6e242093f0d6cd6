"""The options that benchmarks have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def options(
    about: str, *, rounds: int, seconds: float | None = None, sizes: Sequence[int] = ()
) -> argparse.ArgumentParser:
    """Return a parser of `--rounds`, `--json`, and `--seconds` and `--sizes` if they have values.

    Args:
        about: what the benchmark measures.
        rounds: the number of rounds if none is given.
        seconds: the duration of the whole run if none is given; None: there is no such option.
        sizes: lengths in bytes if none are given; empty: there is no such option.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, metavar="FILE")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="the whole run, about")
    if sizes:
        parser.add_argument("--sizes", nargs="+", type=int, metavar="BYTES", default=list(sizes))
    return parser


def read(parser: argparse.ArgumentParser, least_rounds: int = 3) -> argparse.Namespace:
    """Parse the command line; a usage error ends the process with status 2."""
    given = parser.parse_args()
    if given.rounds < least_rounds or getattr(given, "seconds", 1) <= 0:
        parser.error(f"needs --rounds of {least_rounds} or more, and --seconds above 0")
    return given


def parse_once(parser: Callable[[], argparse.Namespace], comm: MPI.Intracomm) -> argparse.Namespace:
    """Parse the command line on rank 0, so that usage and errors are printed once."""
    parsed: argparse.Namespace | int | str | None = None
    if comm.rank == 0:
        try:
            parsed = parser()
        except SystemExit as stop:
            parsed = stop.code
    parsed = comm.bcast(parsed)
    if isinstance(parsed, argparse.Namespace):
        return parsed
    raise SystemExit(parsed)
