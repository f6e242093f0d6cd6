"""Operations over hosts whose network fails: each rank's error, how soon it comes, what is left."""

import dataclasses
import json
import time

import pytest
from bounds import within
from faults import seeing
from hosts import jobs, machines

from gradred import launch

WHY_NOT = jobs.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
    pytest.mark.timeout(120),
]

PROGRAM = str(jobs.HERE / "operations.py")
RANKS = 4
TIMEOUT = 3.0  # GRADRED_TIMEOUT: less than the delay of the network itself on a busy machine
VANISHED_WITHIN = 40.0  # seconds until the launcher detects that a host is lost


class Job:
    """A running job of `operations.py` on the hosts h1 and h2."""

    def __init__(self, hosts, folder, *arguments, **variables):
        self.hosts, self.folder = hosts, folder
        words = ["--grace", "1", PROGRAM, str(folder), *arguments]
        self.process = jobs.start(hosts, folder, *words, **variables)

    def reports(self, name, ranks=RANKS, within=30.0):
        """The ranks' files, once there are so many."""
        deadline = time.monotonic() + within
        while len(list(self.folder.glob(f"{name}-?"))) < ranks and time.monotonic() < deadline:
            time.sleep(0.05)
        found = [json.loads(path.read_text()) for path in self.folder.glob(f"{name}-?")]
        return {report["rank"]: report for report in found}

    def end(self):
        """The job's status and the output of `gradred run`, once it has ended."""
        _, err, status = jobs.finish(self.process)
        return status, err

    def seen(self, reports, began):
        status, err = self.end()
        return seeing.Seen(status, time.monotonic() - began, reports, "\n".join(err))


@pytest.fixture
def start(tmp_path):
    started = []

    def run(hosts, *arguments, **variables):
        job = Job(hosts, tmp_path, *arguments, **variables)
        started.append(job)
        placed = {one["host"] for one in job.reports("started").values()}
        assert placed == {"h1", "h2"}, job.process.poll()
        return job

    yield run
    for job in started:
        job.process.kill()
        job.process.communicate()


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        pytest.param("auto", [], id="messages"),
        pytest.param("mpi", [], id="by-the-MPI"),
        pytest.param("auto", ["-", "named"], id="named", marks=pytest.mark.one_mpi),
    ],
)
def test_cut_link_raises_timeout_error_on_every_rank_and_the_launcher_ends_the_job(
    start, plan, kind
):
    """Also in calls that the MPI carries out, which measured figures may choose."""
    with machines.Machines(2) as hosts:
        job = start(hosts, *kind, GRADRED_TIMEOUT=f"{TIMEOUT}", GRADRED_PLAN=plan)
        began = time.monotonic()
        hosts.cut("h2")
        reports = job.reports("ended", within=within(TIMEOUT + 2 + 3))
        assert {one["error"] for one in reports.values()} == {"TimeoutError"}, reports
        assert len(reports) == RANKS, "those that are cut off, too"
        assert max(one["seconds"] for one in reports.values()) < within(TIMEOUT + 2)
        assert all(one["right"] for one in reports.values())
        files = {one["text"].rsplit("Where each rank is: ", 1)[1] for one in reports.values()}
        assert len(files) == 2, "one for each host"
        seen = job.seen(reports, began)
        if plan == "auto" and not kind:
            seeing.record("cut link", "any", "h1 and h2", seen, part="hosts")
        assert seen.status != 0, seen
        assert hosts.commands("h1") == []
        assert "h2" in seen.last_line, seen


# Without its daemon on the other host Open MPI's launcher ends the ranks of this one.
MPIEXEC_ENDS_SURVIVORS = launch.find_mpi().family == "Open MPI" if not WHY_NOT else False


@pytest.mark.parametrize(
    ("limit", "error"),
    [
        pytest.param(TIMEOUT, "TimeoutError", id="limit"),
        pytest.param(None, "PeerLost", id="no-limit", marks=pytest.mark.full),  # half a minute
    ],
)
def test_vanished_host_is_an_error_on_the_survivors_and_named_last(start, limit, error):
    with machines.Machines(2) as hosts:
        job = start(hosts, **({"GRADRED_TIMEOUT": f"{limit}"} if limit else {}))
        began = time.monotonic()
        hosts.kill("h2")
        seconds = TIMEOUT + 2 + 3 if limit or MPIEXEC_ENDS_SURVIVORS else VANISHED_WITHIN
        reports = job.reports("ended", ranks=2, within=within(seconds))
        assert {one["error"] for one in reports.values()} <= {error}, reports
        assert len(reports) == 2 or MPIEXEC_ENDS_SURVIVORS, reports
        if limit:
            assert all(one["seconds"] < within(TIMEOUT + 2) for one in reports.values()), reports
        seen = job.seen(reports, began)
        after = f"GRADRED_TIMEOUT of {limit:g} s" if limit else "no time limit"
        saw = "" if reports else "ended by the launcher"
        seeing.record(f"vanished host, {after}", "any", "h1", seen, part="hosts", saw=saw)
        assert seen.status != 0, seen
        assert hosts.commands("h1") == []
        assert "h2" in seen.last_line, seen


def test_rank_killed_on_another_host_ends_the_job_with_its_name_and_status(start):
    """The MPIs themselves may end the others: Open MPI aborts, MPICH may crash."""
    with machines.Machines(2) as hosts:
        job = start(hosts)
        began = time.monotonic()
        hosts.kill_one("h2", "operations.py")
        seen = job.seen({}, began)
        seen.reports = job.reports("ended", ranks=0)
        assert {one["error"] for one in seen.reports.values()} <= {"PeerLost"}, seen
        assert all(one["seconds"] < within(2) for one in seen.reports.values()), seen
        saw = "" if seen.reports else "ended by the MPI underneath"
        seeing.record("SIGKILL", "any", "h1 and h2", seen, part="hosts", saw=saw)
        assert seen.seconds < within(12), seen
        assert seen.status == 137, seen
        assert "on h2 was killed by SIGKILL" in seen.last_line, seen


@pytest.mark.parametrize("call", ["later call", "first call", "first, non-blocking"])
def test_rank_that_comes_after_the_others_have_given_up_gets_their_verdict(call, tmp_path):
    """The MPI would send to an ended process: MPICH then dies of SIGSEGV, Open MPI aborts."""
    with machines.Machines(2) as hosts:
        words = ["--grace", "20", str(jobs.HERE / "late.py"), "4", call]
        job = jobs.start(hosts, tmp_path, *words, where="h1:1,h2:1", GRADRED_TIMEOUT="1")
        out, err, status = jobs.finish(job)
    raised = sorted(line[line.index("h") :] for line in out if "Error" in line)
    assert len(raised) == 2, (out, err)
    assert raised[0].startswith("h1 TimeoutError: rank 0 has waited"), raised
    assert raised[1].startswith("h2 TimeoutError:"), raised
    assert "rank 0 has waited" in raised[1], raised
    assert status == 3, err
    assert err[-1].endswith("rank 0 on h1 exited with status 3"), err


@pytest.mark.one_mpi
def test_named_operations_of_ranks_on_several_hosts(start):
    with machines.Machines(2) as hosts:
        job = start(hosts, "60", "named")
        reports = job.reports("ended", within=55)
        assert job.end()[0] == 0
    assert len(reports) == RANKS
    assert all(one["right"] and one["error"] is None for one in reports.values()), reports


@pytest.mark.one_mpi
def test_lost_packets_change_no_result(start):
    with machines.Machines(2) as hosts:
        hosts.lose("h2", percent=1)
        began = time.monotonic()
        job = start(hosts, "20", GRADRED_TIMEOUT="30")
        reports = job.reports("ended", within=60)
        assert len(reports) == RANKS, reports
        assert all(one["right"] and not one["error"] for one in reports.values()), reports
        seen = job.seen(reports, began)
        assert seen.status == 0, seen
        lost = hosts.lost_packets("h2")
        assert lost > 0, "nothing was lost: nothing was tested"
        whole = dataclasses.replace(seen, reports={}, stderr="")  # only the total time
        fault = "1 % of the packets lost, 60 calls"
        seeing.record(fault, "any", "h1 and h2", whole, part="hosts", saw="right results")
