"""`gradred train`: measure data-parallel training by a fixed protocol, and report it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from gradred import config, launch
from gradred.bench import options
from gradred.bench.options import positive
from gradred.cli import bench
from gradred.errors import UsageError
from gradred.simulate import presets
from gradred_lab.train import framework, run
from gradred_lab.train.framework import FRAMEWORKS, Size
from gradred_lab.train.settings import QUICK, Protocol, Settings

_PRECISIONS = ("fp32", "bf16")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "Lists give all combinations. The same command again continues a run that was interrupted. "
        "The exit status is 1 if ranks or peers ended with different parameters. docs/train.md "
        "explains the protocol and the report."
    )
    parser.add_argument(
        "-np", "-n", type=_counts, metavar="N[,N]", dest="ranks", default=(2,),
        help="numbers of ranks, each a job of its own (default: 2)",
    )  # fmt: skip
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="as in `gradred run`")
    where.add_argument("--hostfile", metavar="FILE", help="as in `gradred run`")
    parser.add_argument("--as-rank", metavar="OPTIONS", help=argparse.SUPPRESS)
    _configure_matrix(parser.add_argument_group("what to train"))
    _configure_protocol(parser.add_argument_group("how to measure"))
    _configure_report(parser.add_argument_group("what to report"))


def _configure_matrix(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--framework", default="pytorch", metavar="NAME",
        help=f"of {', '.join(FRAMEWORKS)}, or a module that has FRAMEWORK (default: pytorch)",
    )  # fmt: skip
    group.add_argument(
        "--models", type=_words, metavar="NAME[,NAME]",
        help=f"of PyTorch {', '.join(framework.find('pytorch').models)} (default: the first; with "
        "--quick: all)",
    )  # fmt: skip
    group.add_argument(
        "--batch", type=_counts, default=(), metavar="N[,N]",
        help="samples of each rank in a step (default: each model's own)",
    )  # fmt: skip
    group.add_argument(
        "--precision", type=_words, default=("fp32",), metavar="NAME[,NAME]",
        help=f"of {', '.join(_PRECISIONS)}; bf16 is automatic mixed precision (default: fp32)",
    )  # fmt: skip
    group.add_argument(
        "--compile", type=_switches, default=(False,), metavar="on|off[,on|off]",
        help="whether models are compiled (default: off)",
    )  # fmt: skip
    group.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="(default: cpu)")
    group.add_argument(
        "--scale", type=_scale, metavar="S",
        help="multiplies widths and tables of models (default: 1; with --quick: 0.25)",
    )  # fmt: skip
    for name, about in (
        ("image", "pixels of each side of images"),
        ("sequence", "tokens of a sequence"),
        ("layers", "at most so many layers, or residual blocks of a stage"),
    ):
        group.add_argument(
            f"--{name}", type=positive, metavar="N", help=f"{about} (default: as published)"
        )


def _configure_protocol(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--peers", type=_words, metavar="NAME[,NAME]",
        help=f"of PyTorch {', '.join(framework.find('pytorch').peers)} (default: all)",
    )  # fmt: skip
    for name, about in (
        ("skip", "steps at the start of each repeat that do not count"),
        ("steps", "steps that are averaged"),
        ("repeats", "how often: the results are medians"),
    ):
        value = getattr(Protocol, name)
        group.add_argument(
            f"--{name}", type=positive, metavar="N", help=f"{about} (default: {value})"
        )
    group.add_argument(
        "--quick", action="store_true",
        help="reduced models and few steps: two minutes on two idle cores. Other options still "
        "apply",
    )  # fmt: skip


def _configure_report(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--out", default="gradred-train", metavar="FOLDER",
        help="for results.json, report.md, report.html and plots (default: gradred-train)",
    )  # fmt: skip
    group.add_argument(
        "--fresh", action="store_true", help="replace the results there; do not continue them"
    )
    group.add_argument(
        "--simulate-hosts", type=_counts, default=(2, 4, 8, 16, 32), metavar="N[,N]",
        help="numbers of hosts like this one for which the simulator fills the report "
        "(default: 2,4,8,16,32)",
    )  # fmt: skip
    group.add_argument(
        "--net", default="10GbE", metavar="NAME",
        help=f"the network between them: {', '.join(presets.NETWORKS)} (default: 10GbE)",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Start the ranks and write the report, or measure as one of them."""
    if arguments.as_rank is not None:
        return run.as_rank(arguments.as_rank)
    config.load()
    launch.refuse_inside_job("gradred train")
    settings, folder = _settings(arguments), Path(arguments.out)
    settings.check()
    presets.find(settings.net)
    options.require_writable(str(folder / run.RESULTS))
    place = [
        word
        for option, value in (("-H", arguments.hosts), ("--hostfile", arguments.hostfile))
        if value is not None
        for word in (option, value)
    ]

    def start(ranks: int, text: str) -> int:
        program = [sys.executable, "-m", "gradred", "train", "--as-rank", text]
        return bench.start(["-np", str(ranks), "--no-prefix", *place], program)

    return run.run(settings, folder, fresh=arguments.fresh, start=start)


def _settings(arguments: argparse.Namespace) -> Settings:
    known = framework.find(arguments.framework)
    chosen = QUICK if arguments.quick else None
    models = tuple(known.models) if chosen else (next(iter(known.models)),)
    spelled = {name.replace("-", "_"): name for name in known.models}
    named = [spelled.get(name.replace("-", "_"), name) for name in arguments.models or models]
    return Settings(
        framework=arguments.framework,
        models=tuple(dict.fromkeys(named)),
        ranks=arguments.ranks,
        peers=arguments.peers or tuple(known.peers),
        batches=arguments.batch,
        precisions=_precisions(arguments.precision),
        compiled=arguments.compile,
        device=arguments.device,
        size=_filled(chosen.size if chosen else Size(), arguments),
        protocol=_filled(chosen.protocol if chosen else Protocol(), arguments),
        hosts=arguments.hosts or arguments.hostfile or "",
        simulated_hosts=arguments.simulate_hosts,
        net=arguments.net,
    )


def _filled(default: Any, arguments: argparse.Namespace) -> Any:
    """The default with what the user gave."""
    names = [one.name for one in dataclasses.fields(default)]
    given = {name: getattr(arguments, name) for name in names}
    return dataclasses.replace(default, **{k: v for k, v in given.items() if v is not None})


def _precisions(words: tuple[str, ...]) -> tuple[Any, ...]:
    for word in words:
        if word not in _PRECISIONS:
            remedy = f"Name some of {', '.join(_PRECISIONS)}"
            raise UsageError(f"--precision {word}", "there is none such", remedy)
    return words


def _words(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word for word in text.split(",") if word))
    if not words:
        raise argparse.ArgumentTypeError("there is no name")
    return words


def _counts(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(positive(word) for word in text.split(",")))


def _switches(text: str) -> tuple[bool, ...]:
    words = _words(text)
    for word in words:
        if word not in ("on", "off"):
            raise argparse.ArgumentTypeError(f"{word!r} is neither on nor off")
    return tuple(word == "on" for word in words)


def _scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1")
    return value
