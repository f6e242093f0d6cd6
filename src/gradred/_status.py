"""Where the ranks of this user's jobs are: each shows it, `gradred ps` and `_autopsy` read it.

A rank holds two memory files without a name in the file system, so nothing is left when it ends:
one says who it is and, kept up by the extension, which operation it began last and what it waits
for; into the other Python's faulthandler writes the stacks of all threads when a signal asks for
them. Readers find both through /proc, where only the same user may look.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import re
import signal
import struct
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from gradred import _core
from gradred._ranges import ranges, ranks_text

RANK, _STACK = "gradred-rank", "gradred-stack"
_ABOUT_BYTES = 4096  # JSON, before the extension's page
_PAGE = struct.Struct("QQQQ2016s")  # the beginning of csrc/base/status.h's StatusPage
_PAGE_BYTES = 4096
_MOST_OF_STACKS = 1 << 20  # bytes
_OVER_MESSAGES = 1 << 63  # LastBegun::kOverMessages
_SIGNAL = signal.SIGRTMIN + 9
# Of processes above the ranks: on mpiexec's host, and on the others.
_LAUNCHERS = (
    *("mpiexec", "mpirun", "prterun", "prun", "srun", "orterun"),
    *("hydra_pmi_proxy", "prted", "orted", "slurmstepd"),
)

_kept: list[int] = []  # descriptors, for as long as the process lives


def show() -> None:
    """Let other processes of this user see this rank, once MPI is initialised. Local."""
    if _kept or not hasattr(os, "memfd_create"):
        return
    from mpi4py import MPI

    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    world = MPI.COMM_WORLD
    try:
        # By its name, which is shown without opening it, others know the process behind a number.
        page = os.memfd_create(f"{RANK}-{os.urandom(8).hex()}")
        stack = os.memfd_create(_STACK)
    except OSError:  # no descriptors or no memory left: the program has other worries
        return
    os.ftruncate(page, _ABOUT_BYTES + _PAGE_BYTES)
    about = {
        "pid": os.getpid(),
        "rank": world.Get_rank(),
        "size": world.Get_size(),
        "spawned": MPI.Comm.Get_parent() != MPI.COMM_NULL,
        "stacks": _answer_with_stacks(stack),
    }
    os.pwrite(page, json.dumps(about).encode(), 0)
    _kept.extend([page, stack])
    _core.use_status_file(page)


def about() -> dict[str, Any] | None:
    """What this process shows of itself; None: nothing."""
    if not _kept:
        return None
    text = os.pread(_kept[0], _ABOUT_BYTES, 0)
    values: dict[str, Any] = json.loads(text.rstrip(b"\0"))
    return values if values["pid"] == os.getpid() else None


def _answer_with_stacks(stack: int) -> bool:
    """Whether the signal is ours to use: a program may have given it a meaning."""
    if signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return False
    _core.ignore_signal(_SIGNAL)  # what remains once Python has ended, in MPI_Finalize
    faulthandler.register(_SIGNAL, file=stack, all_threads=True)
    return True


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank as it shows itself."""

    job: int
    """Process number of the launcher; 0 where there is none."""
    rank: int
    size: int
    pid: int
    waits_s: float | None
    """For how long it has waited in gradred; None: it does not."""
    waits_for: str
    last: str
    """The operation that it has begun last, in words; empty: it waits in one, or has begun none."""
    operation: int | None
    """The number of the operation it waits in, else of the last; None: it has begun none."""
    call: str
    """Its name; empty for one whose arguments this rank has refused."""
    bytes: int | None
    """None where only the MPI knows them."""
    missing: list[int]
    """The ranks of the communicator that it waits for, as far as they are known."""
    stack: list[str]


# What the extension's text says: NodeGroup::missing, Communicator::scheduled_text and
# describe_with_bytes, in csrc. The set-up and a shrink have no number.
_OPERATION = re.compile(
    r"\boperation (\d+)(?: over messages)? \((?:(\w+) of [^()]*?(?:, (\d+) bytes)?\))?"
)
_MISSING = re.compile(r"(?:missing|not heard of|unfinished): (.*)")
_WAITED = re.compile(r"\bwaited ([\d.]+) s\b")
_THREAD = re.compile(r"hread 0x[0-9a-f]+")
_RANK_NUMBER = re.compile(r"(?<!COMM_WORLD )rank (\d+)")  # of the communicator


def last_begun(operation: int, what: int) -> str:
    """The text of csrc/base/status.h's LastBegun; empty: no operation so far."""
    if operation == 0:
        return ""
    number = (operation & ~_OVER_MESSAGES) - 1
    way = " over messages" if operation & _OVER_MESSAGES else ""
    return f"operation {number}{way} ({_core.describe_call(what)})"


def parts(waits_for: str, last: str) -> dict[str, Any]:
    """What a rank is or was in and waits for, in fields of `Rank`."""
    inside = _OPERATION.search(waits_for)
    found = inside or _OPERATION.search(last)
    absent = _MISSING.search(waits_for)
    return {
        "last": "" if inside else last,
        "operation": int(found[1]) if found else None,
        "call": (found[2] or "") if found else "",
        "bytes": int(found[3]) if found and found[3] else None,
        "missing": [int(one) for one in _RANK_NUMBER.findall(absent[1])] if absent else [],
    }


def ranks(*, stacks: bool = True, of: int | None = None) -> list[Rank]:
    """All ranks of this user on this host, by job and rank.

    Args:
        stacks: ask each for the Python stacks of its threads; blocks for up to 0.2 s.
        of: of the job of this launcher alone; 0: those that have none.
    """
    found = [one for one in shown() if of is None or launcher_of(one[0]["pid"]) == of]
    asked = {
        about["pid"]: _ask_for_stacks(about["pid"], files[_STACK])
        for about, files in found
        if stacks and about["stacks"] and _STACK in files
    }
    deadline = time.monotonic() + 0.2
    result = [_read(about, files, asked.get(about["pid"]), deadline) for about, files in found]
    return sorted(result, key=lambda rank: (rank.job, rank.rank))


def shown() -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """What each process says of itself, and its files by name."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        files: dict[str, str] = {}
        with contextlib.suppress(OSError):  # another user's, or it has ended
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(entry.path)
                    for name in (RANK, _STACK):
                        if target.startswith(f"/memfd:{name}"):
                            files[name] = entry.path
            if RANK in files:
                about = _parsed(_part(files[RANK], 0, _ABOUT_BYTES))
                if about.get("pid") == int(process):  # forked children hold the files, too
                    yield about, files


def _part(path: str, begin: int, count: int) -> bytes:
    """Bytes of a process's file; OSError if its number means something else by now, as a pipe."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        return os.pread(file, count, begin)
    finally:
        os.close(file)


def _parsed(text: bytes) -> dict[str, Any]:
    """What a process says of itself; nothing if this is another file by now."""
    try:
        found = json.loads(text.rstrip(b"\0") or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ask_for_stacks(pid: int, file: str) -> int | None:
    """Returns where the answer will begin; None: the process has ended meanwhile."""
    try:
        end = os.stat(file).st_size
        os.kill(pid, _SIGNAL)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return end


def _read(about: dict[str, Any], files: dict[str, str], begin: int | None, deadline: float) -> Rank:
    waits_s, waits_for, last, stack = None, "", "", []
    with contextlib.suppress(OSError, struct.error):  # it has ended meanwhile
        page = _part(files[RANK], _ABOUT_BYTES, _PAGE.size)
        operation, what, sequence, since_ns, text = _PAGE.unpack(page)
        last = last_begun(operation, what)
        if since_ns and sequence % 2 == 0:
            waits_s = (time.monotonic_ns() - since_ns) * 1e-9
            waits_for = text.split(b"\0")[0].decode(errors="replace")
        if begin is not None:
            stack = _answer(files[_STACK], begin, deadline)
    return Rank(
        job=launcher_of(about["pid"]),
        rank=about["rank"],
        size=about["size"],
        pid=about["pid"],
        waits_s=waits_s,
        waits_for=waits_for,
        stack=stack,
        **parts(waits_for, last),
    )


def _answer(file: str, begin: int, deadline: float) -> list[str]:
    """The lines that a rank has written since; a stopped process writes none."""
    while True:
        text = _part(file, begin, _MOST_OF_STACKS).decode(errors="replace")
        if "\n" in text or time.monotonic() > deadline:
            time.sleep(0.005)  # it may still be writing
            text = _part(file, begin, _MOST_OF_STACKS).decode(errors="replace")
            return text.strip().splitlines()
        time.sleep(0.01)


def stat_of(pid: int) -> str:
    """What the system says of a process in a line."""
    with open(f"/proc/{pid}/stat", errors="surrogateescape") as file:
        return file.read()


def launcher_of(pid: int, *, nearest: bool = False) -> int:
    """The outermost launcher above a process, or the nearest; 0: none."""
    found = 0
    while pid > 1:
        try:
            stat = stat_of(pid)
        except OSError:
            break
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        if name.startswith(_LAUNCHERS):
            found = pid
            if nearest:
                break
        pid = int(stat[stat.rindex(")") + 1 :].split()[1])
    return found


def _is_ours(line: str) -> bool:
    """Whether a line of a stack is of who looks at the ranks, and no news to anybody."""
    return "gradred/_status.py" in line or "gradred/_autopsy.py" in line


def lines(found: list[Rank]) -> list[str]:
    """The ranks as text, a job after the other; ranks with equal stacks share them."""
    result: list[str] = []
    for job in dict.fromkeys(rank.job for rank in found):
        members = [rank for rank in found if rank.job == job]
        if job == 0:  # each may be a program of its own
            result.append("no launcher")
        else:
            result.append(f"job {job}: {len(members)} of {members[0].size} ranks on this host")
        if job and (unseen := set(range(members[0].size)) - {rank.rank for rank in members}):
            told = "elsewhere, or has made no gradred.Comm yet"
            result.append(f"  {ranks_text(unseen)}: {told}")
        for alike in _grouped(members, _nameless_stack):
            for same in _grouped(alike, _doing):
                result.append(f"  {_named(same)}: {_doing_of_all(same)}")
            stack = alike[0].stack if len(alike) == 1 else _nameless_stack(alike[0])
            result += [f"      {line.strip()}" for line in stack if not _is_ours(line)]
    return result


def _grouped(members: list[Rank], key: Callable[[Rank], Hashable]) -> list[list[Rank]]:
    """The ranks that are alike together, in the order of the first of each group."""
    groups: dict[Hashable, list[Rank]] = {}
    for rank in members:
        groups.setdefault(key(rank), []).append(rank)
    return list(groups.values())


def _named(same: list[Rank]) -> str:
    word = "process" if len(same) == 1 else "processes"
    return f"{ranks_text(one.rank for one in same)} ({word} {ranges(one.pid for one in same)})"


def _nameless_stack(rank: Rank) -> tuple[str, ...]:
    """The stacks without the numbers of threads, which differ where all else is the same."""
    return tuple(_THREAD.sub("hread", line) for line in rank.stack)


def _doing(rank: Rank) -> str:
    """What a rank does, without what differs between ranks that do the same."""
    return _WAITED.sub("waited", _told(rank))


def _doing_of_all(same: list[Rank]) -> str:
    """What ranks do that do the same, with the range of their times."""
    waited = [float(found[1]) for rank in same if (found := _WAITED.search(_told(rank)))]
    text = _told(same[0])
    if not waited or min(waited) == max(waited):
        return text
    return _WAITED.sub(f"waited {min(waited):g}-{max(waited):g} s", text, count=1)


def _told(rank: Rank) -> str:
    doing = "not waiting in gradred" if rank.waits_s is None else rank.waits_for
    return doing + (f"; last {rank.last}" if rank.last else "")
