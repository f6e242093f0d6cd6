"""The exceptions that operations raise, under Horovod's names."""

from __future__ import annotations

import os

from gradred.errors import Error, TimeoutError, UsageError  # noqa: A004

_LIMIT, _OWN_LIMIT = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "GRADRED_TIMEOUT"


class HorovodInternalError(RuntimeError):
    """An operation failed: the ranks' calls differ, a rank has ended, or gradred was shut down."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 (Horovod's name)
    """Hosts were added or removed. The state of the training is unchanged."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than Horovod was built for. gradred never raises it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The message of HorovodVersionMismatchError."""
    return f"{name} is {installed_version}, and this was built for {version}"


def internal_error(error: Error) -> HorovodInternalError:
    """Convert gradred's error to HorovodInternalError. The original error stays the cause."""
    text = str(error)
    if (
        isinstance(error, TimeoutError)
        and os.environ.get(_LIMIT)
        and not os.environ.get(_OWN_LIMIT)
    ):
        text = text.replace(f"{_OWN_LIMIT} sets", f"{_LIMIT} sets")
    return HorovodInternalError(text)


def raised_when_starting(error: BaseException) -> BaseException:
    """The exception for a call that starts an operation.

    UsageError (wrong arguments) is raised unchanged, as in Horovod. Other errors of gradred become
    HorovodInternalError.
    """
    return error if isinstance(error, UsageError) else raised_when_waiting(error)


def raised_when_waiting(error: BaseException) -> BaseException:
    """The exception for a call that waits for an operation: HorovodInternalError for gradred's."""
    return internal_error(error) if isinstance(error, Error) else error


NOT_INITIALISED = "gradred has not been initialized; call init() first"
