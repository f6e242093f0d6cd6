"""Names of collectives that the program has not named: their places in the program.

Ranks agree on a collective by its name, so the name must be the same on all ranks and unlike that
of any other collective which may be in flight.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import jax

_lock = threading.Lock()
_traced: Counter[str] = Counter()


def name_here(kind: str, arrays: Sequence[Any]) -> str:
    """Return a name for a collective: its kind, file and line, and how often it was traced there.

    A program is traced once and run often, and its later runs use the name again. Calls outside of
    any transformation have no number. They run in the order in which the program makes them.
    """
    place = f"{kind} at {_place()}"
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return place
    return numbered(place)


def numbered(name: str) -> str:
    """Return the name with a number that counts such calls."""
    with _lock:
        _traced[name] += 1
        return f"{name} ({_traced[name]})"


def _place() -> str:
    """Return file and line of the innermost caller outside of gradred.jax and JAX."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_library(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_library(module: str) -> bool:
    return module.startswith("gradred.jax.") or module.split(".")[0] in ("jax", "optax")
