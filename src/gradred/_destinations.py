"""Files that knobs name, to be written when the program ends: that they can be is seen before."""

from __future__ import annotations

import errno
import functools
import os

from gradred import _core, config
from gradred.errors import UsageError, explain


def require(knob: str, path: str) -> str:
    """Make the folder of a file that this rank is to write at the end.

    Args:
        knob: that names the file, for the message.
        path: as the user wrote it, with or without a place for the rank's number.

    Returns:
        The path from the root: by the end the program may work in another folder.

    Raises:
        UsageError: the folder cannot be made, or takes no files.
    """
    from mpi4py import MPI  # loaded by whoever is a rank

    whole, rank = _from_root(path), 0
    if "{rank}" in os.path.dirname(path):
        if not MPI.Is_initialized() or MPI.Is_finalized():
            return whole  # asked again by the first communicator
        rank = MPI.COMM_WORLD.Get_rank()
    _make(knob, path, _core.path_of_rank(whole, rank))
    return whole


@functools.cache
def _from_root(path: str) -> str:
    """Seen from the folder in which it was first asked for."""
    return os.path.abspath(path)


@functools.cache
def _make(knob: str, path: str, target: str) -> None:
    folder = os.path.dirname(target)
    try:
        os.makedirs(folder, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        found = f"{error.filename or target} cannot be written ({error.strerror})"
        remedy = "Name a file in a folder that exists or can be made"
        raise UsageError(explain(f"{config.variable(knob)}={path}", found, remedy)) from None
