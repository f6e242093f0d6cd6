"""Simulated times of several plans over several lengths, as a record and as a table."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from gradred._util import text
from gradred._util.text import size_text as size_text
from gradred.errors import UsageError
from gradred.simulate import plans
from gradred.simulate.plans import Layout, Simulated
from gradred.simulate.presets import Network

SCHEMA = "gradred-simulate-allreduce/1"
SIZES = tuple(8 << shift for shift in range(0, 28, 3))
"""The lengths of a sweep: 8 B to 1 GiB."""
_SHORT = 2.0  # seconds of runs after which it is said how long the rest takes


@dataclasses.dataclass(frozen=True)
class Question:
    """What is to be simulated."""

    net: str
    network: Network
    layout: Layout
    names: tuple[str, ...]
    """Plans; empty: all that serve these ranks."""
    calibration: dict[str, Any] | None = None
    """How the network was fitted to measured times; None: it was not."""
    nbytes: int | None = None
    """The length that is looked at closely, beside those of the sweep."""
    noise: float = 0.0
    seed: int = 0
    runs: int = 1
    """How often the sweep runs if there is noise, each time with another seed."""

    @property
    def sizes(self) -> list[int]:
        """All lengths, the shortest first."""
        return sorted({*SIZES, *([] if self.nbytes is None else [self.nbytes])})


def run(question: Question, say: Callable[[str], object] = str) -> dict[str, Any]:
    """Simulate all plans at all lengths; the record that `--json` writes.

    Args:
        question: what is simulated.
        say: is called with a line about the time that runs with noise still take.

    Raises:
        UsageError: a plan is not known, or none serves these ranks.
    """
    serving, left_out = _serving(question)
    bare = {
        nbytes: {name: _simulated(question, name, nbytes) for name in serving}
        for nbytes in question.sizes
    }
    noisy = _noisy(question, bare, say) if question.noise else {}
    rows = []
    for nbytes, own in bare.items():
        found = {name: _row(noisy.get((nbytes, name), [one])) for name, one in own.items()}
        rows.append({"bytes": nbytes, "best": _best(found), "plans": found})
    network = dataclasses.asdict(question.network)
    return {
        "schema": SCHEMA,
        "simulated": True,
        "error": question.network.error,
        "net": question.net,
        "calibration": question.calibration,
        "network": {name: _finite(value) for name, value in network.items()},
        "ranks": question.layout.ranks,
        "hosts": question.layout.hosts,
        "bytes": question.nbytes,
        "noise": question.noise,
        "seed": question.seed,
        "runs": question.runs,
        "left_out": left_out,
        "rows": rows,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: null stands for what is unlimited."""
    if isinstance(value, tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def _serving(question: Question) -> tuple[list[str], dict[str, str]]:
    left_out = {}
    for name in question.names or plans.PLANS:
        why_not = plans.find(name).why_not(question.network, question.layout)
        if why_not:
            left_out[name] = why_not
    serving = [name for name in question.names or plans.PLANS if name not in left_out]
    if not serving:
        found = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise UsageError(f"--algorithm {','.join(question.names)}", found, "Name another plan")
    return serving, left_out


def _simulated(question: Question, name: str, nbytes: int, seed: int | None = None) -> Simulated:
    noise = 0.0 if seed is None else question.noise
    return plans.simulate(
        name, question.network, question.layout, nbytes, noise=noise, seed=seed or 0
    )


def _noisy(
    question: Question, bare: dict[int, dict[str, Simulated]], say: Callable[[str], object]
) -> dict[tuple[int, str], list[Simulated]]:
    """The runs of the plans that may win at a length, going by their times without noise."""
    found: dict[tuple[int, str], list[Simulated]] = {}
    for nbytes, own in bare.items():
        most = cannot_win(question.noise) * min(one.seconds for one in own.values())
        found |= {(nbytes, name): [] for name, one in own.items() if one.seconds <= most}
    begin = time.monotonic()
    for number in range(question.runs):
        for (nbytes, name), runs in found.items():
            runs.append(_simulated(question, name, nbytes, question.seed + number))
        done, spent = number + 1, time.monotonic() - begin
        if spent > _SHORT and done < question.runs:
            left = spent / done * (question.runs - done)
            say(f"# run {done} of {question.runs} with noise; about {left:.0f} s left")
    return found


def cannot_win(noise: float) -> float:
    """A plan that takes so many times as long as the best without noise is not run with it."""
    return 2 * math.exp(4 * noise)


def _row(found: Sequence[Simulated]) -> dict[str, Any]:
    times = sorted(one.seconds * 1e6 for one in found)
    first = found[0]
    return {
        "runs": len(found),
        "simulated_us": statistics.median(times),
        "low_us": _quantile(times, 0.1),
        "high_us": _quantile(times, 0.9),
        "variant": first.variant,
        "slices": first.slices,
        "rounds": first.rounds,
        "messages": first.messages,
        "bytes_across": first.bytes_across,
        "simulated_ranks": first.simulated_ranks,
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _best(found: dict[str, dict[str, Any]]) -> str:
    return min(found, key=lambda name: float(found[name]["simulated_us"]))


# ---- text ---------------------------------------------------------------------------------------


def table(record: dict[str, Any], columns: int | None = None) -> str:
    """The record for people; `columns`: the width of the terminal."""
    lines = [
        f"# simulated, not measured: allreduce of {place_text(record)}",
        f"# {record['network']['about']}; source: {record['network']['source']}",
        f"# error of simulated times: {record['error']}",
    ]
    if record["noise"]:
        band = "medians; --bytes N and --json also give 10-90 % of the runs"
        if record["bytes"] is not None:
            band = f"medians; of {size_text(record['bytes'])} also 10-90 % of the runs"
        lines.append(
            f"# noise {record['noise']:g}, {record['runs']} runs from seed {record['seed']}: {band}"
            f"; no noise for plans that take {cannot_win(record['noise']):.2g} x best or more"
        )
    for name, why_not in record["left_out"].items():
        lines.append(f"# left out: {name} ({why_not})")
    lines = [part for line in lines for part in text.wrapped(line, columns)]
    if record["bytes"] is not None:
        lines += ["", *_one_size(record)]
    return "\n".join([*lines, "", *_sweep(record)])


def _one_size(record: dict[str, Any]) -> list[str]:
    row = next(row for row in record["rows"] if row["bytes"] == record["bytes"])
    best = row["plans"][row["best"]]["simulated_us"]
    lines = [
        f"simulated, {size_text(row['bytes'])}:",
        f"{'plan':<22}{'time':>12}{'x best':>9}{'rounds':>9}{'messages':>12}{'across hosts':>14}",
    ]
    for name, one in sorted(row["plans"].items(), key=lambda item: item[1]["simulated_us"]):
        band = f"  {time_text(one['low_us'])} to {time_text(one['high_us'])}"
        lines.append(
            f"{name:<22}{time_text(one['simulated_us']):>12}{_ratio(one['simulated_us'], best):>9}"
            f"{one['rounds']:>9}{one['messages']:>12}{size_text(one['bytes_across']):>14}"
            + (band if record["noise"] else "")
            + (f"  {one['variant']}" if one["variant"] else "")
        )
    return lines


def _ratio(value: float, best: float) -> str:
    return f"{value / best:.2f}" if best > 0 else "-"


def _sweep(record: dict[str, Any]) -> list[str]:
    names = list(record["rows"][0]["plans"])
    widths = {name: max(len("999.9 us"), len(name)) + 2 for name in names}
    lines = [
        "simulated times, and which plan wins where:",
        f"{'size':<10}{'best':<22}" + "".join(f"{name:>{widths[name]}}" for name in names),
    ]
    for row in record["rows"]:
        times = {name: time_text(row["plans"][name]["simulated_us"]) for name in names}
        cells = "".join(f"{times[name]:>{widths[name]}}" for name in names)
        lines.append(f"{size_text(row['bytes']):<10}{row['best']:<22}{cells}")
    return lines


def place_text(record: dict[str, Any]) -> str:
    """`512 ranks on 128 hosts, 10GbE`."""
    counts = [
        f"{record[what]} {what[:-1] if record[what] == 1 else what}" for what in ("ranks", "hosts")
    ]
    return f"{' on '.join(counts)}, {record['net']}"


def time_text(microseconds: float) -> str:
    """A time in the unit that leaves it one to three digits before the point."""
    for unit, scale in (("us", 1.0), ("ms", 1e3)):
        if microseconds < 999.5 * scale:
            return f"{microseconds / scale:.4g} {unit}"
    seconds = microseconds / 1e6
    return f"{seconds:.4g} s" if seconds < 1e4 else f"{seconds:.0f} s"
