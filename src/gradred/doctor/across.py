"""The job over several hosts that `gradred doctor --hosts` starts, and checks of its reports."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
from typing import IO, Any

from gradred._util import clock
from gradred._util.text import ranks_text
from gradred.doctor.across_rank import MARK, PARTS
from gradred.doctor.findings import Finding, NotKnown, fail, late, ok
from gradred.launch import hosts, processes
from gradred.launch.hosts import Host


@dataclasses.dataclass(frozen=True)
class Across:
    """The result of the job."""

    placed: tuple[Host, ...]
    """The hosts in order, with the number of ranks of each."""
    seconds: float
    status: int | None
    """The exit status of `gradred run`; None if the job was ended at the time limit."""
    greetings: list[dict[str, Any]]
    """The ranks' reports on their hosts, made before MPI was initialised."""
    reports: list[dict[str, Any]]
    """The ranks' reports at the end, in the order of the ranks."""
    said: str
    """The last line of the job's stderr."""

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


class Runner:
    """Starts the job, and ends it reliably."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, found: hosts.Hosts, until: float) -> Across:
        """Run the job until it ends or `clock.now()` is `until`; `close` ends it."""
        begin = clock.now()
        placed = tuple(hosts.place(found, max(2, found.slots) if _open(found) else None))
        seconds = 0.0 if self._closed else max(0.0, until - begin)
        run = [sys.executable, "-m", "gradred", "run", "-H", ",".join(map(str, placed))]
        # This limit ends the ranks on all hosts even if the doctor is killed before it can.
        run += ["--no-prefix", "--grace", "1", "--timeout", str(math.ceil(seconds) + 5)]
        rank = [sys.executable, "-m", "gradred.doctor.across_rank"]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._process = subprocess.Popen(
                [*run, *rank],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # this process handles Ctrl-C
            )
            status: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(seconds)
            printed, errors = (_content(file) for file in (out, err))
        told = {part: _told(printed, part) for part in PARTS}
        met = sorted(told["met"], key=lambda report: int(report["rank"]))
        lines = errors.strip().splitlines()
        last = lines[-1].strip()[:200] if lines else ""
        taken = clock.now() - begin
        return Across(placed, taken, status, told["here"], met, last)

    def close(self) -> None:
        """End the job, also if it is only about to start."""
        self._closed = True
        if self._process is not None:
            processes.end_tree(self._process, grace=2.0)  # gradred run ends the ranks elsewhere


def _open(found: hosts.Hosts) -> bool:
    return all(host.slots is None for host in found.hosts)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _told(output: str, part: str) -> list[dict[str, Any]]:
    """Return the ranks' reports of one part; other lines are from the MPI or a login."""
    begin = f"{MARK} {part} "
    lines = [line for line in output.splitlines(keepends=True) if line.startswith(begin)]
    return [json.loads(line[len(begin) :]) for line in lines if line.endswith("\n")]


# ---- checks -----------------------------------------------------------------------------------


def started(job: Across, load: float) -> Finding:
    """Check whether the ranks start, meet and end."""
    came = f"{len(job.greetings)} of them had started"
    last = f"; last line: {job.said}" if job.said else ""
    by_hand = f"gradred run -H {','.join(map(str, job.placed))} hostname"
    if job.status is None:
        found = f"{job.asked} had not finished after {job.seconds:.1f} s, {came}{last}"
        return late(found, f"See whether this works: {by_hand}", load)
    if job.status != 0 or not job.is_whole:
        alone = {report["size"] for report in job.reports} - {job.ranks}
        if alone:
            found = f"{job.asked} started, but some saw {max(alone)} rank(s)"
            return fail(found, "Launcher and library do not fit each other: see the line mpi")
        found = f"{job.asked} ended with status {job.status}, {came}{last}"
        return fail(found, f"Run it by hand: {by_hand}")
    return ok(f"{job.asked} in {job.seconds:.1f} s")


def places(job: Across) -> Finding:
    """Check whether each host has its ranks, by the hosts' own names."""
    names = [report["host"] for report in _whole(job).reports]
    expected = [index for index, host in enumerate(job.placed) for _ in range(host.slots or 0)]
    where = {name: [rank for rank, one in enumerate(names) if one == name] for name in names}
    text = "; ".join(f"{name}: {ranks_text(ranks)}" for name, ranks in where.items())
    groups = {name: {expected[rank] for rank in ranks} for name, ranks in where.items()}
    if len(where) == len(job.placed) and all(len(group) == 1 for group in groups.values()):
        return ok(text)
    fix = "Look for placement settings of the MPI (PRTE_MCA_rmaps_*, HYDRA_HOST_FILE, I_MPI_*)"
    return fail(f"{job.asked} were asked for, but they are on {text}", fix)


def versions(job: Across) -> Finding:
    """Check whether all hosts have the same versions."""
    if not job.greetings:
        raise NotKnown("no rank has started (see the line job)")
    differing = []
    for name in job.greetings[0]["versions"]:
        hosts_of: dict[str, list[str]] = {}
        for one in job.greetings:
            hosts_of.setdefault(one["versions"][name], []).append(one["host"])
        if len(hosts_of) > 1:
            parts = (f"{value} on {', '.join(sorted(set(on)))}" for value, on in hosts_of.items())
            differing.append(f"{name} {' and '.join(parts)}")
    if differing:
        return fail("; ".join(differing), "Install the same versions on all hosts, or share them")
    same = ", ".join(f"{name} {value}" for name, value in job.greetings[0]["versions"].items())
    return ok(f"the same on all hosts: {same}")


def messages(job: Across) -> Finding:
    """Check whether messages of the MPI itself arrive intact."""
    reports = _whole(job).reports
    wrong = [report["rank"] for report in reports if not report["message_right"]]
    if wrong:
        found = f"what {ranks_text(wrong)} received is not what was sent"
        return fail(found, "Test the MPI's own network first, without gradred")
    slowest = max(report["message_us"] for report in reports)
    size = f"{reports[0]['message_bytes'] >> 10} KiB"
    return ok(f"{size} around all ranks arrive whole, {slowest:.0f} us from each to the next")


def allreduce(job: Across) -> Finding:
    """Check whether gradred's results are exact, and time its calls."""
    reports = _whole(job).reports
    wrong = [report["rank"] for report in reports if not report["allreduce_right"]]
    if wrong:
        return fail(f"an allreduce gave {ranks_text(wrong)} a wrong result", "Report this as a bug")
    slowest = max(report["allreduce_us"] for report in reports)
    return ok(f"exact for 8 bytes and 1 MiB; 8 bytes in {slowest:.0f} us")


def _whole(job: Across) -> Across:
    if not job.is_whole:
        raise NotKnown("the ranks have not all finished (see the line across)")
    return job
