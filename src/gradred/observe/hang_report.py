"""The hang report: at a timeout, where all ranks of this job on this host are, in one file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import sys
import time

from gradred import _core
from gradred._util import clock
from gradred.launch import proc
from gradred.observe import status

_SAME_S = 1.0  # ranks that meet a timeout within so many seconds share a section of the report
_KEPT = 10  # files: of this user's last jobs that had a report

_reported: dict[int, str | None] = {}  # by this process: the file for each failure
_last_seen_ns = 0  # when the section was written that showed this process last


def report(reason: str, met: bool, failure: int) -> str | None:
    """The file of `_write`; None where there is none.

    Args:
        reason: the error's text.
        met: this rank's own time is over. Otherwise it hears of that, perhaps once more for each
            further call: then the path comes at once.
        failure: a number for it, the same in all errors that tell of it.
    """
    if not met and failure in _reported:
        return _reported[failure]
    try:
        path = _write(reason, met)
    except Exception as error:  # the time limit is the error to report
        print(f"gradred: no report of the ranks could be written: {error}", file=sys.stderr)
        path = None
    _reported[failure] = path
    return path


def _write(reason: str, met: bool) -> str:
    """Write where all ranks of this job on this host are to the job's file, and return its path.

    The file has a section for each timeout, by the first rank to meet it. The others wait for that,
    for a second at most: they are to be seen in it. A job's first report removes the oldest files.
    """
    global _last_seen_ns
    job = _core.launcher_of(os.getpid())
    folder = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(folder, _name(job))
    came = time.time()
    # The folder may be everybody's and the name is no secret: a pipe there must not make us wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP):  # of a pipe, of a link
            raise
        raise PermissionError(f"{path} is no regular file; remove it") from None
    with os.fdopen(file, "a") as out:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is no regular file; remove it")
        if found.st_uid != os.getuid():
            raise PermissionError(f"{path} is another user's")
        if not _lock(file):  # the writer has been stopped
            return path
        now = os.fstat(file)
        another = met and now.st_mtime_ns == _last_seen_ns  # this process is in the last section
        if another or now.st_size == 0 or came > now.st_mtime + _SAME_S:
            title = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {reason}"
            shown = status.lines(status.ranks(of=job))
            print(*(["", ""] if now.st_size else []), title, "", *shown, sep="\n", file=out)
            out.flush()
            if now.st_size == 0:
                _remove_oldest(folder, path)
        _last_seen_ns = os.fstat(file).st_mtime_ns
    return path


def _name(job: int) -> str:
    """The job's file; ranks without a launcher (0) have that of the process that started them."""
    first = job or os.getppid()
    if first <= 1 or proc.stat(first) is None:  # init, or a process out of sight
        first = os.getpid()
    born = proc.read_stat(first).started  # tells it from an earlier job of this number
    return f"gradred-{os.getuid()}-job-{first}-{born}.txt"


def _remove_oldest(folder: str, new: str) -> None:
    """Keep the last reports of this user, the new one among them, and those of jobs that go on."""
    ours = re.compile(rf"gradred-{os.getuid()}-job-(\d+)-(\d+)\.txt")
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError):  # of a folder whose names this user may not read
        for entry in os.scandir(folder):
            job = ours.fullmatch(entry.name)
            if job and not _goes_on(job) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another job has removed it
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    others = sorted((one for one in found if one[1] != new), reverse=True)
    for _, path in others[_KEPT - 1 :]:
        with contextlib.suppress(OSError):  # the same, or it is another user's
            os.unlink(path)


def _goes_on(job: re.Match[str]) -> bool:
    """Whether the process that a file is named by lives."""
    first = proc.stat(int(job[1]))
    return first is not None and first.started == int(job[2])


def _lock(file: int) -> bool:
    """Whether the file is this process's own now; waits for a second at most."""
    deadline = clock.now() + 1
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.now() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True
