"""Time the lookup of an address's kind of memory: `gradred bench --pointer-cache`.

MPI libraries ask the driver in every call, and `cuPointerGetAttribute` has become slow for host
memory (driver 580). gradred asks only by `cuPointerGetAttributes`, and caches answers by ranges.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradred import _core
from gradred.bench.vectors import Device
from gradred.errors import UsageError

SCHEMA = "gradred-pointer-cache/1"
_BYTES = 1 << 20
_CALLS = 20_000
_CHUNK = 2 << 20  # bytes of one mapping, a size that all devices allow
_ON_DEVICE = 1
_READ_AND_WRITE = 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("meta_data", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def _allocated(device: Device, how: str, *more: Any) -> int:
    address = ctypes.c_uint64()
    device.call(how, ctypes.byref(address), ctypes.c_size_t(_BYTES), *more)
    return address.value


def _mapped(device: Device) -> int:
    """Return the middle of two adjacent mappings."""
    address, none = ctypes.c_uint64(), ctypes.c_uint64(0)
    place = _Location(_ON_DEVICE, device.ordinal)
    properties = _Properties(1, 0, place)
    size, whole = ctypes.c_size_t(_CHUNK), ctypes.c_size_t(2 * _CHUNK)
    device.call("cuMemAddressReserve", ctypes.byref(address), whole, ctypes.c_size_t(0), none, none)
    for i in range(2):
        handle = ctypes.c_uint64()
        device.call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), none)
        at = ctypes.c_uint64(address.value + i * _CHUNK)
        device.call("cuMemMap", at, size, ctypes.c_size_t(0), handle, none)
    access = _Access(place, _READ_AND_WRITE)
    device.call("cuMemSetAccess", address, whole, ctypes.byref(access), ctypes.c_size_t(1))
    return address.value + _CHUNK


def measure() -> dict[str, Any]:
    """Measure the lookup in nanoseconds for each kind of memory, in this process.

    Raises:
        UsageError: there is no CUDA driver, or no device.
    """
    device = Device("cuda", None, "--pointer-cache")
    host = np.zeros(_BYTES, np.uint8)
    stream = ctypes.c_void_p(0)
    kinds: dict[str, Callable[[], int]] = {
        "host": lambda: host.ctypes.data,
        "pinned": lambda: _allocated(device, "cuMemHostAlloc", 0),
        "device": lambda: _allocated(device, "cuMemAlloc_v2"),
        "managed": lambda: _allocated(device, "cuMemAllocManaged", 1),
        "pool": lambda: _allocated(device, "cuMemAllocAsync", stream),
        "mapped": lambda: _mapped(device),
    }
    rows = {}
    for name, make in kinds.items():
        try:
            rows[name] = _core.time_lookups(make() + 4096, _CALLS)
        except UsageError as error:  # not every driver supports all kinds
            rows[name] = {"error": str(error)}
    return {
        "schema": SCHEMA,
        "date": datetime.date.today().isoformat(),
        "device": device.name(),
        "calls": _CALLS,
        "rows": rows,
    }


def main(file: str | None) -> int:
    """Print the table, and write the record. `-` writes it to stdout, and the table to stderr.

    The exit status is 1 if an answer was wrong.
    """
    record = measure()
    if file == "-":
        print(json.dumps(record))
    elif file is not None:
        Path(file).write_text(json.dumps(record, indent=1) + "\n")
    print(_table(record), file=sys.stderr if file == "-" else sys.stdout)
    return 0 if all(row.get("well", True) for row in record["rows"].values()) else 1


def _table(record: dict[str, Any]) -> str:
    columns = {
        "cache": "gradred's cache",
        "plural": "cuPointerGetAttributes",
        "singular": "cuPointerGetAttribute",
    }
    lines = [f"{record['device']}: nanoseconds for one look-up, medians of 9 x {record['calls']}"]
    lines.append(f"{'memory':10}" + "".join(f"{title:>24}" for title in columns.values()))
    for name, row in record["rows"].items():
        if "error" in row:
            lines.append(f"{name:10}  {row['error']}")
            continue
        cells = [f"{row[key]:24.1f}" if row[key] >= 0 else f"{'-':>24}" for key in columns]
        lines.append(f"{name:10}" + "".join(cells) + ("" if row["well"] else "  WRONG ANSWERS"))
    return "\n".join(lines)
