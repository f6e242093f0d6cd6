"""`gradred simulate ... --rows`: predict what was not measured, with the error of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping

from gradred._util import files
from gradred.bench import options
from gradred.errors import UsageError
from gradred_lab import packages
from gradred_lab.simulate import measured, throughput


def add_options(parser: argparse.ArgumentParser, kind: str) -> None:
    """Declare the file of what is predicted; `kind` is a key of `KINDS`."""
    columns = (name for name, column in COLUMNS[kind].items() if not column.may_lack)
    parser.add_argument(
        "--rows", metavar="ROWS.csv",
        help="predict these rows from the measurements of --calibrate FIT.csv. Both have the "
        f"columns {', '.join(columns)}, of which ROWS may lack the last; docs/simulate.md explains "
        "them and others",
    )  # fmt: skip
    parser.set_defaults(default_of=parser.get_default)


def predict(kind: str, arguments: argparse.Namespace, others: Mapping[str, str]) -> int:
    """Calibrate, predict, print the error.

    Args:
        kind: a key of `KINDS`.
        arguments: calibrate, rows, json.
        others: options of the command that have no use here, by the names of their values.

    Raises:
        UsageError: a file or an option is not as it should be.
    """
    if arguments.calibrate is None or arguments.rows is None:
        missing = "--calibrate FIT.csv" if arguments.calibrate is None else "--rows ROWS.csv"
        found = f"{missing} is missing"
        raise UsageError(f"simulate {kind}", found, "Name both files")
    for name, option in others.items():
        if getattr(arguments, name) != arguments.default_of(name):
            found = "rows are predicted from the measurements alone"
            raise UsageError(f"{option} and --rows", found, "Leave out one of both")
    packages.require("pandas", f"simulate {kind} --rows", "pandas is not installed")
    options.require_writable(arguments.json)
    record, text = KINDS[kind](arguments.calibrate, arguments.rows)
    if arguments.json is not None:
        _write(arguments.json, json.dumps(record, indent=1) + "\n")
    print(text, file=sys.stderr if arguments.json == "-" else sys.stdout, flush=True)
    return 0


def _allreduce(calibrate: str, rows: str) -> tuple[dict[str, object], str]:
    packages.require("sklearn", "simulate allreduce --rows", "scikit-learn is not installed")
    from gradred_lab.simulate import report  # here, since it loads scikit-learn

    record = report.allreduce(calibrate, rows)
    return record, report.text(record)


def _training(calibrate: str, rows: str) -> tuple[dict[str, object], str]:
    from gradred_lab.simulate import training_report

    record = training_report.training(calibrate, rows)
    return record, training_report.text(record)


KINDS: dict[str, Callable[[str, str], tuple[dict[str, object], str]]] = {
    "allreduce": _allreduce,
    "training": _training,
}
"""What can be predicted, each with a function that takes the names of both files."""

COLUMNS = {"allreduce": measured.FIT, "training": throughput.FIT}
"""Of the tables of each."""


def _write(name: str, text: str) -> None:
    if name == "-":
        sys.stdout.write(text)
        return
    with open(files.create(name), "w", encoding="utf-8") as file:
        file.write(text)
