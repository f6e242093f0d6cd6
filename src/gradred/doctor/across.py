"""Checks of the job over several hosts that `gradred doctor --hosts` starts."""

from __future__ import annotations

from gradred._util.text import ranks_text
from gradred.doctor.findings import Finding, NotKnown, fail, late, ok
from gradred.doctor.job import Job


def started(job: Job, load: float) -> Finding:
    """Check whether the ranks start, meet and end."""
    came = f"{len(job.greetings)} of them had started"
    last = job.last_line
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


def places(job: Job) -> Finding:
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


def versions(job: Job) -> Finding:
    """Check whether all hosts have the same versions."""
    if not job.greetings:
        raise NotKnown("no rank has started (see the line across)")
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


def messages(job: Job) -> Finding:
    """Check whether messages of the MPI itself arrive intact."""
    reports = _whole(job).reports
    wrong = [report["rank"] for report in reports if not report["message_right"]]
    if wrong:
        found = f"what {ranks_text(wrong)} received is not what was sent"
        return fail(found, "Test the MPI's own network first, without gradred")
    slowest = max(report["message_us"] for report in reports)
    size = f"{reports[0]['message_bytes'] >> 10} KiB"
    return ok(f"{size} around all ranks arrive whole, {slowest:.0f} us from each to the next")


def allreduce(job: Job) -> Finding:
    """Check whether gradred's results are exact, and time its calls."""
    reports = _whole(job).reports
    wrong = [report["rank"] for report in reports if not report["allreduce_right"]]
    if wrong:
        return fail(f"an allreduce gave {ranks_text(wrong)} a wrong result", "Report this as a bug")
    slowest = max(report["allreduce_us"] for report in reports)
    return ok(f"exact for 8 bytes and 1 MiB; 8 bytes in {slowest:.0f} us")


def _whole(job: Job) -> Job:
    if not job.is_whole:
        raise NotKnown("the ranks have not all finished (see the line across)")
    return job
