"""What the operations raise, by Horovod's names."""

from __future__ import annotations

import os

from gradred.errors import Error, TimeoutError, UsageError  # noqa: A004

_LIMIT, _OWN_LIMIT = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "GRADRED_TIMEOUT"


class HorovodInternalError(RuntimeError):
    """An operation ended badly: ranks differ, a rank is gone, or all has been shut down."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """Hosts have come or gone; the state is as it was."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework is not of the version for which Horovod was built; never raised here."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """What that error says."""
    return f"{name} is {installed_version}, and this was built for {version}"


def internal_error(error: Error) -> HorovodInternalError:
    """What a user of Horovod gets for gradred's own error, which stays the cause."""
    text = str(error)
    if (
        isinstance(error, TimeoutError)
        and os.environ.get(_LIMIT)
        and not os.environ.get(_OWN_LIMIT)
    ):
        text = text.replace(f"{_OWN_LIMIT} sets", f"{_LIMIT} sets")
    return HorovodInternalError(text)


def told_when_starting(error: BaseException) -> BaseException:
    """What who starts an operation gets: wrong arguments are told as they are, as Horovod does."""
    return error if isinstance(error, UsageError) else told_when_waiting(error)


def told_when_waiting(error: BaseException) -> BaseException:
    """What who waits for an operation gets in the place of an error of gradred's."""
    return internal_error(error) if isinstance(error, Error) else error


NOT_INITIALISED = "gradred.torch has not been initialized; call init() first"
