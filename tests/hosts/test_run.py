"""`gradred run` over several hosts: placement of ranks, their environment, and the end of a job."""

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
from hosts import jobs, machines
from hosts.jobs import finish

from gradred import launch

WHY_NOT = jobs.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=str(WHY_NOT)),
    pytest.mark.timeout(90),
]

RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


@pytest.fixture(scope="module")
def hosts():
    with machines.Machines(2) as made:
        yield made


@pytest.fixture
def start(hosts, tmp_path):
    """Starts `gradred run -H h1:2,h2:2` with more words, on head, in the test's folder."""
    started = []

    def run(*words, on=hosts, **options):
        started.append(jobs.start(on, tmp_path, *words, **options))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


REPORT = """
import json, os, socket
from mpi4py import MPI
w = MPI.COMM_WORLD
node = w.Split_type(MPI.COMM_TYPE_SHARED)
print(json.dumps({
    "rank": w.rank, "sum": w.allreduce(w.rank), "host": socket.gethostname(), "node": node.size,
    "folder": os.getcwd(), "word": os.environ.get("A_WORD"), "new": os.environ.get("NEW"),
    "login": os.environ.get("SSH_TTY"),
}))
"""


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.py"
    path.write_text(REPORT)
    return str(path)


def reports(lines):
    return sorted((json.loads(line) for line in lines), key=lambda found: found["rank"])


@pytest.mark.parametrize("option", ["list", "hostfile", "slurm", "mpiexec"])
def test_ranks_fill_hosts_and_get_environment_and_folder(start, report, tmp_path, option):
    words, where, variables = [], None, {"A_WORD": "two words\nand a line", "SSH_TTY": "/dev/x"}
    if option == "list":
        where = "h1:2,h2:2"
    elif option == "hostfile":
        (tmp_path / "hostfile").write_text("h1 slots=2\n# no more\nh2:2\n")
        words = ["--hostfile", "hostfile"]
    elif option == "mpiexec":
        spelled = "-hosts" if mpich() else "--host"
        words = ["-np", "4", f"--mpi-option={spelled} h1:2,h2:2"]
    else:
        # Under this name MPICH's launcher looks for Slurm's own; gradred makes it use ssh.
        words = ["--mpi-option=-launcher ssh"] if mpich() else []
        variables |= {
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "h[1-2]",
            "SLURM_TASKS_PER_NODE": "2(x2)",
        }
    out, err, status = finish(start(*words, "-x", "NEW=1", report, where=where, **variables))
    assert status == 0, err
    found = reports(out)
    assert [one["host"] for one in found] == ["h1", "h1", "h2", "h2"]
    assert {one["sum"] for one in found} == {6}
    assert {one["node"] for one in found} == {2}
    assert {one["folder"] for one in found} == {str(tmp_path)}
    assert {one["word"] for one in found} == {variables["A_WORD"]}
    assert {one["new"] for one in found} == {"1"}
    assert {one["login"] for one in found} == {None}


def test_programs_follow_each_other_on_the_hosts(start, report):
    one, three = ["-np", "1", "-x", "NEW=1", report], ["-np", "3", report]
    out, err, status = finish(start(*one, ":", *three))
    assert status == 0, err
    assert [one["host"] for one in reports(out)] == ["h1", "h1", "h2", "h2"]
    failing = ["-np", "2", "true", ":", "-np", "2", "sh", "-c", f'[ "{RANK}" = 2 ] || exit 7']
    _, err, status = finish(start(*failing))
    assert (err[-1], status) == (
        f"gradred run: rank 3 on h2 ({shlex.join(failing[-3:])}) exited with status 7",
        7,
    )


@pytest.mark.parametrize(
    ("option", "knob", "word"),
    [("--no-env", "1", None), (None, "0", None), ("--env", "0", "here")],
    ids=["option", "knob", "option over knob"],
)
def test_no_env_leaves_variables_behind(start, report, option, knob, word):
    words = [*filter(None, [option]), "-x", "NEW=1", "-x", "PYTHONPATH", report]
    out, err, status = finish(start(*words, A_WORD="here", GRADRED_CARRY_ENV=knob))
    assert status == 0, err
    assert {(one["word"], one["new"]) for one in reports(out)} == {(word, "1")}


def test_no_env_leaves_the_launching_hosts_own_ranks_their_variables(start):
    words = ["--no-env", "sh", "-c", 'echo "$(hostname) <$A_WORD>"']
    out, err, status = finish(start(*words, where="head:1,h1:1", A_WORD="here"))
    assert (sorted(out), status) == (["h1 <>", "head <here>"], 0), err


def mpich():
    return launch.find_mpi().family == "MPICH"


def test_killed_rank_is_named_and_ranks_of_all_hosts_live_to_report(start):
    program = f'[ "{RANK}" = 2 ] && kill -9 $$; sleep 1; echo {RANK} lives; exit 3'
    out, err, status = finish(start("sh", "-c", program))
    assert status == 137
    assert sorted(out) == ["0 lives", "1 lives", "3 lives"]
    assert err[-1] == "gradred run: rank 2 on h2 was killed by SIGKILL"
    assert "gradred run: ranks 0, 1 on h1 exited with status 3" in err


SHRINK = """
import numpy as np
from mpi4py import MPI
import gradred
comm = gradred.Comm(MPI.COMM_WORLD)
comm.Allreduce(MPI.IN_PLACE, np.ones(3))
try:
    comm.shrink()
except gradred.UsageError as error:
    print(comm.rank, error)
"""


def test_shrinking_over_several_hosts_says_restart(start):
    out, err, status = finish(start(sys.executable, "-c", SHRINK))
    assert status == 0, err
    assert len(out) == 4, err
    assert all("on 2 hosts). Restart the job" in line for line in out), out


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_on_any_host_when_the_launcher_is_ended(start, hosts, tmp_path, sent):
    program = f"touch started-{RANK}; (trap '' TERM; sleep 300) & sleep 301"
    process = start("sh", "-c", program)
    wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 4)
    launcher = the_launcher(process.pid)
    os.kill(launcher, sent)
    wait_until(lambda: not any(hosts.commands(name) for name in (machines.HEAD, "h1", "h2")))
    process.communicate(timeout=20)
    assert process.returncode == (143 if sent == signal.SIGTERM else -9)


def the_launcher(pid):
    """The process of `gradred run`: nsenter is its parent."""
    while "gradred" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:4]:
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_host_that_vanishes_ends_the_job_with_its_name(start, tmp_path):
    with machines.Machines(2) as hosts:
        process = start("--grace", "1", "sh", "-c", f"touch on-{RANK}; sleep 300", on=hosts)
        wait_until(lambda: len(list(tmp_path.glob("on-*"))) == 4)
        hosts.kill("h2")
        began = time.monotonic()
        _, err, status = finish(process)
        assert status not in (0, None)
        assert time.monotonic() - began < 40
        assert "h2" in err[-1], err
        assert "lost" in err[-1], err
        assert hosts.commands("h1") == []


def test_host_without_a_way_to_it_is_an_error_that_says_how_to_check(start):
    _, err, status = finish(start("true", where="h1:1,h3:1"))
    assert status not in (0, 124), err
    *_, never_started, how_to_check, cause = err
    assert never_started.endswith("never started"), err
    assert how_to_check.startswith("gradred run: `gradred doctor -H HOSTS` says"), err
    assert "mpiexec ended the job" in cause, err
