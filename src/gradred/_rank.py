"""This process as a rank: what the extension must know of it, from its beginning to its end."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import types
from collections.abc import Callable

from mpi4py import MPI

from gradred import (
    _autopsy,  # noqa: F401 (at a timeout there may be no descriptor left to load it with)
    _core,
    _destinations,
    _figures,
    _inherit,
    _launched,
    _news,
    _profile,
    _status,
    _strangers,
    _voice,
    config,
)

ExceptHook = Callable[
    [type[BaseException], BaseException, "types.TracebackType | None"],
    object,
]

_process = os.getpid()


def begin(comm_class: type[MPI.Intracomm]) -> None:
    """Once, at import: give the class its methods and see to the end of this process."""
    global _holds_finalize
    library = sys.modules["mpi4py.MPI"]
    _holds_finalize = _core.take_over_finalize(library.__file__ or "")
    sys.excepthook = _hear_of_uncaught(sys.excepthook)
    _core.install(library, comm_class, _launched.refuse_wrong_launcher)
    _core.use_news_page(_news.address())
    _core.use_voice(*_voice.pipe())
    configure()
    atexit.register(_leave)
    os.register_at_fork(after_in_child=_core.forked)


_holds_finalize = False
_ends_badly = False  # by an exception that nobody has caught


def configure() -> None:
    """Read the knobs, which hold for communicators that are used for the first time from now on."""
    values = config.load()
    if values.plan is not None:
        from gradred import plans  # here, as it is seldom needed

        plans.require_known(values.plan)
    trace = "" if values.trace is None else _destinations.require("trace", values.trace)
    _core.configure(
        values.shm,
        values.plan or "",
        values.slices or 0,
        _inherit.ranks_on_host(os.environ),
        trace,
        "" if values.fault is None else str(values.fault),
        values.progress_thread,
        values.profile is not None,
        values.deterministic,
        values.tune,
        str(_figures.folder() or ""),
    )
    _profile.configure(values.profile)
    _core.limit_waits(values.warn_after, values.timeout or 0.0)
    _status.show()


def _leave() -> None:
    """At exit, before mpi4py's own MPI_Finalize; a forked child has nothing of ours to end."""
    if os.getpid() != _process:
        return
    _voice.tell_leaving(follows=_core.poisoned(), verdict=_core.first_failure())
    _core.stop()
    comes_to_finalize = MPI.Is_initialized() and not MPI.Is_finalized()
    if comes_to_finalize and not _core.poisoned() and not _ends_badly:
        _strangers.await_all()
    try:
        try:
            _core.write_trace()
        finally:
            _profile.report()
    finally:
        if _core.poisoned() and not _holds_finalize:
            print("gradred: no way was found around MPI_Finalize, which may hang", file=sys.stderr)


def _hear_of_uncaught(previous: ExceptHook) -> ExceptHook:
    """A hook that tells the peers what ends this program, and then does what `previous` does."""

    def hook(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        if not hasattr(sys, "ps1"):  # an interactive program goes on
            global _ends_badly
            _ends_badly = True
            lines = traceback.format_exception_only(kind, error)
            text = lines[-1] if isinstance(error, SyntaxError) else lines[0]
            _core.set_last_words(text.splitlines()[0])
        previous(kind, error, trace)

    return hook
