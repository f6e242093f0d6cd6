"""A job in the foreground of a shell: its signals, terminal, input and final messages."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import selectors
import signal
from collections.abc import Callable, Iterator

from gradred._util import clock
from gradred._util.text import ranks_text
from gradred.launch import exit_summary, output
from gradred.launch.job import TERM_TO_KILL, Job, Order
from gradred.launch.processes import signal_name

UNWRITABLE = 1  # the exit status if the ranks' output cannot be written
TIMED_OUT = 124  # the exit status of a job that took too long, as of timeout(1)

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_START_NOTICE = 30.0  # seconds before a message names the ranks that have not started
_CHECK_HOSTS = "`gradred doctor -H HOSTS` says whether ranks can start on those hosts, and why not"
_BACKGROUND = 0.5  # seconds between checks whether the terminal's input is for this job
_PIECE = 32768

_COLOURS = (36, 33, 32, 35, 34, 31)


@dataclasses.dataclass(frozen=True)
class Look:
    """How a job's output appears.

    Attributes:
        prefix: whether `[rank]` precedes each line; None: only if several ranks print to a
            terminal.
        folder: the folder for a file per rank; None for no files.
        timeout: seconds for the whole job; None for no limit.
        verbose: also show mpiexec's messages about failures that gradred explains better.
        goes_on: append to the files of `folder`, which an earlier start of the job has written.
    """

    prefix: bool | None = None
    folder: str | None = None
    timeout: float | None = None
    verbose: bool = False
    goes_on: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job has ended.

    Attributes:
        status: the status to exit with.
        stopped: whether a signal, the time limit, or unwritable output has stopped it.
        wants_again: whether a rank has requested a restart of the job.
    """

    status: int
    stopped: bool
    wants_again: bool


def run(order: Order, look: Look) -> int:
    """Run a job with this process's streams and signals; returns the status to exit with."""
    return carry_out(order, look).status


def carry_out(
    order: Order, look: Look, watch: Callable[[Job], object] = lambda job: None
) -> Outcome:
    """Do as `run`, and call `watch` with the job repeatedly, at least every 0.2 s."""
    with selectors.PollSelector() as selector:
        foreground = _Foreground(order, look, selector)
        try:
            return foreground.run(watch)
        finally:
            foreground.close()


def has_input() -> bool:
    """Return whether this process has a stdin other than /dev/null."""
    try:
        return os.fstat(0).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False


class _Foreground:
    def __init__(self, order: Order, look: Look, selector: selectors.BaseSelector) -> None:
        self._order = order
        self._look = look
        self._selector = selector
        self._began = clock.now()
        self._interrupted_by: int | None = None
        self._unwritable: output.Unwritable | None = None
        self._timed_out = self._noticed = False
        self._writers: dict[str, output.Writer] = {}
        self._screens: dict[str, output.Screen] = self._make_screens()
        files = look.folder and output.Files(look.folder, order.ranks, look.goes_on)
        self._files = files or None
        self._job = Job(order, self._show, selector, self._congested)
        _raise_file_limit()
        self._input = _Input(self._job.send_input, selector)
        self._job.on_ready = self._input.ask
        self._job.on_closed = self._input.stop

    def run(self, watch: Callable[[Job], object]) -> Outcome:
        with _signals(self._selector, self._handle):
            while not self._job.over:
                try:
                    self._job.turn()
                    self._look_at_clock()
                    watch(self._job)
                    for screen in set(self._screens.values()):
                        screen.show_unfinished()
                except output.Lost as error:
                    self._give_up(error)
        self._finish(self._say_last_words)
        if self._unwritable is not None:  # writing the last output may have failed only now
            self._finish(lambda: self._say(str(self._unwritable)))
        outside = self._interrupted_by is not None or self._unwritable is not None
        stopped = outside or self._timed_out
        return Outcome(self._status(), stopped, bool(self._job.want_again))

    def _finish(self, say: Callable[[], None]) -> None:
        """Print something, and block until all output is written."""
        for step in (say, *(writer.flush for writer in self._writers.values())):
            try:
                step()
            except output.Lost as error:
                self._give_up(error)

    def close(self) -> None:
        self._job.close()
        if self._files is not None:
            self._files.close()

    def _make_screens(self) -> dict[str, output.Screen]:
        """Make one screen per stream, or one for both if they are the same terminal or file."""
        stdout = self._make_screen(1, "stdout")
        stderr = stdout if _identity(1) == _identity(2) else self._make_screen(2, "stderr")
        return {"stdout": stdout, "stderr": stderr}

    def _make_screen(self, fd: int, stream: output.Stream) -> output.Screen:
        self._writers[stream] = output.Writer(fd, stream, self._selector)
        terminal = os.isatty(fd)
        label = _labels(self._look.prefix, self._order.ranks, terminal)
        return output.Screen(self._writers[stream].write, label, eager=terminal)

    def _show(self, rank: int | None, stream: output.Stream, data: bytes) -> None:
        if self._files is not None and rank is not None:
            try:
                self._files.feed(rank, data)
            except output.Unwritable as error:
                self._give_up(error)
        if stream in self._screens:
            self._screens[stream].feed(-1 if rank is None else rank, stream, data)

    def _congested(self) -> bool:
        """Return whether ranks must wait for a slow reader; reports on ranks are not delayed."""
        return any(writer.congested() for writer in self._writers.values())

    def _give_up(self, error: output.Lost) -> None:
        """End the job because its output cannot be written any more."""
        if isinstance(error, output.Unwritable):
            self._unwritable = self._unwritable or error
        elif isinstance(error, output.ReaderLeft) and not (
            self._interrupted_by or self._unwritable
        ):
            self._interrupted_by = signal.SIGHUP if error.was_terminal else signal.SIGPIPE
        self._lose_place(error)
        if not self._job.ending and not self._job.over:
            self._job.end(signal.SIGTERM, TERM_TO_KILL)

    def _lose_place(self, error: output.Lost) -> None:
        """Stop output to the lost place; output to other places continues."""
        if error.place in self._writers:
            self._writers[error.place].abandon()
            lost = self._screens[error.place]
            kept = {stream: one for stream, one in self._screens.items() if one is not lost}
            self._screens = kept
        elif self._files is not None:
            self._files.close()
            self._files = None

    def _handle(self, number: int) -> None:
        if number in _PASSED_ON:
            self._job.pass_on(number)
        elif number == signal.SIGTSTP:
            self._job.pass_on(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self._job.pass_on(signal.SIGCONT)
        elif number in _ENDING and self._interrupted_by is None:
            self._interrupted_by = number
            self._job.end(number, self._order.grace)
        elif number in _ENDING:  # a second signal ends the ranks without grace
            self._job.end(signal.SIGKILL, 0.0)

    def _look_at_clock(self) -> None:
        elapsed = clock.now() - self._began
        if self._look.timeout is not None and elapsed > self._look.timeout and not self._timed_out:
            self._timed_out = True
            self._job.end(signal.SIGTERM, TERM_TO_KILL)
        if elapsed > _START_NOTICE and not self._noticed:
            self._noticed = True
            if self._job.missing:
                late = ranks_text(self._job.missing)
                self._say(f"{late} not started after {_START_NOTICE:g} s; mpiexec is still trying")
                if self._order.remote:
                    self._say(_CHECK_HOSTS)
        self._input.look_again()

    @property
    def _left_in_order(self) -> bool:
        """Whether SIGTERM, by which batch systems end a job, was what the ranks are made for."""
        return self._interrupted_by == signal.SIGTERM and self._job.in_order

    def _status(self) -> int:
        if self._interrupted_by == signal.SIGPIPE and self._job.fatal:
            return self._job.status
        if self._left_in_order:
            return 0
        if self._interrupted_by is not None:
            return 128 + self._interrupted_by
        if self._unwritable is not None:
            return UNWRITABLE
        return TIMED_OUT if self._timed_out and not self._job.fatal else self._job.status

    def _say_last_words(self) -> None:
        """Show the rest of the output, and the errors; the first cause comes last."""
        job = self._job
        for screen in set(self._screens.values()):
            screen.finish()
        if self._look.verbose or not job.failures:
            for stream, data in job.withheld:
                self._show(None, stream, data)
        for line in self._last_words():
            self._say(line)

    def _last_words(self) -> list[str]:
        """Return the errors; the first cause comes last."""
        job, lines = self._job, []
        if job.left_hanging:
            lines.append("mpiexec did not end after its ranks, and was ended")
        if job.ended_spawned:
            lines.append(f"{job.ended_spawned} spawned by ranks still ran: ended")
        silent = exit_summary.silent_lines(job.silent, job.failures)
        lost_hosts = {failure.host for failure in job.fatal}.intersection(job.silent)
        others_failed_of_it = job.fatal and not lost_hosts and self._interrupted_by is None
        lines += [] if others_failed_of_it else silent
        reader_left = self._interrupted_by == signal.SIGPIPE
        if reader_left and not job.fatal:  # a reader that has left needs no message
            return lines
        if self._interrupted_by is not None and not reader_left:
            end = "; all ranks ended with status 0" if self._left_in_order else ""
            return [*lines, f"interrupted by {signal_name(self._interrupted_by)}{end}"]
        lines += exit_summary.survived_lines(job.survived)
        if job.fatal:
            late = job.ended_late
            if late:
                grace = f"{self._order.grace:g} s"
                lines.append(f"{ranks_text(late)} did not end within {grace}: ended")
        elif self._timed_out:
            lines.append(f"the job did not end within {self._look.timeout:g} s (--timeout): ended")
        elif job.status and self._unwritable is None:
            if job.missing:
                lines.append(f"{ranks_text(job.missing)} never started")
                lines += [_CHECK_HOSTS] if self._order.remote else []
            lines.append(f"mpiexec ended the job, with status {job.mpiexec_status}")
            if job.let_go and job.ended_by_mpiexec:
                waited = (
                    "ended with status 0 without MPI_Init or MPI_Finalize; others waited for it"
                )
                lines.append(f"{ranks_text(job.let_go)} {waited}")
        lines += exit_summary.failure_lines(job.fatal)
        return lines + (silent if others_failed_of_it else [])

    def _say(self, text: str) -> None:
        if "stderr" in self._screens:
            line = f"gradred run: {text}"
            self._screens["stderr"].say(f"\x1b[1m{line}\x1b[0m" if _coloured(2) else line)


class _Input:
    """Passes this process's stdin on; each piece follows after rank 0 has taken the last one."""

    def __init__(self, send: Callable[[bytes], None], selector: selectors.BaseSelector) -> None:
        self._send = send
        self._selector = selector
        self._asked = self._stopped = False
        self._look_at = float("inf")

    def ask(self) -> None:
        """Note that rank 0 is ready for more input."""
        if not self._asked and not self._stopped:
            self._asked = True
            self._selector.register(0, selectors.EVENT_READ, self._read)

    def stop(self) -> None:
        """Note that rank 0 takes no more input."""
        self._forget()
        self._stopped = True

    def look_again(self) -> None:
        """Check whether this job has come to the foreground of its terminal."""
        if clock.now() >= self._look_at:
            self._look_at = float("inf")
            self.ask()

    def _forget(self) -> None:
        if self._asked:
            self._asked = False
            self._selector.unregister(0)

    def _read(self, _: int) -> None:
        self._forget()
        if _is_for_another():
            self._look_at = clock.now() + _BACKGROUND
            return
        try:
            data = os.read(0, _PIECE)
        except OSError:  # the terminal was closed
            data = b""
        self._stopped = not data
        self._send(data)


def _is_for_another() -> bool:
    """Return whether the terminal's input is for another job of its shell."""
    try:
        return os.tcgetpgrp(0) != os.getpgrp()
    except OSError:  # no terminal, or a terminal without job control
        return False


@contextlib.contextmanager
def _signals(selector: selectors.BaseSelector, handle: Callable[[int], None]) -> Iterator[None]:
    """Handle signals between two turns of the loop; signals that are ignored (nohup) stay so."""
    reader, waker = os.pipe()
    for end in (reader, waker):
        os.set_blocking(end, False)
    wanted = [
        number
        for number in (*_ENDING, *_PASSED_ON, signal.SIGTSTP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, lambda *_: None) for number in wanted}
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
    waker_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def handle_all(_: int) -> None:
        for number in os.read(reader, 512):
            handle(number)

    selector.register(reader, selectors.EVENT_READ, handle_all)
    try:
        yield
    finally:
        signal.set_wakeup_fd(waker_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        selector.unregister(reader)
        os.close(reader)
        os.close(waker)


def _labels(prefix: bool | None, ranks: int, terminal: bool) -> Callable[[int], bytes]:
    """Return the prefix of each rank's lines; mpiexec's own, with the number -1, have none."""
    if not (ranks > 1 and terminal if prefix is None else prefix):
        return lambda rank: b""
    if not (terminal and output.colours_wanted()):
        return lambda rank: b"[%d] " % rank if rank >= 0 else b""

    def coloured(rank: int) -> bytes:
        colour = _COLOURS[rank % len(_COLOURS)]
        return b"\x1b[%dm[%d]\x1b[0m " % (colour, rank) if rank >= 0 else b""

    return coloured


def _coloured(fd: int) -> bool:
    return os.isatty(fd) and output.colours_wanted()


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _raise_file_limit() -> None:
    """Raise the limit for a connection, and perhaps a file, per rank; mpiexec got the old limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
