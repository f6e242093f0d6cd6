"""The checks of `gradred doctor`: one small function per line, run concurrently, with a deadline.

A check returns a `Finding`. It may raise `NotKnown` if another check already reports the problem.
Any other exception is shown as a failure of the check.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone

from gradred import launch
from gradred._util import clock, cpu
from gradred.doctor import across, host, job
from gradred.doctor.fabric import TALKATIVE, fabric
from gradred.doctor.findings import Finding, NotKnown, fail, in_background, late, ok, warn
from gradred.doctor.job import Job, Runner
from gradred.doctor.preloaded import use_of_library
from gradred.errors import UsageError
from gradred.launch import allocation, hosts

SECONDS = 20.0
"""The default time limit of all checks; on an idle host they take two or three seconds."""
# The shares of that time for jobs and programs that checks start: the checks need a moment too.
_JOB, _PROGRAM = 0.9, 0.9
_FIRST = 0.4  # the share of the limit of a job over hosts that the job of this host may use
MOST_HOSTS = 16
"""The most hosts of an allocation on which ssh is tried, to limit connections and output."""


@dataclasses.dataclass(frozen=True)
class Scene:
    """The facts that several checks use; a check that needs one waits for it."""

    mpi: Future[launch.Mpi]
    job: Future[Job]
    across: Future[Job] | None
    """The job over the hosts given, if any were given."""
    load: float
    """The load of this host, measured before anything was started."""
    seconds: float
    """The time limit of a program that a check starts."""


@dataclasses.dataclass(frozen=True)
class Check:
    """A line of the doctor's report."""

    name: str
    look: Callable[[Scene], Finding]


@dataclasses.dataclass(frozen=True)
class Result:
    """The finding of a check, and the seconds until it was known."""

    name: str
    finding: Finding
    seconds: float


CHECKS = (
    Check("mpi", lambda scene: host.mpi(scene.mpi.result())),
    Check("job", lambda scene: job.run_of_two_ranks(_job(scene), scene.load)),
    Check("binding", lambda scene: job.binding(_job(scene))),
    Check("threads", lambda scene: job.threads(_job(scene))),
    Check("flag", lambda scene: job.one_way_latency(_job(scene))),
    Check("fabric", lambda scene: fabric(_job(scene).output)),
    Check("cgroup", lambda scene: host.cgroup()),
    Check("shm", lambda scene: host.shm()),
    Check("memfd", lambda scene: host.memfd()),
    Check("pages", lambda scene: host.huge_pages()),
    Check("gpu", lambda scene: host.gpu(seconds=scene.seconds, load=scene.load)),
)

ACROSS = (
    Check("across", lambda scene: across.started(_across(scene), scene.load)),
    Check("ranks", lambda scene: across.places(_across(scene))),
    Check("versions", lambda scene: across.versions(_across(scene))),
    Check("messages", lambda scene: across.messages(_across(scene))),
    Check("allreduce", lambda scene: across.allreduce(_across(scene))),
)
"""The additional checks if hosts are given."""


def examine(
    named: Sequence[str] = (), checks: Sequence[Check] = CHECKS, *, timeout: float = SECONDS
) -> list[Result]:
    """Run all checks concurrently; blocks for `timeout` seconds at most, usually for two.

    Args:
        named: hosts, each with an optional `:slots`, on which a job is started and which ssh must
            reach. If it is empty, ssh is tried on the hosts that a batch system has granted.
        checks: the table of checks.
        timeout: a check without a result by then is a failure, or a warning on a busy host.
    """
    begin, load = clock.now(), cpu.load()
    runner, far = Runner(), Runner()
    mpi = in_background(launch.find_mpi)
    until = begin + _JOB * timeout
    started = in_background(_start, runner, mpi, until)
    listed = hosts.parse_list(",".join(named)) if named else None
    over = in_background(_start_across, far, mpi, started, listed, until) if listed else None
    scene = Scene(mpi, started, over, load, _PROGRAM * timeout)
    names = [] if listed is None else [one.name for one in listed.hosts]
    try:
        looking = [
            (check, in_background(functools.partial(_look, check, scene, begin)))
            for check in [*checks, *_connections(names), *(ACROSS if listed else ())]
        ]
        return [_answer(check, future, begin, timeout, load) for check, future in looking]
    finally:
        runner.close()
        far.close()


def examine_program(program: str) -> list[Result]:
    """Check whether `gradred run --preload` would have a program's calls; it is not run.

    Raises:
        UsageError: there is no such program.
    """
    begin = clock.now()
    finding = use_of_library(program)
    return [Result("preload", finding, clock.now() - begin)]


def worst(results: Sequence[Result]) -> str:
    """Return the overall status: `ok`, `warn` or `fail`."""
    found = {result.finding.status for result in results}
    return next(status for status in ("fail", "warn", "ok") if status in found)


def _start(runner: Runner, mpi: Future[launch.Mpi], until: float) -> Job:
    return runner.run(job.HERE, until, TALKATIVE[mpi.result().family])


def _start_across(
    runner: Runner,
    mpi: Future[launch.Mpi],
    first: Future[Job],
    found: hosts.Hosts,
    until: float,
) -> Job:
    """Start the job after that of this host, whose times it would affect, but not much later."""
    mpi.result()
    with contextlib.suppress(NotDone):
        first.exception(_FIRST * (until - clock.now()))
    return runner.run(found, until)


def _look(check: Check, scene: Scene, begin: float) -> Result:
    try:
        finding = check.look(scene)
    except NotKnown as reason:
        finding = warn(f"not known: {reason}", reason.fix)
    except UsageError as error:
        found, _, remedy = str(error).removesuffix(".").rpartition(". ")
        finding = fail(found, remedy)
    except Exception as error:  # a broken check must not hide the findings of others
        finding = fail(f"the check itself failed: {error!r}", "Report this as a bug")
    return Result(check.name, finding, clock.now() - begin)


def _answer(
    check: Check, future: Future[Result], begin: float, timeout: float, load: float
) -> Result:
    try:
        return future.result(timeout=max(0.0, begin + timeout - clock.now()))
    except NotDone:
        finding = late(f"no answer within {timeout:g} s", "Give it more: --timeout", load)
        return Result(check.name, finding, clock.now() - begin)


def _connections(named: Sequence[str]) -> list[Check]:
    """Return the checks of the connections to other hosts."""
    if named:
        return [_connection(name) for name in named if not hosts.is_this(name)]
    try:
        granted = allocation.granted(os.environ)
    except UsageError:
        return [Check("hosts", _granted)]  # it reports the error
    if granted is None:
        return []
    others = [one.name for one in granted.hosts if not hosts.is_this(one.name)]
    connections = [_connection(name, granted=True) for name in others[:MOST_HOSTS]]
    return [Check("hosts", _granted), *connections]


def _connection(name: str, *, granted: bool = False) -> Check:
    def look(scene: Scene) -> Finding:
        return host.ssh(name, granted=granted, seconds=scene.seconds, load=scene.load)

    return Check(f"ssh {name}", look)


def _granted(_: Scene) -> Finding:
    """Report the hosts that the batch system has granted to this process."""
    granted = allocation.granted(os.environ)
    assert granted is not None
    count = len(granted.hosts)
    found = f"{granted.source}: {count} host{'s' if count > 1 else ''}, {granted.slots} slots"
    if count > MOST_HOSTS:
        found += f"; ssh is tried to no more than {MOST_HOSTS} of them (--hosts names others)"
    return ok(found)


def _job(scene: Scene) -> Job:
    return _after_mpi(scene, scene.job)


def _across(scene: Scene) -> Job:
    assert scene.across is not None
    return _after_mpi(scene, scene.across)


def _after_mpi(scene: Scene, job: Future[Job]) -> Job:
    try:
        scene.mpi.result()
    except UsageError:
        raise NotKnown("there is no MPI to start ranks with (see the line mpi)") from None
    return job.result()
