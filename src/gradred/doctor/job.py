"""The job of two ranks that `gradred doctor` starts, and checks of its reports."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from gradred import launch
from gradred._util import clock, cpu
from gradred.doctor.fabric import TALKATIVE
from gradred.doctor.findings import Finding, NotKnown, fail, late, ok, warn
from gradred.launch import processes, variables

RANKS = 2
# The alarm ends a rank that hangs even if the doctor is killed before it can.
_RANK = (
    "import signal, sys; signal.alarm(int(sys.argv[2])); "
    "from gradred.doctor import rank; rank.main(sys.argv[1])"
)
_ALARM_AFTER = 10.0  # seconds after the job's time limit
_BIND_VARIABLES = "I_MPI_PIN, PRTE_MCA_hwloc_default_binding_policy, HYDRA_BINDING"
_SLOW_FLAG_NS = 1000.0


@dataclasses.dataclass(frozen=True)
class Job:
    """The result of the job."""

    seconds: float
    status: int | None
    """The exit status of the launcher; None if the job was ended at the time limit."""
    reports: list[dict[str, Any]]
    """The reports of the ranks that finished, in the order of the ranks."""
    output: str

    @property
    def is_whole(self) -> bool:
        """Whether all ranks have met and finished."""
        sizes = [report["size"] for report in self.reports]
        return self.status == 0 and sizes == [RANKS] * RANKS


class Runner:
    """Starts the job, and ends it reliably."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, mpi: launch.Mpi, until: float) -> Job:
        """Run the job; ends it when `clock.now()` is `until`."""
        begin = clock.now()
        with tempfile.TemporaryDirectory(prefix="gradred-doctor-") as folder:
            output = pathlib.Path(folder, "output")
            self._process = self._start(mpi, folder, output, until - begin + _ALARM_AFTER)
            try:
                status = self._wait(0.0 if self._closed else until - begin)
                text = output.read_text(errors="replace")  # before mpiexec reports that it ends
            finally:
                self.close()
            reports = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*.json")]
        reports.sort(key=lambda report: report["rank"])
        return Job(clock.now() - begin, status, reports, text)

    def close(self) -> None:
        """End the job, also if it is only about to start."""
        self._closed = True
        if self._process is not None:
            processes.end_tree(self._process, grace=0.2)

    def _start(
        self, mpi: launch.Mpi, folder: str, output: pathlib.Path, alarm: float
    ) -> subprocess.Popen[bytes]:
        environment, _ = launch.without_allocation(launch.job_environment(mpi))
        environment |= TALKATIVE[mpi.family]
        for name in variables.THREAD_VARIABLES:  # as in `gradred run`
            environment.setdefault(name, str(max(1, cpu.cores() // RANKS)))
        command = launch.launcher_command(mpi, RANKS)
        command += [sys.executable, "-c", _RANK, folder, str(max(1, round(alarm)))]
        with output.open("wb") as stream:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,  # this process handles Ctrl-C
            )

    def _wait(self, seconds: float) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return None


# ---- checks -----------------------------------------------------------------------------------


def run_of_two_ranks(job: Job, load: float = 0.0) -> Finding:
    """Check whether two ranks start, meet and add up; `load` is that from before the job."""
    asked = f"{RANKS} ranks"
    if job.status is None:
        found = f"{asked} had not finished after {job.seconds:.1f} s" + _last_line(job)
        fix = "See where they stay: gradred ps, while gradred run -np 2 program runs"
        return late(found, fix, load)
    alone = [report for report in job.reports if report["size"] != RANKS]
    if alone:
        found = f"{asked} started, but each saw {alone[0]['size']} rank(s)"
        return fail(found, "Launcher and library do not fit each other: see the line mpi")
    if not job.is_whole:
        found = f"{asked} ended with status {job.status}{_last_line(job)}"
        return fail(found, "Run it by hand: gradred run -np 2 python -m mpi4py.bench helloworld")
    first = job.reports[0]
    if not all(report["right"] for report in job.reports):
        return fail("an allreduce of two ranks gave a wrong result", "Report this as a bug")
    found = f"{asked} in {job.seconds:.1f} s, allreduce of 8 bytes {first['allreduce_us']:.2f} us"
    if not first["shares_memory"]:
        return warn(f"{found}, by messages: {first['node_reason']}", "See the lines shm and memfd")
    return ok(f"{found} by shared memory")


def binding(job: Job) -> Finding:
    """Report which cores the ranks may use."""
    cores = [set(report["cores"]) for report in _whole(job).reports]
    here = os.sched_getaffinity(0)
    text = "; ".join(f"rank {rank}: {_ranges(each)}" for rank, each in enumerate(cores))
    if all(each == here for each in cores):
        if len(here) < RANKS:
            fix = "Give the program more cores (taskset, docker --cpuset-cpus, srun -c)"
            return warn(f"none, and all ranks share core {_ranges(here)}", fix)
        return ok(f"none: each rank may use cores {_ranges(here)}")
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


def _last_line(job: Job) -> str:
    lines = [line.strip() for line in job.output.splitlines() if line.strip(" =-*")]
    return f"; last line: {lines[-1][:160]}" if lines else ""


def _ranges(cores: set[int]) -> str:
    """Return cores as text: `0-3,8` for {0, 1, 2, 3, 8}."""
    parts: list[list[int]] = []
    for core in sorted(cores):
        if parts and core == parts[-1][1] + 1:
            parts[-1][1] = core
        else:
            parts.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
