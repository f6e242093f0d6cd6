"""Connect the extension to this process as a rank, from its import to its exit."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 (its wait for threads at exit has to follow ours)
import contextlib
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping

from mpi4py import MPI

from gradred import _core
from gradred.errors import PeerLost, UsageError
from gradred.launch import wrong_launcher
from gradred.observe import hang_report, status

ExceptHook = Callable[
    [type[BaseException], BaseException, "types.TracebackType | None"],
    object,
]

_process = os.getpid()
_on_leaves: Callable[[], None]  # begin() sets it


def begin(
    comm_class: type[MPI.Intracomm],
    closer_looks: Mapping[str, Callable[..., object]],
    disagreement: Callable[[str, object], UsageError],
    on_leaves: Callable[[], None],
) -> None:
    """Install the extension's methods and the exit handling of this process; once, at import.

    Args:
        comm_class: the class that gets the extension's methods.
        closer_looks: functions by the names of these methods, for arguments that the methods' fast
            path does not take.
        disagreement: makes the error of a disagreement, of its text and this rank's arguments.
        on_leaves: called when the settings ask that sums do not depend on the number of ranks.
    """
    _require_gil()
    global _holds_finalize
    library = sys.modules["mpi4py.MPI"]
    _holds_finalize = _core.take_over_finalize(library.__file__ or "")
    sys.excepthook = _hear_of_uncaught(sys.excepthook)
    _core.install(
        library,
        comm_class,
        when_alone=wrong_launcher.refuse_wrong_launcher,
        closer_looks=dict(closer_looks),
        on_timeout=hang_report.report,
        disagreement=disagreement,
    )
    global _on_leaves
    _on_leaves = on_leaves
    configure()
    atexit.register(_leave)
    with contextlib.suppress(RuntimeError):  # raised if Python is ending already
        threading._register_atexit(_show_end_of_main_thread)  # type: ignore[attr-defined]


_holds_finalize = False


def _require_gil() -> None:
    """Refuse a Python without the GIL, on which the extension relies.

    A free-threaded Python turns it on when it imports an extension that does not declare otherwise,
    except where `PYTHON_GIL=0` or `-X gil=0` forbids that.
    """
    is_enabled = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
    if is_enabled is not None and not is_enabled():
        raise ImportError("gradred needs Python's GIL. Remove PYTHON_GIL=0 or -X gil=0")


def spare_workers() -> None:
    """Keep processes that this one starts from initialising MPI when they import mpi4py.

    The MPI would take a data loader's worker for this rank. A MPI4PY_RC_INITIALIZE that is set
    already is not changed.
    """
    os.environ.setdefault("MPI4PY_RC_INITIALIZE", "0")


def configure() -> None:
    """Read the settings; they apply to communicators that are first used from now on."""
    metrics_wanted, by_leaves = _core.begin_communicator()
    status.answer_with_stacks()
    if by_leaves:
        _on_leaves()
    if metrics_wanted:
        from gradred.observe import metrics  # here, as few programs need an HTTP server

        metrics.begin(metrics_wanted)


def shown() -> None:
    """Answer requests for stacks, now that other processes can see this rank."""
    status.answer_with_stacks()


def begin_mpi() -> None:
    """Initialise MPI for any thread; blocks until all ranks have come."""
    MPI.Init_thread(MPI.THREAD_MULTIPLE)


def finalize_at_exit() -> None:
    """Finalise MPI at exit, unless the program does so.

    mpi4py finalises only what it has initialised itself.
    """
    atexit.register(_end_mpi)


def _end_mpi() -> None:
    if os.getpid() != _process:
        return
    if "gradred.named" in sys.modules:  # its operations need MPI
        sys.modules["gradred.named"].close_all()
    _leave()
    if not MPI.Is_finalized():
        MPI.Finalize()


def _leave() -> None:
    """End gradred before mpi4py calls MPI_Finalize; a forked child has nothing to end."""
    if os.getpid() != _process:
        return
    if "gradred.observe.metrics" in sys.modules:
        sys.modules["gradred.observe.metrics"].end()
    try:
        _core.end_program()
    finally:
        if _core.poisoned() and not _holds_finalize:
            print("gradred: no way was found around MPI_Finalize, which may hang", file=sys.stderr)


def _hear_of_uncaught(previous: ExceptHook) -> ExceptHook:
    """Make an excepthook that reports the error to the peers and then calls `previous`."""

    def hook(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        if not hasattr(sys, "ps1"):  # an interactive program continues after an error
            lines = traceback.format_exception_only(kind, error)
            text = lines[-1] if isinstance(error, SyntaxError) else lines[0]
            _core.set_exit_reason(text.splitlines()[0], _reports_loss(error))
            if threading.current_thread() is threading.main_thread() and _others_go_on():
                with contextlib.suppress(RuntimeError):  # raised if Python is ending already
                    threading._register_atexit(_leave_before_threads)  # type: ignore[attr-defined]
        previous(kind, error, trace)

    return hook


def _others_go_on() -> bool:
    """Return whether threads keep this rank running after its main thread has ended."""
    main = threading.main_thread()
    return os.getpid() == _process and any(
        not one.daemon and one is not main for one in threading.enumerate()
    )


def _show_end_of_main_thread() -> None:
    """Let hang reports say that the main thread has ended, while Python waits for other threads."""
    if _others_go_on():
        _core.post_end_of_main_thread()


def _leave_before_threads() -> None:
    """End this rank's part before Python waits for threads, those of executors included.

    Otherwise peers would wait for operations that the main thread of this rank would have begun.
    """
    if _others_go_on():
        _core.leave_before_threads()


def _reports_loss(error: BaseException | None) -> bool:
    """Return whether another rank's end has caused the error. PyTorch's C++ keeps only the text."""
    seen: set[int] = set()  # a chain of errors may contain a cycle
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        try:
            if isinstance(error, PeerLost) or "PeerLost: " in str(error):
                return True
        except Exception:  # __str__ of a program's own class may raise
            return False
        error = error.__cause__ or error.__context__
    return False
