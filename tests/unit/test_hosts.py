"""The hosts of a job, as listed or as granted by a batch system, and the ranks on each."""

import getpass
import socket

import pytest

from gradred.errors import UsageError
from gradred.launch import allocation, hostfile, hosts

ME = getpass.getuser()


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
        ("10.0.0.1:2,[::1]:4", "10.0.0.1:2 [::1]:4"),
        (f"{ME}@h1:2,h1:1", "h1:3"),
    ],
)
def test_list_of_hosts(written, read):
    assert text(hosts.parse_list(written).hosts) == read


@pytest.mark.parametrize(
    "written", ["", ",", "h1:", "h1:two", "h1:0", "h 1", "-x", "h1:2:3", "@h1"]
)
def test_what_is_no_list_of_hosts_is_refused(written):
    with pytest.raises(UsageError, match="-H"):
        hosts.parse_list(written)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("h1:2,[fe80::1%eth0]:4", "mpiexec takes no IPv6 address"),
        ("h1,another-user@h2", "'another-user' is another user than .*ssh/config: Host h2"),
    ],
)
def test_host_that_no_mpiexec_reaches_is_refused_with_the_way_out(written, complaint):
    with pytest.raises(UsageError, match=complaint):
        hosts.parse_list(written)


HOSTFILE = f"""
# the first rack
h1 slots=2 max_slots=4   # Open MPI
h2:3                     # MPICH
h3:1 user={ME}
h4 slots = 5

h5
h1
// the second rack
{ME}@h6 count=2 max-slots=2
h7\tcpu=4                // a GPU of its own
h8 max_slots=3 /* and
h9 slots=7 is away */
h10 username={ME}
"""


def write(folder, content):
    path = folder / "hosts"
    path.write_text(content)
    return str(path)


def test_hostfile_of_either_mpi(tmp_path):
    found = text(hostfile.parse_file(write(tmp_path, HOSTFILE)).hosts)
    assert found == "h1:3 h2:3 h3:1 h4:5 h5 h6:2 h7:4 h8:3 h10"


def test_hostfile_may_begin_with_a_byte_order_mark(tmp_path):
    """Editors on Windows write one."""
    assert text(hostfile.parse_file(write(tmp_path, "\ufeffh1 slots=2\nh2\n")).hosts) == "h1:2 h2"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("# nobody\n", "names no host"),
        ("h1\nh2 four\n", "line 2: 'four'"),
        ("h1 slots=many\n", "line 1: 'many' is not a number of slots"),
        ("h1 slots=0\n", "line 1: '0' is not a number of slots"),
        ("/* a\nb */ h1\nh2 max_slot=2\n", "line 3: gradred does not carry out max_slot=2"),
        ("h1 slots=2 slots=3\n", "line 1: slots=3 says again what slots is"),
        ("h1 cpu=2 count=3\n", "line 1: count=3 says again"),
        ("h1:2 slots=3\n", "line 1: 'h1:2 slots=3' has two numbers"),
        ("h1 slots=3 max_slots=2\n", "line 1: 3 slots are more than 2"),
        ("h1:2 binding=user:0,1\n", "line 1: .*--bind core"),
        ("h1:2 ifname=eth1\n", "line 1: .*iface NAME"),
        ("h1 port=2222\n", "line 1: .*ssh/config"),
        ("h1\nh2 user=another-user\n", "line 2: 'another-user' is another user"),
        ("/* open\nh1\n", "line 1"),
        (None, "cannot be read"),
    ],
)
def test_hostfile_that_cannot_be_understood_is_refused(tmp_path, content, complaint):
    path = tmp_path / "hosts"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=complaint):
        hostfile.parse_file(str(path))


# What the mpiexec that has the words starts on this host: Open MPI 5.0.11 or MPICH 5.0.2.
@pytest.mark.parametrize(
    ("content", "ranks"),
    [
        ("localhost slots=2", 2),
        ("localhost slots= 2", 2),
        ("localhost:2", 2),
        ("localhost:2\nlocalhost:1", 3),
        ("localhost\nlocalhost\nlocalhost", 3),
        ("localhost slots=2\nlocalhost", 3),
        ("localhost count=2 max_slots=4", 2),
        ("localhost cpu=2", 2),
        ("localhost max-slots=4", 4),
        ("localhost slots-max=4 slots=2", 2),
        (f"{ME}@localhost slots=2", 2),
        (f"localhost user_name={ME} slots=2", 2),
        ("/* two */ localhost slots=2", 2),
        ("  # none\nlocalhost:2\r", 2),
    ],
)
def test_hostfile_gives_as_many_ranks_as_to_the_mpi_whose_words_it_has(tmp_path, content, ranks):
    assert hostfile.parse_file(write(tmp_path, content + "\n")).slots == ranks


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
    assert allocation.expand(short) == names.split()


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"}
# A shell of `srun -N1 -n4 --pty`; srun also replaces SLURM_NODELIST.
STEP = SLURM | {
    "SLURM_TASKS_PER_NODE": "2(x3)",
    "SLURM_STEP_ID": "0",
    "SLURM_NODELIST": "n1",
    "SLURM_STEP_NODELIST": "n1",
    "SLURM_STEP_TASKS_PER_NODE": "4",
}
PER_NODE = {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}
# A heterogeneous job; the variables without a group are those of the first.
GROUPS = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST": "a1",
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "a1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "b[1-2]",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "4(x2)",
}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_NODELIST": "n1"}, None),
        (SLURM | {"SLURM_TASKS_PER_NODE": "2(x2),1"}, "n1:2 n2:2 n3:1"),
        (SLURM, "n1:1 n2:1 n3:1"),
        (STEP, "n1:4"),
        (STEP | {"SLURM_TASKS_PER_NODE": "4"}, "n1:4"),
        (STEP | {"SLURM_STEP_ID": "interactive"}, "n1:2 n2:2 n3:2"),
        (STEP | {"SLURM_STEP_ID": "4294967291"}, "n1:2 n2:2 n3:2"),
        (STEP | {"SLURM_STEP_NODELIST": "m[1-2]", **PER_NODE}, "n1:2 n2:2 n3:2"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": ""}, "n1:1"),
        (GROUPS, "a1:2 b1:4 b2:4"),
        ({name.replace("HET", "PACK"): text for name, text in GROUPS.items()}, "a1:2 b1:4 b2:4"),
        (GROUPS | {"SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "b2"}, "b2:1"),
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
    granted = allocation.granted(variables)
    assert (granted and text(granted.hosts)) == found


@pytest.mark.parametrize(
    "variables",
    [
        SLURM | {"SLURM_TASKS_PER_NODE": "2(x2)"},
        SLURM | {"SLURM_JOB_NODELIST": "n[1-x]"},
        STEP | {"SLURM_JOB_NODELIST": "n[1-x]"},
        STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"},
        GROUPS | {"SLURM_JOB_NODELIST_HET_GROUP_1": ""},
        {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b"},
        {"PBS_JOBID": "3", "PBS_NODEFILE": "/no/such/file"},
    ],
)
def test_allocation_that_cannot_be_understood_names_the_way_out(variables):
    with pytest.raises(UsageError, match="-H"):
        allocation.granted(variables)


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
    granted = allocation.granted({"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "a 4 b 2"})
    assert text(hosts.place(granted, ranks)) == placed


def test_this_host_is_known_by_its_names():
    assert hosts.is_this("localhost")
    assert hosts.is_this(socket.gethostname())
    assert not hosts.is_this("elsewhere")
