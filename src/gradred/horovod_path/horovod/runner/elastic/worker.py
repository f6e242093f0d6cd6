"""The changes of an elastic job's hosts."""

from enum import IntFlag


class HostUpdateResult(IntFlag):
    """Whether hosts were added or removed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added
