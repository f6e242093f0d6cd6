"""Texts of keys in trees, and what names the children of nodes without keys."""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from typing import Any

import numpy as np
import pytest

from gradred._util.keys import names_in, shown


class Part(enum.Enum):
    UPPER = 1
    LOWER = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Meta:
    names: tuple[Any, ...]
    step: int = 0


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("a", "'a'"),
        (b"a", "b'a'"),
        (None, "None"),
        (2, "2"),
        (True, "True"),
        (np.int64(2), "2"),
        (Part.UPPER, "Part.UPPER"),
        (Level.LOW, "Level.LOW"),
        ((1, ("b", 2.5)), "(1, ('b', 2.5))"),
        (frozenset("abc"), "{'a', 'b', 'c'}"),
        (Meta(("a",)), "Meta(('a'), 0)"),
        (object(), "object"),
        (Meta, "type"),
    ],
)
def test_texts_of_keys(key: Any, text: str) -> None:
    assert shown(key) == text


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ("kernel", ["'kernel'"]),
        (("b", "a"), ["'b'", "'a'"]),
        (((("b", "a"),), 7), ["'b'", "'a'"]),
        ((1, 0), ["1", "0"]),
        (tuple(np.arange(2)), ["0", "1"]),
        (((1, 2), (3, 4)), ["(1, 2)", "(3, 4)"]),
        ((("w", 1), ("w", 2)), ["('w', 1)", "('w', 2)"]),
        ((Meta((), 1), Meta((), 2)), []),
        ((Meta((7,), 1), Meta((7,), 2)), ["Meta((7), 1)", "Meta((7), 2)"]),
        ((("x", 1), ("y", 2)), ["('x', 1)", "('y', 2)"]),
        (Part.LOWER, ["Part.LOWER"]),
        ({"a": 1, "b": 2}, ["'a'", "'b'", "1", "2"]),
        ({4: None, 5: None}, ["4", "5"]),
        (Meta((5, 4), step=3), ["5", "4"]),
        (namedtuple("Pair", "x y")((5, 4), 3), ["5", "4"]),
    ],
)
def test_names_in_data(data: Any, names: list[str]) -> None:
    assert names_in(data, children=2) == names


@pytest.mark.parametrize(
    "data",
    [
        None,
        3,
        True,
        2.5,
        len,
        object(),
        (0,),
        (0, 1, 2),
        (3, 3),
        (3, 0.5),
        (1.5, 0.5),
        [[3]],
        ((), (3, 0.5)),
        Meta((), 7),
        {3, 4},
    ],
)
def test_other_data_are_no_names(data: Any) -> None:
    assert names_in(data, children=2) == []


def test_one_child_needs_no_number() -> None:
    assert names_in((7,), children=1) == []
