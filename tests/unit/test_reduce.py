"""Reduction functions: every operation, type and instruction set, against NumPy, bit for bit."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from core_testing import best_isa, isas, reduce_many, reduce_pair, scale
from float_mode import needs_modes, unusual

from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype

Array = npt.NDArray[Any]

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTEGERS = SIGNED + UNSIGNED
BYTES = ["float8_e4m3fn", "float8_e5m2"]
HALVES = ["float16", "bfloat16"]
NARROW = [*BYTES, *HALVES]
REALS = [*NARROW, "float32", "float64"]
COMPLEX = ["complex64", "complex128"]
DTYPES = [*INTEGERS, "bool", *REALS, *COMPLEX]

SUMS = ["sum", "avg", "premul"]
ORDERED = ["min", "max"]
LOGICAL = ["land", "lor", "lxor"]
BITWISE = ["band", "bor", "bxor"]
OPS = ["sum", "prod", *ORDERED, *LOGICAL, *BITWISE, "avg", "premul"]

COUNTS = [0, 1, 2, 3, 5, 7, 8, 13, 16, 31, 63, 64, 65, 127, 259, 1031]


def supported(op: str, dtype: str) -> bool:
    if dtype in INTEGERS:
        return True
    if dtype == "bool":
        return op in ORDERED + LOGICAL + BITWISE
    if dtype in REALS:
        return op in [*SUMS, "prod", *ORDERED]
    return op in [*SUMS, "prod"]


FLOATING = [*REALS, *COMPLEX]

each_isa = pytest.mark.parametrize("isa", isas())


def ops_of(dtype: str) -> list[str]:
    return [op for op in OPS if supported(op, dtype)]


@functools.cache
def random_arrays(dtype: str, count: int, seeds: Sequence[int]) -> list[Array]:
    """One array for each seed, which nobody writes to."""
    made = [random_array(dtype, count, seed) for seed in seeds]
    for array in made:
        array.flags.writeable = False
    return made


def random_array(dtype: str, count: int, seed: int) -> Array:
    """Random bits for integers, so arithmetic wraps; numbers of many magnitudes for floats."""
    rng = np.random.default_rng([seed, count])
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        values = np.frombuffer(rng.bytes(count * kind.itemsize), kind).copy()
        values[rng.integers(0, 4, count) == 0] = 0
        return values
    if dtype in COMPLEX:
        part = "float32" if dtype == "complex64" else "float64"
        return random_array(part, 2 * count, seed).view(kind)
    numbers = rng.standard_normal(count) * np.exp2(rng.integers(-12, 12, count))
    with np.errstate(all="ignore"):  # some numbers are too large for 8 bits
        return canonical(numbers.astype(kind))


def bits(array: Array) -> Array:
    """Bit patterns; of a complex array, those of its parts."""
    kind = array.dtype
    size = kind.itemsize // 2 if kind.kind == "c" else kind.itemsize
    return np.ascontiguousarray(array).view(f"uint{8 * size}")


def canonical(array: Array) -> Array:
    """The same with each NaN (also in a complex part) positive, quiet and without payload."""
    if array.dtype.kind == "c":
        part = np.float32 if array.dtype == np.complex64 else np.float64
        return canonical(array.view(part)).view(array.dtype)
    result = array.copy()
    with np.errstate(invalid="ignore"):  # ml_dtypes warns at signalling NaN
        result[np.isnan(array)] = np.array(np.nan).astype(array.dtype)
    return result


def wide(array: Array) -> Array:
    return array.astype(np.float32) if str(array.dtype) in NARROW else array


def ordered(op: str, a: Array, b: Array) -> Array:
    """min or max with -0 < +0; NaN if one of the two is NaN."""
    a_first = (a < b) | ((a == b) & np.signbit(a))
    result = np.where(a_first == (op == "min"), a, b)
    result[np.isnan(a) | np.isnan(b)] = np.nan
    return result


def complex_product(a: Array, b: Array) -> Array:
    result = np.empty_like(a)
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


def fold_step(op: str, a: Array, b: Array) -> Array:
    """One step in the type of computation (float32 for 16-bit floats), not yet rounded."""
    if a.dtype.kind == "c" and op == "prod":
        return complex_product(a, b)
    if a.dtype.kind == "f" and op in ORDERED:
        return ordered(op, a, b)
    functions = {
        **dict.fromkeys(SUMS, np.add),
        "prod": np.multiply,
        "min": np.minimum,
        "max": np.maximum,
        "land": np.logical_and,
        "lor": np.logical_or,
        "lxor": np.logical_xor,
        "band": np.bitwise_and,
        "bor": np.bitwise_or,
        "bxor": np.bitwise_xor,
    }
    return np.asarray(functions[op](a, b)).astype(a.dtype)


def reference(op: str, inputs: list[Array]) -> Array:
    kind = inputs[0].dtype
    floating = str(kind) in REALS + COMPLEX
    with np.errstate(all="ignore"):
        step = functools.partial(fold_step, op)
        if not floating:
            return functools.reduce(step, inputs)
        return canonical(functools.reduce(step, map(wide, inputs)).astype(kind))


@functools.cache
def reference_of_random(op: str, dtype: str, count: int, seeds: Sequence[int]) -> Array:
    return reference(op, random_arrays(dtype, count, seeds))


def assert_same_bits(found: Array, expected: Array, *what: object) -> None:
    if found.tobytes() != expected.tobytes():
        np.testing.assert_array_equal(bits(found), bits(expected), str(what))
        raise AssertionError(what)


def unaligned(array: Array, offset: int = 1) -> Array:
    """A copy of the bytes of `array` at an odd address, as uint8."""
    raw = np.ascontiguousarray(array).view(np.uint8) if array.size else np.empty(0, np.uint8)
    memory = np.empty(raw.size + 64 + offset, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    view = memory[start : start + raw.size]
    view[:] = raw
    return view


def reduced(op: str, dtype: str, inputs: list[Array], isa: str, *, many: bool = False) -> Array:
    """The result of this instruction set's function; asserts that it writes only to its target."""
    views = [unaligned(array, 1 + 2 * i) for i, array in enumerate(inputs)]
    size = views[0].size
    guarded = np.full(size + 131, 0xA5, np.uint8)
    target = guarded[65 : 65 + size]
    if many:
        reduce_many(op, dtype, target, views, isa)
    else:
        reduce_pair(op, dtype, target, views[0], views[1], isa)
    assert (guarded[:65] == 0xA5).all()
    assert (guarded[65 + size :] == 0xA5).all()
    for view, array in zip(views, inputs, strict=True):
        assert view.tobytes() == array.tobytes()
    return target.copy().view(numpy_dtype(dtype))


def special_numbers(dtype: str) -> Array:
    """Zeros, infinities, NaN (quiet and signalling, signs, payloads), subnormals, ends, 1, 1.5."""
    if dtype in BYTES:
        return np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype))
    mantissa = ELEMENT_TYPES[dtype].digits - 1
    size = 8 * numpy_dtype(dtype).itemsize
    infinity = (1 << (size - 1)) - (1 << mantissa)
    quiet = 1 << (mantissa - 1)
    one = ((1 << (size - 2 - mantissa)) - 1) << mantissa
    nans = [quiet, quiet | 1, quiet | 5, 1, 3, quiet - 1]
    positive = [
        0,
        1,
        2,
        (1 << mantissa) - 1,
        1 << mantissa,
        one,
        one + quiet,
        infinity - 1,
        infinity,
    ]
    positive += [infinity | payload for payload in nans]
    patterns = positive + [pattern | 1 << (size - 1) for pattern in positive]
    return np.array(patterns, f"uint{size}").view(numpy_dtype(dtype))


def special_pairs(dtype: str) -> tuple[Array, Array]:
    """All pairs; for complex types, of numbers whose parts are every pair of a few."""
    if dtype in COMPLEX:
        part = special_numbers("float32" if dtype == "complex64" else "float64")
        few = part[[0, 3, 5, 7, 8, 9, 14, 15, 21, 23, 25, 28]]
        grid = np.array(np.meshgrid(few, few)).reshape(2, -1).T
        numbers = np.ascontiguousarray(grid).view(dtype).reshape(-1)
    else:
        numbers = special_numbers(dtype)
    count = numbers.size
    return np.repeat(numbers, count), np.tile(numbers, count)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES)
def test_pair_equals_numpy_for_odd_counts_and_addresses(dtype: str, isa: str) -> None:
    for op, count in itertools.product(ops_of(dtype), COUNTS):
        found = reduced(op, dtype, random_arrays(dtype, count, (1, 2)), isa)
        expected = reference_of_random(op, dtype, count, (1, 2))
        assert_same_bits(found, expected, op, count)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rounds_once_and_equals_numpy(dtype: str, isa: str) -> None:
    for op, k in itertools.product(ops_of(dtype), (1, 2, 3, 4, 5, 9)):
        for count in (0, 1, 17, 64, 261):
            found = reduced(op, dtype, random_arrays(dtype, count, range(k)), isa, many=True)
            expected = reference_of_random(op, dtype, count, range(k))
            assert_same_bits(found, expected, op, k, count)


@each_isa
@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_many_equals_folded_pairs_for_exact_types(dtype: str, isa: str) -> None:
    inputs = random_arrays(dtype, 333, range(6))
    for op in ops_of(dtype):
        step = functools.partial(reduced, op, dtype, isa=isa)
        folded = functools.reduce(lambda a, b, step=step: step([a, b]), inputs)
        assert_same_bits(reduced(op, dtype, inputs, isa, many=True), folded, op)


@each_isa
@pytest.mark.parametrize("dtype", NARROW)
def test_sum_of_narrow_floats_keeps_what_each_rounding_would_lose(dtype: str, isa: str) -> None:
    lost = 2.0 ** -ELEMENT_TYPES[dtype].digits  # half a unit in the last place of 1
    inputs = [np.full(77, x).astype(numpy_dtype(dtype)) for x in (1.0, lost, lost)]
    once = reduced("sum", dtype, inputs, isa, many=True)
    pair = reduced("sum", dtype, inputs[:2], isa)
    assert (once.astype(np.float64) == 1 + 2 * lost).all()
    assert (pair.astype(np.float64) == 1).all()


@each_isa
@pytest.mark.parametrize("dtype", FLOATING)
def test_special_values_are_symmetric_and_the_same_on_each_isa(dtype: str, isa: str) -> None:
    a, b = special_pairs(dtype)
    for op in ops_of(dtype):
        found = reduced(op, dtype, [a, b], isa)
        assert_same_bits(found, reduced(op, dtype, [b, a], isa), op)
        assert_same_bits(found, reduced(op, dtype, [a, b], "generic"), op)
        assert_same_bits(found, reference(op, [a, b]), op)


@each_isa
@pytest.mark.parametrize("dtype", FLOATING)
def test_special_values_pass_through_many(dtype: str, isa: str) -> None:
    a, b = special_pairs(dtype)
    inputs = [a, b, np.roll(a, 7), np.roll(b, 3)]
    for op in ops_of(dtype):
        found = reduced(op, dtype, inputs, isa, many=True)
        assert_same_bits(found, reference(op, inputs), op)


@each_isa
@pytest.mark.parametrize("dtype", HALVES)
def test_each_16_bit_number_times_one_is_itself(dtype: str, isa: str) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(numpy_dtype(dtype))
    ones = np.ones(numbers.size, numbers.dtype)
    found = reduced("prod", dtype, [numbers, ones], isa)
    np.testing.assert_array_equal(bits(found), bits(canonical(numbers)))


@each_isa
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_16_bit_results_round_to_nearest_even(op: str, dtype: str, isa: str) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.integers(0, 1 << 16, (2, 200_001), np.uint16).view(numpy_dtype(dtype))
    found = reduced(op, dtype, [a, b], isa)
    np.testing.assert_array_equal(bits(found), bits(reference(op, [a, b])))


def as_exact(array: Array) -> list[float]:
    return [float(x) for x in array.astype(np.float64)]


def nearest(exact: float, numbers: list[float], dtype: str) -> float:
    """Rounding by the definition: the nearest finite number, the even one of two.

    Beyond the largest it is NaN or infinity, as the type has it.

    Args:
        exact: what is rounded.
        numbers: the type's positive numbers, in the order of their bits.
        dtype: the type.
    """
    largest = numbers[-1]
    unit = largest - numbers[-2]
    if abs(exact) > largest + unit / 2 or (abs(exact) == largest + unit / 2 and "e5m2" in dtype):
        return float("nan") if "e4m3" in dtype else float(np.copysign(np.inf, exact))
    above = bisect.bisect(numbers, abs(exact))
    between = range(max(above - 1, 0), min(above + 1, len(numbers)))
    near = min(between, key=lambda i: (abs(abs(exact) - numbers[i]), i % 2))
    return float(np.copysign(numbers[near], exact))


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_all_pairs_of_8_bit_floats_are_rounded_as_the_definition_says(op: str, dtype: str) -> None:
    every = special_numbers(dtype)
    finite = every[np.isfinite(every.astype(np.float32))]
    positive = [x for x in as_exact(finite) if not np.signbit(x)]
    assert positive == sorted(positive)
    a, b = np.repeat(finite, finite.size), np.tile(finite, finite.size)
    found = reduced(op, dtype, [a, b], "generic").astype(np.float64)
    x, y = a.astype(np.float64), b.astype(np.float64)
    exact = x + y if op == "sum" else x * y  # in float64 without rounding
    known = {value: nearest(value, positive, dtype) for value in set(exact.tolist())}
    expected = np.array([known[value] for value in exact.tolist()])
    expected = np.where(expected == 0, np.copysign(0, exact), expected)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected) & ~np.isnan(expected))


@each_isa
@pytest.mark.parametrize("dtype", BYTES)
def test_all_pairs_of_8_bit_floats_equal_ml_dtypes(dtype: str, isa: str) -> None:
    every = special_numbers(dtype)
    a, b = np.repeat(every, 256), np.tile(every, 256)
    for op in ops_of(dtype):
        expected = reference(op, [a, b])
        assert_same_bits(reduced(op, dtype, [a, b], isa), expected, op)
        assert_same_bits(reduced(op, dtype, [b, a], isa), expected, op)
        assert_same_bits(reduced(op, dtype, [a, b], isa, many=True), expected, op)


@each_isa
def test_float8_sums_that_are_too_large_become_nan_or_infinity(isa: str) -> None:
    for dtype, largest, half, beyond in (
        ("float8_e4m3fn", 448.0, 16.0, np.nan),
        ("float8_e5m2", 57344.0, 4096.0, np.inf),
    ):
        kind = numpy_dtype(dtype)
        a, b, least = (np.full(9, x).astype(kind) for x in (largest, half, 2.0**-6))
        tie = reduced("sum", dtype, [a, b], isa).astype(np.float64)
        above = reduced("sum", dtype, [a, b, b], isa, many=True).astype(np.float64)
        below = reduced("sum", dtype, [a, b, -least], isa, many=True).astype(np.float64)
        np.testing.assert_array_equal(tie, 448.0 if dtype == "float8_e4m3fn" else np.inf)
        np.testing.assert_array_equal(above, beyond)
        np.testing.assert_array_equal(below, largest)
        negative = reduced("sum", dtype, [-a, -b, -b], isa, many=True)
        assert (bits(negative) == (0x7F if dtype == "float8_e4m3fn" else 0xFC)).all()


def test_table_of_types_is_that_of_the_functions() -> None:
    assert list(ITEMSIZES) == sorted(DTYPES, key=list(ITEMSIZES).index)
    for row in ELEMENT_TYPES.values():
        kind = numpy_dtype(row.name)
        assert (kind.name, kind.itemsize) == (row.name, row.itemsize)
        if row.kind in ("real", "complex"):
            part = np.zeros(1, kind).real.dtype if row.kind == "complex" else kind
            assert ml_dtypes.finfo(part).nmant + 1 == row.digits


@each_isa
def test_float16_sums_overflow_from_65520_on(isa: str) -> None:
    below = [np.full(9, x, np.float16) for x in (65504, 16 - 2**-7, 2**-8)]  # 65520 - 2**-8
    assert (reduced("sum", "float16", below, isa, many=True) == 65504).all()
    at = [np.full(9, x, np.float16) for x in (65504, 16)]
    assert np.isposinf(reduced("sum", "float16", at, isa)).all()


@each_isa
@pytest.mark.parametrize("dtype", DTYPES)
def test_target_may_be_any_input(dtype: str, isa: str) -> None:
    inputs = random_arrays(dtype, 407, range(5))
    for op in ops_of(dtype):
        of_two, of_all = reference(op, inputs[:2]).tobytes(), reference(op, inputs).tobytes()
        for index in (0, 1):
            views = [unaligned(array) for array in inputs[:2]]
            reduce_pair(op, dtype, views[index], views[0], views[1], isa)
            assert views[index].tobytes() == of_two, op
            assert views[1 - index].tobytes() == inputs[1 - index].tobytes(), op
        same = unaligned(inputs[0])
        reduce_pair(op, dtype, same, same, same, isa)
        assert same.tobytes() == reference(op, [inputs[0], inputs[0]]).tobytes(), op
        for index in range(5):
            views = [unaligned(array) for array in inputs]
            reduce_many(op, dtype, views[index], views, isa)
            assert views[index].tobytes() == of_all, op


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bits(dtype: str, threads: int) -> None:
    for count in (0, 1, 65, 4099):
        inputs = [one.view(np.uint8) for one in random_arrays(dtype, count, range(3))]
        for op in ops_of(dtype):
            found = [np.empty_like(inputs[0]) for _ in range(2)]
            reduce_many(op, dtype, found[0], inputs)
            reduce_many(op, dtype, found[1], inputs, threads=threads)
            assert found[0].tobytes() == found[1].tobytes(), (op, count)


@each_isa
@pytest.mark.parametrize("op", LOGICAL + BITWISE + ORDERED)
def test_each_byte_of_bool_but_zero_is_true(op: str, isa: str) -> None:
    a, b = (
        np.repeat([0, 1, 2, 255], 4).astype(np.uint8),
        np.tile([0, 1, 4, 255], 4).astype(np.uint8),
    )
    found = np.empty(16, np.uint8)
    reduce_pair(op, "bool", found, a, b, isa)
    assert found.tolist() == reference(op, [a != 0, b != 0]).astype(np.uint8).tolist()


@pytest.mark.parametrize("dtype", [*FLOATING, "bool"])
def test_operations_that_a_type_lacks_are_refused(dtype: str) -> None:
    data = np.zeros(16, np.uint8)
    refused = [op for op in OPS if not supported(op, dtype)]
    assert refused
    for op, isa in itertools.product(refused, ["", *isas()]):
        with pytest.raises(ValueError, match=f"{op} of {dtype} does not exist"):
            reduce_pair(op, dtype, data, data, data, isa)


def test_unknown_names_and_unequal_sizes_are_refused() -> None:
    data = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match=r"no op .plus"):
        reduce_pair("plus", "int8", data, data, data)
    with pytest.raises(ValueError, match=r"no element type .int7"):
        reduce_pair("sum", "int7", data, data, data)
    with pytest.raises(ValueError, match="for mmx"):
        reduce_pair("sum", "int8", data, data, data, "mmx")
    with pytest.raises(ValueError, match="differ in size"):
        reduce_many("sum", "int8", data, [data, data[:8]])
    with pytest.raises(ValueError, match="at least one input"):
        reduce_many("sum", "int8", data, [])
    with pytest.raises(ValueError, match="whole elements of int32"):
        reduce_pair("sum", "int32", data[:6], data[:6], data[:6])


def tiny(dtype: str, seed: int) -> Array:
    """Numbers around the smallest normal one, most of them denormal, of both signs."""
    rng = np.random.default_rng(seed)
    kind = numpy_dtype(dtype)
    part = np.dtype({"complex64": "float32", "complex128": "float64"}.get(dtype, kind))
    least = float(ml_dtypes.finfo(part).smallest_normal)
    parts = rng.uniform(-2, 2, 262).astype("float64") * least
    return parts.astype(part).view(kind)


@needs_modes
@each_isa
@pytest.mark.parametrize("dtype", FLOATING)
def test_the_threads_floating_point_mode_changes_no_bit(dtype: str, isa: str) -> None:
    for op in ops_of(dtype):
        inputs = [tiny(dtype, seed) for seed in range(3)]
        if op == "prod":  # a product of a small and a large number would be small again
            inputs[1] = np.ones_like(inputs[1]) * np.asarray(1.25, inputs[1].dtype)
        pair = reduced(op, dtype, inputs[:2], isa)
        many = reduced(op, dtype, inputs, isa, many=True)
        two = reduced(op, dtype, inputs[:2], isa, many=True)
        with unusual():
            found = reduced(op, dtype, inputs[:2], isa)
            found_many = reduced(op, dtype, inputs, isa, many=True)
            found_two = reduced(op, dtype, inputs[:2], isa, many=True)
        assert_same_bits(found, pair, op)
        assert_same_bits(found_many, many, op)
        assert_same_bits(found_two, two, op)
        assert np.any(found.view("uint8") != 0), op


@needs_modes
@pytest.mark.parametrize("divide", [False, True])
@pytest.mark.parametrize("dtype", [*REALS, *COMPLEX, "int32"])
def test_the_threads_floating_point_mode_changes_no_scaled_bit(dtype: str, divide: bool) -> None:
    if divide and dtype == "int32":
        pytest.skip("integers are not divided by a factor")
    data = np.arange(-131, 131, dtype="int32") if dtype == "int32" else tiny(dtype, 5)
    expected, found = data.copy(), data.copy()
    factor = 3.0 if divide else 1 / 3
    scale(dtype, expected.view("uint8"), factor, divide)
    with unusual():
        scale(dtype, found.view("uint8"), factor, divide)
    assert found.tobytes() == expected.tobytes()


def test_the_best_isa_is_available_and_used() -> None:
    assert best_isa() == isas()[0]
    assert isas()[-1] == "generic"


def scaled(array: Array, factor: float, *, divide: bool) -> Array:
    view = unaligned(array)
    scale(str(array.dtype), view, factor, divide)
    return view.copy().view(array.dtype)


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize("divide", [False, True])
def test_scale_of_floats_equals_numpy(dtype: str, divide: bool) -> None:
    for factor, count in itertools.product((3.0, 0.1, -7.0, 0.0), COUNTS):
        numbers = np.concatenate([special_numbers(dtype), random_array(dtype, count, 3)])
        x = wide(numbers)
        with np.errstate(all="ignore"):
            expected = x / x.dtype.type(factor) if divide else x * x.dtype.type(factor)
            expected = canonical(expected.astype(numbers.dtype))
        assert_same_bits(scaled(numbers, factor, divide=divide), expected, factor, count)


@pytest.mark.parametrize("dtype", COMPLEX)
def test_scale_of_complex_numbers_takes_part_by_part(dtype: str) -> None:
    numbers = random_array(dtype, 37, 5)
    part = numbers.real.dtype.type
    by = scaled(numbers, 3.0, divide=True)
    assert (by.real == numbers.real / part(3)).all()
    assert (by.imag == numbers.imag / part(3)).all()
    times = scaled(numbers, 0.1, divide=False)
    assert (times.imag == numbers.imag * part(0.1)).all()


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("factor", [0.3, -2.5, 1e30, -1e30, float("inf"), float("nan")])
def test_scale_of_integers_truncates_and_saturates(dtype: str, factor: float) -> None:
    info = np.iinfo(dtype)
    numbers = np.concatenate(
        [random_array(dtype, 41, 9), np.array([0, 1, 7, info.min, info.max], dtype)]
    )
    with np.errstate(all="ignore"):
        x = numbers.astype(np.float64)
        exact = np.trunc(x * factor)
    expected = [
        0 if np.isnan(y) else int(max(info.min, min(info.max, int(y) if np.isfinite(y) else y)))
        for y in exact
    ]
    assert scaled(numbers, factor, divide=False).tolist() == expected


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("factor", [0, 1, -1, 3, -2, 2**32 + 1, -(2**62)])
def test_integers_times_a_whole_number_are_exact(dtype: str, factor: int) -> None:
    info = np.iinfo(dtype)
    numbers = np.array([0, 1, 7, info.min, info.max, info.max // 3, info.max - 1], dtype)
    expected = [max(info.min, min(info.max, int(x) * factor)) for x in numbers]
    assert scaled(numbers, float(factor), divide=False).tolist() == expected


def test_scale_of_bool_is_refused() -> None:
    with pytest.raises(ValueError, match="bool cannot be scaled"):
        scale("bool", np.ones(3, np.uint8), 0.5, False)
