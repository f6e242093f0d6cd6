"""`gradred simulate`: predict what was not measured, with the error of the prediction."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from gradred._util import files
from gradred.errors import UsageError, explain


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what can be simulated, and the options of each."""
    parser.epilog = "docs/simulate.md tells of the columns, the model and its error."
    kinds = parser.add_subparsers(dest="simulated", metavar="WHAT", title="what", required=True)
    for name, text, columns in (
        ("allreduce", "times of allreduce on clusters", "allreduce_clusters_fit.csv"),
        ("training", "throughput of data-parallel training", "iteration_scaling.csv"),
    ):
        one = kinds.add_parser(name, help=text, description=f"Predict {text}.", allow_abbrev=False)
        one.add_argument(
            "--calibrate", metavar="FIT.csv", required=True,
            help=f"measurements to calibrate by, with the columns of {columns}",
        )  # fmt: skip
        one.add_argument(
            "--rows", metavar="ROWS.csv", required=True,
            help="what to predict: the same columns, the measured ones empty or absent",
        )  # fmt: skip
        one.add_argument(
            "--json", metavar="FILE",
            help="write each row with its prediction and band, and the error in cross-validation; "
            "`-` is stdout, then the table goes to stderr",
        )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Calibrate, predict, print the error."""
    _require_writable(arguments.json)
    record, text = _KINDS[arguments.simulated](arguments.calibrate, arguments.rows)
    if arguments.json is not None:
        _write(arguments.json, json.dumps(record, indent=1) + "\n")
    print(text, file=sys.stderr if arguments.json == "-" else sys.stdout, flush=True)
    return 0


def _allreduce(calibrate: str, rows: str) -> tuple[dict[str, object], str]:
    from gradred.simulate import report  # here, since it loads NumPy's linear algebra

    record = report.allreduce(calibrate, rows)
    return record, report.text(record)


def _training(calibrate: str, rows: str) -> tuple[dict[str, object], str]:
    from gradred.simulate import training_report

    record = training_report.training(calibrate, rows)
    return record, training_report.text(record)


_KINDS: dict[str, Callable[[str, str], tuple[dict[str, object], str]]] = {
    "allreduce": _allreduce,
    "training": _training,
}


def _require_writable(name: str | None) -> None:
    """Before the work begins; makes the folder."""
    if name is None or name == "-":
        return
    path = Path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        if not path.is_fifo():  # who reads a pipe takes its closing for the end
            os.close(files.create(path, append=True))
        if is_new:
            path.unlink(missing_ok=True)
    except OSError as error:
        found = f"it cannot be written ({error.strerror})"
        remedy = "Name a file in a folder that exists or can be made"
        raise UsageError(explain(f"--json {name}", found, remedy)) from None


def _write(name: str, text: str) -> None:
    if name == "-":
        sys.stdout.write(text)
        return
    with open(files.create(name), "w", encoding="utf-8") as file:
        file.write(text)
