"""The forms in which a program may pass a buffer to a communicator: a table for tests of all calls.

Each form makes a specification, as mpi4py documents them, of memory that holds the elements of an
array. Tests compare what a call makes of a form with what it makes of a plain array, or with what
mpi4py makes of the same form.
"""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from lenders import Derived, Interface, Lender, OldLender
from mpi4py import MPI

Numbers = npt.NDArray[Any]


class Buffer(NamedTuple):
    """A specification, and the elements that it names."""

    spec: Any
    elements: Numbers
    """They share the memory of `spec`, so that they show what a call has written."""


class Form(NamedTuple):
    """One form of a buffer."""

    make: Callable[[Numbers, int], Buffer]
    """Makes a buffer that holds a copy of an array's elements.

    The second argument is the number of equal blocks that the call divides it into, as mpi4py's
    counts are those of one block."""
    types: str = ""
    """The letters of the types that it can have; empty: all that NumPy and the MPI have."""
    writable: bool = True
    """Whether a call may write to it."""
    single: bool = False
    """Whether it has one element."""

    def takes(self, x: Numbers) -> bool:
        """Return whether the form can hold the elements of an array."""
        return (not self.types or x.dtype.char in self.types) and (not self.single or x.size == 1)


def mpi_type(x: Numbers) -> MPI.Datatype:
    """Return the MPI's type of an array's elements."""
    return MPI.Datatype.fromcode(x.dtype.char)


def described(make: Callable[[Numbers, int], Any]) -> Callable[[Numbers, int], Buffer]:
    """Return how to make a buffer of a NumPy array that `make` only describes."""

    def whole(x: Numbers, blocks: int) -> Buffer:
        own = x.copy()
        return Buffer(make(own, blocks), own)

    return whole


def lent(make: Callable[[Numbers], Any], typed: bool = False) -> Callable[[Numbers, int], Buffer]:
    """Return how to make a buffer of an object with memory of its own, which `make` fills."""

    def filled(x: Numbers, blocks: int) -> Buffer:
        del blocks
        own = make(x)
        elements = np.frombuffer(own, x.dtype, x.size) if x.size else np.empty(0, x.dtype)
        return Buffer([own, mpi_type(x)] if typed else own, elements)

    return filled


def part(make: Callable[[Numbers, int], Any]) -> Callable[[Numbers, int], Buffer]:
    """Return how to make a buffer of a part of an array, from its second element on."""

    def cut(x: Numbers, blocks: int) -> Buffer:
        own = np.concatenate([x[:1], x.ravel(), x[:1]])
        return Buffer(make(own, x.size // blocks), own[1 : 1 + x.size])

    return cut


def columns(x: Numbers, blocks: int) -> Buffer:
    own = x.copy()
    rows = 2 if x.size % 2 == 0 else 1
    return Buffer(own.reshape(x.size // rows, rows).T, own)


def ctypes_array(x: Numbers) -> Any:
    kind: Any = np.ctypeslib.as_ctypes_type(x.dtype)
    return (kind * x.size).from_buffer_copy(x)


def mapped(x: Numbers) -> mmap.mmap:
    made = mmap.mmap(-1, max(x.nbytes, 1))
    made[: x.nbytes] = x.tobytes()
    return made


def read_only(x: Numbers, blocks: int) -> Numbers:
    x.flags.writeable = False
    return x


ARRAY_CODES = "bBhHiIlLqQfd"

FORMS: dict[str, Form] = {
    "x": Form(described(lambda x, _: x)),
    "x in Fortran order": Form(columns),
    "x of a derived class": Form(described(lambda x, _: x.view(Derived))),
    "a read-only array": Form(described(read_only), writable=False),
    "a scalar": Form(lambda x, _: Buffer(x.reshape(-1)[0], x.copy()), writable=False, single=True),
    "[x, type]": Form(described(lambda x, _: [x, mpi_type(x)])),
    "(x, type)": Form(described(lambda x, _: (x, mpi_type(x)))),
    "[x, letter]": Form(described(lambda x, _: [x, x.dtype.char])),
    "[x, count]": Form(described(lambda x, n: [x, x.size // n])),
    "[x, None]": Form(described(lambda x, _: [x, None])),
    "[x, (count, 0)]": Form(described(lambda x, n: [x, (x.size // n, 0)])),
    "[x, count, type]": Form(described(lambda x, n: [x, x.size // n, mpi_type(x)])),
    "(x, count, type)": Form(described(lambda x, n: (x, x.size // n, mpi_type(x)))),
    "[x, None, type]": Form(described(lambda x, _: [x, None, mpi_type(x)])),
    "[x, count, letter]": Form(described(lambda x, n: [x, x.size // n, x.dtype.char])),
    "[x, count of NumPy, type]": Form(
        described(lambda x, n: [x, np.int64(x.size // n), mpi_type(x)])
    ),
    "[x, count, None]": Form(described(lambda x, n: [x, x.size // n, None])),
    "[x, (count, displacement), type]": Form(part(lambda x, n: [x, (n, 1), mpi_type(x)])),
    "[x, [count, displacement]]": Form(part(lambda x, n: [x, [n, 1]])),
    "[x, count, displacement, type]": Form(part(lambda x, n: [x, n, 1, mpi_type(x)])),
    "memoryview": Form(described(lambda x, _: memoryview(x))),
    "[memoryview of bytes, type]": Form(
        described(lambda x, _: [memoryview(x).cast("B"), mpi_type(x)])
    ),
    "a read-only memoryview": Form(
        described(lambda x, _: memoryview(x).toreadonly()), writable=False
    ),
    "array.array": Form(lent(lambda x: array.array(x.dtype.char, x.tobytes())), ARRAY_CODES),
    "[array.array, type]": Form(lent(lambda x: array.array("B", x.tobytes()), typed=True)),
    "ctypes": Form(lent(ctypes_array), ARRAY_CODES + "?"),
    "[ctypes, type]": Form(lent(ctypes_array, typed=True), ARRAY_CODES + "?"),
    "[bytearray, type]": Form(lent(lambda x: bytearray(x.tobytes()), typed=True)),
    "[bytes, type]": Form(lent(lambda x: x.tobytes(), typed=True), writable=False),
    "[mmap, count, type]": Form(
        lambda x, n: Buffer(
            [own := mapped(x), x.size // n, mpi_type(x)], np.frombuffer(own, x.dtype, x.size)
        )
    ),
    "[MPI.buffer, type]": Form(described(lambda x, _: [MPI.buffer.frombuffer(x), mpi_type(x)])),
    "DLPack": Form(described(lambda x, _: Lender(x))),
    "[DLPack, type]": Form(described(lambda x, _: [Lender(x), mpi_type(x)])),
    "DLPack before 1.0": Form(described(lambda x, _: OldLender(x))),
    "CUDA Array Interface": Form(described(lambda x, _: Interface(x))),
}
"""The forms by name."""

NAMES = dict.fromkeys(
    [
        "Allreduce",
        "Iallreduce",
        "Allreduce_init",
        "Reduce_scatter_block",
        "Ireduce_scatter_block",
        "Scan",
        "Iscan",
        "Exscan",
        "Iexscan",
    ],
    ("sendbuf", "recvbuf", "op"),
) | {
    "Allgather": ("sendbuf", "recvbuf"),
    "Iallgather": ("sendbuf", "recvbuf"),
    "Bcast": ("buf", "root"),
    "Ibcast": ("buf", "root"),
}
"""mpi4py's names of each method's arguments, in order; each may be passed by name."""


class Whole:
    """A whole number that is not Python's."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


WHOLE_NUMBERS: list[Callable[[int], Any]] = [int, np.int64, np.int8, np.uint32, bool, Whole]
"""What makes a root of a number."""


def four(letter: str = "d") -> Numbers:
    """Four zeros."""
    return np.zeros(4, letter)


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "a number": lambda: 3.0,
    "a dictionary": lambda: {"a": 1},
    "a text": lambda: "abcd",
    "a list of numbers": lambda: [1.0, 2.0],
    "an empty list": lambda: [],
    "a list of one": lambda: [four()],
    "a list of five": lambda: [four(), 1, 2, MPI.DOUBLE, 5],
    "objects": lambda: np.array([1, "a", 2, 3], object),
    "other byte order": lambda: four(">f8"),
    "memoryview of other byte order": lambda: memoryview(
        (ctypes.c_double.__ctype_be__ * 4)()  # type: ignore[attr-defined]
    ),
    "timedelta": lambda: four("m8[s]"),
    "datetime": lambda: four("M8[s]"),
    "texts": lambda: four("U3"),
    "bytes of a length": lambda: four("S3"),
    "structures": lambda: np.zeros(4, [("a", "f8"), ("b", "i4")]),
    "void": lambda: four("V8"),
    "gaps": lambda: np.zeros(8)[::2],
    "backwards": lambda: four()[::-1],
    "one element many times": lambda: np.broadcast_to(np.zeros(1), (4,)),
    "gaps and a type": lambda: [np.zeros(8)[::2], MPI.DOUBLE],
    "gaps in a memoryview": lambda: memoryview(bytearray(64))[::2],
    "a letter of no type": lambda: [four(), "no such"],
    "a letter with a byte order": lambda: [four(), "<f8"],
    "a number as type": lambda: [four(), 4, 3],
    "no type": lambda: [four(), MPI.DATATYPE_NULL],
    "a negative count": lambda: [four(), -1, MPI.DOUBLE],
    "half a count": lambda: [four(), 2.5, MPI.DOUBLE],
    "a text as count": lambda: [four(), "4", MPI.DOUBLE],
    "a negative displacement": lambda: [four(), (1, -1), MPI.DOUBLE],
    "a displacement beyond the end": lambda: [four(), (None, 5), MPI.DOUBLE],
    "three numbers": lambda: [four(), (1, 2, 3), MPI.DOUBLE],
    "a count of nothing": lambda: [None, 4, MPI.DOUBLE],
    "half an element": lambda: [bytearray(31), MPI.DOUBLE],
    "bottom without a type": lambda: MPI.BOTTOM,
}
"""By name: what no call can read, as mpi4py says with an error."""

NOT_WRITABLE: dict[str, Callable[[], Any]] = {
    "a read-only array": lambda: read_only(four(), 1),
    "bytes": lambda: bytes(32),
    "a read-only memoryview": lambda: memoryview(bytes(32)).cast("d"),
    "a scalar": lambda: np.float64(1),
    "bytes and a type": lambda: [bytes(32), MPI.DOUBLE],
}
"""By name: where no call can write to."""
