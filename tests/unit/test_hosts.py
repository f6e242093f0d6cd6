"""The hosts of a job, as listed or as granted by a batch system, and the ranks on each."""

import socket

import pytest

from gradred.errors import UsageError
from gradred.launch import hosts


def text(found):
    return " ".join(map(str, found))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("h1:2,h2:2", "h1:2 h2:2"),
        ("h1,h2", "h1 h2"),
        ("h1, h2:3 ,", "h1 h2:3"),
        ("h1,h2,h1", "h1:2 h2"),
        ("node-7.cluster.org:16", "node-7.cluster.org:16"),
        ("10.0.0.1:2,[fe80::1%eth0]:4", "10.0.0.1:2 [fe80::1%eth0]:4"),
    ],
)
def test_list_of_hosts(written, read):
    assert text(hosts.parse_list(written).hosts) == read


@pytest.mark.parametrize("written", ["", ",", "h1:", "h1:two", "h1:0", "h 1", "-x", "h1:2:3"])
def test_what_is_no_list_of_hosts_is_refused(written):
    with pytest.raises(UsageError, match="-H"):
        hosts.parse_list(written)


HOSTFILE = """
# the first rack
h1 slots=2 max_slots=4   # Open MPI
h2:3                     # MPICH
h3:1 binding=user:0,1
h4 slots = 5

h5
h1
"""


def test_hostfile_of_either_mpi(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(HOSTFILE)
    assert text(hosts.parse_file(str(path)).hosts) == "h1:3 h2:3 h3:1 h4:5 h5"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("# nobody\n", "names no host"),
        ("h1\nh2 four\n", "line 2: 'four'"),
        ("h1 slots=many\n", "line 1"),
        (None, "cannot be read"),
    ],
)
def test_hostfile_that_cannot_be_understood_is_refused(tmp_path, content, complaint):
    path = tmp_path / "hosts"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        hosts.parse_file(str(path))


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", "n1"),
        ("n1,m2", "n1 m2"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[1-2,07-09],login", "n1 n2 n07 n08 n09 login"),
        ("r[1-2]c[0,3]-ib", "r1c0-ib r1c3-ib r2c0-ib r2c3-ib"),
        ("n[098-101]", "n098 n099 n100 n101"),
    ],
)
def test_slurms_short_form_is_expanded(short, names):
    assert hosts.expand(short) == names.split()


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_NODELIST": "n1"}, None),
        (SLURM | {"SLURM_TASKS_PER_NODE": "2(x2),1"}, "n1:2 n2:2 n3:1"),
        (SLURM, "n1:1 n2:1 n3:1"),
        ({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 2"}, "a:4 b:2"),
        ({"LSB_JOBID": "1"}, None),
        ({"LSB_JOBID": "1", "LSB_DJOB_HOSTFILE": "FILE"}, "p:2 q:1"),
        ({"PBS_JOBID": "3.s", "PBS_NODEFILE": "FILE"}, "p:2 q:1"),
        ({"PBS_NODEFILE": "FILE"}, None),
    ],
)
def test_allocation_of_a_batch_system(tmp_path, variables, found):
    (tmp_path / "nodes").write_text("p\np\nq\n")
    variables = {
        name: str(tmp_path / "nodes") if value == "FILE" else value
        for name, value in variables.items()
    }
    allocation = hosts.allocation(variables)
    assert (allocation and text(allocation.hosts)) == found


@pytest.mark.parametrize(
    "variables",
    [
        SLURM | {"SLURM_TASKS_PER_NODE": "2(x2)"},
        SLURM | {"SLURM_JOB_NODELIST": "n[1-x]"},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b"},
        {"PBS_JOBID": "3", "PBS_NODEFILE": "/no/such/file"},
    ],
)
def test_allocation_that_cannot_be_understood_names_the_way_out(variables):
    with pytest.raises(UsageError, match="-H"):
        hosts.allocation(variables)


@pytest.mark.parametrize(
    ("listed", "ranks", "placed"),
    [
        ("h1:2,h2:2", None, "h1:2 h2:2"),
        ("h1:2,h2:2", 4, "h1:2 h2:2"),
        ("h1:2,h2:2", 3, "h1:2 h2:1"),
        ("h1:2,h2:2", 1, "h1:1"),
        ("h1,h2", None, "h1:1 h2:1"),
        ("h1,h2", 5, "h1:3 h2:2"),
        ("h1,h2,h3", 2, "h1:1 h2:1"),
        ("h1:3,h2", 4, "h1:3 h2:1"),
    ],
)
def test_slots_are_filled_host_by_host(listed, ranks, placed):
    assert text(hosts.place(hosts.parse_list(listed), ranks)) == placed


def test_more_ranks_than_the_user_gave_slots_are_refused():
    with pytest.raises(UsageError, match="5 ranks on -H h1:2,h2:2: 2 hosts with 4 slots"):
        hosts.place(hosts.parse_list("h1:2,h2:2"), 5)


@pytest.mark.parametrize(("ranks", "placed"), [(5, "a:4 b:1"), (12, "a:8 b:4"), (13, "a:9 b:4")])
def test_more_ranks_than_granted_slots_are_spread(ranks, placed):
    granted = hosts.allocation({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 2"})
    assert text(hosts.place(granted, ranks)) == placed


def test_this_host_is_known_by_its_names():
    assert hosts.is_this("localhost")
    assert hosts.is_this(socket.gethostname())
    assert not hosts.is_this("elsewhere")
