"""The job over several hosts that `gradred doctor --hosts` starts, and what its ranks tell."""

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
    """How the job went."""

    placed: tuple[Host, ...]
    """The hosts asked for, in order, with the ranks of each."""
    seconds: float
    status: int | None
    """Of `gradred run`; None if the job was ended because time was over."""
    greetings: list[dict[str, Any]]
    """What ranks told of their hosts before they met."""
    reports: list[dict[str, Any]]
    """What ranks told when they had finished, in their order."""
    said: str
    """The last line of errors."""

    @property
    def ranks(self) -> int:
        """How many were asked for."""
        return sum(host.slots or 0 for host in self.placed)

    @property
    def asked(self) -> str:
        """The job in words."""
        return f"{self.ranks} ranks on {', '.join(map(str, self.placed))}"

    @property
    def is_whole(self) -> bool:
        """Whether all ranks saw each other and finished."""
        sizes = [report["size"] for report in self.reports]
        return self.status == 0 and sizes == [self.ranks] * self.ranks


class Runner:
    """Starts the job, and ends it for certain."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def run(self, found: hosts.Hosts, until: float) -> Across:
        """The job, as it is at `until` of `clock.now()`; `close` ends it."""
        begin = clock.now()
        placed = tuple(hosts.place(found, max(2, found.slots) if _open(found) else None))
        seconds = 0.0 if self._closed else max(0.0, until - begin)
        run = [sys.executable, "-m", "gradred", "run", "-H", ",".join(map(str, placed))]
        # Its own limit ends ranks on all hosts even where the doctor was killed before it could.
        run += ["--no-prefix", "--grace", "1", "--timeout", str(math.ceil(seconds) + 5)]
        rank = [sys.executable, "-m", "gradred.doctor.across_rank"]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            self._process = subprocess.Popen(
                [*run, *rank],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C is this process's to handle
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
        """End whatever is left of the job, or is about to start."""
        self._closed = True
        if self._process is not None:
            processes.end_tree(self._process, grace=2.0)  # it ends the ranks of other hosts


def _open(found: hosts.Hosts) -> bool:
    return all(host.slots is None for host in found.hosts)


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _told(output: str, part: str) -> list[dict[str, Any]]:
    """What ranks printed of one part; other lines are of the MPI or of a login."""
    begin = f"{MARK} {part} "
    lines = [line for line in output.splitlines(keepends=True) if line.startswith(begin)]
    return [json.loads(line[len(begin) :]) for line in lines if line.endswith("\n")]


# ---- checks -----------------------------------------------------------------------------------


def started(job: Across, load: float) -> Finding:
    """Whether the ranks start, meet and end."""
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
    """Whether each host has its ranks, by what the hosts call themselves."""
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
    """Whether all hosts have the same versions."""
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
    """Whether messages of the MPI itself arrive whole."""
    reports = _whole(job).reports
    wrong = [report["rank"] for report in reports if not report["message_right"]]
    if wrong:
        found = f"what {ranks_text(wrong)} received is not what was sent"
        return fail(found, "Test the MPI's own network first, without gradred")
    slowest = max(report["message_us"] for report in reports)
    size = f"{reports[0]['message_bytes'] >> 10} KiB"
    return ok(f"{size} around all ranks arrive whole, {slowest:.0f} us from each to the next")


def allreduce(job: Across) -> Finding:
    """Whether gradred's results are exact, and how its ranks talk."""
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
