"""Pictures: bars to one scale, the same file each time, and those of the pages show the records."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradred_lab import pictures
from gradred_lab.pictures import Bar

pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]
ROWS = [Bar("a", {"x": 1.0, "y": 2.0}, "3"), Bar("b", {"x": 1.0, "none": 0.0}, "1")]


def widths(drawn: str) -> list[float]:
    """Of all bars that have a length."""
    found = []
    for path in ElementTree.fromstring(drawn).iterfind(".//{*}g/{*}path[@clip-path]"):
        xs = [float(x) for x, _ in re.findall(r"([\d.]+) ([\d.]+)", path.attrib["d"])]
        found.append(max(xs) - min(xs))
    return sorted(width for width in found if width)


def test_bars_are_to_one_scale() -> None:
    one, other, twice = widths(pictures.bars("t<", ["n&"], ROWS))
    assert one == pytest.approx(other)
    assert twice == pytest.approx(2 * one)


def test_picture_has_its_data_and_texts_and_is_the_same_each_time() -> None:
    drawn = pictures.bars("t<", ["n&"], ROWS)
    data, *texts = pictures.data_of(drawn)
    assert data == "a; x 1; y 2; 3\nb; x 1; none 0; 1"
    assert texts == sorted(["t<", "n&", "x", "y", "a", "b", "3", "1"])
    assert pictures.bars("t<", ["n&"], ROWS) == drawn
    other = pictures.bars("t<", ["n&"], [Bar("a", {"x": 1.1, "y": 1.9}, "3"), ROWS[1]])
    assert pictures.data_of(other) != pictures.data_of(drawn)


def test_pictures_of_the_pages_show_the_newest_records() -> None:
    generator = importlib.import_module("gen_results_table")
    for name, draw in generator.PICTURES.items():
        shown = (ROOT / name).read_text(encoding="utf-8")
        assert generator.shows(shown, draw(generator.RESULTS)), name
