"""The basic types in MPI's datatypes, which ranks compare if their layouts may differ.

MPI lets ranks describe the same elements by different types if the sequences of basic types (MPI's
type signatures) are equal. For example, one rank gives four floats and another one type of four
floats. Such a sequence may be as long as the message, so it is represented by its length and a
polynomial hash. The hash of a concatenation or a repetition follows from those of its parts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from gradred.buffers import messages
from gradred.buffers.messages import Message
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES

_PRIME = (1 << 61) - 1
_BASE = 0x1D2F_9A3C_7B64_E581 % _PRIME


@dataclasses.dataclass(frozen=True, slots=True)
class Basics:
    """A sequence of basic types, represented by its hash."""

    length: int
    hash: int
    only: str | None
    """The basic type if all are the same."""

    def __add__(self, other: Basics) -> Basics:
        if not (self.length and other.length):
            return self if self.length else other
        joined = (self.hash * pow(_BASE, other.length, _PRIME) + other.hash) % _PRIME
        only = self.only if self.only == other.only else None
        return Basics(self.length + other.length, joined, only)

    def __mul__(self, times: int) -> Basics:
        doubled, product = self, _NOTHING
        while times:
            if times & 1:
                product += doubled
            doubled, times = doubled + doubled, times >> 1
        return product


_NOTHING = Basics(0, 0, None)


def hash_of(value: object) -> int:
    """Return 64 bits that are the same on all ranks for values with the same repr."""
    import hashlib  # imported here because many programs do not need it

    digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@dataclasses.dataclass(slots=True)
class Comparable:
    """What ranks compare of a message that is moved, not reduced."""

    count: int
    dtype: str
    """The type of the elements; uint8 if they are not all of one type that gradred knows."""
    hash: int
    """The hash of the basic types; 0 if `dtype` says it all."""

    @property
    def text(self) -> str:
        """A description for messages."""
        if self.hash:
            return f"{self.count} bytes of elements of its own"
        return f"{self.count} {self.dtype}"


def comparable(message: Message) -> Comparable:
    """Return the elements of a message in comparable form."""
    if message.dtype is not None and message.count:
        return Comparable(message.count, message.dtype, 0)
    basics = of_datatype(message.datatype) * message.count
    nbytes = message.count * message.itemsize if message.count else 0
    if basics.only in ITEMSIZES and basics.length * ITEMSIZES[basics.only] == nbytes:
        return Comparable(basics.length, basics.only, 0)
    return Comparable(nbytes, "uint8", basics.hash)


def of_message(message: Message) -> Basics:
    """Return the sequence of one element of a message."""
    if message.dtype is not None:
        return _basic(message.dtype)
    return of_datatype(message.datatype)


def of_datatype(datatype: MPI.Datatype | None) -> Basics:
    """Return the sequence of an MPI type, without its gaps."""
    if datatype is None or datatype == MPI.DATATYPE_NULL:
        return _NOTHING
    if datatype.is_predefined:
        return _of_predefined(datatype)
    # A type may have millions of blocks, so the result is cached as an attribute of the type.
    known = datatype.Get_attr(_keyval())
    if not isinstance(known, Basics):
        known = _of_derived(datatype)
        datatype.Set_attr(_keyval(), known)
    return known


@functools.cache
def _keyval() -> int:
    return MPI.Datatype.Create_keyval()


def _of_derived(datatype: MPI.Datatype) -> Basics:
    nbytes = datatype.Get_size()
    if nbytes == 0:
        return _NOTHING
    combiner = datatype.Get_envelope()[-1]
    integers, _, large, parts = datatype.Get_contents()
    try:
        if combiner == MPI.COMBINER_STRUCT:
            return _of_struct((large or integers)[1:], parts)
        return of_datatype(parts[0]) * (nbytes // parts[0].Get_size())
    finally:
        for part in parts:
            if not part.is_predefined:
                part.Free()


def _of_struct(lengths: Sequence[int], parts: Sequence[MPI.Datatype]) -> Basics:
    whole = _NOTHING
    for length, part in zip(lengths, parts, strict=False):  # displacements may follow
        whole += of_datatype(part) * length
    return whole


def _of_predefined(datatype: MPI.Datatype) -> Basics:
    for pair, value in _PAIRS:
        if datatype == pair:
            return _basic(_name(value)) + _basic(_name(MPI.INT))
    return _basic(_name(datatype))


# MPI defines these types as structures.
_PAIRS = (
    (MPI.FLOAT_INT, MPI.FLOAT),
    (MPI.DOUBLE_INT, MPI.DOUBLE),
    (MPI.LONG_INT, MPI.LONG),
    (MPI.TWOINT, MPI.INT),
    (MPI.SHORT_INT, MPI.SHORT),
    (MPI.LONG_DOUBLE_INT, MPI.LONG_DOUBLE),
)

# C's and Fortran's types of one representation count as the same type. MPI_BYTE, MPI_PACKED and
# uint8 count as the same type too: programs mix them, and all MPIs allow it.
_NAMES = {np.dtype(row.name).str[1:]: row.name for row in ELEMENT_TYPES.values() if row.is_numpys}


def _name(datatype: MPI.Datatype) -> str:
    known = messages.name_of(datatype)
    if known is not None:
        return known
    code = datatype.typestr
    return _NAMES.get(code, code) if code and code[0] != "V" else datatype.Get_name()


@functools.cache
def _basic(name: str) -> Basics:
    return Basics(1, hash_of(name) % _PRIME, name)
