"""`gradred simulate training`: phases of an iteration under several schemes, on a cluster."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradred._util import text
from gradred.simulate.sweep import place_text, size_text, time_text
from gradred_lab import pictures
from gradred_lab.simulate import messages
from gradred_lab.simulate.exchange import ALL, Exchange, Place, Way
from gradred_lab.simulate.work import Work

SCHEMA = "gradred-simulate-iteration/1"

ERROR = (
    "iterations of 2 to 8 GPUs are off by a median of 8.7 %, 95th percentile 56 %, against 134 "
    "published ones of which the model knows only the time of one GPU; above 8 GPUs not known"
)
"""How far simulated iterations are from measured ones: `benchmarks/simulated_iterations.py`."""

Table = Callable[[dict[str, Any], "int | None"], str]
"""Shows a record, as wide as so many columns; None: as wide as its lines are."""

TRACE_ERROR = (
    "with messages as measured, on 2 and 4 ranks of one machine, iterations with contiguous "
    "gradients are off by 4 to 8 %, those of DistributedDataParallel's buckets are 6 to 15 % too "
    "short; elsewhere not known"
)
"""As `ERROR`, for a trace and measured messages: `benchmarks/predicted_training.py`."""

PHASES = ("load", "copy_in", "forward", "backward", "packing", "exposed", "update", "late")
TITLES = {"copy_in": "to device", "exposed": "exchange"}


@dataclass(frozen=True)
class Question:
    """What is to be simulated."""

    net: str
    place: Place
    work: Work
    batch: int
    device: dict[str, str]
    """What it is (`about`), and the source of its speed (`source`)."""
    schemes: tuple[str, ...]
    plans: tuple[str, ...] = ALL
    error: str = ERROR
    measured: Exchange | None = None
    """What messages cost, if it was measured; None: it is simulated."""
    messages_from: str = "simulated"
    """The file of the measurement."""


def run(question: Question) -> dict[str, Any]:
    """Simulate an iteration under each scheme; the record that `--json` writes.

    Raises:
        UsageError: a scheme is not known, or a plan serves none of these ranks.
    """
    exchange_of = exchanges(question)
    rows = [_row(question, name, exchange_of) for name in question.schemes]
    exchange = exchange_of(Way())
    size, seconds = messages.best_bucket(question.work, exchange)
    layout = question.place.layout
    return {
        "schema": SCHEMA,
        "simulated": True,
        "error": question.error,
        "net": question.net,
        "network": {"about": question.place.network.about, "source": question.place.network.source},
        "messages": question.messages_from,
        "device": question.device,
        "model": question.work.name,
        "gradients": len(question.work.nbytes),
        "bytes": float(question.work.nbytes.sum()),
        "batch": question.batch,
        "ranks": layout.ranks,
        "hosts": layout.hosts,
        "one_device_ms": 1e3 * question.work.seconds,
        "rows": rows,
        "best_bucket": {"bytes": int(size), "iteration_ms": 1e3 * seconds},
    }


def exchanges(question: Question) -> Callable[[Way], Exchange]:
    """The exchange of each way; messages that two schemes share are simulated once.

    A measurement is one of allreduces, so it does not serve parameter servers.
    """

    @functools.cache
    def exchange_of(way: Way) -> Exchange:
        if question.measured is not None and not way.servers:
            return question.measured
        servers = min(way.servers, question.place.layout.ranks)
        asked = dataclasses.replace(way, plans=question.plans, servers=servers)
        return Exchange(question.place, asked)

    return exchange_of


def row(question: Question, name: str) -> dict[str, Any]:
    """One scheme of a question, as its record has it."""
    return _row(question, name, exchanges(question))


def _row(question: Question, name: str, exchange_of: Callable[[Way], Exchange]) -> dict[str, Any]:
    scheme = messages.find(name)
    exchange = exchange_of(scheme.way)
    work, ranks = question.work, question.place.layout.ranks
    if ranks == 1:  # nothing is exchanged, and nobody is late
        work = dataclasses.replace(work, packing=0.0, late=0.0)
    sent = scheme.group(work, exchange)
    phases = messages.iterate(name, work, exchange)
    return {
        "scheme": name,
        "about": scheme.about,
        "source": scheme.source,
        "messages": len(sent),
        **{f"{phase}_ms": 1e3 * getattr(phases, phase) for phase in PHASES},
        "network_busy_ms": 1e3 * phases.exchange,
        "iteration_ms": 1e3 * phases.iteration,
        "samples_per_s": ranks * question.batch / phases.iteration,
        "efficiency": work.seconds / phases.iteration,
        "limit": phases.limit(work.seconds, work.fetch),
    }


def table(record: dict[str, Any], columns: int | None = None) -> str:
    """The record as text; all comments but the first line are as wide as `columns`."""
    head = [
        f"# simulated, not measured: an iteration of {record['model']}, batch {record['batch']} a "
        f"device, {place_text(record)}",
        f"# {record['network']['about']}; source: {record['network']['source']}",
        f"# device: {record['device']['about']}; source: {record['device']['source']}",
        f"# cost of messages: {record['messages']}",
        f"# error of simulated iterations: {record['error']}",
        f"# {record['gradients']} gradients, {size_text(record['bytes'])}; one device alone: "
        f"{time_text(1e3 * record['one_device_ms'])}",
    ]
    lines = [part for line in head for part in text.wrapped(line, columns)]
    titles = "".join(f"{TITLES.get(phase, phase):>10}" for phase in PHASES)
    lines += [
        "",
        "simulated phases, ms (exchange: what is not overlapped), and what limits:",
        f"{'scheme':<12}{'messages':>9}{titles}{'iteration':>11}{'samples/s':>11}{'efficiency':>11}"
        "  limit",
    ]
    lines += [_line(row) for row in record["rows"]]
    best = record["best_bucket"]
    shortest, longest = size_text(messages.BUCKETS[0]), size_text(messages.BUCKETS[-1])
    lines += [
        "",
        f"simulated: of buckets of {shortest} to {longest} those of {size_text(best['bytes'])} are "
        f"best, with {time_text(1e3 * best['iteration_ms'])} an iteration",
    ]
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    cells = "".join(f"{row[f'{phase}_ms']:>10.4g}" for phase in PHASES)
    return (
        f"{row['scheme']:<12}{row['messages']:>9}{cells}{row['iteration_ms']:>11.5g}"
        f"{row['samples_per_s']:>11.5g}{100 * row['efficiency']:>10.1f}%  {row['limit']}"
    )


def drawing(record: dict[str, Any]) -> str:
    """The phases of each scheme as bars, an SVG document."""
    rows = [
        pictures.Bar(
            row["scheme"],
            {TITLES.get(phase, phase): row[f"{phase}_ms"] for phase in PHASES},
            f"{row['iteration_ms']:.4g} ms, {100 * row['efficiency']:.0f} %",
        )
        for row in record["rows"]
    ]
    title = f"Simulated iteration of {record['model']}, {place_text(record)}"
    return pictures.bars(title, notes(record["error"]), rows)


def notes(error: str) -> list[str]:
    """The lines below a picture."""
    return text.wrapped(f"Simulated, not measured. Error: {error}.", 100)
