"""The reduction operations: their names, and `premul`, the one with a parameter."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from gradred import _core, user_ops
from gradred.errors import UsageError, UsageTypeError, explain, type_of, usage_error

if TYPE_CHECKING:
    from mpi4py import MPI

UFUNCS: Final = dict(_core.operations())
"""The NumPy function of two elements behind each operation, by name, from the core's table in
csrc/base/types.h. avg then divides the result; premul first scales the operands."""

_OTHER_NAMES: Final = {"mean": "avg", "average": "avg", "product": "prod", "add": "sum"}

OPS: Final = tuple(name for name in UFUNCS if name != "premul")  # premul needs a factor


@dataclasses.dataclass(frozen=True)
class Premul:
    """A sum whose inputs are multiplied by `factor` first; made by `gradred.premul`."""

    factor: float


def premul(factor: float) -> Premul:
    """Make an operation: multiply each rank's input by `factor`, then sum over the ranks.

    Integers times a whole number are exact. Times any other number they are computed in float64
    and truncated toward zero. All ranks must give the same factor. The name is NCCL's
    (`ncclRedOpCreatePreMulSum`).

    Raises:
        gradred.UsageError: the factor is not a finite number, or is an integer that float64 lacks.

    Example:
        >>> import gradred
        >>> gradred.premul(0.5)
        Premul(factor=0.5)
    """
    try:
        value = float(factor)
    except (TypeError, ValueError):
        raise UsageTypeError(
            f"premul({factor!r})", "this is not a real number", "Give a finite number"
        ) from None
    if not math.isfinite(value):
        raise UsageError(f"premul({factor})", "the factor is not finite", "Give a finite number")
    as_integer = getattr(factor, "__index__", None)  # Python's integers, NumPy's and others
    if as_integer is not None and as_integer() != int(value):
        found = f"the nearest factor that float64 has is {int(value)}"
        raise UsageError(f"premul({factor})", found, "Give a number that float64 has")
    return Premul(value)


OpLike: TypeAlias = "MPI.Op | str | Premul | user_ops.UserOp"


def require(op: str, dtype: str, asked: str, *, on_device: bool = False) -> None:
    """Check that elements of this type have the operation.

    Args:
        op: a name from `OPS`, or `"premul"`.
        dtype: gradred's name of the type.
        asked: what the caller wants to do, for the message.
        on_device: whether some elements are in a GPU's memory.

    Raises:
        gradred.UsageError: they do not; the message lists the operations that they have.
    """
    if not _has(op, dtype):
        has = ", ".join(name for name in OPS if _has(name, dtype))
        message = explain(asked, f"{dtype} has no {op!r}", f"Use one of {has}")
        raise usage_error(message, "ERR_OP")
    if on_device:
        user_ops.compile_for_devices(op, dtype)


@functools.cache
def _has(op: str, dtype: str) -> bool:
    return user_ops.compiled(op, dtype) or _core.has_reduction(op, dtype)


def resolve(op: Any) -> tuple[str, float] | None:
    """Return the name and factor of an operation; None for an `MPI.Op` that only the MPI knows.

    Raises:
        gradred.UsageError: `op` is not an operation; the message names the nearest one.
    """
    if isinstance(op, Premul):
        return "premul", op.factor
    if isinstance(op, user_ops.UserOp):
        return op.name, 1.0
    name = _core.op_name(op)
    if name is not None:
        return name, 1.0
    if isinstance(op, str):
        import difflib  # imported here because it is seldom needed

        near = [_OTHER_NAMES[op]] if op in _OTHER_NAMES else difflib.get_close_matches(op, OPS, n=1)
        remedy = f"Did you mean {near[0]!r}?" if near else f"Use one of {', '.join(OPS)}"
        raise UsageError(f"op={op!r}", "there is no such operation", remedy)
    from mpi4py import MPI

    if isinstance(op, MPI.Op):
        if op == MPI.OP_NULL:
            found = "the operation is null or has been freed"
            raise usage_error(explain(f"op={op!r}", found, "Use one that is alive"), "ERR_OP")
        return None
    raise UsageTypeError(
        f"op={op!r}",
        f"{type_of(op)} is not an operation",
        "Use an MPI.Op, a name from gradred.OPS, gradred.premul(factor) or gradred.user_op(f)",
    )
