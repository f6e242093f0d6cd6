"""Codecs: what they keep of the values, how long payloads are, and that errors are sent later."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gradred.compression import CODECS, Compressor, Floats
from gradred.errors import UsageError

LOSSY = [name for name, codec in CODECS.items() if codec.feedback]
SHAPES = [(1,), (2,), (255,), (256,), (257,), (1000,), (7, 5), (64, 33), (3, 4, 5)]


def values_of(shape: tuple[int, ...], seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CODECS)
def test_payloads_of_one_shape_are_equally_long_and_give_as_many_values(
    name: str, shape: tuple[int, ...]
) -> None:
    compressor = Compressor(name)
    lengths = set()
    for seed in range(3):
        values = values_of(shape, seed) * 10.0**seed
        payload = compressor.encode("a", values)
        assert payload.dtype == np.uint8
        assert payload.ndim == 1
        lengths.add(payload.size)
        decoded = compressor.decode(payload, values.size)
        assert decoded.shape == (values.size,)
        assert decoded.dtype == np.float32
    assert len(lengths) == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", LOSSY)
def test_what_was_not_sent_is_added_to_the_next_values(name: str, shape: tuple[int, ...]) -> None:
    """Sent and still owed values add up to all that was given, for each key by itself."""
    compressor = Compressor(name)
    size = int(np.prod(shape))
    given, sent = np.zeros((2, 2, size))
    for step in range(20):
        for key in range(2):
            values = values_of(shape, 2 * step + key)
            given[key] += values.reshape(-1)
            sent[key] += compressor.decode(compressor.encode(key, values), size)
    for key in range(2):
        owed = compressor._states[key]["owed"].reshape(-1)
        np.testing.assert_allclose(sent[key] + owed, given[key], atol=1e-3)
        assert np.abs(owed).max() < 60


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", LOSSY)
def test_peers_see_an_overflow_and_the_next_values_are_sent_as_the_first_ones(
    name: str, wrong: float
) -> None:
    compressor = Compressor(name)
    values = values_of((30, 20))
    first = compressor.encode("a", values)
    spoiled = values.copy()
    spoiled[7, 3] = wrong
    assert np.isnan(compressor.decode(compressor.encode("a", spoiled), values.size)).any()
    again = compressor.encode("a", values)
    assert again.shape == first.shape
    assert np.isfinite(compressor.decode(again, values.size)).all()
    if name != "randomk":  # which draws other places
        np.testing.assert_array_equal(again, first)


@pytest.mark.parametrize("name", LOSSY)
def test_zeros_stay_zeros(name: str) -> None:
    compressor = Compressor(name)
    for _ in range(2):
        payload = compressor.encode("a", np.zeros((9, 40), np.float32))
        assert not compressor.decode(payload, 360).any()


BITS = {"none": 32, "fp16": 16, "bf16": 16, "int8": 8, "int4": 4, "onebit": 1}


@pytest.mark.parametrize("name", BITS)
def test_payload_has_the_bits_of_its_name_and_a_little_for_scales(name: str) -> None:
    count = 25600
    nbytes = Compressor(name).encode("a", values_of((count,))).size
    scales = {"int8": 4, "int4": 4, "onebit": 8}.get(name, 0) * count // 256
    assert nbytes == count * BITS[name] // 8 + scales


@pytest.mark.parametrize(
    ("name", "relative", "absolute"),
    [("none", 0, 0), ("fp16", 2**-11, 2**-25), ("bf16", 2**-8, 0)],
)
def test_casts_round_to_the_nearest(name: str, relative: float, absolute: float) -> None:
    values = values_of((5000,)) * np.float32(100)
    compressor = Compressor(name)
    decoded = compressor.decode(compressor.encode("a", values), values.size)
    np.testing.assert_allclose(decoded, values, rtol=relative, atol=absolute)


def test_casts_keep_what_is_no_number_and_limit_what_is_too_large() -> None:
    odd = np.array([np.nan, np.inf, -np.inf, 1e30, -0.0], np.float32)
    half, brain = (Compressor(name) for name in ("fp16", "bf16"))
    found = half.decode(half.encode("a", odd), 5)
    np.testing.assert_array_equal(found, [np.nan, 65504, -65504, 65504, -0.0])
    found = brain.decode(brain.encode("a", odd), 5)
    np.testing.assert_allclose(found, odd, rtol=2**-8)
    assert np.signbit(found[4])


def test_bf16_is_that_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).integers(0, 2**31, 10000).astype(np.uint32).view(np.float32)
    compressor = Compressor("bf16")
    found = compressor.decode(compressor.encode("a", values), values.size)
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("name", "levels"), [("int8", 127), ("int4", 7)])
def test_levels_are_off_by_half_a_step_of_their_block_at_most(name: str, levels: int) -> None:
    values = values_of((512,))
    values[256:] *= np.float32(1000)
    compressor = Compressor(name)
    off = np.abs(compressor.decode(compressor.encode("a", values), 512) - values)
    for block in (slice(0, 256), slice(256, 512)):
        assert off[block].max() <= np.abs(values[block]).max() / levels * 0.5001


def test_one_bit_keeps_signs_and_the_means_of_both() -> None:
    values = values_of((256,))
    compressor = Compressor("onebit")
    decoded = compressor.decode(compressor.encode("a", values), 256)
    np.testing.assert_array_equal(decoded > 0, values > 0)
    assert decoded.sum() == pytest.approx(values.sum(), abs=1e-3)


def test_top_k_sends_the_largest_values_as_they_are() -> None:
    values = values_of((1000,))
    compressor = Compressor("topk:0.1")
    decoded = compressor.decode(compressor.encode("a", values), 1000)
    largest = np.argsort(np.abs(values))[-100:]
    assert {*np.flatnonzero(decoded)} == {*largest}
    np.testing.assert_array_equal(decoded[largest], values[largest])


def test_random_k_sends_other_places_each_time_and_the_receiver_knows_them() -> None:
    values = values_of((1000,))
    mine, theirs = Compressor("randomk:0.1"), Compressor("randomk:0.1")
    first, second = (theirs.decode(mine.encode(key, values), 1000) for key in ("a", "b"))
    for decoded in (first, second):
        places = np.flatnonzero(decoded)
        assert places.size == 100
        np.testing.assert_array_equal(decoded[places], values[places])
    assert {*np.flatnonzero(first)} != {*np.flatnonzero(second)}


def test_powersgd_is_exact_for_a_matrix_of_its_rank() -> None:
    matrix = values_of((40, 3)) @ values_of((3, 30), 1)
    compressor = Compressor("powersgd:3")
    payload = compressor.encode("a", matrix)
    assert payload.size == 12 + 4 * 3 * (40 + 30)
    decoded = compressor.decode(payload, matrix.size)
    np.testing.assert_allclose(decoded.reshape(matrix.shape), matrix, atol=1e-4)


def test_powersgd_with_averages_gives_the_mean_of_the_ranks() -> None:
    """Two ranks whose factors are averaged decode the same, as with the mean of their matrices."""
    left, right = values_of((40, 2)), values_of((2, 30), 1)
    matrices = [left @ (scale * right) for scale in (1, 3)]
    ranks = [Compressor("powersgd:2") for _ in matrices]
    drawn = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    for one in ranks:
        one._states["a"] = {"owed": 0.0, "seed": 0, "right": drawn}
    mean = np.mean([matrix @ drawn for matrix in matrices], axis=0)
    basis = np.linalg.qr(mean)[0]
    answers = [mean, np.mean([matrix.T @ basis for matrix in matrices], axis=0)]
    decoded = []
    for one, matrix in zip(ranks, matrices, strict=True):
        given = iter(answers)
        payload = one.encode("a", matrix, lambda _, given=given: next(given))
        decoded.append(one.decode(payload, matrix.size).reshape(matrix.shape))
    np.testing.assert_array_equal(decoded[0], decoded[1])
    np.testing.assert_allclose(decoded[0], np.mean(matrices, axis=0), atol=1e-3)


def test_powersgd_recovers_on_all_ranks_from_an_overflow_on_one() -> None:
    ranks = [Compressor("powersgd:1"), Compressor("powersgd:1")]
    mine, theirs = values_of((6, 4), 1), values_of((6, 4), 2)

    def step(first: Floats, second: Floats) -> list[Floats]:
        """Both ranks encode in threads that meet at each average."""
        meet, given = threading.Barrier(2, timeout=20), [first, second]

        def encode(rank: int) -> Floats:
            def mean(array: Floats) -> Floats:
                given[rank] = array
                meet.wait()
                average = np.mean(given, axis=0).astype(np.float32)
                meet.wait()
                return average

            values = (first, second)[rank]
            return ranks[rank].decode(ranks[rank].encode("a", values, mean), values.size)

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(encode, range(2)))

    before = step(mine, theirs)
    assert np.isnan(step(np.full_like(mine, np.inf), theirs)).all()
    for found, expected in zip(step(mine, theirs), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zip", "there is none. Use one of none, fp16"),
        ("fp16:2", "it takes no number"),
        ("topk:0", "'0' is no share of the values. Give a number above 0 and at most 1"),
        ("topk:x", "'x' is no share"),
        ("topk:", "'' is no share"),
        ("powersgd:1.5", "'1.5' is no rank of the matrices. Give a number from 1 to 1024"),
        ("powersgd:0", "'0' is no rank"),
    ],
)
def test_compression_that_is_none_is_an_error_that_says_what_is(text: str, found: str) -> None:
    with pytest.raises(UsageError, match=found.replace(".", r"\.")):
        Compressor(text)
