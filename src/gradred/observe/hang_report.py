"""The hang report: a file with the status of all ranks of this job on this host at a timeout."""

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

_SAME_S = 1.0  # ranks whose timeouts are at most so many seconds apart share a section
_KEPT = 10  # files that stay: those of this user's last jobs with a report

_reported: dict[int, str | None] = {}  # the file of each failure that this process has reported
_last_seen_ns = 0  # when the last section that contains this process was written


def report(reason: str, met: bool, failure: int) -> str | None:
    """Write the report and return its path; None if it cannot be written.

    Args:
        reason: the error's text.
        met: whether this rank's own timeout has passed. Otherwise it learns of another rank's,
            perhaps again in each further call; then the path is returned immediately.
        failure: the failure's number, the same in all errors about it.
    """
    if not met and failure in _reported:
        return _reported[failure]
    try:
        path = _write(reason, met)
    except Exception as error:  # the caller has to report the timeout, not this error
        print(f"gradred: no report of the ranks could be written: {error}", file=sys.stderr)
        path = None
    _reported[failure] = path
    return path


def _write(reason: str, met: bool) -> str:
    """Write the status of all ranks of this job on this host to the job's file; return its path.

    The first rank at a timeout writes a section. The others wait for it, for a second at most, so
    that the section shows them waiting. A job's first report removes the oldest files.
    """
    global _last_seen_ns
    job = _core.launcher_of(os.getpid())
    folder = os.environ.get("TMPDIR") or "/tmp"
    path = os.path.join(folder, _name(job))
    came = time.time()
    # Anyone may write to the folder and guess the name, so opening must not block on a pipe.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ELOOP):  # for a pipe, for a link
            raise
        raise PermissionError(f"{path} is not a regular file; remove it") from None
    with os.fdopen(file, "a") as out:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise PermissionError(f"{path} is not a regular file; remove it")
        if found.st_uid != os.getuid():
            raise PermissionError(f"{path} is another user's")
        if not _lock(file):  # the writing process is stopped
            return path
        now = os.fstat(file)
        another = met and now.st_mtime_ns == _last_seen_ns  # the last section has this process
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
    """Return the job's file name; ranks without a launcher (0) use their parent process."""
    first = job or os.getppid()
    if first <= 1 or proc.stat(first) is None:  # init, or a process that is not visible
        first = os.getpid()
    born = proc.read_stat(first).started  # distinguishes it from an earlier process of this number
    return f"gradred-{os.getuid()}-job-{first}-{born}.txt"


def _remove_oldest(folder: str, new: str) -> None:
    """Remove this user's oldest reports, except `new` and those of jobs that still run."""
    ours = re.compile(rf"gradred-{os.getuid()}-job-(\d+)-(\d+)\.txt")
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError):  # this user may not read the folder
        for entry in os.scandir(folder):
            job = ours.fullmatch(entry.name)
            if job and not _goes_on(job) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):  # another job has removed the file
                    found.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.path))
    others = sorted((one for one in found if one[1] != new), reverse=True)
    for _, path in others[_KEPT - 1 :]:
        with contextlib.suppress(OSError):  # removed meanwhile, or another user's
            os.unlink(path)


def _goes_on(job: re.Match[str]) -> bool:
    """Return whether the process in a file's name still runs."""
    first = proc.stat(int(job[1]))
    return first is not None and first.started == int(job[2])


def _lock(file: int) -> bool:
    """Lock the file; False if another process holds the lock for longer than a second."""
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
