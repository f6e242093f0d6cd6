"""The table that `gradred bench` prints: the columns of the OSU benchmarks, then its own.

Comments begin with `#`. A row has the size in bytes and numbers, separated by spaces. The order,
titles, widths and digits of the columns are those of osu_allreduce and osu_iallreduce. So programs
that read their output can read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gradred import __version__
from gradred.bench.collectives import COLLECTIVES
from gradred.bench.options import OSU_TYPES, Options

_FIRST, _WIDTH, _COUNT_WIDTH = 10, 18, 12

Row = dict[str, Any]


class Column(NamedTuple):
    """A column: its title, its width, and a function for the text of a row's cell."""

    title: str
    width: int
    cell: Callable[[Row], str]


def preamble(options: Options, dtype: str, ranks: int, mpi: str, comments: list[str]) -> str:
    """Return the lines above the first row."""
    kind = {"nonblocking": "Non-blocking ", "persistent": "Persistent "}.get(options.mode, "")
    collective = COLLECTIVES[options.collective]
    cuda = {"cpu": "", "managed": "-CUDA managed"}.get(options.accelerator, "-CUDA")
    title = f"# gradred OSU-style MPI{cuda} {kind}{collective.title} Latency Test v{__version__}"
    what = f"# {ranks} ranks, {mpi}" + (f", {options.op}" if collective.reduces else "")
    lines = ["", title, what, *(f"# {c}" for c in comments)]
    if options.mode == "nonblocking":
        lines += ["# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait", ""]
    osu_name = {name: osu.upper() for osu, name in OSU_TYPES.items()}.get(dtype, dtype)
    return "\n".join([*lines, f"# Datatype: {osu_name}."])


def columns(options: Options, names: list[str]) -> list[Column]:
    """Return the columns for these contenders; the first contender fills the OSU columns."""
    first, *others = names
    found = list(_overlap(first) if options.mode == "nonblocking" else _plain(first))
    if not options.full:
        found = [column for column in found if column.title not in _FULL]
    if options.validation:
        found.append(Column("Validation", _WIDTH, _validation))
    found += [_time(first, f"P{p} Tail Lat(us)", f"p{p}_us") for p in options.tails]
    if options.bandwidth:
        found += [_time(first, f"{kind}(GB/s)", f"{kind}_gbs") for kind in ("algbw", "busbw")]
    for name in others:
        found.append(_time(name, f"{name}(us)", "avg_us"))
        found.append(_time(name, f"{name}/{first}", "ratio"))
        if options.mode == "nonblocking":
            found.append(_time(name, f"{name} overlap(%)", "overlap_percent"))
    return found


def header(found: list[Column]) -> str:
    """Return the line of titles."""
    return f"{'# Size':<{_FIRST}}" + "".join(f"{c.title:>{c.width}}" for c in found)


def line(found: list[Column], row: Row) -> str:
    """Return the line of one size."""
    return f"{row['bytes']:<{_FIRST}}" + "".join(f"{c.cell(row):>{c.width}}" for c in found)


# Columns that osu_allreduce and osu_iallreduce print only with -f.
_FULL = frozenset(
    (
        *("Min Latency(us)", "Max Latency(us)", "Iterations"),
        *("Coll. Init(us)", "MPI_Test(us)", "MPI_Wait(us)", "Min Comm.(us)", "Max Comm.(us)"),
    )
)


def _plain(name: str) -> Iterator[Column]:
    yield _time(name, "Avg Latency(us)", "avg_us")
    yield _time(name, "Min Latency(us)", "min_us")
    yield _time(name, "Max Latency(us)", "max_us")
    yield Column("Iterations", _COUNT_WIDTH, lambda row: str(row["iterations"]))


def _overlap(name: str) -> Iterator[Column]:
    yield _time(name, "Overall(us)", "overall_us")
    yield _time(name, "Compute(us)", "compute_us")
    yield _time(name, "Coll. Init(us)", "init_us")
    yield _time(name, "MPI_Test(us)", "test_us")
    yield _time(name, "MPI_Wait(us)", "wait_us")
    yield _time(name, "Pure Comm.(us)", "avg_us")
    yield _time(name, "Min Comm.(us)", "min_us")
    yield _time(name, "Max Comm.(us)", "max_us")
    yield _time(name, "Overlap(%)", "overlap_percent")


def _time(name: str, title: str, key: str) -> Column:
    width = max(_WIDTH, len(title) + 2)
    return Column(title, width, lambda row: f"{row['results'][name][key]:.2f}")


def _validation(row: Row) -> str:
    return "Pass" if all(result["checked"] for result in row["results"].values()) else "Fail"
