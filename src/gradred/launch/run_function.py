"""`gradred.run`: call a function on ranks started for it, from any Python process."""

from __future__ import annotations

import codecs
import collections
import json
import os
import pathlib
import pickle
import selectors
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gradred import config
from gradred._util import clock, cpu
from gradred.errors import Error, TimeoutError, UsageError, explain  # noqa: A004
from gradred.launch import output, processes, run_function_rank
from gradred.launch.job import Failure, Job, Order, Program
from gradred.launch.mpi import (
    Mpi,
    find_mpi,
    job_command,
    job_environment,
    meeting_place,
    refuse_inside_job,
    without_allocation,
)

R = TypeVar("R")

_LOOK_EVERY = 0.02  # seconds between looks into the job's folder
_FOR_OTHERS = 0.3  # seconds in which other ranks may report the same failure


def run(
    fn: Callable[..., R],
    args: Sequence[Any] = (),
    *,
    np: int = 4,
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[R]:
    """Call `fn(*args, **kwargs)` on `np` new ranks of this host and return their results.

    It works from a script, a notebook, a REPL or a test, with the MPI that mpi4py loads in this
    interpreter. The ranks' output appears in this process's `sys.stdout` and `sys.stderr`. The
    call blocks until all ranks have ended; Ctrl-C ends them.

    Args:
        fn: the function. It is sent by name if the ranks can import a module that has it.
            Otherwise (a lambda, a function of `__main__` or a notebook) it is sent by value, which
            needs cloudpickle.
        args: tuple of the positional arguments, the same for every rank; must be picklable, as
            `kwargs`.
        np: number of ranks; may exceed the number of cores.
        kwargs: keyword arguments.
        timeout: seconds for everything, including the start; None for no limit.

    Returns:
        The ranks' results, rank 0's first. They travel through files, so return only what the
        caller needs, not a whole model.

    Raises:
        UsageError: the caller is a rank, the function cannot be sent, or there is no MPI.
        TimeoutError: the ranks have not finished; the message says where each rank was.
        Error: a rank raised an exception, exited or was killed. The message holds the traceback of
            the first such rank. Its exception is the `__cause__` if it can be unpickled.

    Example:
        >>> import gradred, operator
        >>> gradred.run(operator.add, (1, 2), np=2)  # doctest: +SKIP
        [3, 3]
    """
    asked = f"gradred.run of {getattr(fn, '__name__', fn)} on {np} ranks"
    _check(asked, fn, args, np, timeout)
    deadline = None if timeout is None else clock.now() + timeout
    payload = _payload(asked, fn, args, dict(kwargs or {}))
    mpi = find_mpi()
    with tempfile.TemporaryDirectory(prefix="gradred-run-", ignore_cleanup_errors=True) as folder:
        job = _Job(asked, np, pathlib.Path(folder))
        try:
            job.start(mpi, payload, deadline)
            in_time = job.wait(deadline)
            deaths = job.deaths()  # read before `end`, which makes other ranks fail too
        finally:
            job.end()
        if timeout is not None and not in_time:
            raise TimeoutError(job.too_late(timeout))
        return job.results(deaths)


def _check(asked: str, fn: object, args: object, np: int, timeout: float | None) -> None:
    if not callable(fn):
        raise UsageError(asked, "it is not callable", "Pass a function")
    if not isinstance(args, Sequence) or isinstance(args, (str, bytes)):
        found = f"args has the type {type(args).__name__}"
        raise UsageError(asked, found, "Pass a tuple of all arguments, such as (100,)")
    if isinstance(np, bool) or not isinstance(np, int) or np < 1:
        raise UsageError(asked, "np is not a number of ranks", "Pass a whole number >= 1")
    if timeout is not None and not timeout > 0:
        raise UsageError(asked, f"timeout is {timeout}", "Pass seconds above 0, or None")
    config.load()
    refuse_inside_job(asked)
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is not None and mpi4py.Is_initialized() and not mpi4py.Is_finalized():
        world = mpi4py.COMM_WORLD
        if world.size > 1:
            found = f"this process is rank {world.rank} of {world.size}"
            raise UsageError(asked, found, "Call it from a process that is not a rank")


def _payload(asked: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> bytes:
    pickler = run_function_rank.pickler()
    remedy = "Define it in a module and pass picklable arguments"
    if pickler is pickle:
        remedy = "Install cloudpickle, which sends functions by value, or define it in a module"
        if getattr(fn, "__module__", None) == "__main__":
            raise UsageError(asked, "a function of __main__ cannot be found by the ranks", remedy)
    try:
        payload: bytes = pickler.dumps((fn, tuple(args), kwargs))
    except Exception as error:  # pickling runs code of the objects, which can raise anything
        raise UsageError(asked, f"it cannot be sent ({error})", remedy) from error
    return payload


class _Relay:
    """Copies one of the job's streams to this process's stream of the same name, line by line."""

    def __init__(self, name: str, last_lines: collections.deque[str]) -> None:
        self._name = name
        self._last_lines = last_lines
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.screen = output.Screen(self._write, lambda rank: b"", eager=True)

    def _write(self, data: bytes) -> None:
        text = self._decoder.decode(data)
        self._last_lines.extend(line for line in text.splitlines() if line.strip(" ="))
        stream = getattr(sys, self._name)  # not cached, since notebooks and tests replace it
        stream.write(text)
        stream.flush()


class _Job:
    """The ranks of one call: their launcher, their folder, and how they have ended."""

    def __init__(self, asked: str, ranks: int, folder: pathlib.Path) -> None:
        self._asked = asked
        self._ranks = ranks
        self._folder = folder
        self._last_lines: collections.deque[str] = collections.deque(maxlen=12)
        self._relays = {name: _Relay(name, self._last_lines) for name in ("stdout", "stderr")}
        self._selector = selectors.PollSelector()
        self._job: Job | None = None

    def start(self, mpi: Mpi, payload: bytes, deadline: float | None) -> None:
        call = run_function_rank.Call(payload, processes.tree(os.getpid())[0], deadline)
        (self._folder / "call.pickle").write_bytes(pickle.dumps(call))
        (self._folder / "sys.json").write_text(json.dumps([sys.path, sys.argv]))
        environment = job_environment(mpi)
        command = [sys.executable, "-c", run_function_rank.BOOTSTRAP, str(self._folder)]
        order = Order(
            launcher=job_command(mpi, [self._ranks]),
            programs=[Program(command, self._ranks)],
            environment=without_allocation(environment)[0],
            carried=environment,
            set=meeting_place(),
            cores=cpu.cores(),
        )
        self._job = Job(order, self._pass_on, self._selector)

    def wait(self, deadline: float | None) -> bool:
        """Pass output on until the job has ended or failed; False if the deadline came first.

        After a failure or the deadline the ranks have a moment to report the same.
        """
        assert self._job is not None
        stop_at: float | None = None
        in_time = True
        while not self._job.over and (stop_at is None or clock.now() < stop_at):
            self._job.turn(_LOOK_EVERY)
            for relay in self._relays.values():
                relay.screen.show_unfinished()
            now = clock.now()
            if stop_at is None and (self._job.failures or any(self._folder.glob("failure.*"))):
                stop_at = now + _FOR_OTHERS
            elif stop_at is None and deadline is not None and now >= deadline:
                stop_at, in_time = now + _FOR_OTHERS, False
        return in_time

    def end(self) -> None:
        """End all processes of the job that still run."""
        if self._job is not None:
            self._job.close()
        self._selector.close()
        for relay in self._relays.values():
            relay.screen.finish()

    def deaths(self) -> list[Failure]:
        """Return the ranks that failed by themselves, in the order of their failures."""
        return [] if self._job is None else list(self._job.failures)

    def results(self, deaths: Sequence[Failure]) -> list[Any]:
        """Return all ranks' results, or raise the error that came first."""
        raised = [pickle.loads(path.read_bytes()) for path in self._folder.glob("failure.*")]
        raised.sort(key=lambda failure: failure.at)
        if deaths:  # exceptions of other ranks are then consequences
            raise Error(self._death(deaths[0], [failure.rank for failure in raised]))
        if raised:
            raise Error(self._exception(raised)) from _unpickled(raised[0].exception)
        missing = [rank for rank in range(self._ranks) if not self._result(rank).exists()]
        if missing:
            raise Error(self._silence(missing))
        return [pickle.loads(self._result(rank).read_bytes()) for rank in range(self._ranks)]

    def too_late(self, timeout: float) -> str:
        """Return the message of a timeout, with the Python stack of each rank without a result."""
        busy = [rank for rank in range(self._ranks) if not self._result(rank).exists()]
        ranks = ", ".join(map(str, busy)) or "none, but their processes had not ended"
        found = f"not finished after {timeout:g} s (ranks: {ranks})"
        starting = "(not in Python yet: it was still starting)"
        stacks = "".join(
            f"\n\nRank {rank} was here:\n{self._stacks(rank) or starting}" for rank in busy
        )
        return explain(self._asked, found, "Raise timeout=, or see where they wait") + stacks

    def _pass_on(self, rank: int | None, stream: output.Stream, data: bytes) -> None:
        self._relays[stream].screen.feed(-1 if rank is None else rank, stream, data)

    def _result(self, rank: int) -> pathlib.Path:
        return self._folder / f"result.{rank}"

    def _stacks(self, rank: int) -> str:
        path = self._folder / f"stacks.{rank}"
        return path.read_text(errors="replace").strip() if path.exists() else ""

    def _death(self, death: Failure, others: Sequence[int]) -> str:
        found = f"rank {death.rank} {death.cause}"
        if others:
            found += f", whereupon ranks {', '.join(map(str, others))} raised"
        stacks = self._stacks(death.rank)
        crash = f"\n\nRank {death.rank} was here:\n{stacks}" if stacks else ""
        return explain(self._asked, found, "The other ranks were ended") + crash

    def _exception(self, raised: Sequence[run_function_rank.Failure]) -> str:
        first = raised[0]
        found = f"rank {first.rank} raised {first.headline}"
        remedy = "The other ranks were ended"
        if len(raised) > 1:
            remedy += "; also raised: " + ", ".join(
                f"rank {failure.rank} {failure.headline}" for failure in raised[1:]
            )
        return explain(self._asked, found, remedy) + f"\n\nOn rank {first.rank}:\n{first.traceback}"

    def _silence(self, missing: Sequence[int]) -> str:
        assert self._job is not None
        found = f"no result from ranks {', '.join(map(str, missing))}"
        remedy = f"mpiexec ended with status {self._job.mpiexec_status}; its last lines follow"
        return explain(self._asked, found, remedy) + "\n\n" + "\n".join(self._last_lines)


def _unpickled(exception: bytes | None) -> BaseException | None:
    """Return a rank's exception; None if this process cannot unpickle it."""
    if exception is None:
        return None
    try:
        error = pickle.loads(exception)
    except Exception:  # its class may need other arguments, or exist on the rank only
        return None
    return error if isinstance(error, BaseException) else None
