"""`gradred schemes`: train a small network under several schemes, and compare them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any

from gradred import config, launch
from gradred.bench import options
from gradred.bench.options import positive
from gradred.cli import bench
from gradred.cli.option_types import duration
from gradred.compression import CODECS
from gradred.errors import UsageError
from gradred.schemes.layout import AGGREGATES
from gradred.schemes.table import SCHEMES, TRANSPORTS, Options
from gradred_lab import pictures
from gradred_lab.schemes import settings
from gradred_lab.schemes.settings import Settings

_FORMATS = (".svg", ".png", ".pdf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Schemes: "
        + "; ".join(f"{name} ({row.about})" for name, row in SCHEMES.items())
        + ". Compressions: "
        + "; ".join(f"{name} ({codec.about})" for name, codec in CODECS.items())
        + ". docs/schemes.md explains the columns."
    ).replace("%", "%%")
    parser.add_argument(
        "-np", "-n", type=positive, metavar="N", dest="workers", required=True,
        help="workers; servers are ranks beside them",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="as in `gradred run`")
    where.add_argument("--hostfile", metavar="FILE", help="as in `gradred run`")
    parser.add_argument("--as-rank", metavar="OPTIONS", help=argparse.SUPPRESS)
    _configure_schemes(parser.add_argument_group("what to compare; lists give all combinations"))
    _configure_training(parser.add_argument_group("what to train"))


def _configure_schemes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--schemes", type=_words, default=tuple(SCHEMES), metavar="NAME[,NAME]",
        help=f"of {', '.join(SCHEMES)} (default: all)",
    )  # fmt: skip
    group.add_argument(
        "--transport", type=_words, default=("mpi",), metavar="NAME[,NAME]",
        help="; ".join(f"{name}: {about}" for name, about in TRANSPORTS.items())
        + " (default: mpi)",
    )  # fmt: skip
    group.add_argument(
        "--compression", type=_words, default=("none",), metavar="NAME[:N][,...]",
        help=f"of {', '.join(CODECS)}; topk:0.01 sends that share (default: none)",
    )  # fmt: skip
    group.add_argument(
        "--servers", type=_counts, default=(1,), metavar="N[,N]", help="of parameters (default: 1)"
    )
    group.add_argument(
        "--staleness", type=_natural, default=Options.staleness, metavar="S",
        help=f"steps, of ssp (default: {Options.staleness})",
    )  # fmt: skip
    group.add_argument(
        "--aggregate", choices=AGGREGATES, default=Options.aggregate,
        help="; ".join(f"{name}: {about}" for name, about in AGGREGATES.items())
        + f" (default: {Options.aggregate})",
    )  # fmt: skip
    group.add_argument(
        "--merge-bytes", type=options.byte_count, default=Options.merge_bytes, metavar="N",
        help="of merged messages (default: 256k)",
    )  # fmt: skip
    group.add_argument(
        "--gradients", choices=("contiguous", "scattered"), default="contiguous",
        help="in one vector, or each for itself, which costs two copies (default: contiguous)",
    )  # fmt: skip
    group.add_argument(
        "--priority", action="store_true",
        help="first tensors go first, and the forward pass waits for each when it needs it",
    )  # fmt: skip
    group.add_argument("--plan", default="", metavar="NAME", help="of bsp's allreduce")
    group.add_argument(
        "--groups", type=positive, default=Options.groups, metavar="N",
        help="groups of hierarchical, members of a group of local "
        f"(default: {Options.groups})",
    )  # fmt: skip
    group.add_argument(
        "--every", type=positive, default=Options.every, metavar="N",
        help=f"steps of local between averages (default: {Options.every})",
    )  # fmt: skip


def _configure_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data", default=Settings.data, metavar="digits|FILE.npz",
        help="scikit-learn's digits, or a file with arrays x and y (default: digits)",
    )  # fmt: skip
    group.add_argument(
        "--model", choices=("numpy", "torch"), default="numpy", help="(default: numpy)"
    )
    group.add_argument(
        "--hidden", type=_counts, default=(128,), metavar="N[,N]",
        help="widths of the layers inside (default: 128)",
    )  # fmt: skip
    group.add_argument("--iterations", type=positive, default=Settings.iterations, metavar="N")
    group.add_argument(
        "--batch", type=positive, default=Settings.batch, metavar="N", help="rows of each worker"
    )
    group.add_argument("--rate", type=_above_zero, default=Settings.rate, metavar="R")
    group.add_argument("--momentum", type=_momentum, default=Settings.momentum, metavar="M")
    group.add_argument("--seed", type=_natural, default=Settings.seed, metavar="N")
    group.add_argument(
        "--loss", type=_above_zero, default=Settings.loss, metavar="L",
        help=f"the goal of iterations and time to loss (default: {Settings.loss})",
    )  # fmt: skip
    group.add_argument(
        "--straggler", type=_late, action="append", default=[], metavar="WORKER:TIME",
        help="this worker sleeps so long in each iteration, such as 2:20ms; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--jitter", type=duration(0.0), default=0.0, metavar="TIME",
        help="each worker sleeps for a random time of this mean in each iteration",
    )  # fmt: skip
    group.add_argument(
        "--json", metavar="FILE",
        help="write everything that was measured; `-` is stdout, then the table goes to stderr",
    )  # fmt: skip
    group.add_argument("--plot", metavar="FILE", help="draw loss over time: .svg, .png or .pdf")


def main(arguments: argparse.Namespace) -> int:
    """Start the ranks, or train as one of them."""
    if arguments.as_rank is not None:
        from gradred_lab.schemes import job  # imports mpi4py.MPI, which calls MPI_Init

        return job.run(*settings.from_text(arguments.as_rank), arguments.workers)
    config.load()
    launch.refuse_inside_job("gradred schemes")
    chosen, refused = _cases(arguments)
    asked = _settings(arguments)
    _check_files(asked)
    asked.check(arguments.workers)
    for why in refused:
        print(f"# left out: {why}", file=sys.stderr)
    ranks = arguments.workers + max(one.server_ranks for one in chosen)
    where = [
        word
        for option, value in (("-H", arguments.hosts), ("--hostfile", arguments.hostfile))
        if value is not None
        for word in (option, value)
    ]
    program = [sys.executable, "-m", "gradred", "schemes", "-np", str(arguments.workers)]
    text = settings.to_text(asked, chosen)
    return bench.start(["-np", str(ranks), *where], [*program, "--as-rank", text])


def _cases(arguments: argparse.Namespace) -> tuple[list[Options], list[str]]:
    names = ("staleness", "aggregate", "merge_bytes", "priority", "plan", "groups", "every")
    others: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    others["contiguous"] = arguments.gradients == "contiguous"
    lists = (arguments.schemes, arguments.transport, arguments.compression, arguments.servers)
    return settings.cases(*lists, **others)


def _settings(arguments: argparse.Namespace) -> Settings:
    same = {one.name for one in dataclasses.fields(Settings)} - {"stragglers"}
    values: dict[str, Any] = {name: getattr(arguments, name) for name in same}
    return Settings(**values, stragglers=dict(arguments.straggler))


def _check_files(asked: Settings) -> None:
    """Raise UsageError before ranks start, if results could not be written."""
    if asked.plot is not None:
        if os.path.splitext(asked.plot)[1] not in _FORMATS:
            found = "its ending says no format"
            raise UsageError(asked.plot, found, "End its name in .svg, .png or .pdf")
        pictures.require("--plot")
    options.require_writable(asked.json, asked.plot)


def _words(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word for word in text.split(",") if word))
    if not words:
        raise argparse.ArgumentTypeError("there is no name")
    return tuple(SCHEMES) if words == ("all",) else words


def _counts(text: str) -> tuple[int, ...]:
    return tuple(positive(word) for word in text.split(","))


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _momentum(text: str) -> float:
    if text == "0":
        return 0.0
    value = _above_zero(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return value


def _late(text: str) -> tuple[int, float]:
    worker, colon, time = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not WORKER:TIME, such as 2:20ms")
    return _natural(worker), duration(0.0)(time)
