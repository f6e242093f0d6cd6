"""What `gradred doctor` looks at: one small function per line, side by side, each with a deadline.

A check returns a `Finding`. It may raise `NotKnown`, where another check already tells what is
wrong; anything else it raises is shown as its failure.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone

from gradred import hosts, launch
from gradred.doctor import host, job
from gradred.doctor.fabric import fabric
from gradred.doctor.findings import Finding, NotKnown, fail, in_background, ok, warn
from gradred.errors import UsageError

# Seconds from the start. The job has to leave the checks that read its reports a moment.
JOB_SECONDS = 4.2
_FROM_JOB = 4.7
_SSH = 4.5
MOST_HOSTS = 16
"""Hosts of an allocation that ssh is tried to: one screen, and no flood of connections."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """What several checks look at; waiting for it is waiting for whoever finds it out."""

    mpi: Future[launch.Mpi]
    job: Future[job.Job]


@dataclasses.dataclass(frozen=True)
class Check:
    """A line of the doctor's report."""

    name: str
    look: Callable[[Scene], Finding]
    seconds: float
    """The deadline, from the doctor's start."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a check has found, and when."""

    name: str
    finding: Finding
    seconds: float


CHECKS = (
    Check("mpi", lambda scene: host.mpi(_mpi(scene)), 3.0),
    Check("job", lambda scene: job.run_of_two_ranks(_job(scene)), _FROM_JOB),
    Check("binding", lambda scene: job.binding(_job(scene)), _FROM_JOB),
    Check("threads", lambda scene: job.threads(_job(scene)), _FROM_JOB),
    Check("flag", lambda scene: job.flag_time(_job(scene)), _FROM_JOB),
    Check("fabric", lambda scene: fabric(_job(scene).output), _FROM_JOB),
    Check("cgroup", lambda scene: host.cgroup(), 1.0),
    Check("shm", lambda scene: host.shm(), 1.0),
    Check("memfd", lambda scene: host.memfd(), 1.0),
    Check("pages", lambda scene: host.huge_pages(), 1.0),
    Check("gpu", lambda scene: host.gpu(), 4.5),
)


def examine(named: Sequence[str] = (), checks: Sequence[Check] = CHECKS) -> list[Result]:
    """Look at everything side by side; at most about five seconds.

    Args:
        named: hosts that ssh should reach: a further check for each. Without any, those that a
            batch system has granted, which `gradred run` would take.
        checks: the table of checks.
    """
    begin = time.monotonic()
    runner = job.Runner()
    mpi = in_background(launch.find_mpi)
    started = in_background(_start, runner, mpi, begin + JOB_SECONDS)
    scene = Scene(mpi, started)
    try:
        looking = [
            (check, in_background(functools.partial(_look, check, scene, begin)))
            for check in [*checks, *_ways(named)]
        ]
        return [_answer(check, future, begin) for check, future in looking]
    finally:
        runner.close()
        with contextlib.suppress(Exception):  # the checks have told what became of it
            started.result(timeout=0.3)  # its folder is gone then


def worst(results: Sequence[Result]) -> str:
    """The status of the whole: `ok`, `warn` or `fail`."""
    found = {result.finding.status for result in results}
    return next(status for status in ("fail", "warn", "ok") if status in found)


def _start(runner: job.Runner, mpi: Future[launch.Mpi], until: float) -> job.Job:
    return runner.run(mpi.result(), until)


def _look(check: Check, scene: Scene, begin: float) -> Result:
    try:
        finding = check.look(scene)
    except NotKnown as reason:
        finding = warn(f"not known: {reason}", reason.fix)
    except UsageError as error:
        found, _, remedy = str(error).removesuffix(".").rpartition(". ")
        finding = fail(found, remedy)
    except Exception as error:  # a broken check must not hide what the others found
        finding = fail(f"the check itself failed: {error!r}", "Report this as a bug")
    return Result(check.name, finding, time.monotonic() - begin)


def _answer(check: Check, future: Future[Result], begin: float) -> Result:
    try:
        return future.result(timeout=max(0.0, begin + check.seconds - time.monotonic()))
    except NotDone:
        found = f"no answer within {check.seconds:g} s"
        finding = fail(found, "Try again when the host is less busy")
        return Result(check.name, finding, time.monotonic() - begin)


def _ways(named: Sequence[str]) -> list[Check]:
    """The checks of the ways to other hosts."""
    if named:
        return [_way(name, host.ssh) for name in named]
    try:
        granted = hosts.allocation(os.environ)
    except UsageError:
        return [Check("hosts", _granted, _SSH)]  # which tells
    if granted is None:
        return []
    ssh = functools.partial(host.ssh, granted=True)
    others = [one.name for one in granted.hosts if not hosts.is_this(one.name)]
    ways = [_way(name, ssh) for name in others[:MOST_HOSTS]]
    return [Check("hosts", _granted, _SSH), *ways]


def _way(name: str, ssh: Callable[[str], Finding]) -> Check:
    return Check(f"ssh {name}", lambda _: ssh(name), _SSH)


def _granted(_: Scene) -> Finding:
    """What the batch system has granted to this process."""
    granted = hosts.allocation(os.environ)
    assert granted is not None
    count = len(granted.hosts)
    found = f"{granted.source}: {count} host{'s' if count > 1 else ''}, {granted.slots} slots"
    if count > MOST_HOSTS:
        found += f"; ssh is tried to no more than {MOST_HOSTS} of them (--hosts names others)"
    return ok(found)


def _mpi(scene: Scene) -> launch.Mpi:
    return scene.mpi.result()


def _job(scene: Scene) -> job.Job:
    try:
        scene.mpi.result()
    except UsageError:
        raise NotKnown("there is no MPI to start ranks with (see the line mpi)") from None
    return scene.job.result()
