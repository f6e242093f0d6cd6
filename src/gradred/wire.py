"""What a call may send compressed between hosts: `gradred.allreduce(x, wire="int8")`.

The form is a property of the call (`_core.Call`): plan `hierarchical` carries it out by a schedule
that encodes and decodes (`compressed` in csrc/schedule/rings.cc).
"""

from __future__ import annotations

from typing import Final

from gradred import _core
from gradred.errors import UsageError

WIRES: Final = _core.WIRES
"""The names of the forms: `"bf16"`, `"fp16"`, `"int8"`, `"fp8_e4m3"`, `"int4"`."""


def require(wire: str | None, dtype: str | None, op: str | None, asked: str) -> str:
    """Return the form of the wire in the form that `_core.Call` takes, checked.

    Args:
        wire: a form, or `"auto"`; None: no other than that of the array.
        dtype: of the array; None: only the MPI knows it.
        op: the operation; None: likewise.
        asked: what the caller wants to do, for messages.

    Raises:
        gradred.UsageError: there is no such form, or it does not carry such calls.
    """
    if wire is None:
        return ""
    if wire not in (*WIRES, "auto"):
        found = f"wire={wire!r} is none of {', '.join(map(repr, WIRES))} and 'auto'"
        raise UsageError(asked, found, "Name one of them, or leave wire= out")
    if dtype != "float32":
        why = f"a compressed wire carries float32, not {dtype or 'types of the MPI alone'}"
        raise UsageError(f"{asked} with wire={wire!r}", why, "Leave wire= out")
    if op not in ("sum", "avg", "premul"):
        found = op or "an operation of the MPI alone"
        why = f"a compressed wire has sums, means and scaled sums, not {found}"
        raise UsageError(f"{asked} with wire={wire!r}", why, "Leave wire= out")
    return wire
