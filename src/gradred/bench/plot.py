"""Pictures of measurements: time over size, both logarithmic, and the ratio of times below."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gradred.errors import UsageError, explain

_WIDE = 10  # a ratio from which on the others would lie flat on a linear axis


@dataclasses.dataclass(frozen=True)
class Line:
    """One thing that was measured: for each size a time, and where most of its times lie."""

    label: str
    sizes: Sequence[int]
    times: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    ratios: Sequence[float] | None = None
    """Its times over those of the first line; None leaves it out below."""


def require_matplotlib() -> None:
    """Raise UsageError, which says how to install it, where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        found = "drawing needs matplotlib, which is not installed"
        remedy = "Install it with: pip install matplotlib"
        raise UsageError(explain("--plot", found, remedy))


def draw(path: Path, title: str, lines: Sequence[Line], *, below: str) -> None:
    """Draw the lines into a file whose ending says the format, creating its folder.

    Args:
        path: ends in svg, png or pdf.
        title: above the picture.
        lines: the first one is what the others are compared with.
        below: what the lower axis is called.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display on the machines that run benchmarks
    from matplotlib import pyplot

    figure, (above, under) = pyplot.subplots(
        2, sharex=True, figsize=(8, 7), height_ratios=(3, 1), layout="constrained"
    )
    for line in lines:
        (drawn,) = above.loglog(line.sizes, line.times, marker="o", markersize=3, label=line.label)
        above.fill_between(line.sizes, line.low, line.high, alpha=0.2, color=drawn.get_color())
        if line.ratios is not None:
            under.semilogx(
                line.sizes, line.ratios, marker="o", markersize=3, color=drawn.get_color()
            )
    above.set(ylabel="time of a call, us", title=title)
    above.legend()
    under.axhline(1, color="grey", linewidth=0.8)
    under.set(xlabel="bytes", ylabel=below)
    if max((max(line.ratios) for line in lines if line.ratios), default=1) > _WIDE:
        under.set_yscale("log")
    else:
        under.set_ylim(0, None)
    for axes in above, under:
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
