"""Compression of gradients for sending: codecs, and the error feedback that makes up for losses.

A codec turns float32 values into bytes and back. A `Compressor` adds the state of one rank: what a
lossy codec has not sent of a gradient is added to the next gradient of the same key (Seide et al.,
2014; Karimireddy et al., 2019), so nothing is lost in the long run.

    >>> import numpy
    >>> half = Compressor("topk:0.5")
    >>> payload = half.encode("layer 1", numpy.array([4.0, 1.0], "float32"))
    >>> half.decode(payload, 2)
    array([4., 0.], dtype=float32)
    >>> payload = half.encode("layer 1", numpy.array([0.0, 1.0], "float32"))
    >>> half.decode(payload, 2)
    array([0., 2.], dtype=float32)
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradred.errors import UsageError

Floats: TypeAlias = NDArray[np.float32]
Bytes: TypeAlias = NDArray[np.uint8]
State: TypeAlias = dict[str, Any]
Mean: TypeAlias = Callable[[Floats], Floats]
"""Returns the mean of the ranks' arrays."""

_BLOCK = 256  # values that share a scale
_MOST_FP16 = 65504.0


@dataclass(frozen=True)
class Codec:
    """One row of the table of codecs.

    `encode(values, parameter, state, mean)` returns a payload whose length depends on the shape of
    the values and on the parameter alone. `decode(payload, count)` returns `count` values.
    """

    about: str
    encode: Callable[[Floats, float, State, Mean], Bytes]
    decode: Callable[[Bytes, int], Floats]
    feedback: bool = True
    """Whether what is not sent is added to the next values."""
    parameter: str = ""
    """What its number means, such as the share of values sent; empty: it has none."""
    default: float = 0.0
    averages: bool = False
    """Whether `encode` averages over the ranks, if `mean` does, so that all payloads are equal."""


def _alone(values: Floats) -> Floats:
    return values


def _joined(*parts: NDArray[Any]) -> Bytes:
    return np.concatenate([np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts])


# ---- the same values in fewer bits ---------------------------------------------------------------


def _encode_none(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _encode_fp16(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    return np.clip(values, -_MOST_FP16, _MOST_FP16).astype(np.float16).reshape(-1).view(np.uint8)


def _decode_fp16(payload: Bytes, count: int) -> Floats:
    return payload.view(np.float16).astype(np.float32)


def _encode_bf16(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    """Round to the nearest, ties to even; a NaN stays one."""
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(flat), 0x7FC0, rounded).astype(np.uint16).view(np.uint8)


def _decode_bf16(payload: Bytes, count: int) -> Floats:
    return (payload.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _blocks(values: Floats) -> Floats:
    """The values as rows of `_BLOCK`, the last one filled up with zeros."""
    flat = values.reshape(-1)
    rows = -(-flat.size // _BLOCK)
    padded = np.zeros(rows * _BLOCK, np.float32)
    padded[: flat.size] = flat
    return padded.reshape(rows, _BLOCK)


def _levels(values: Floats, most: int) -> tuple[Floats, NDArray[np.int8]]:
    """The scale of each block, and the values as whole numbers from -most to most."""
    rows = _blocks(values)
    scale = np.abs(rows).max(axis=1) / np.float32(most)
    divisor = np.where(scale > 0, scale, 1)[:, None]
    return scale, np.rint(rows / divisor).astype(np.int8)


def _scales(payload: Bytes, count: int, each: int = 1) -> tuple[Floats, Bytes]:
    """The float32 numbers of each block at the start of a payload, and the rest."""
    end = 4 * each * -(-count // _BLOCK)
    return payload[:end].view(np.float32), payload[end:]


def _encode_int8(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    scale, levels = _levels(values, 127)
    return _joined(scale, levels.reshape(-1)[: values.size])


def _decode_int8(payload: Bytes, count: int) -> Floats:
    scale, rest = _scales(payload, count)
    return rest.view(np.int8) * np.repeat(scale, _BLOCK)[:count]


def _encode_int4(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    scale, levels = _levels(values, 7)
    nibbles = (levels + 8).astype(np.uint8).reshape(-1)
    return _joined(scale, (nibbles[::2] | nibbles[1::2] << 4)[: (values.size + 1) // 2])


def _decode_int4(payload: Bytes, count: int) -> Floats:
    scale, rest = _scales(payload, count)
    nibbles = np.stack([rest & 15, rest >> 4], axis=1).reshape(-1)[:count]
    return (nibbles.astype(np.float32) - 8) * np.repeat(scale, _BLOCK)[:count]


def _encode_onebit(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    """The sign of each value; per block the mean of those above 0, and of the others."""
    rows, real = _blocks(values), _blocks(np.ones(values.size, np.float32)) > 0
    above = rows > 0
    means = [
        (rows * chosen).sum(axis=1) / np.maximum(chosen.sum(axis=1), 1)
        for chosen in (above, real & ~above)
    ]
    both = np.stack(means, axis=1).astype(np.float32)
    return _joined(both, np.packbits(above.reshape(-1)[: values.size]))


def _decode_onebit(payload: Bytes, count: int) -> Floats:
    means, rest = _scales(payload, count, 2)
    above = np.unpackbits(rest, count=count).astype(bool)
    up, down = (np.repeat(means[place::2], _BLOCK)[:count] for place in (0, 1))
    return np.where(above, up, down)


# ---- some of the values --------------------------------------------------------------------------


def _share(count: int, share: float) -> int:
    return min(count, max(1, math.ceil(share * count)))


def _encode_topk(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    flat = values.reshape(-1)
    number = _share(flat.size, parameter)
    places = np.sort(np.argpartition(np.abs(flat), flat.size - number)[flat.size - number :])
    return _joined(places.astype(np.uint32), flat[places])


def _decode_topk(payload: Bytes, count: int) -> Floats:
    half = payload.size // 2
    found = np.zeros(count, np.float32)
    found[payload[:half].view(np.uint32)] = payload[half:].view(np.float32)
    return found


def _drawn(seed: int, count: int, number: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(count)[:number]


def _encode_randomk(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    flat = values.reshape(-1)
    seed = state["seed"] = (state["seed"] + 1) % 2**32
    places = _drawn(seed, flat.size, _share(flat.size, parameter))
    return _joined(np.array([seed], np.uint32), flat[places])


def _decode_randomk(payload: Bytes, count: int) -> Floats:
    seed, sent = int(payload[:4].view(np.uint32)[0]), payload[4:].view(np.float32)
    found = np.zeros(count, np.float32)
    found[_drawn(seed, count, sent.size)] = sent
    return found


# ---- a product of two thin matrices --------------------------------------------------------------


def _matrix(values: Floats) -> Floats:
    """The values as a matrix: the tensor's own, or nearly a square, filled up with zeros."""
    if values.ndim > 1:
        return values.reshape(values.shape[0], -1)
    columns = math.isqrt(max(0, values.size - 1)) + 1
    rows = -(-values.size // columns)
    padded = np.zeros(rows * columns, np.float32)
    padded[: values.size] = values
    return padded.reshape(rows, columns)


def _encode_powersgd(values: Floats, parameter: float, state: State, mean: Mean) -> Bytes:
    """One step of power iteration from the last factor (Vogels et al., 2019)."""
    matrix, rank = _matrix(values), max(1, int(parameter))
    rows, columns = matrix.shape
    rank = min(rank, rows, columns)
    head = np.array([rows, columns, rank], np.uint32)
    if "right" not in state:
        drawn = np.random.default_rng(state["seed"]).standard_normal((columns, rank))
        state["right"] = drawn.astype(np.float32)
    left = np.linalg.qr(mean(matrix @ state["right"]))[0]
    state["right"] = mean(matrix.T @ left)
    return _joined(head, left, state["right"])


def _decode_powersgd(payload: Bytes, count: int) -> Floats:
    rows, columns, rank = map(int, payload[:12].view(np.uint32))
    left, right = np.split(payload[12:].view(np.float32), [rows * rank])
    product: Floats = left.reshape(rows, rank) @ right.reshape(columns, rank).T
    return product.reshape(-1)[:count]


CODECS = {
    "none": Codec("float32 as it is", _encode_none, lambda sent, _: sent.view("f4"), False),
    "fp16": Codec("float16; beyond its range its largest", _encode_fp16, _decode_fp16, False),
    "bf16": Codec("bfloat16", _encode_bf16, _decode_bf16, False),
    "int8": Codec("8 bits and a scale for each 256 values", _encode_int8, _decode_int8),
    "int4": Codec("4 bits and a scale for each 256 values", _encode_int4, _decode_int4),
    "onebit": Codec(
        "1 bit, and two means for each 256 values (Seide et al., 2014)",
        _encode_onebit,
        _decode_onebit,
    ),
    "topk": Codec(
        "the largest values and their places (Aji and Heafield, 2017)",
        _encode_topk,
        _decode_topk,
        parameter="share of the values",
        default=0.05,
    ),
    "randomk": Codec(
        "values at random places, and the seed of these (Stich et al., 2018)",
        _encode_randomk,
        _decode_randomk,
        parameter="share of the values",
        default=0.1,
    ),
    "powersgd": Codec(
        "two thin matrices whose product is near the gradient (Vogels et al., 2019)",
        _encode_powersgd,
        _decode_powersgd,
        parameter="rank of the matrices",
        default=2,
        averages=True,
    ),
}
"""The table of codecs, by name."""


class Compressor:
    """A codec with the state of one rank, by key. Not for several threads at once.

    Args:
        text: a name of `CODECS`, with a number where it takes one: `topk:0.01`, `powersgd:4`.

    Raises:
        UsageError: there is no such codec, or its number is none.
    """

    def __init__(self, text: str = "none") -> None:
        name, colon, number = text.partition(":")
        if name not in CODECS:
            remedy = f"Use one of {', '.join(CODECS)}"
            raise UsageError(f"compression {text!r}", "there is none", remedy)
        self.text, self.codec = text, CODECS[name]
        self.parameter = self.codec.default
        if colon:
            self.parameter = _number(text, number, self.codec)
        self._states: dict[Hashable, State] = {}

    def encode(self, key: Hashable, values: Floats, mean: Mean = _alone) -> Bytes:
        """Compress this rank's values. Returns bytes, which may share the memory of `values`.

        If a value is infinite or no number, as after an overflow, a codec with feedback sends only
        NaN, and what was not sent before is forgotten.

        Args:
            key: which tensor it is: what was not sent of it before is added.
            values: float32, of any shape, the same at each call with this key.
            mean: averages over the ranks, for a codec with `averages`; collective then.
        """
        if not self.codec.feedback:
            return self.codec.encode(values, self.parameter, {}, mean)
        if key not in self._states:
            self.give_owed(key, np.zeros(values.shape, np.float32))
        state = self._states[key]
        total = values + state["owed"]
        if not np.isfinite(total).all():
            total = np.full_like(total, np.nan)  # so that peers see it, whichever values are sent
        with np.errstate(invalid="ignore"):
            payload = self.codec.encode(total, self.parameter, state, mean)
            owed = total - self.codec.decode(payload, total.size).reshape(total.shape)
        if np.isfinite(owed).all():
            state["owed"] = owed
        else:  # the next values are sent as the first ones were
            self._states[key] = {"seed": state["seed"], "owed": 0.0}
        return payload

    def take_owed(self, key: Hashable) -> Any:
        """Return what has not been sent of a tensor, or 0.0, and forget the tensor."""
        return self._states.pop(key, {"owed": 0.0})["owed"]

    def give_owed(self, key: Hashable, owed: Floats) -> None:
        """Let the next `encode` of a new key add these values."""
        self._states[key] = {"seed": zlib.crc32(repr(key).encode()), "owed": owed}

    def decode(self, payload: Bytes, count: int) -> Floats:
        """Return the values of a payload: float32, one dimension."""
        return self.codec.decode(payload, count)


def _number(text: str, number: str, codec: Codec) -> float:
    asked = f"compression {text!r}"
    if not codec.parameter:
        raise UsageError(asked, "it takes no number", "Leave the colon out")
    is_share = codec.default < 1
    try:
        value = float(number) if is_share else float(int(number))
    except ValueError:
        value = math.nan
    if not (0 < value <= 1 if is_share else 1 <= value <= 1024):
        range_ = "above 0 and at most 1" if is_share else "from 1 to 1024"
        raise UsageError(asked, f"{number!r} is no {codec.parameter}", f"Give a number {range_}")
    return value
