"""Exact sums of the core against rational numbers, on every instruction set."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from core_testing import exact_words, isas
from float_mode import needs_modes, unusual

from gradred import _core

Floats = npt.NDArray[Any]
DTYPES = ("float32", "float64")
BLOCK = 1024  # kExactBlock of csrc/reduce/kernels/reduce_functions.h


def exact_sum(x: Floats, isa: str = "", parts: int = 1) -> Any:
    """The sum of the parts' words, as of ranks."""
    words = [
        np.frombuffer(_words(np.ascontiguousarray(part), isa), "int64")
        for part in np.array_split(x, parts)
    ]
    return x.dtype.type(_core.exact_value(np.sum(words, axis=0), x.dtype.name))


def _words(x: Floats, isa: str) -> bytes:
    if isa:
        return exact_words(x.dtype.name, x, isa)
    return _core.exact_words(x.ctypes.data, x.size, x.dtype.name)


def nearest(total: Fraction, dtype: Any) -> Any:
    """The nearest number of the type, ties to even; from comparisons alone."""
    info = np.finfo(dtype)
    if total == 0:
        return dtype(0)
    largest = Fraction(float(info.max))
    if abs(total) >= largest + Fraction(float(info.max) - float(np.nextafter(info.max, 0))) / 2:
        return dtype(math.inf if total > 0 else -math.inf)
    try:
        guess = float(total)
    except OverflowError:
        guess = float(info.max) if total > 0 else -float(info.max)
    near = dtype(np.clip(guess, -info.max, info.max))
    with np.errstate(over="ignore"):
        around = [near, np.nextafter(near, dtype(-np.inf)), np.nextafter(near, dtype(np.inf))]
    finite = [one for one in around if np.isfinite(one)]
    best = min(abs(Fraction(float(one)) - total) for one in finite)
    ties = [one for one in finite if abs(Fraction(float(one)) - total) == best]
    even = [one for one in ties if int(one.view(f"u{one.itemsize}")) % 2 == 0]
    return (even if len(ties) > 1 else ties)[0]


def scaled(rng: np.random.Generator, count: int, low: int, high: int, dtype: Any) -> Floats:
    return np.ldexp(rng.standard_normal(count), rng.integers(low, high, count)).astype(dtype)


def cancelled(rng: np.random.Generator, count: int, low: int, high: int, dtype: Any) -> Floats:
    half = scaled(rng, count // 2, low, high, dtype)
    few = scaled(rng, 3, low, low + 40, dtype)
    return rng.permutation(np.concatenate([half, -half, few]))


def ends_of(dtype: Any) -> tuple[int, int]:
    """Exponents from below the smallest subnormal number to the largest one."""
    return (-150, 125) if dtype is np.float32 else (-1075, 1021)


Make = Callable[[np.random.Generator, int, Any], Floats]
INPUTS: dict[str, Make] = {
    "of one size": lambda rng, n, t: rng.standard_normal(n).astype(t),
    "of some sizes": lambda rng, n, t: scaled(rng, n, -60, 60, t),
    "of all sizes": lambda rng, n, t: scaled(rng, n, *ends_of(t), t),
    "that cancel": lambda rng, n, t: cancelled(rng, n, -20, 20, t),
    "of all sizes that cancel": lambda rng, n, t: cancelled(rng, n, *ends_of(t), t),
    "subnormal": lambda rng, n, t: (
        rng.integers(-9, 9, n).astype(t) * np.finfo(t).smallest_subnormal
    ),
    "large": lambda rng, n, t: np.where(rng.random(n) < 0.5, -1, 1).astype(t) * np.finfo(t).max,
    "halves between two numbers": lambda rng, n, t: np.concatenate(
        [[1], np.full(n % 7, np.finfo(t).eps / 2), rng.integers(0, 2, 3) * np.finfo(t).tiny]
    ).astype(t),
    "negative": lambda rng, n, t: -np.abs(scaled(rng, n, -30, 30, t)),
}


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", INPUTS)
def test_sum_is_the_nearest_number(kind: str, dtype: str, isa: str) -> None:
    given = np.dtype(dtype).type
    for seed, count in enumerate((1, 2, 5, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17)):
        with np.errstate(over="ignore"):
            x = INPUTS[kind](np.random.default_rng(seed), count, given)
        x = x[np.isfinite(x)]
        expected = nearest(sum(map(Fraction, x.tolist()), Fraction()), given)
        found = exact_sum(x, isa)
        assert (found, type(found)) == (expected, given), (seed, count)
        assert exact_sum(x[::-1], isa) == found
        assert exact_sum(x, isa, parts=3) == found


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_is_as_ieee_says(dtype: str, isa: str) -> None:
    nan, inf = math.nan, math.inf
    rows = [([nan], nan), ([inf, 1], inf), ([-inf, 1], -inf), ([inf, -inf], nan)]
    rows += [([inf, nan], nan), ([inf, inf], inf)]
    for values, expected in rows:
        for length, seed in ((len(values), 0), (BLOCK, 1), (2 * BLOCK + 5, 2)):
            x = np.ones(length, dtype)
            places = random.Random(seed).sample(range(length), len(values))
            x[places] = values
            np.testing.assert_equal(float(exact_sum(x, isa)), expected)
            np.testing.assert_equal(float(exact_sum(x, isa, parts=2)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("values", "sign"),
    [([], 1), ([-0.0], -1), ([-0.0] * 3, -1), ([-0.0, 0.0], 1), ([1.0, -1.0], 1), ([0.0], 1)],
)
def test_zeros_have_the_sign_of_ieee(values: list[float], sign: int, dtype: str) -> None:
    found = exact_sum(np.array(values, dtype))
    assert (float(found), math.copysign(1, found)) == (0, sign)
    padded = np.concatenate([np.array(values, dtype)] * 600)  # in several blocks
    assert math.copysign(1, exact_sum(padded, parts=2)) == sign


def test_intermediate_sums_may_be_larger_than_any_number() -> None:
    large = np.finfo("float64").max
    x = np.array([large] * 3000 + [-large] * 3000 + [1.5])
    assert exact_sum(x) == 1.5
    assert exact_sum(x[:-1][::-1][:3001]) == -math.inf
    assert exact_sum(x[:3000]) == math.inf


def test_a_sum_just_below_the_overflow_is_the_largest_number() -> None:
    for dtype in (np.float32, np.float64):
        info = np.finfo(dtype)
        half = (info.max - np.nextafter(info.max, dtype(0))) / 2
        below = np.nextafter(half, dtype(0))
        assert exact_sum(np.array([info.max, below], dtype)) == info.max
        assert exact_sum(np.array([info.max, half], dtype)) == math.inf
        assert exact_sum(np.array([-info.max, -half], dtype)) == -math.inf


@needs_modes
def test_the_mode_of_the_thread_does_not_matter() -> None:
    tiny = np.finfo("float64").smallest_subnormal
    x = np.concatenate([np.full(3000, tiny), [0.1, 1.0]])
    with unusual():
        found = exact_sum(x), exact_sum(x[:3000])
    assert found == (exact_sum(x), 3000 * float(tiny))
