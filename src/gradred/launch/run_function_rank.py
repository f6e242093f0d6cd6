"""One rank of `gradred.run`: calls the function and writes the outcome to a file.

The caller writes `sys.json` and `call.pickle` to the job's folder. Rank R writes `result.R` or
`failure.R`. It also writes its stacks to `stacks.R` when it crashes or the deadline passes.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib
import os
import pathlib
import pickle
import sys
import threading
import time
import traceback
from typing import IO, Any

from gradred._util import clock
from gradred.launch import processes
from gradred.launch.mpi import inside_job

# The start of a rank. It takes the caller's sys.path first, so that the same modules are found.
BOOTSTRAP = """
import json, sys
folder = sys.argv[1]
with open(folder + "/sys.json") as file:
    sys.path[:], sys.argv[:] = json.load(file)
from gradred.launch.run_function_rank import main
main(folder)
"""


@dataclasses.dataclass(frozen=True)
class Call:
    """The call that the ranks are to make."""

    payload: bytes  # (function, args, kwargs), pickled
    caller: processes.Process  # the ranks end when this process ends
    deadline: float | None  # of clock.now(), the same in all processes of a host


@dataclasses.dataclass(frozen=True)
class Failure:
    """A rank's exception, as text and, if it can be pickled, as the object itself."""

    rank: int
    at: int  # time in nanoseconds, by which the caller finds the first failure
    headline: str
    traceback: str
    exception: bytes | None


def pickler() -> Any:
    """Return cloudpickle, which sends functions by value, if it is installed; else pickle."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def write_atomically(path: pathlib.Path, content: bytes) -> None:
    """Write a file that readers see either whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    draft.replace(path)


def main(folder: str) -> None:
    """Run as a rank."""
    job = inside_job()
    if job is None:
        sys.exit(f"{__name__}: this is a part of gradred.run, not a program of its own")
    rank = job[0]
    home = pathlib.Path(folder)
    call: Call = pickle.loads((home / "call.pickle").read_bytes())
    _end_with(call.caller)
    stacks = (home / f"stacks.{rank}").open("w")
    faulthandler.enable(stacks)
    if call.deadline is not None:
        _show_stacks_at(call.deadline, stacks)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    try:
        function, args, kwargs = pickle.loads(call.payload)
        result = pickler().dumps(function(*args, **kwargs))
    except BaseException as error:  # sys.exit too: every rank has to report its outcome
        failure = _failure(rank, error)
        _flush()
        write_atomically(home / f"failure.{rank}", pickle.dumps(failure))
        # Leaving now would enter MPI_Finalize, which waits for ranks that wait for this one. The
        # caller ends the job when it sees the file.
        time.sleep(60)
        os._exit(1)
    faulthandler.cancel_dump_traceback_later()
    _flush()
    write_atomically(home / f"result.{rank}", result)


def _show_stacks_at(deadline: float, file: IO[str]) -> None:
    """Write the stacks of all threads at the deadline, even if a thread never releases the GIL."""
    if not clock.is_stepped():
        left = deadline - clock.now()
        faulthandler.dump_traceback_later(max(left, 0.001), file=file)
        return

    def watch() -> None:  # faulthandler's timer does not see steps of the clock
        while clock.now() < deadline:
            time.sleep(clock.nap(1.0))
        faulthandler.dump_traceback(file)

    threading.Thread(target=watch, name="gradred-deadline", daemon=True).start()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _failure(rank: int, error: BaseException) -> Failure:
    at = time.time_ns()
    # The first frame is that of main, which does not concern the user.
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames))
    headline = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        exception = pickler().dumps(error)
    except Exception:  # an exception may contain anything; its text is sent in any case
        exception = None
    return Failure(rank, at, headline, text, exception)


def _end_with(caller: processes.Process) -> None:
    """End this process soon after the caller's process has ended, for whatever reason."""

    def watch() -> None:
        while caller.alive():
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="gradred-caller", daemon=True).start()
