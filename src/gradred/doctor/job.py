"""The jobs that `gradred doctor` starts, and checks of that of two ranks on this host."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from gradred._util import clock, cpu
from gradred._util.text import ranges
from gradred.doctor import near
from gradred.doctor.findings import Finding, NotKnown, fail, late, ok, warn
from gradred.launch import hosts, processes
from gradred.launch.hosts import Host

MARK = "gradred-doctor:"
"""The begin of a line that a rank prints; one of `PARTS` and its report in JSON follow."""
PARTS = ("here", "met")
RANKS = 2
HERE = hosts.Hosts("this host", (Host("localhost", RANKS),))
_BIND_VARIABLES = "I_MPI_PIN, PRTE_MCA_hwloc_default_binding_policy, HYDRA_BINDING"
_BY_LAUNCHER = "gradred run: "  # the begin of lines that are not the ranks' own
_SLOW_FLAG_NS = 1000.0


@dataclasses.dataclass(frozen=True)
class Job:
    """The result of a job."""

    placed: tuple[Host, ...]
    """The hosts in order, with the number of ranks of each."""
    seconds: float
    status: int | None
    """The exit status of `gradred run`; None if the job was ended at the time limit."""
    greetings: list[dict[str, Any]]
    """The ranks' reports on their hosts, made before MPI was initialised."""
    reports: list[dict[str, Any]]
    """The ranks' reports at the end, in the order of the ranks."""
    output: str
    """What the job printed besides these reports."""

    @property
    def ranks(self) -> int:
        """The number of ranks requested."""
        return sum(host.slots or 0 for host in self.placed)

    @property
    def asked(self) -> str:
        """A description of the job."""
        return f"{self.ranks} ranks on {', '.join(map(str, self.placed))}"

    @property
    def is_whole(self) -> bool:
        """Whether all ranks have met and finished."""
        sizes = [report["size"] for report in self.reports]
        return self.status == 0 and sizes == [self.ranks] * self.ranks

    @property
    def last_line(self) -> str:
        """The last line of the output, as a part of a message; empty if there is none.

        Two lines if the last is by `gradred run`, which names a rank, not what that rank printed.
        """
        lines = [line.strip() for line in self.output.splitlines() if line.strip(" =-*")]
        by_others = [line for line in lines if not line.startswith(_BY_LAUNCHER)]
        if by_others and lines[-1].startswith(_BY_LAUNCHER):
            return f"; last lines: {by_others[-1][:200]} / {lines[-1][:200]}"
        return f"; last line: {lines[-1][:200]}" if lines else ""


class Runner:
    """Starts a job, and ends it reliably."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(
        self, found: hosts.Hosts, until: float, variables: Mapping[str, str] | None = None
    ) -> Job:
        """Run the job until it ends or `clock.now()` is `until`; `close` ends it.

        The ranks' environment has `variables` in addition.
        """
        begin = clock.now()
        is_open = all(host.slots is None for host in found.hosts)
        placed = tuple(hosts.place(found, max(2, found.slots) if is_open else None))
        seconds = 0.0 if self._closed else max(0.0, until - begin)
        run = [sys.executable, "-m", "gradred", "run", "-H", ",".join(map(str, placed))]
        # This limit ends the ranks on all hosts even if the doctor is killed before it can.
        run += ["--no-prefix", "--grace", "1", "--timeout", str(math.ceil(seconds) + 5)]
        rank = [sys.executable, "-m", "gradred.doctor.rank"]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._process = subprocess.Popen(
                [*run, *rank],
                env={**os.environ, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # this process handles Ctrl-C
            )
            status: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(seconds)
            if self._closed:  # while it started
                self.close()
            printed, errors = (_content(file) for file in (out, err))
        reports = {part: _reports_of(printed, part) for part in PARTS}
        met = sorted(reports["met"], key=lambda report: int(report["rank"]))
        others = [line for line in printed.splitlines() if not line.startswith(MARK)]
        output = "\n".join([*others, errors])
        return Job(placed, clock.now() - begin, status, reports["here"], met, output)

    def close(self) -> None:
        """End the job, also if it is only about to start."""
        self._closed = True
        if self._process is not None:
            processes.end_tree(self._process, grace=2.0)  # gradred run ends the ranks elsewhere


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _reports_of(output: str, part: str) -> list[dict[str, Any]]:
    """Return the ranks' reports of one part; other lines are from the MPI or a login."""
    begin = f"{MARK} {part} "
    lines = [line for line in output.splitlines(keepends=True) if line.startswith(begin)]
    return [json.loads(line[len(begin) :]) for line in lines if line.endswith("\n")]


# ---- checks -----------------------------------------------------------------------------------


def run_of_two_ranks(job: Job, load: float = 0.0) -> Finding:
    """Check whether two ranks start, meet and add up; `load` is that from before the job."""
    asked = f"{RANKS} ranks"
    if job.status is None:
        found = f"{asked} had not finished after {job.seconds:.1f} s{job.last_line}"
        fix = "See where they stay: gradred ps, while gradred run -np 2 program runs"
        return late(found, fix, load)
    alone = [report for report in job.reports if report["size"] != RANKS]
    if alone:
        found = f"{asked} started, but each saw {alone[0]['size']} rank(s)"
        return fail(found, "Launcher and library do not fit each other: see the line mpi")
    if not job.is_whole:
        found = f"{asked} ended with status {job.status}{job.last_line}"
        return fail(found, "Run it by hand: gradred run -np 2 python -m mpi4py.bench helloworld")
    first = job.reports[0]
    if not all(report["allreduce_right"] for report in job.reports):
        return fail("an allreduce of two ranks gave a wrong result", "Report this as a bug")
    found = f"{asked} in {job.seconds:.1f} s, allreduce of 8 bytes {first['allreduce_us']:.2f} us"
    if not first["shares_memory"]:
        return warn(f"{found}, by messages: {first['node_reason']}", "See the lines shm and memfd")
    return ok(f"{found} by shared memory")


def binding(job: Job) -> Finding:
    """Report which cores the ranks may use, and ranks whose memory is far from these."""
    cores = [set(report["cores"]) for report in _whole(job).reports]
    here = os.sched_getaffinity(0)
    text = "; ".join(f"rank {rank}: {ranges(each)}" for rank, each in enumerate(cores))
    if far := near.far([report["memory"] for report in job.reports]):
        return warn(f"{text}; {far}", near.FIX)
    if all(each == here for each in cores):
        if len(here) < RANKS:
            fix = "Give the program more cores (taskset, docker --cpuset-cpus, srun -c)"
            return warn(f"none, and all ranks share core {ranges(here)}", fix)
        nodes = cpu.numa_nodes()
        hint = "; --bind numa would keep each rank near its shared memory" if nodes > 1 else ""
        return ok(f"none: each rank may use cores {ranges(here)}{hint}")
    fix = f"Look for the launcher's own settings ({_BIND_VARIABLES})"
    shared = cores[0] & cores[1]
    if shared and min(map(len, cores)) == 1:
        return fail(f"two ranks bound to one core ({text})", fix)
    return warn(f"gradred asks for none, but {text}", fix)


def threads(job: Job) -> Finding:
    """Check how many threads the numerical libraries of each rank start."""
    given = _whole(job).reports[0]["threads"]
    usable = cpu.cores()
    text = ", ".join(f"{name}={value}" for name, value in given.items() if value)
    most = max((int(value) for value in given.values() if value.isdecimal()), default=1)
    if most * RANKS > max(usable, RANKS):
        found = f"{text} in each of {RANKS} ranks, on {usable} cores"
        return warn(found, "Unset them, and gradred run gives each rank its share")
    return ok(f"{text} in each of {RANKS} ranks, on {usable} cores")


def one_way_latency(job: Job) -> Finding:
    """Measure the one-way latency between the cores of the two ranks."""
    first = _whole(job).reports[0]
    if not first["shares_memory"]:
        raise NotKnown("the two ranks share no memory (see the line job)")
    found = f"{first['flag_ns']:.0f} ns between the cores of two ranks"
    if first["flag_ns"] > _SLOW_FLAG_NS:
        return warn(f"{found}: they were not both running", "Use no more ranks than idle cores")
    return ok(found)


def _whole(job: Job) -> Job:
    if not job.is_whole:
        raise NotKnown("two ranks did not run (see the line job)")
    return job
