"""The saved states of an elastic job: numbered files in a folder that only its owner can write."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import stat
from collections.abc import Callable
from typing import BinaryIO

from gradred.errors import UsageError

# The variable of ranks in an elastic job: the least number of ranks, a space, the folder.
VARIABLE = "_GRADRED_ELASTIC"

# The exit status by which a rank requests a restart of the job (EX_TEMPFAIL of sysexits.h).
AGAIN = 75

_KEPT = 2
_NAME = re.compile(r"state-(\d{10})\.pt")
_PART = re.compile(r"state-\d{10}\.pt\.\d+\.part")


def require(folder: str) -> None:
    """Make the folder if it does not exist.

    Raises:
        UsageError: it cannot be made, or other users could write files there that ranks would run.
    """
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except OSError as error:
        raise _error(folder, f"it cannot be made ({error.strerror})") from None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise _error(folder, "others than you can write there")


def newest(folder: str) -> tuple[int, pathlib.Path] | None:
    """Return the number and the file of the newest state; None if there is none."""
    return max(_numbered(folder), default=None)


def write(folder: str, number: int, write_to: Callable[[BinaryIO], object]) -> None:
    """Write a state atomically, and remove all but the last two states.

    Raises:
        OSError: it cannot be written; the earlier states stay.
    """
    path = pathlib.Path(folder, f"state-{number:010}.pt")
    part = pathlib.Path(f"{path}.{os.getpid()}.part")
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as stream:
            write_to(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    for _, old in sorted(_numbered(folder))[:-_KEPT]:
        _remove(old)
    _remove_parts(folder)


def clear(folder: str) -> None:
    """Remove all states, after the job has succeeded."""
    for _, path in _numbered(folder):
        _remove(path)
    _remove_parts(folder)


def _numbered(folder: str) -> list[tuple[int, pathlib.Path]]:
    matches = ((_NAME.fullmatch(name), name) for name in os.listdir(folder))
    return [(int(match[1]), pathlib.Path(folder, name)) for match, name in matches if match]


def _remove_parts(folder: str) -> None:
    """Remove files of ranks that were killed while writing; only one rank writes at a time."""
    for name in os.listdir(folder):
        if _PART.fullmatch(name):
            _remove(pathlib.Path(folder, name))


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _error(folder: str, found: str) -> UsageError:
    return UsageError(f"--elastic-dir {folder}", found, "Name a folder of your own")
