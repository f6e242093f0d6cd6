"""Open files that a user names for writing, without blocking on other objects at the path."""

from __future__ import annotations

import errno
import os

_NOBODY_READS = "it is a pipe that nobody reads, or a socket"


def create(path: str | os.PathLike[str], *, append: bool = False, new: bool = False) -> int:
    """Open a file for writing, and create it if it does not exist. Never blocks.

    Opening a pipe would block until another process reads it, and anyone may put a pipe into a
    folder that others can write. A pipe with a reader (`>(jq .)` in a shell) or a device is fine.

    Args:
        path: the path that the user named.
        append: keep the file's content.
        new: the path must not exist, not even as a link.

    Returns:
        A descriptor in blocking mode.

    Raises:
        OSError: with the path; also for a pipe without a reader.
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
