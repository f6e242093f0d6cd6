"""The status of the ranks of this user's jobs, for `gradred ps` and `hang_report`.

A rank has two memory files without a name in the file system, so they are freed when it ends. The
extension writes the first: the rank's number, the operation that it began last, and what it waits
for. Python's faulthandler writes the stacks of all threads into the second, when a signal requests
them. Readers find both files through /proc, where only the same user has access.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import re
import signal
import textwrap
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

from gradred import _core
from gradred._util import clock
from gradred._util.text import ranges, ranks_text

RANK, _STACK = "gradred-rank", "gradred-stack"
METRICS, SERVES = "gradred-metrics", "gradred-serves"  # the second, if it serves all ranks' metrics
_MOST_OF_STACKS = 1 << 20  # bytes
_MOST_OF_METRICS = 1 << 24
_SIGNAL = signal.SIGRTMIN + 9
_kept: list[int] = []  # descriptors that stay open as long as the process runs


def answer_with_stacks() -> None:
    """Answer requests for Python stacks from now on, if this rank has a status page. Local."""
    if _kept or not _core.shows_rank() or not hasattr(os, "memfd_create"):
        return
    if signal.getsignal(_SIGNAL) is not signal.SIG_DFL:  # the program uses this signal itself
        return
    try:
        stack = os.memfd_create(_STACK)
    except OSError:  # no descriptor or memory is left: report nothing, the program runs on
        return
    _kept.append(stack)
    _core.ignore_signal(_SIGNAL)  # the handling after Python has ended, in MPI_Finalize
    faulthandler.register(_SIGNAL, file=stack, all_threads=True)


@dataclasses.dataclass(frozen=True)
class Rank:
    """The status of one rank."""

    job: int
    """The process number of the launcher; 0 without a launcher."""
    rank: int
    size: int
    pid: int
    waits_s: float | None
    """Seconds that it has waited in gradred; None if it does not wait."""
    state: str
    """The kind of wait; empty if it does not wait."""
    waits_for: str
    """The wait in words, with the ranks that it waits for."""
    last: str
    """The operation that it began last, in words; empty if it waits in one or has begun none."""
    operation: int | None
    """The number of the operation that it waits in, else of the last; None if it has begun none."""
    call: str
    """The operation's name; empty if this rank has refused its arguments."""
    bytes: int | None
    """The operation's bytes; None if only the MPI knows them."""
    missing: list[int]
    """The ranks of the communicator that it waits for, as far as they are known."""
    stack: list[str]
    lost_wake_ups: int = 0
    """Sleeps that were not woken although their condition held: an error of gradred."""
    main_thread_ended: bool = False
    """Whether the program's main thread has ended, and other threads keep the process running."""


_THREAD = re.compile(r"hread 0x[0-9a-f]+")


def last_begun(page: bytes) -> str:
    """Describe the last operation on a status page; empty if there was none."""
    number, over_messages, what = _core.last_begun_in(page)
    if number is None:
        return ""
    way = " over messages" if over_messages else ""
    return f"operation {number}{way} ({_core.describe_call(what)})"


def parts(page: bytes) -> dict[str, Any]:
    """Return the fields of `Rank` about a rank's last operation and current wait."""
    operation, _, what = _core.last_begun_in(page)
    found: dict[str, Any] = {
        "waits_s": None,
        "state": "",
        "waits_for": "",
        "last": last_begun(page),
        "missing": [],
        "lost_wake_ups": _core.lost_wake_ups_in(page),
        "main_thread_ended": _core.main_thread_has_ended_in(page),
    }
    if wait := _core.wait_in(page):
        found["waits_s"] = (clock.now_ns() - wait["since_ns"]) * 1e-9
        found |= {field: wait[field] for field in ("state", "waits_for", "missing")}
        if wait["operation"] is not None:  # the rank may have begun another operation since
            operation, what, found["last"] = wait["operation"], wait["what"], ""
    call, count = ("", None) if operation is None else _core.name_and_bytes(what)
    return found | {"operation": operation, "call": call, "bytes": count}


def ranks(*, stacks: bool = True, of: int | None = None) -> list[Rank]:
    """Return all ranks of this user on this host, by job and rank.

    Args:
        stacks: request the Python stacks of all threads; blocks for up to 0.2 s.
        of: only the job of this launcher; 0 for ranks without a launcher.
    """
    found = [one for one in shown() if of is None or _core.launcher_of(one[0]["pid"]) == of]
    asked = {
        about["pid"]: _ask_for_stacks(about["pid"], files[_STACK])
        for about, files in found
        if stacks and _STACK in files
    }
    deadline = clock.now() + 0.2
    result = [_read(about, files, asked.get(about["pid"]), deadline) for about, files in found]
    return sorted(result, key=lambda rank: (rank.job, rank.rank))


def shown() -> Iterator[tuple[dict[str, int], dict[str, str]]]:
    """Yield each rank's numbers, and its files by name."""
    for pid, rank, size, file in _core.shown_ranks():
        files = {RANK: f"/proc/{pid}/fd/{file}"}
        with contextlib.suppress(OSError):  # the process has ended
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith(f"/memfd:{_STACK}"):
                        files[_STACK] = entry.path
        yield {"pid": pid, "rank": rank, "size": size}, files


def page_of_this_rank() -> bytes:
    """Return this rank's status page; zeros if it has none."""
    found = _own_page()
    return page_in(found) if found else bytes(_core.STATUS_PAGE[1])


_own: list[str] = []


def _own_page() -> str:
    if not _own:  # a search through all processes, made once
        own = [file for pid, _, _, file in _core.shown_ranks() if pid == os.getpid()]
        _own.extend(f"/proc/self/fd/{file}" for file in own[:1])
    return _own[0] if _own else ""


def published(name: str, of: int | None = None) -> list[bytes]:
    """Return the memory files of this name that the ranks of this job have on this host.

    A process without a launcher is a job of its own. With `of`, only those of this process.
    """
    own = os.getpid()
    job, found = _core.launcher_of(own), []
    for pid in {about["pid"] for about, _ in shown()} if of is None else {of}:
        if of is None and pid != own and (not job or _core.launcher_of(pid) != job):
            continue
        for path in _memory_files(pid, name):
            with contextlib.suppress(OSError):  # the rank has ended
                content = _part(path, 0, _MOST_OF_METRICS)
                if not content or content.endswith(b"\n"):  # else it is being written
                    found.append(content)
                    break
    return found


def _memory_files(pid: int, name: str) -> Iterator[str]:
    with contextlib.suppress(OSError):  # the process has ended
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith(f"/memfd:{name} "):
                    yield entry.path


def _part(path: str, begin: int, count: int) -> bytes:
    """Read bytes of a process's file; OSError if its number now belongs to a pipe or the like."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        return os.pread(file, count, begin)
    finally:
        os.close(file)


def _ask_for_stacks(pid: int, file: str) -> int | None:
    """Request stacks; returns the offset of the answer, or None if the process has ended."""
    try:
        end = os.stat(file).st_size
        os.kill(pid, _SIGNAL)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return end


def _read(about: dict[str, int], files: dict[str, str], begin: int | None, deadline: float) -> Rank:
    page, stack = bytes(_core.STATUS_PAGE[1]), []
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        page = page_in(files[RANK])
        if begin is not None:
            stack = _answer(files[_STACK], begin, deadline)
    return Rank(
        job=_core.launcher_of(about["pid"]),
        rank=about["rank"],
        size=about["size"],
        pid=about["pid"],
        stack=stack,
        **parts(page),
    )


def page_in(path: str) -> bytes:
    """Return the status page in a rank's file; OSError if the rank has ended."""
    begin, length = _core.STATUS_PAGE
    return _part(path, begin, length).ljust(length, b"\0")


def _answer(file: str, begin: int, deadline: float) -> list[str]:
    """Return the lines that a rank has written since; a stopped process writes none."""
    while True:
        text = _part(file, begin, _MOST_OF_STACKS).decode(errors="replace")
        if "\n" in text or clock.now() > deadline:
            time.sleep(0.005)  # the rank may still be writing
            text = _part(file, begin, _MOST_OF_STACKS).decode(errors="replace")
            return text.strip().splitlines()
        time.sleep(0.01)


def lines(found: list[Rank]) -> list[str]:
    """Return the ranks as text, job by job; ranks with equal stacks share them."""
    result: list[str] = []
    for job in dict.fromkeys(rank.job for rank in found):
        members = [rank for rank in found if rank.job == job]
        if job == 0:  # each rank may be a separate program
            result.append("no launcher")
        else:
            program = _program(members[0].pid)
            title = f"job {job}" + (f" ({program})" if program else "")
            result.append(f"{title}: {len(members)} of {members[0].size} ranks on this host")
        if job and (unseen := set(range(members[0].size)) - {rank.rank for rank in members}):
            where = "elsewhere, or has made no gradred.Comm yet"
            result.append(f"  {ranks_text(unseen)}: {where}")
        for alike in _grouped(members, _nameless_stack):
            for same in _grouped(alike, _doing):
                result.append(f"  {_named(same)}: {_doing_of_all(same)}")
            stack = alike[0].stack if len(alike) == 1 else _nameless_stack(alike[0])
            # Without the code that reads the ranks' status.
            result += [f"      {line.strip()}" for line in stack if "gradred/observe/" not in line]
    return result


def _program(pid: int, longest: int = 60) -> str:
    """Return a process's command, to tell jobs apart; empty if it has just ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    words = [Path(words[0]).name, *words[1:]]
    return textwrap.shorten(" ".join(words), longest, placeholder=" ...")


def _grouped(members: list[Rank], key: Callable[[Rank], Hashable]) -> list[list[Rank]]:
    """Group ranks with equal keys, in the order of the first rank of each group."""
    groups: dict[Hashable, list[Rank]] = {}
    for rank in members:
        groups.setdefault(key(rank), []).append(rank)
    return list(groups.values())


def _named(same: list[Rank]) -> str:
    word = "process" if len(same) == 1 else "processes"
    return f"{ranks_text(one.rank for one in same)} ({word} {ranges(one.pid for one in same)})"


def _nameless_stack(rank: Rank) -> tuple[str, ...]:
    """Return the stacks without thread numbers, which differ between otherwise equal stacks."""
    return tuple(_THREAD.sub("hread", line) for line in rank.stack)


def _doing(rank: Rank) -> tuple[bool, str, str, int, bool]:
    """Return what a rank does, without the duration."""
    doing = (rank.waits_s is not None, rank.waits_for, rank.last)
    return (*doing, rank.lost_wake_ups, rank.main_thread_ended)


def _doing_of_all(same: list[Rank]) -> str:
    """Describe ranks that do the same, with the range of their times."""
    times = [f"{rank.waits_s:.1f}" for rank in same if rank.waits_s is not None]
    doing = "not waiting in gradred"
    if times:
        low, high = min(times, key=float), max(times, key=float)
        have = "has" if len(same) == 1 else "have"
        seconds = low if low == high else f"{low}-{high}"
        doing = f"{have} waited {seconds} s in {same[0].waits_for}"
    if same[0].last:
        doing += f"; last {same[0].last}"
    if same[0].main_thread_ended:
        doing += "; its main thread has ended and other threads go on"
    lost = same[0].lost_wake_ups
    return doing + (f"; {lost} lost wake-ups: please report this" if lost else "")
