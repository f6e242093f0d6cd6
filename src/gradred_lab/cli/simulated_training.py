"""`gradred simulate training`: phases of an iteration on a cluster, or predictions of rows."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from gradred._util import text
from gradred.bench import options, rank_zero
from gradred.bench.options import positive
from gradred.cli.option_types import duration
from gradred.errors import UsageError
from gradred.simulate import plans, presets, sweep
from gradred_lab import pictures
from gradred_lab.cli import predicted_rows
from gradred_lab.simulate import bench_times, messages, networks, trace, what_if, work
from gradred_lab.simulate.exchange import ALL, Exchange, Place

_BATCH = 32  # samples of a device, where nothing else is asked for
_OF_ITERATIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("net", "gpus", "hosts", "scheme", "algorithm", "messages", "device", "batch"),
        *("samples_per_s", "load", "overlap", "plot"),
    )
}
"""Options that only simulated iterations have, by the names of their values."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of both uses."""
    parser.epilog = "Schemes: " + "; ".join(
        f"{name} ({scheme.about})" for name, scheme in messages.SCHEMES.items()
    )
    predicted_rows.add_options(parser, "training")
    parser.add_argument(
        "--calibrate", metavar="FIT.csv",
        help="with --rows: CSV file of measurements, with the columns of ROWS.csv",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE",
        help="write all results; with `-` to stdout, and the table to stderr",
    )  # fmt: skip
    group = parser.add_argument_group("an iteration on a cluster")
    group.add_argument("--model", metavar="NAME", help=f"{', '.join(networks.names())}")
    group.add_argument(
        "--trace", metavar="TRACE.json", help="in place of a model: what simulate record wrote"
    )
    group.add_argument("--net", metavar="NAME", help=f"{', '.join(presets.NETWORKS)}")
    group.add_argument(
        "--gpus", type=positive, metavar="N",
        help="devices, each with a rank (default: as many as the cluster has on --hosts)",
    )  # fmt: skip
    group.add_argument(
        "--hosts", type=positive, metavar="COUNT",
        help="hosts, which share the devices as equally as can be (default: as many as --gpus "
        "needs)",
    )  # fmt: skip
    group.add_argument(
        "--scheme", type=words, default=(), metavar="NAME[,NAME]",
        help=f"of {', '.join(messages.SCHEMES)} (default: all)",
    )  # fmt: skip
    group.add_argument(
        "--algorithm", type=words, default=ALL, metavar="PLAN[,PLAN]",
        help="plans of an allreduce; the fastest is taken at each length (default: "
        f"{', '.join(ALL)})",
    )  # fmt: skip
    add_device(group)
    group.add_argument("--plot", metavar="FILE.svg", help="draw the phases of each scheme as bars")


def add_device(group: argparse._ActionsContainer) -> None:
    """Declare what trains, and what messages cost if that was measured."""
    group.add_argument(
        "--messages", metavar="BENCH.json",
        help="in place of simulated messages: times of `gradred bench --json` on the same ranks",
    )  # fmt: skip
    group.add_argument(
        "--device", choices=work.DEVICES, help="what trains (default: that of the cluster)"
    )
    group.add_argument(
        "--batch", type=positive, metavar="N", help=f"samples of a device (default: {_BATCH})"
    )
    group.add_argument(
        "--samples-per-s", type=_rate, metavar="R",
        help="that one device alone was measured to train (default: by its speed)",
    )  # fmt: skip
    group.add_argument(
        "--load", type=duration(0.0), default=0.0, metavar="TIME",
        help="to read and decode a batch, such as 20ms (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--overlap", type=_share, default=100.0, metavar="PERCENT",
        help="of a message during which the device computes on; `gradred bench --nonblocking` "
        "measures it (default: 100)",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    """Predict rows, or simulate an iteration."""
    if arguments.model is None and arguments.trace is None:
        if arguments.rows is None and arguments.calibrate is None:
            remedy = "Name --model or --trace, or --calibrate FIT.csv and --rows ROWS.csv"
            raise UsageError("simulate training", "nothing says what is trained", remedy)
        return predicted_rows.predict("training", arguments, _OF_ITERATIONS)
    if arguments.rows is not None or arguments.calibrate is not None:
        found = "--rows and --calibrate predict the rows of a file"
        raise UsageError("--model or --trace", found, "Leave out one of both")
    if arguments.model is not None and arguments.trace is not None:
        raise UsageError("--model and --trace", "both say what is trained", "Name one")
    check_files(arguments.json, arguments.plot)
    record = what_if.run(question(arguments))
    write(record, what_if.table, arguments.json)
    if arguments.plot is not None:
        rank_zero.write_text(Path(arguments.plot), what_if.drawing(record))
    return 0


def question(arguments: argparse.Namespace) -> what_if.Question:
    """What the options ask for."""
    host_of, measured = None, None
    if arguments.messages is not None:
        host_of, measured = measured_messages(arguments.messages)
    net, place = place_of(arguments, host_of)
    for name in arguments.algorithm:
        plans.find(name)
    schemes = _schemes(arguments)
    device, batch, alone = trained(arguments, place.network)
    return what_if.Question(
        net=net,
        place=place,
        work=alone,
        batch=batch,
        device=device,
        schemes=schemes,
        plans=arguments.algorithm,
        error=what_if.ERROR if arguments.trace is None else what_if.TRACE_ERROR,
        measured=measured,
        messages_from="simulated" if measured is None else _source(arguments.messages, measured),
    )


def _source(path: str, measured: Exchange) -> str:
    """Say which file has the measured messages, and which lengths it covers."""
    shortest, longest = map(sweep.size_text, measured.lengths)
    return f"measured, {path}, {shortest} to {longest}; those of longer messages by a straight line"


def _schemes(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Return the schemes that are named, or all; for measured messages only those of allreduces."""
    asked = tuple(dict.fromkeys(arguments.scheme))
    servers = {name for name in asked or messages.SCHEMES if messages.find(name).way.servers}
    if arguments.messages is None:
        return asked or tuple(messages.SCHEMES)
    if arguments.algorithm != ALL:
        found = "the record says what messages cost, whatever the plan"
        raise UsageError("--algorithm and --messages", found, "Leave out one of both")
    if asked and servers:
        found = "the record has allreduces alone, and nothing of parameter servers"
        shown = f"--scheme {','.join(sorted(servers))} and --messages"
        raise UsageError(shown, found, "Leave out one of both")
    return asked or tuple(name for name in messages.SCHEMES if name not in servers)


def measured_messages(path: str) -> tuple[plans.Layout, Exchange]:
    """The ranks of a record of `gradred bench`, and what messages cost there."""
    return bench_times.read(Path(path))


def trained(
    arguments: argparse.Namespace, network: presets.Network
) -> tuple[dict[str, str], int, work.Work]:
    """What trains, samples of a device, and its work: of a model, or recorded."""
    device, batch, alone = _alone(arguments, network)
    overlap = arguments.overlap / 100
    return device, batch, dataclasses.replace(alone, load=arguments.load, overlap=overlap)


def _alone(
    arguments: argparse.Namespace, network: presets.Network
) -> tuple[dict[str, str], int, work.Work]:
    if arguments.trace is not None:
        _refuse_of_a_model(arguments)
        found = trace.read(Path(arguments.trace))
        first = found.batch.partition("x")[0]
        batch = int(first) if first.isdecimal() else 1
        about = f"{found.copies} at the same time, {found.about.get('cpu', found.device)}"
        if found.packs:
            about += ", with DistributedDataParallel's own work under every scheme"
        device = {"about": about, "source": f"measured, {arguments.trace}"}
        return device, batch, found.work()
    if arguments.device is None and arguments.net is None:
        found_out = "no network is named, whose device would be taken"
        raise UsageError(f"--model {arguments.model}", found_out, "Add --device")
    row = work.DEVICES[arguments.device or network.device]
    batch = arguments.batch or _BATCH
    alone = work.on_device(arguments.model, row, batch, arguments.samples_per_s)
    source = row.source
    if arguments.samples_per_s is not None:
        source = f"{arguments.samples_per_s:g} samples/s by --samples-per-s; all else: {source}"
    return {"about": row.about, "source": source}, batch, alone


def _refuse_of_a_model(arguments: argparse.Namespace) -> None:
    """Raise UsageError for what a trace says already."""
    for name in ("device", "batch", "samples_per_s"):
        if getattr(arguments, name) is not None:
            option = _OF_ITERATIONS[name]
            found = "the trace says what trains, its batch and its speed"
            raise UsageError(f"{option} and --trace", found, "Leave out one of both")


def place_of(
    arguments: argparse.Namespace, measured: plans.Layout | None = None
) -> tuple[str, Place]:
    """The name of the network, and where the ranks are on it.

    Args:
        arguments: net, gpus, hosts.
        measured: the ranks of a measurement of messages, which then are the ranks.
    """
    if measured is not None:
        _require_measured(arguments, measured)
    if measured is not None and arguments.net is None:
        about, source = "the ranks of a measurement of messages", arguments.messages
        here = dataclasses.replace(presets.NETWORKS["10GbE"], about=about, source=source)
        return "measured", Place(here, measured)  # of the network nothing but these words is used
    if arguments.net is None:
        known = ", ".join(presets.NETWORKS)
        raise UsageError(
            "simulate training", "no network is named", f"Add --net with one of {known}"
        )
    network = presets.find(arguments.net)
    net = next(name for name, one in presets.NETWORKS.items() if one is network)
    layout = measured or plans.layout_of(network, arguments.gpus, arguments.hosts, "device")
    return net, Place(network, layout)


def _require_measured(arguments: argparse.Namespace, measured: plans.Layout) -> None:
    """Raise UsageError if other ranks are asked for than messages were measured on."""
    asked, counts = (arguments.gpus, arguments.hosts), (measured.ranks, measured.hosts)
    if any(one not in (None, count) for one, count in zip(asked, counts, strict=True)):
        found = f"{measured.ranks} ranks on {measured.hosts} hosts were measured"
        remedy = "Leave out --gpus and --hosts, or measure on as many"
        raise UsageError(f"--messages {arguments.messages}", found, remedy)


def check_files(record: str | None, plot: str | None) -> None:
    """Raise UsageError before the work begins, if its results could not be written."""
    if plot is not None and not plot.endswith(".svg"):
        raise UsageError(f"--plot {plot}", "bars are drawn as SVG", "End it in .svg")
    if plot is not None:
        pictures.require("--plot")
    options.require_writable(record, plot)


def write(record: dict[str, object], table: what_if.Table, name: str | None) -> None:
    """Print the table, and write the record where it is wanted."""
    shown = sys.stderr if name == "-" else sys.stdout
    print(table(record, text.width() if shown is sys.stdout else None), file=shown)
    if name == "-":
        print(json.dumps(record, indent=1), flush=True)
    elif name is not None:
        rank_zero.write_json(Path(name), record)


def words(text_of_them: str) -> tuple[str, ...]:
    """Parse names that commas separate."""
    return tuple(word for word in text_of_them.split(",") if word)


def _share(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number from 0 to 100")
    return value


def _rate(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number above 0")
    return value
