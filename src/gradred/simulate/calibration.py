"""Fits a network to a record of `gradred bench`, so that its simulated times have a known error."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradred.errors import UsageError
from gradred.simulate import plans, sweep
from gradred.simulate.plans import Layout
from gradred.simulate.presets import Network

BENCH_SCHEMA = "gradred-bench/1"

_MOST_SIZES = 8  # of a record: more would take long and say little more
_FIRST_STEP, _LAST_STEP = 1.0, 0.02  # of the search, in the logarithm of a factor


@dataclasses.dataclass(frozen=True)
class Factors:
    """What a network's figures are multiplied by."""

    latency: float = 1.0
    """Latencies and overheads."""
    speed: float = 1.0
    """All links and streams."""
    memory: float = 1.0
    """Times of reductions and copies."""

    def applied(self, network: Network) -> Network:
        """The network with other figures."""

        def path(given: tuple[float, float]) -> tuple[float, float]:
            return given[0] * self.latency, given[1] * self.speed

        return dataclasses.replace(
            network,
            inside=path(network.inside),
            across=path(network.across),
            beyond=None if network.beyond is None else path(network.beyond),
            hop=network.hop * self.latency,
            overhead=network.overhead * self.latency,
            port=network.port * self.speed,
            rank_port=network.rank_port * self.speed,
            host_bus=network.host_bus * self.speed,
            switch_uplink=network.switch_uplink * self.speed,
            reduce=network.reduce * self.memory,
            copy=network.copy * self.memory,
        )


@dataclasses.dataclass(frozen=True)
class Measured:
    """One time of a record."""

    plan: str
    nbytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The fitted network and how far its times are from measured ones that it was not fitted to."""

    network: Network
    factors: Factors
    rows: int
    median_error: float
    p95_error: float

    def record(self) -> dict[str, object]:
        """What a record of simulated times says of it."""
        return {
            "factors": dataclasses.asdict(self.factors),
            "rows": self.rows,
            "median_error": self.median_error,
            "p95_error": self.p95_error,
        }


def calibrate(network: Network, path: Path) -> Calibration:
    """Fit `network` to what `gradred bench --plan all --json` wrote. Takes some seconds.

    The error is that of every second length, predicted by a fit to the others.

    Raises:
        UsageError: the file cannot be read, or has no allreduces by plans over messages at two
            lengths at least.
    """
    layout, rows = _read(path)
    rows = [row for row in rows if not plans.find(row.plan).why_not(network, layout)]
    sizes = sorted({row.nbytes for row in rows})
    if len(sizes) < 2:
        found = "it has no two lengths at which plans over messages were measured"
        raise UsageError(
            f"--calibrate {path}", found, "Measure with: gradred bench --plan all --json"
        )
    sizes = [sizes[i * (len(sizes) - 1) // (_MOST_SIZES - 1)] for i in range(_MOST_SIZES)]
    sizes = list(dict.fromkeys(sizes))
    rows = [row for row in rows if row.nbytes in sizes]
    errors = []
    for held in (0, 1):
        kept = [row for row in rows if sizes.index(row.nbytes) % 2 != held]
        others = [row for row in rows if sizes.index(row.nbytes) % 2 == held]
        fitted = _fit(network, layout, kept).applied(network)
        errors += [abs(math.expm1(one)) for one in _deviations(fitted, layout, others)]
    factors = _fit(network, layout, rows)
    errors.sort()
    median, p95 = statistics.median(errors), errors[round(0.95 * (len(errors) - 1))]
    shortest, longest = map(sweep.size_text, (sizes[0], sizes[-1]))
    between = "between hosts, " if layout.hosts == 1 else ""
    error = (
        f"median {median:.0%}, 95th percentile {p95:.0%} of {len(rows)} times in {path.name} "
        f"({shortest} to {longest}, {layout.ranks} ranks on {layout.hosts} "
        f"host{'s' * (layout.hosts > 1)}), each predicted by a fit to every other length; "
        f"{between}on more ranks and at other lengths not known"
    )
    return Calibration(
        dataclasses.replace(factors.applied(network), error=error),
        factors,
        len(rows),
        median,
        p95,
    )


def read_record(path: Path, option: str) -> dict[str, Any]:
    """A record of blocking allreduces that `gradred bench --json` wrote.

    Args:
        path: of the file.
        option: by which the user named it, for errors.

    Raises:
        UsageError: the file cannot be read, or is another one.
    """
    asked, remedy = f"{option} {path}", "Name a file that gradred bench --json has written"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(asked, f"it cannot be read ({error.strerror})", remedy) from error
    except json.JSONDecodeError as error:
        found = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise UsageError(asked, found, remedy) from error
    except UnicodeDecodeError as error:
        raise UsageError(asked, f"it is not text ({error})", remedy) from error
    where = "it"
    try:
        if record["schema"] != BENCH_SCHEMA:
            found = f"its schema is {record['schema']!r}, not {BENCH_SCHEMA!r}"
            raise UsageError(asked, found, remedy)
        what = record["arguments"]
        if (what["collective"], what["mode"]) != ("allreduce", "blocking"):
            found = f"it measured {what['mode']} {what['collective']}"
            raise UsageError(asked, found, "Measure blocking allreduces")
        layout_of(record)
        for number, row in enumerate(record["rows"]):
            where = f"rows[{number}]"
            int(row["bytes"])
            for plan, result in row["results"].items():
                where = f"rows[{number}].results.{plan}"
                microseconds(result)
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{where} lacks what such a record has ({type(error).__name__}: {error})"
        raise UsageError(asked, found, remedy) from error
    return record


def layout_of(record: dict[str, Any]) -> Layout:
    """Return where the ranks of a record were."""
    hosts = enumerate(record["ranks_on_hosts"])
    return Layout(tuple(host for host, ranks in hosts for _ in range(ranks)))


def _read(path: Path) -> tuple[Layout, list[Measured]]:
    record = read_record(path, "--calibrate")
    rows = [
        Measured(plan, int(row["bytes"]), microseconds(result) * 1e-6)
        for row in record["rows"]
        for plan, result in row["results"].items()
        if plan in plans.PLANS and not plans.PLANS[plan].has_own_terms and microseconds(result) > 0
    ]
    return layout_of(record), rows


def microseconds(result: dict[str, Any]) -> float:
    """The median of the calls, which a few late ones do not change as they change the mean."""
    return float(result["p50_us"] if "p50_us" in result else result["avg_us"])


def _deviations(network: Network, layout: Layout, rows: Sequence[Measured]) -> list[float]:
    """The logarithm of simulated over measured time, by row."""
    return [
        math.log(plans.simulate(row.plan, network, layout, row.nbytes).seconds / row.seconds)
        for row in rows
    ]


def _fit(network: Network, layout: Layout, rows: Sequence[Measured]) -> Factors:
    """The factors with the least sum of absolute deviations, by a pattern search.

    Source: Hooke and Jeeves, "Direct search" solution of numerical and statistical problems, 1961.
    """

    def badness(point: Sequence[float]) -> float:
        factors = Factors(*(math.exp(one) for one in point))
        return sum(map(abs, _deviations(factors.applied(network), layout, rows)))

    point, step = [0.0, 0.0, 0.0], _FIRST_STEP
    best = badness(point)
    while step > _LAST_STEP:
        improved = False
        for axis in range(len(point)):
            for sign in (1, -1):
                tried = list(point)
                tried[axis] += sign * step
                found = badness(tried)
                if found < best - 1e-9:
                    point, best, improved = tried, found, True
                    break
        if not improved:
            step /= 2
    return Factors(*(math.exp(one) for one in point))
