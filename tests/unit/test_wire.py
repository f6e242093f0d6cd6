"""The forms of a compressed wire: errors, special numbers, the same bits by every processor."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest
from core_testing import isas
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradred import UsageError, _core, schedules

BLOCK = 128
# The largest number of a form with a scale, and the distance of its numbers at the top.
MOST = {"int8": 127.0, "int4": 7.0, "fp8_e4m3": 448.0}
Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"


def encoded(x: Floats, wire: str, isa: str = "") -> bytes:
    to = np.zeros(_core.wire_bytes(wire, x.size), np.uint8)
    _core.encode_wire(wire, x.ctypes.data, x.size, to.ctypes.data, isa)
    return to.tobytes()


def decoded(
    coded: bytes, count: int, wire: str, isa: str = "", begin: float | None = None
) -> Floats:
    x = np.full(count, 0 if begin is None else begin, np.float32)
    held = np.frombuffer(coded, np.uint8)
    _core.decode_wire(wire, held.ctypes.data, count, x.ctypes.data, begin is not None, isa)
    return x


def through(x: Floats, wire: str) -> Floats:
    return decoded(encoded(x, wire), x.size, wire)


def bounds(x: Floats, wire: str) -> Floats:
    """The largest error of each number, as docs/wire.md states it."""
    padded = np.zeros(-(-x.size // BLOCK) * BLOCK)
    padded[: x.size] = np.abs(x)
    most = np.repeat(padded.reshape(-1, BLOCK).max(1), BLOCK)[: x.size]
    if wire == "bf16":
        return np.abs(x) * 2**-8 + 2.0**-133
    if wire == "fp16":
        return np.abs(x) * 2**-11 + 2.0**-25
    least = MOST[wire] * 2.0**-126  # the magnitudes of a block that comes out as zeros
    if wire == "fp8_e4m3":
        return np.maximum(np.abs(x) * (2**-4 + 2**-20), most / 448 * 2**-9) * 1.0001 + least
    return most / MOST[wire] * 0.50001 + least


@pytest.mark.parametrize("wire", _core.WIRES)
@settings(max_examples=60, deadline=None)
@given(
    x=hnp.arrays(
        np.float32,
        st.integers(1, 300),
        elements=st.floats(-(2.0**15), 2.0**15, width=32),
    )
)
def test_error_is_within_the_stated_bound(wire: str, x: Floats) -> None:
    error = np.abs(through(x, wire).astype(float) - x.astype(float))
    assert (error <= bounds(x, wire)).all()


@pytest.mark.parametrize("wire", _core.WIRES)
def test_every_processor_has_the_same_bits(wire: str) -> None:
    rng = np.random.default_rng(5)
    for count in (1, 127, 128, 129, 5000):
        x = (rng.standard_normal(count) * 10.0 ** rng.integers(-30, 30, count)).astype(np.float32)
        x[rng.integers(0, count, 3)] = [0.0, -0.0, 1e-42]
        codes = {encoded(x, wire, isa) for isa in isas()}
        assert len(codes) == 1
        (code,) = codes
        assert len({decoded(code, count, wire, isa).tobytes() for isa in isas()}) == 1
        sums = {decoded(code, count, wire, isa, begin=0.3).tobytes() for isa in isas()}
        assert sums == {(np.float32(0.3) + decoded(code, count, wire)).tobytes()}


@pytest.mark.parametrize(("wire", "most"), MOST.items())
def test_whole_multiples_of_a_scale_are_exact(wire: str, most: float) -> None:
    whole = np.arange(-7, 8, dtype=np.float32)
    x = np.concatenate([whole, [most]]).astype(np.float32) * np.float32(0.25)
    np.testing.assert_array_equal(through(x, wire), x)


@pytest.mark.parametrize("wire", _core.WIRES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinity_and_nan_make_nan_of_their_block_alone(wire: str, bad: float) -> None:
    x = np.ones(3 * BLOCK, np.float32)
    x[BLOCK + 3] = bad
    y = through(x, wire)
    if wire in MOST:
        assert np.isnan(y[BLOCK : 2 * BLOCK]).all()
        y[BLOCK : 2 * BLOCK] = 1
    else:
        np.testing.assert_array_equal(y[BLOCK + 3], np.float32(bad))
        y[BLOCK + 3] = 1
    np.testing.assert_array_equal(y, 1)


@pytest.mark.parametrize("wire", _core.WIRES)
def test_zeros_and_numbers_too_small_for_a_scale_come_out_as_zeros(wire: str) -> None:
    x = np.array([0.0, -0.0, 1e-45, -1e-45], np.float32)
    y = through(x, wire)
    assert (y == 0).all()
    assert wire not in MOST or not np.signbit(y).any()


@pytest.mark.parametrize("wire", _core.WIRES)
def test_subnormal_numbers_keep_their_sign_and_size(wire: str) -> None:
    x = np.arange(1, 2000, dtype=np.float32) * np.float32(2.0**-149)
    for one in x[:, None]:
        y = through(one, wire)
        assert 0 <= y[0] <= 2 * one[0]


@pytest.mark.parametrize("wire", MOST)
def test_the_largest_number_is_finite(wire: str) -> None:
    x = np.array([np.finfo("f4").max, -1.0], np.float32)
    y = through(x, wire)
    assert y[0] == pytest.approx(float(x[0]), rel=1e-6)


def test_bytes_of_each_form() -> None:
    sizes = {wire: _core.wire_bytes(wire, 129) for wire in _core.WIRES}
    assert sizes == {"bf16": 512, "fp16": 512, "int8": 264, "fp8_e4m3": 264, "int4": 136}


def test_nan_with_low_bits_stays_nan() -> None:
    x = np.array([0x7F800001, 0xFFFFFFFF, 0x7F80FFFF], np.uint32).view(np.float32)
    for wire in _core.WIRES:
        assert np.isnan(through(x, wire)).all()


@pytest.mark.parametrize("local", [1, 2, 3])
@pytest.mark.parametrize("hosts", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("leaders", [0, 1])
def test_compressed_schedules_give_all_ranks_the_same_bits(
    hosts: int, local: int, leaders: int
) -> None:
    everyone = schedules.make_all(
        "hierarchical", hosts * local, local=local, leaders=leaders, wire="int8"
    )
    assert schedules.verify(everyone).ok
    assert schedules.verify([schedules.from_input(one) for one in everyone]).ok


def test_uneven_hosts_have_compressed_schedules() -> None:
    for groups in ([0, 0, 1], [0, 1, 1, 1, 2], [0, 1, 0, 2, 2, 2]):
        everyone = schedules.make_all("hierarchical", len(groups), groups=groups, wire="bf16")
        assert schedules.verify(everyone).ok


def test_a_wire_saves_the_bytes_that_cross() -> None:
    sent = {}
    for wire in ("", *_core.WIRES):
        one = schedules.make("hierarchical", 0, 2, local=1, across="circulant", wire=wire)
        sent[wire] = schedules.traffic(one, 1 << 20).sent
    assert sent[""] == 1 << 20
    assert sent["bf16"] == sent["fp16"] == 1 << 19
    assert sent["int8"] == sent["fp8_e4m3"] == (1 << 18) * 132 // 128
    assert sent["int4"] == (1 << 18) * 68 // 128
    with pytest.raises(UsageError, match="no wire is called int3"):
        schedules.make("hierarchical", 0, 2, local=1, wire="int3")


def chosen(nbytes: int, wire: str, beta: float, host_of: list[int]) -> Any:
    """The plan where a byte between hosts takes `beta` seconds, and one is reduced in 50 ps."""
    figures = f"""gradred-figures 4
mpi MPICH Version: 5.0.2
hosts h#
layout {_core.layout_text(host_of)}
measured 2026-11-30
inside 1e-06 1e-10
across 1e-05 {beta}
gap 5e-07
pieces 61440
local 5e-11 4e-11
on-host 4e-07
far 0.05
announcement 2e-05
size 8 1
plan 2e-05 2e-05 recursive_doubling
end
"""
    return _core.choose_plan("allreduce", nbytes, host_of, figures=figures, wire=wire)


@pytest.mark.parametrize("host_of", [[0, 1], [0, 0, 1, 1], [0, 1, 2]])
def test_auto_compresses_where_the_link_is_the_bound_and_no_other_call(host_of: list[int]) -> None:
    slow, fast = 8e-9, 0.04e-9  # 1 Gbit/s and 200 Gbit/s
    for nbytes in (1 << 20, 64 << 20):
        assert chosen(nbytes, "auto", slow, host_of)["parameters"]["wire"] == "int8"
        assert "wire" not in chosen(nbytes, "auto", fast, host_of)["parameters"]
        assert "wire" not in chosen(nbytes, "", slow, host_of)["parameters"]
        assert chosen(nbytes, "fp16", fast, host_of)["parameters"]["wire"] == "fp16"
    for beta in (slow, fast):
        assert "wire" not in chosen(8, "auto", beta, host_of)["parameters"]
    assert "wire" not in chosen(64 << 20, "int8", slow, [0, 0])["parameters"]
    found = chosen(1 << 20, "auto", slow, host_of)
    plain = chosen(1 << 20, "", slow, host_of)
    assert found["seconds"] < plain["seconds"]
    assert found["reason"].startswith("int8 between hosts, costs least")
    assert found["hash"] != plain["hash"]


def test_simulation_of_a_compressed_call_saves_what_does_not_cross() -> None:
    from gradred.simulate.plans import Layout, simulate
    from gradred.simulate.presets import NETWORKS

    slow, nbytes = NETWORKS["10GbE"], 64 << 20
    for layout in (Layout.even(2, 2), Layout.even(8, 2), Layout.even(6, 3)):
        plain = simulate("ring", slow, layout, nbytes)
        times = [simulate(f"wire_{form}", slow, layout, nbytes) for form in _core.WIRES]
        for form, found in zip(_core.WIRES, times, strict=True):
            bits = _core.wire_bytes(form, 1 << 20) / (1 << 22)
            across = 2 * (layout.hosts - 1) * nbytes * bits
            assert found.bytes_across == pytest.approx(across, rel=1e-6), form
        assert times[4].seconds < times[2].seconds < times[0].seconds < plain.seconds
    with pytest.raises(UsageError, match="nothing is compressed on one host"):
        simulate("wire_int8", slow, Layout.even(4, 1), nbytes)
