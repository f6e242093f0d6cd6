"""What the operations raise, by Horovod's names."""

from __future__ import annotations

from gradred.errors import Error


class HorovodInternalError(RuntimeError):
    """An operation ended badly: ranks differ, a rank is gone, or all has been shut down."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """Hosts have come or gone; the state is as it was."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


def internal_error(error: Error) -> HorovodInternalError:
    """What a user of Horovod gets for gradred's own error, which stays the cause."""
    return HorovodInternalError(str(error))


NOT_INITIALISED = "gradred.torch has not been initialized; call init() first"
