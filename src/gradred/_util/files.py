"""Files that a user names, opened for writing: what else lies at the path makes nobody wait."""

from __future__ import annotations

import errno
import os

_NOBODY_READS = "it is a pipe that nobody reads, or a socket"


def create(path: str | os.PathLike[str], *, append: bool = False, new: bool = False) -> int:
    """Open a file for writing, made if there is none; blocks for nobody.

    To open a pipe waits until somebody reads it, and anybody may put one into a folder that others
    can write. One that is read (`>(jq .)` in a shell) is fine, and so is a device.

    Args:
        path: as the user named it.
        append: keep what the file holds.
        new: there must be nothing at the path, not even a link.

    Returns:
        A descriptor, blocking as usual.

    Raises:
        OSError: with the path; also for a pipe that nobody reads.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    flags |= os.O_APPEND if append else os.O_TRUNC
    flags |= os.O_EXCL | os.O_NOFOLLOW if new else 0
    try:
        file = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, _NOBODY_READS, os.fspath(path)) from None
        raise
    os.set_blocking(file, True)
    return file
