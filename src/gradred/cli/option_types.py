"""Types of option values, for argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from gradred import config


def positive(text: str) -> int:
    """Parse a number of ranks."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, which is 1 or more")
    return int(text)


def duration(zero: float | None) -> Callable[[str], float]:
    """Return a parser of durations; it accepts 0 only if `zero` gives its meaning."""

    def parse(text: str) -> float:
        if zero is not None and text == "0":
            return zero
        try:
            return config.parse_duration(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return parse
