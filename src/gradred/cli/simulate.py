"""`gradred simulate`: what plans take in simulated time on clusters that need not be here."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradred._util import text
from gradred.bench import options, plot, rank_zero
from gradred.bench.options import byte_count, natural, positive
from gradred.cli import laboratory
from gradred.errors import UsageError
from gradred.simulate import calibration, citations, plans, presets, sweep

_TITLE_WIDTH = 80  # characters
_OF_SCHEDULES = {
    name: f"--{name}"
    for name in ("net", "hosts", "algorithm", "bytes", "noise", "seed", "runs", "plot")
} | {"ranks": "-np"}
"""Options that only simulated schedules have, by the names of their values."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what can be simulated, and the options of each."""
    parser.epilog = (
        "docs/simulate-schedules.md explains the networks, the plans and the columns, "
        f"docs/simulate.md predictions from measurements (--rows). {laboratory.hint()}"
    )
    kinds = parser.add_subparsers(dest="simulated", metavar="WHAT", title="what", required=True)
    name, about = "allreduce", "times of allreduce on a cluster, by plan and length"
    one = kinds.add_parser(name, help=about, description=f"Simulate {about}.", allow_abbrev=False)
    _configure_allreduce(one)
    one.set_defaults(simulate=_allreduce)
    others = laboratory.SIMULATED if laboratory.is_here() else {}
    for name, (verb, about) in others.items():
        one = kinds.add_parser(name, help=about, description=f"{verb} {about}.", allow_abbrev=False)
        module = laboratory.module(f"simulated_{name}")
        module.configure(one)
        one.set_defaults(simulate=module.main)
    about = "the clusters that have names: each figure with its source"
    one = kinds.add_parser("networks", help=about, description=f"Show {about}.", allow_abbrev=False)
    one.add_argument("net", nargs="*", metavar="NAME", help="(default: all)")
    one.set_defaults(simulate=_networks)


def _configure_allreduce(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Networks: " + "; ".join(
        f"{name} ({network.about})" for name, network in presets.NETWORKS.items()
    )
    parser.add_argument(
        "--net", metavar="NAME",
        help=f"network of the cluster: {', '.join(presets.NETWORKS)}",
    )  # fmt: skip
    parser.add_argument(
        "-np", "-n", type=positive, metavar="N", dest="ranks",
        help="number of ranks (default: as many as the cluster has on --hosts)",
    )  # fmt: skip
    parser.add_argument(
        "--hosts", type=positive, metavar="COUNT",
        help="number of hosts, which share the ranks as equally as can be (default: as many as -np "
        "needs)",
    )  # fmt: skip
    parser.add_argument(
        "--algorithm", type=_names, default=(), metavar="PLAN[,PLAN]",
        help=f"plans: {', '.join(plans.PLANS)} (default: all that can carry out the call); only if "
        f"named: {', '.join(plans.WIRES)}",
    )  # fmt: skip
    parser.add_argument(
        "--bytes", type=byte_count, metavar="N",
        help="also show details for this length, beside the sweep from 8 B to 1 GiB",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate", metavar="FILE",
        help="fit the network to a record of `gradred bench --plan all --json FILE`, or, with "
        "--rows, to measurements of any allreduces (CSV)",
    )  # fmt: skip
    if laboratory.is_here():
        laboratory.module("predicted_rows").add_options(parser, "allreduce")
    else:
        parser.add_argument("--rows", help=argparse.SUPPRESS)
    parser.add_argument(
        "--noise", type=_deviation, default=0.0, metavar="S",
        help="standard deviation of the logarithm of each message's and reduction's time, such as "
        "0.1; simulates every rank, which is slow for thousands (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=natural, default=1, metavar="N", help="seed of the noise (default: 1)"
    )
    parser.add_argument(
        "--runs", type=positive, metavar="N",
        help="with --noise: number of runs; prints the medians, of --bytes also the 10th and 90th "
        "percentiles (default: 11)",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE",
        help="write all results; with `-` to stdout, and the table to stderr",
    )  # fmt: skip
    parser.add_argument(
        "--plot", metavar="FILE", help="draw times by size into this .svg, .png or .pdf"
    )


def main(arguments: argparse.Namespace) -> int:
    """Simulate, print, and write what is asked for."""
    status: int = arguments.simulate(arguments)
    return status


def _allreduce(arguments: argparse.Namespace) -> int:
    if arguments.rows is not None:
        predicted: int = laboratory.module("predicted_rows").predict(
            "allreduce", arguments, _OF_SCHEDULES
        )
        return predicted
    _check_files(arguments)
    with _interruptible():
        record = sweep.run(_question(arguments), _say)
    shown = sys.stderr if arguments.json == "-" else sys.stdout
    print(sweep.table(record, text.width() if shown is sys.stdout else None), file=shown)
    if arguments.json == "-":
        print(json.dumps(record, indent=1), flush=True)
    elif arguments.json is not None:
        rank_zero.write_json(Path(arguments.json), record)
    if arguments.plot is not None:
        draw(record, Path(arguments.plot))
    return 0


def _networks(arguments: argparse.Namespace) -> int:
    """Print figures and sources of the named networks, or of all."""
    found = [presets.find(name) for name in arguments.net]
    shown = [name for name, one in presets.NETWORKS.items() if one in found or not arguments.net]
    print("\n\n".join(citations.table(name) for name in shown))
    return 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl-C end the process at once: one simulation may take a minute outside of Python."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _question(arguments: argparse.Namespace) -> sweep.Question:
    if arguments.net is None:
        remedy = f"Add --net with one of {', '.join(presets.NETWORKS)}"
        if arguments.calibrate is not None:
            remedy += "; or --rows ROWS.csv, if --calibrate names a CSV file"
        raise UsageError("simulate allreduce", "no network is named", remedy)
    network = preset = presets.find(arguments.net)
    for name in arguments.algorithm:
        plans.find(name)
    layout = plans.layout_of(network, arguments.ranks, arguments.hosts, "rank")
    runs = 1
    if arguments.noise > 0:
        runs = arguments.runs or 11
    elif arguments.runs is not None:
        found = "without noise all runs are the same"
        raise UsageError(f"--runs {arguments.runs}", found, "Add --noise, or leave it out")
    fit = None
    if arguments.calibrate is not None:
        fit = calibration.calibrate(preset, Path(arguments.calibrate))
        network = fit.network
    return sweep.Question(
        net=next(name for name, one in presets.NETWORKS.items() if one is preset),
        network=network,
        layout=layout,
        names=tuple(dict.fromkeys(arguments.algorithm)),
        calibration=None if fit is None else fit.record(),
        nbytes=arguments.bytes,
        noise=arguments.noise,
        seed=arguments.seed,
        runs=runs,
    )


def _check_files(arguments: argparse.Namespace) -> None:
    """Raise UsageError before the work begins, if its results could not be written."""
    if arguments.plot is not None:
        plot.require(arguments.plot)
    options.require_writable(arguments.json, arguments.plot)


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw a line for each plan; the first one is the best at most lengths."""
    rows = record["rows"]
    sizes = [row["bytes"] for row in rows]
    best = [row["plans"][row["best"]]["simulated_us"] for row in rows]
    lines = []
    for name in rows[0]["plans"]:
        found = [row["plans"][name] for row in rows]
        times = [one["simulated_us"] for one in found]
        lines.append(
            plot.Line(
                label=name,
                sizes=sizes,
                times=times,
                low=[one["low_us"] for one in found],
                high=[one["high_us"] for one in found],
                ratios=[time / least for time, least in zip(times, best, strict=True)],
            )
        )
    title = f"simulated allreduce, {sweep.place_text(record)}"
    error = textwrap.fill(f"error of simulated times: {record['error']}", _TITLE_WIDTH)
    legend = plot.Legend(
        title=f"{title}\n{error}",
        line="simulated time" + (", median of the runs" if record["noise"] else ""),
        band=f"10-90 % of {record['runs']} runs" if record["noise"] else "none",
        below="time / best plan's",
    )
    plot.draw(path, legend, lines)


def _names(words: str) -> tuple[str, ...]:
    return tuple(word for word in words.split(",") if word)


def _deviation(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number from 0 to 2")
    return value
