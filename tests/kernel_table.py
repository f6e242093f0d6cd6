"""The structures of `csrc/named/kernel_calls.h`, for ctypes."""

from __future__ import annotations

import ctypes

VERSION = 4


class Array(ctypes.Structure):
    _fields_ = (
        ("input", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("axes", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


class Call(ctypes.Structure):
    _fields_ = (
        ("process_set", ctypes.c_int32),
        ("kind", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("op", ctypes.c_int32),
        ("prescale", ctypes.c_double),
        ("postscale", ctypes.c_double),
        ("root", ctypes.c_int32),
        ("structure", ctypes.c_char_p),
        ("wire", ctypes.c_char_p),
        ("arrays", ctypes.POINTER(Array)),
        ("count", ctypes.c_size_t),
        ("splits", ctypes.POINTER(ctypes.c_int64)),
        ("split_count", ctypes.c_size_t),
    )


class Result(ctypes.Structure):
    _fields_ = (
        ("end", ctypes.c_int32),
        ("text", ctypes.c_char_p),
        ("holds_memory", ctypes.c_bool),
        ("rank", ctypes.c_int32),
        ("ranks", ctypes.c_int32),
        ("outputs", ctypes.POINTER(ctypes.c_void_p)),
        ("output_bytes", ctypes.POINTER(ctypes.c_size_t)),
        ("rows", ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))),
    )


DONE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Result))
SUBMIT = ctypes.CFUNCTYPE(None, ctypes.POINTER(Call), ctypes.c_bool, DONE, ctypes.c_void_p)


class Table(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("submit", SUBMIT))
