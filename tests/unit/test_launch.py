"""Finding the MPI, building its command, and the share of cores that each rank gets."""

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from gradred import launch
from gradred._util import cpu
from gradred.errors import UsageError
from gradred.launch import job, variables, wrong_launcher
from gradred.launch import mpi as launch_mpi
from gradred.launch.hosts import Host

OPEN_MPI = launch.Mpi("Open MPI", "5.0", pathlib.Path("/p/lib/libmpi.so.40"), pathlib.Path("/p/m"))
MPICH = launch.Mpi("MPICH", "5.0", pathlib.Path("/p/lib/libmpi.so.12"), pathlib.Path("/p/m"))
INTEL = launch.Mpi("Intel MPI", "2021", pathlib.Path("/p/lib/libmpi.so.12"), pathlib.Path("/p/m"))


def test_mpi_of_this_interpreter_is_found_with_its_own_launcher():
    found = launch.find_mpi()
    assert found.library.name.startswith("libmpi")
    said = subprocess.run([found.launcher, "--version"], capture_output=True, text=True).stdout
    assert launch_mpi.identify(said)[0] == found.family
    assert found.version[0].isdigit()


def test_finding_the_mpi_does_not_initialise_one_here():
    program = "import sys; from gradred import launch; launch.find_mpi(); print(*sys.modules)"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    modules = answer.stdout.split()
    assert "gradred.launch" in modules
    assert "mpi4py.MPI" not in modules


@pytest.mark.parametrize(
    ("text", "family", "version"),
    [
        ("Open MPI v5.0.11, package: Open MPI user@localhost", "Open MPI", "5.0.11"),
        ("mpiexec (OpenRTE) 4.1.4\n", "Open MPI", "4.1.4"),
        ("mpiexec (Open MPI) 5.0.11\n", "Open MPI", "5.0.11"),
        ("MPICH Version:      4.0.2\nMPICH Release date: x", "MPICH", "4.0.2"),
        ("HYDRA build details:\n    Version:          5.0.2\n", "MPICH", "5.0.2"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS\n", "Intel MPI", "2021.18"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.10 Build 1", "Intel MPI", "2021.10"),
    ],
)
def test_family_and_version_are_read_from_what_an_mpi_says(text, family, version):
    assert launch_mpi.identify(text) == (family, version)


def test_unknown_mpi_is_refused_by_its_name():
    with pytest.raises(UsageError, match="Frobnicator 3"):
        launch_mpi.identify("Frobnicator 3\nmore")


def test_without_an_mpi_the_message_is_the_line_that_installs_one(monkeypatch):
    monkeypatch.setattr(launch_mpi, "_PROBE", "raise RuntimeError('cannot load MPI library')")
    launch.find_mpi.cache_clear()
    with pytest.raises(UsageError, match='pip install "mpich>=5"'):
        launch.find_mpi()


@pytest.mark.parametrize(("home", "remedy"), [(True, "answer"), (False, "Set HOME")])
def test_launcher_that_cannot_start_is_quoted(tmp_path, monkeypatch, home, remedy):
    if not home:
        monkeypatch.delenv("HOME")
    launcher = make_launcher(tmp_path / "bin", "mpiexec", "no version")
    launcher.write_text("#!/bin/sh\necho 'Error: no home directory' >&2; echo more >&2; exit 1\n")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", "/no/such/folder")
    with pytest.raises(UsageError, match=f"{launcher} says: Error: no home directory. .*{remedy}"):
        launch_mpi._find_launcher("Open MPI", tmp_path / "lib" / "libmpi.so.40")


def make_launcher(folder, name, says):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_launcher_of_the_librarys_prefix_wins_over_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=":")
    make_launcher(tmp_path / "path", "mpiexec.openmpi", "mpiexec (OpenRTE) 4.1.4")
    near = make_launcher(tmp_path / "prefix/bin", "mpiexec", "mpiexec (Open MPI) 5.0.11")
    library = tmp_path / "prefix/lib/openmpi/lib/libmpi.so.40"
    assert launch_mpi._find_launcher("Open MPI", library) == near


def test_launcher_of_another_family_is_passed_over(tmp_path):
    make_launcher(tmp_path / "near/bin", "mpiexec", "mpiexec (OpenRTE) 4.1.4")
    right = make_launcher(tmp_path / "bin", "mpiexec", "HYDRA build details: Version: 4.0")
    assert launch_mpi._find_launcher("MPICH", tmp_path / "near/lib/libmpich.so.12") == right


def test_open_mpi_is_not_bound_and_may_exceed_its_slots():
    command = launch.launcher_command(OPEN_MPI, 4)
    options = ["--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]
    assert command[:7] == ["/p/m", "-n", "4", *options]


@pytest.mark.parametrize("option", ["-H", "--hostfile=x", "--map-by"])
def test_placement_by_the_user_is_left_alone(option):
    command = launch.launcher_command(OPEN_MPI, 4, options=[option])
    assert ":OVERSUBSCRIBE" not in command
    assert command[-1] == option


@pytest.mark.parametrize(
    "option",
    [
        *("-hosts h1:1,h2:1", "-host h1", "-H h1", "--host=h1", "-f hosts", "-hostfile hosts"),
        *("--machinefile hosts", "-machinefile hosts", "--rankfile ranks", "-ppn 1", "--ppn 1"),
        *("-perhost 1", "-npernode 1", "-N 1", "-rankmap 0,1", "-map-by node"),
    ],
)
def test_every_spelling_of_a_placement_is_known(option):
    assert launch.has_placement(["-verbose", *option.split()])


@pytest.mark.parametrize("option", ["-iface eth1", "-launcher ssh", "f", "host", "--bind-to core"])
def test_options_that_place_no_rank_are_no_placement(option):
    assert not launch.has_placement(option.split())


def test_mpich_is_bound_only_on_request():
    assert launch.launcher_command(MPICH, 3) == ["/p/m", "-n", "3"]
    bound = launch.launcher_command(MPICH, 3, binding="core")
    assert bound[-2:] == ["-bind-to", "core"]


TWO_AND_TWO = (Host("h1", 2), Host("h2", 2))


@pytest.mark.parametrize(
    ("mpi", "words"),
    [
        (OPEN_MPI, ["--host", "h1:2,h2:2"]),
        (MPICH, ["-hosts", "h1:2,h2:2"]),
        (INTEL, ["-hosts", "h1,h2", "-ppn", "2"]),
    ],
)
def test_each_launcher_gets_hosts_in_its_own_words(mpi, words):
    command = launch.launcher_command(mpi, 4, hosts=TWO_AND_TWO)
    assert command[-len(words) :] == words
    assert ":OVERSUBSCRIBE" not in command


@pytest.mark.parametrize(
    ("mpi", "sections"),
    [
        (OPEN_MPI, ["-n 1 --host h1:1", "-n 2 --host h1:1,h2:1", "-n 1 --host h2:1"]),
        (MPICH, ["-n 1 -hosts h1:2,h2:2", "-n 2", "-n 1"]),
        (INTEL, ["-n 1 -hosts h1,h2 -ppn 2", "-n 2", "-n 1"]),
    ],
)
def test_programs_follow_each_other_in_the_slots_of_the_hosts(mpi, sections):
    command = launch.job_command(mpi, [1, 2, 1], hosts=TWO_AND_TWO)
    proxy = shlex.join(launch.proxy_command(mpi.family))
    found = shlex.join(command).split(" : ")
    assert all(section.endswith(proxy) for section in found)
    words = [section.removesuffix(proxy).split() for section in found]
    placed = [
        " ".join(one for one in section if one in wanted.split())
        for section, wanted in zip(words, sections, strict=True)
    ]
    assert placed == sections


@pytest.mark.parametrize(
    ("mpi", "options", "of_each"),
    [
        (OPEN_MPI, "--mca a 1 --wdir /x --output tag", "--wdir /x"),
        (
            OPEN_MPI,
            "-H h1:2 --set-cwd-to-session-dir --path=/y -x A",
            "-H h1:2 --set-cwd-to-session-dir --path=/y",
        ),
        (MPICH, "-env A -env -wdir /x -genv B 1 -l", "-env A -env -wdir /x"),
        (MPICH, "-envnone -hosts h1,h2 -envlist A,B", "-envnone -envlist A,B"),
        (INTEL, "-host h1 -iface eth1", "-host h1"),
    ],
)
def test_options_of_one_program_are_given_for_each(mpi, options, of_each):
    command = launch.job_command(mpi, [1, 1, 1], options=options.split())
    proxy = shlex.join(launch.proxy_command(mpi.family))
    first, *others = shlex.join(command).split(" : ")
    assert first.endswith(f" {options} {proxy}")
    assert others == [f"-n 1 {of_each} {proxy}"] * 2


def test_launcher_that_is_to_stay_here_sees_no_allocation_of_any_batch_system():
    of_batch = {"SLURM_JOBID": "7", "PBS_NODEFILE": "/n", "LSB_HOSTS": "a b", "PE_HOSTFILE": "/h"}
    kept = {"HOME": "/root", "A_SLURM_WORD": "x"}
    assert launch.without_allocation({**of_batch, **kept}) == (kept, of_batch)


def test_rank_0s_port_is_not_one_that_outgoing_connections_get(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = [launch.meeting_place("a") for _ in range(20)]
    assert {one["MASTER_ADDR"] for one in found} == {"a"}
    ports = [int(one["MASTER_PORT"]) for one in found]
    assert all(port < first or first <= 20000 for port in ports)
    assert len(set(ports)) > 1
    monkeypatch.setenv("MASTER_PORT", "123")
    assert launch.meeting_place() == {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "123"}


def test_rank_0s_port_is_any_free_one_where_outgoing_connections_may_get_all(monkeypatch):
    monkeypatch.setattr("gradred.launch.mpi._LEAST_PORT", 1 << 16)
    assert int(launch.meeting_place()["MASTER_PORT"]) > 0


@pytest.mark.parametrize("mpi", [OPEN_MPI, MPICH, INTEL])
def test_launcher_carries_the_jobs_address_to_other_hosts(mpi):
    command = launch.launcher_command(mpi, 4, hosts=TWO_AND_TWO)
    command = " ".join(command + launch.proxy_command(mpi.family))
    assert ("-x _GRADRED_JOB" if mpi is OPEN_MPI else "-genvlist _GRADRED_JOB,") in command


def test_intel_mpi_with_unequal_hosts_is_refused():
    with pytest.raises(UsageError, match="same number"):
        launch.launcher_command(INTEL, 3, hosts=(Host("h1", 1), Host("h2", 2)))


def test_intel_mpi_gets_a_variable_not_to_bind(monkeypatch):
    monkeypatch.delenv("I_MPI_PIN", raising=False)
    assert launch.job_environment(INTEL)["I_MPI_PIN"] == "0"
    assert launch.job_environment(INTEL, "core")["I_MPI_PIN_DOMAIN"] == "core"


def test_python_means_this_interpreter():
    path = launch.job_environment(MPICH)["PATH"].split(os.pathsep)
    assert path[0] == os.path.dirname(sys.executable)


def test_python_file_runs_with_this_interpreter(tmp_path):
    program = tmp_path / "train.py"
    program.touch()
    command = launch.program_command([str(program), "-n", "3"], os.environ["PATH"])
    assert command == [sys.executable, str(program), "-n", "3"]


@pytest.mark.parametrize("name", ["missing.py", "no-such-program"])
def test_missing_program_is_named(name):
    with pytest.raises(UsageError, match=name):
        launch.program_command([name], os.environ["PATH"])


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2)),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "5"}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALNRANKS": "1"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, (0, 1)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1", "PMI_FD": "9", "SLURM_PROCID": "0"}, None),
    ],
)
def test_rank_is_recognised_by_its_launchers_variables(environment, job):
    assert launch.inside_job(environment) == job


@pytest.mark.parametrize(
    ("membership", "files", "quota"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1.5),
        ("0::/a/b\n", {"a/cpu.max": "400000 100000", "a/b/cpu.max": "200000 100000"}, 2.0),
        ("0::/\n", {}, None),
        ("0::/only/outside\n", {"cpu.max": "50000 100000"}, 0.5),
        (
            "4:cpu,cpuacct:/c\n",
            {
                "cpu,cpuacct/c/cpu.cfs_quota_us": "300000",
                "cpu,cpuacct/c/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            "4:cpu:/c\n",
            {"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_cgroup_quota_is_the_smallest_of_all_levels(tmp_path, membership, files, quota):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "membership").write_text(membership)
    assert cpu.cgroup_quota(tmp_path, tmp_path / "membership") == quota


def test_cores_respect_affinity_and_quota(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    for quota, cores in ((None, 6), (2.5, 3), (0.2, 1), (64.0, 6)):
        monkeypatch.setattr(cpu, "cgroup_quota", lambda quota=quota: quota)
        assert cpu.cores() == cores


@pytest.mark.parametrize(
    "variable", ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"]
)
def test_ranks_of_a_host_share_its_cores_whatever_their_launcher_calls_their_number(
    variable, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    order = {"host": os.uname().nodename, "environment": {}, "set": {}}
    order |= {"bound": False, "cores": 8, "ranks": 8}
    found = variables.rank_environment(order, {variable: "2"})
    assert found["OMP_NUM_THREADS"] == "4"


def test_ranks_are_known_by_the_same_variables_wherever_it_is_asked():
    launchers = (wrong_launcher.OPEN_MPI, wrong_launcher.MPICH)
    assert tuple((one.rank, one.size) for one in launchers) == variables.RANK_VARIABLES


def ranks_of_a_job(**left_out):
    """Four ranks, of which some have reported which others they have left out."""
    ranks = [job._Rank(number) for number in range(4)]
    for name, numbers in left_out.items():
        ranks[int(name.removeprefix("of_"))].left_out = set(numbers)
    return ranks


@pytest.mark.parametrize(
    ("left_out", "failed", "gone_on"),
    [
        ({"of_0": {3}, "of_1": {3}, "of_2": {3}}, {3}, {3}),
        ({"of_0": {3}, "of_1": {3}}, {3}, set()),  # rank 2 has not said so
        ({"of_0": {2, 3}, "of_1": {2, 3}}, {3}, {3}),  # rank 2 is not needed
        ({"of_0": {2, 3}, "of_1": {2, 3}}, {1}, set()),
        ({"of_0": {2, 3}, "of_1": {2, 3}, "of_2": {0, 1}, "of_3": {0, 1}}, {1}, set()),
        ({f"of_{rank}": {0, 1, 2, 3} - {rank} for rank in range(4)}, {1}, {1}),
        ({f"of_{rank}": {0, 1, 2, 3} - {rank} for rank in range(4)}, {0, 1, 2, 3}, set()),
        ({f"of_{rank}": () for rank in range(4)}, {1}, set()),
    ],
)
def test_job_goes_on_without_a_failed_rank_that_every_needed_rank_has_left_out(
    left_out, failed, gone_on
):
    assert job.gone_on_without(ranks_of_a_job(**left_out), failed) == gone_on
