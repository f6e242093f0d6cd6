"""Stacked bars as an SVG document, without a library for plots; equal rows give equal pictures."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Colours that differ in print and for most eyes (Okabe and Ito, 2008).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#f0e442", "#999999")
_LEFT, _WIDTH, _RIGHT, _ROW, _TOP = 100, 460, 130, 26, 58  # pixels
_CHARACTER, _LINE = 6.6, 16


@dataclass(frozen=True)
class Bar:
    """A row: its label, the length of each part, and a text at its end."""

    label: str
    parts: Mapping[str, float]
    text: str


def svg(title: str, notes: Sequence[str], bars: Sequence[Bar]) -> str:
    """Draw the bars below each other, all to one scale, and a legend of their parts.

    Args:
        title: above the bars.
        notes: lines below the legend, such as the error of what is shown.
        bars: at least one; a part that no bar has is left out of the legend.
    """
    names = [n for n in dict.fromkeys(n for b in bars for n in b.parts) if _is_used(n, bars)]
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    longest = max(sum(bar.parts.values()) for bar in bars) or 1.0
    left = max(_LEFT, 16 + round(_CHARACTER * max(len(bar.label) for bar in bars)))
    shapes = [f'<text x="12" y="22" class="title">{html.escape(title)}</text>']
    shapes += _legend(names, colours)
    for i, bar in enumerate(bars):
        shapes += _bar(bar, (left, _TOP + i * _ROW), _WIDTH / longest, colours)
    bottom = _TOP + len(bars) * _ROW + 8
    for i, note in enumerate(notes):
        y = bottom + (i + 1) * _LINE
        shapes.append(f'<text x="12" y="{y}" class="note">{html.escape(note)}</text>')
    width = left + _WIDTH + _RIGHT
    height = bottom + (len(notes) + 1) * _LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n'
        "<style>text{font:12px sans-serif}.title{font-size:15px;font-weight:bold}"
        ".note{fill:#555}</style>\n"
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _is_used(name: str, bars: Sequence[Bar]) -> bool:
    return any(bar.parts.get(name, 0.0) > 0 for bar in bars)


def _legend(names: Sequence[str], colours: Mapping[str, str]) -> list[str]:
    shapes, x = [], 12.0
    for name in names:
        shapes.append(f'<rect x="{x:.0f}" y="34" width="12" height="12" fill="{colours[name]}"/>')
        shapes.append(f'<text x="{x + 16:.0f}" y="44">{html.escape(name)}</text>')
        x += 30 + _CHARACTER * len(name)
    return shapes


def _bar(bar: Bar, place: tuple[int, int], scale: float, colours: Mapping[str, str]) -> list[str]:
    left, y = place
    shapes = [
        f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{html.escape(bar.label)}</text>'
    ]
    x = float(left)
    for name, length in bar.parts.items():
        if length <= 0:
            continue
        shapes.append(
            f'<rect x="{x:.1f}" y="{y + 2}" width="{length * scale:.1f}" height="{_ROW - 6}" '
            f'fill="{colours[name]}"><title>{html.escape(name)}</title></rect>'
        )
        x += length * scale
    shapes.append(f'<text x="{x + 6:.0f}" y="{y + 15}">{html.escape(bar.text)}</text>')
    return shapes
