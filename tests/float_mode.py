"""The floating-point mode of this thread, as a library built with -ffast-math leaves it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import platform
from collections.abc import Callable, Iterator
from typing import Any

import pytest

# Machine code: stmxcsr [rdi]; ret, and ldmxcsr [rdi]; ret.
_CODE = {"store": b"\x0f\xae\x1f\xc3", "load": b"\x0f\xae\x17\xc3"}
UNUSUAL = 0x8040 | 0x4000  # denormal results and operands become zero; rounding goes up
_MODE = 0xE040

needs_modes = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the test has code for x86-64 alone"
)


@functools.cache
def _memory() -> mmap.mmap:
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(b"".join(_CODE.values()))
    return memory


@functools.cache
def _function(name: str) -> Callable[[Any], None]:
    start = ctypes.addressof(ctypes.c_char.from_buffer(_memory()))
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(start + 4 * list(_CODE).index(name))


def mode() -> int:
    """The mode of this thread: the bits of UNUSUAL and of the other rounding modes."""
    word = ctypes.c_uint32()
    _function("store")(ctypes.byref(word))
    return word.value & _MODE


def _set(bits: int) -> None:
    word = ctypes.c_uint32()
    _function("store")(ctypes.byref(word))
    word.value = word.value & ~_MODE | bits
    _function("load")(ctypes.byref(word))


@contextlib.contextmanager
def unusual(wanted: bool = True) -> Iterator[None]:
    """Let this thread compute in an unusual mode, if wanted.

    Asserts that it still does at the end.
    """
    if not wanted:
        yield
        return
    _set(UNUSUAL)
    try:
        yield
        assert mode() == UNUSUAL, "the mode has changed"
    finally:
        _set(0)
