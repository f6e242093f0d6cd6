"""`gradred ps`: print the status of the ranks of this user's jobs on this host."""

from __future__ import annotations

import argparse
import dataclasses
import json

from gradred._util import text
from gradred.observe import ras, status

SCHEMA = "gradred-ps/1"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "For each rank: the operation it waits in, for how long and for whom, or the last one it "
        "has begun, and the Python stack of each of its threads; ranks with equal stacks share "
        "them. Other users' jobs cannot be seen."
    )
    parser.add_argument(
        "job", nargs="*", type=int, help="numbers of the jobs to show (default: all)"
    )
    parser.add_argument("--no-stacks", action="store_true", help="do not ask for Python stacks")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Print the jobs."""
    found = status.ranks(stacks=not arguments.no_stacks)
    if arguments.job:
        found = [rank for rank in found if rank.job in arguments.job]
    if arguments.json:
        ranks = [dataclasses.asdict(one) for one in found]
        print(json.dumps({"schema": SCHEMA, "ranks": ranks, **ras.report(found)}))
    elif found:
        columns = text.width()
        for line in status.lines(found):
            print(*text.wrapped(line, columns), sep="\n")
    else:
        of = f"no ranks of job {' or '.join(map(str, arguments.job))}" if arguments.job else ""
        print(f"{of or 'no ranks of this user'} on this host")
    return 0
