"""The parts of a vector in the form of a compressed wire: one of each host (csrc/reduce/wire.h)."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from gradred import _core

BLOCK: Final = 128
"""The numbers that share a scale."""
Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"


class Parts:
    """A run of the vectors of all hosts, of which each host owns a part.

    A host sends each other one its part (`encode`), adds up those of its own that come (`add`),
    encodes the sum once (`encode_sum`), and decodes the sums of all (`decode`), its own too: so all
    have the same bits.

    Args:
        form: the name of the form.
        given: this host's vector.
        result: where the sums go; `given` itself, or other memory.
        hosts: their number.
        place: the number of this host.
        owed: as long as the vector: what this host's encodings of earlier vectors have lost. It is
            added before numbers are encoded, and becomes what this has lost of them. None: nothing
            is kept.
    """

    def __init__(
        self,
        form: str,
        given: Floats,
        result: Floats,
        hosts: int,
        place: int,
        owed: Floats | None = None,
    ) -> None:
        self._form, self._place = form, place
        each = -(-given.size // (BLOCK * hosts)) * BLOCK  # numbers of a part, whole blocks
        self._given, self._result, self._owed = (
            [] if vector is None else [vector[i * each : (i + 1) * each] for i in range(hosts)]
            for vector in (given, result, owed)
        )
        shape = (hosts, _core.wire_bytes(form, each))
        self.sent, self.came = np.zeros(shape, np.uint8), np.empty(shape, np.uint8)
        self._total = np.zeros_like(self._given[place])

    def encode(self) -> None:
        """Write the parts of the other hosts to `sent`."""
        for i, part in enumerate(self._given):
            if i != self._place:
                self._encode(part, i)

    def add(self, host: int) -> None:
        """Add the part that came from a host; called for each, in their order."""
        if host == self._place:
            self._total += self._given[host]
        else:
            self._decode(self.came[host], self._total, adds=True)

    def encode_sum(self) -> Bytes:
        """Return the sum of this host's part in its form."""
        self._encode(self._total, self._place)
        own: Bytes = self.sent[self._place]
        return own

    def decode(self) -> None:
        """Write the sums of all parts, which are in `came`, to the result."""
        for came, part in zip(self.came, self._result, strict=True):
            self._decode(came, part, adds=False)

    def _encode(self, values: Floats, part: int) -> None:
        to = self.sent[part]
        if self._owed:
            values = values + self._owed[part]
        _core.encode_wire(self._form, values.ctypes.data, values.size, to.ctypes.data)
        if self._owed:
            came = np.empty_like(values)
            self._decode(to, came, adds=False)
            with np.errstate(invalid="ignore"):
                lost = values - came
            self._owed[part][...] = np.where(np.isfinite(lost), lost, 0)

    def _decode(self, coded: Bytes, values: Floats, *, adds: bool) -> None:
        where = (values.size, values.ctypes.data)
        _core.decode_wire(self._form, coded.ctypes.data, *where, adds)
