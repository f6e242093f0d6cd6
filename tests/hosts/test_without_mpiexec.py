"""Ranks on several hosts that no mpiexec has started: torchrun's, or those of a loop of a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from bounds import within
from hosts.jobs import NETWORK, PATHS, why_not
from hosts.machines import Machines
from lean import LEAN

from gradred import launch

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]
IS_OPEN_MPI = launch.find_mpi().family == "Open MPI"
needs_pmi = pytest.mark.skipif(IS_OPEN_MPI, reason="Open MPI needs its own mpiexec")

MEETS = """
import os, socket, sys
import torch
import torch.distributed as dist

dist.init_process_group("gradred")
rank, size = dist.get_rank(), dist.get_world_size()
for length in (1, 1000, 300_001):
    x = torch.full((length,), rank + 1.0)
    dist.all_reduce(x)
    assert x.unique().tolist() == [size * (size + 1) / 2]
ends = dist.new_group([0, size - 1])
if rank in (0, size - 1):
    x = torch.ones(3)
    dist.all_reduce(x, group=ends)
    assert x.tolist() == [2, 2, 2]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 5))
model(torch.ones(1, 5) * rank).sum().backward()
os.write(1, f"rank {rank} of {size} on {socket.gethostname()} is right\\n".encode())
dist.destroy_process_group()
"""

# Rank 1, or the last rank, fails in the way that the first argument names.
FAILS = """
import mpi4py
mpi4py.rc.initialize = False
import datetime, os, signal, sys, threading, time
import torch
import torch.distributed as dist
import gradred.torch
from gradred import _rank
from gradred.launch import authentication, mpi_segments

how, rank, size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
fails = rank == size - 1

def end():
    os.kill(os.getpid(), signal.SIGKILL)

if fails and how == "ends during the start":
    _rank.begin_mpi = end
if fails and how == "is killed in MPI_Init":
    def watch():
        while not mpi_segments.mapped_by([os.getpid()]):
            time.sleep(0.001)
        end()
    threading.Thread(target=watch, daemon=True).start()
if fails and how == "does not come":
    _rank.begin_mpi = lambda: time.sleep(100)
if fails and how == "has another secret":
    authentication._proof = lambda *_: os.urandom(32)
begin = time.monotonic()
try:
    given = datetime.timedelta(seconds=8 if how == "is not started" else 600)
    dist.init_process_group("gradred", timeout=given)
    for step in range(1000):
        begin = time.monotonic()
        dist.all_reduce(torch.ones(1000))
        if fails and step == 5 and how == "is killed":
            end()
        if fails and step == 5 and how == "raises":
            raise ValueError("on purpose")
        time.sleep(0.01)
        if how == "ends when others are done" and step == 20:
            if fails:
                time.sleep(0.5)
                end()
            sys.exit(0)
except Exception as error:
    seconds = time.monotonic() - begin
    os.write(1, f"{rank} after {seconds:.3f}: {type(error).__name__}: {error}\\n".encode())
    raise
"""


ENDS = ((0, "h1"), (1, "h2"))  # two ranks of three; nobody starts the third one


@pytest.fixture
def two() -> Iterator[Machines]:
    with Machines(2) as hosts:
        yield hosts
        until = time.monotonic() + 10  # a server waits for ranks that have not come, and then ends
        while left := [line for name in ("h1", "h2") for line in hosts.commands(name)]:
            assert time.monotonic() < until, left
            time.sleep(0.5)


def start(
    hosts: Machines, host: str, folder: Path, words: Sequence[str], **variables: str
) -> subprocess.Popen[str]:
    environment = {**os.environ, **NETWORK, **LEAN, "PYTHONPATH": PATHS, **variables}
    return hosts.start(host, [sys.executable, *words], environment, folder)


def finished(
    processes: Sequence[subprocess.Popen[str]], seconds: float = 120
) -> list[tuple[str, str, int]]:
    found = [process.communicate(timeout=seconds) for process in processes]
    return [(*texts, process.returncode) for texts, process in zip(found, processes, strict=True)]


def agents(
    hosts: Machines, folder: Path, words: Sequence[str], rendezvous: str, **variables: str
) -> list[tuple[str, str, int]]:
    """Two agents of torchrun, each with two ranks."""
    return finished(start_agents(hosts, folder, words, rendezvous, **variables))


def start_agents(
    hosts: Machines,
    folder: Path,
    words: Sequence[str],
    rendezvous: str,
    port: int = 29501,
    **variables: str,
) -> list[subprocess.Popen[str]]:
    where = ["--master-addr", "10.91.7.1", "--master-port", str(port)]
    module = "launch" if rendezvous == "torch.distributed.launch" else "run"
    if rendezvous == "c10d":
        where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.91.7.1:{port}"]
        where += ["--rdzv-id", "job"]
    torchrun = [
        "-m",
        f"torch.distributed.{module}",
        *where,
        "--nnodes",
        "2",
        "--nproc-per-node",
        "2",
    ]
    started = []
    for number in range(2):
        place = [] if rendezvous == "c10d" else ["--node-rank", str(number)]
        command = [*torchrun, *place, *words]
        started.append(start(hosts, f"h{number + 1}", folder, command, **variables))
    return started


def loop(
    hosts: Machines, folder: Path, words: Sequence[str], layout: Sequence[int], **variables: str
) -> list[tuple[str, str, int]]:
    """As many ranks on each host as the layout says, with the variables that torch reads."""
    places = [f"h{host + 1}" for host, ranks in enumerate(layout) for _ in range(ranks)]
    job = {"MASTER_ADDR": "10.91.7.1", "MASTER_PORT": "29502", "WORLD_SIZE": str(len(places))}
    return finished(
        [
            start(hosts, host, folder, words, RANK=str(rank), **{**job, **variables})
            for rank, host in enumerate(places)
        ]
    )


def segments(hosts: Machines, host: str) -> list[str]:
    """The names of shared memory of a host."""
    listed = hosts.start(host, ["ls", "/dev/shm"], os.environ, Path("/"))
    return listed.communicate(timeout=20)[0].split()


def program(folder: Path, text: str) -> str:
    (folder / "program.py").write_text(text)
    return str(folder / "program.py")


@needs_pmi
@pytest.mark.parametrize("rendezvous", ["static", "c10d", "torch.distributed.launch"])
def test_ranks_of_torchrun_on_two_hosts(two: Machines, tmp_path: Path, rendezvous: str) -> None:
    done = agents(two, tmp_path, [program(tmp_path, MEETS)], rendezvous)
    assert [status for *_, status in done] == [0, 0], done
    said = "".join(out for out, *_ in done)
    assert len(re.findall(r"rank \d of 4 on h1 is right", said)) == 2, said
    assert len(re.findall(r"rank \d of 4 on h2 is right", said)) == 2, said


# A block of a transformer of which each rank has a part, compared with the whole block.
TENSOR_PARALLEL = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("query", "key", "value", "output"):
            setattr(self, name, torch.nn.Linear(32, 32))
        self.up, self.down = torch.nn.Linear(32, 128), torch.nn.Linear(128, 32)

    def forward(self, x):
        rows, tokens, _ = x.shape
        heads = [w(x).view(rows, tokens, -1, 8).transpose(1, 2)
                 for w in (self.query, self.key, self.value)]
        seen = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).reshape(rows, tokens, -1))
        return x + self.down(torch.relu(self.up(x)))

mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
net, x = Block().double(), torch.randn(2, 8, 32, dtype=torch.float64)
whole = net(x)
whole.sum().backward()
gradient = net.up.weight.grad.clone()
net.zero_grad()
columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
parallelize_module(net, mesh, columns | dict.fromkeys(("output", "down"), RowwiseParallel()))
parts = net(x)
parts.sum().backward()
torch.testing.assert_close(parts, whole)
torch.testing.assert_close(net.up.weight.grad.full_tensor(), gradient)
os.write(1, f"rank {dist.get_rank()} by {dist.get_backend()} is right\\n".encode())
"""


@needs_pmi
def test_transformer_sharded_over_two_hosts_by_one_variable(two: Machines, tmp_path: Path) -> None:
    words = [program(tmp_path, TENSOR_PARALLEL)]
    done = agents(two, tmp_path, words, "static", GRADRED_TORCH="1")
    assert [status for *_, status in done] == [0, 0], done
    assert sum(out.count("by gradred is right") for out, *_ in done) == 4, done


@needs_pmi
@pytest.mark.parametrize("layout", [(1, 1), (3, 1)], ids=["1+1", "3+1"])
def test_ranks_of_a_loop_of_a_shell(two: Machines, tmp_path: Path, layout: tuple[int, ...]) -> None:
    done = loop(two, tmp_path, [program(tmp_path, MEETS)], layout)
    assert [status for *_, status in done] == [0] * sum(layout), done
    on_h2 = f"rank {sum(layout) - 1} of {sum(layout)} on h2 is right"
    assert on_h2 in done[-1][0]


@needs_pmi
def test_two_jobs_at_once_on_the_same_hosts(two: Machines, tmp_path: Path) -> None:
    words = [program(tmp_path, MEETS)]
    torch = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    torch += ["--master-addr", "10.91.7.1"]
    started = [
        start(
            two,
            f"h{number + 1}",
            tmp_path,
            [*torch, "--node-rank", str(number), "--master-port", port, *words],
        )
        for port in ("29503", "29504")
        for number in range(2)
    ]
    done = finished(started)
    assert [status for *_, status in done] == [0] * 4, done
    assert sum(out.count("of 2 on h2 is right") for out, *_ in done) == 2, done


ENDS_ONCE = """
import os, pathlib, signal, sys
import torch
import torch.distributed as dist

ended = pathlib.Path(sys.argv[1])
dist.init_process_group("gradred")
for step in range(6):
    dist.all_reduce(torch.ones(5))
    if step == 3 and dist.get_rank() == 3 and not ended.exists():
        ended.touch()
        os.kill(os.getpid(), signal.SIGKILL)
x = torch.ones(3)
dist.all_reduce(x)
os.write(1, f"in the end {x.tolist()}\\n".encode())
dist.destroy_process_group()
"""


@needs_pmi
@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_ranks_that_torchrun_starts_anew_connect_again(
    two: Machines, tmp_path: Path, rendezvous: str
) -> None:
    words = ["--max-restarts", "1", program(tmp_path, ENDS_ONCE), str(tmp_path / "ended")]
    done = agents(two, tmp_path, words, rendezvous)
    assert [status for *_, status in done] == [0, 0], done
    assert "".join(out for out, *_ in done).count("in the end [4.0, 4.0, 4.0]") == 4, done


@needs_pmi
@pytest.mark.parametrize(
    ("how", "error", "seconds"),
    [
        ("is killed", "PeerLost: .*rank 2 .*has ended", 2.0),
        ("raises", "PeerLost: .*ValueError: on purpose", 2.0),
        ("is killed in MPI_Init", "PeerLost: .*rank 2 has ended before all ranks had begun", 20.0),
        ("ends during the start", "PeerLost: .*rank 2 has ended before all ranks had begun", 20.0),
        ("does not come", "TimeoutError: .*not come within 8 s: rank 2", 20.0),
        ("has another secret", "TimeoutError: .*not come within 8 s: rank 2", 20.0),
    ],
)
def test_the_others_get_an_error_in_time(
    two: Machines, tmp_path: Path, how: str, error: str, seconds: float
) -> None:
    late = {"GRADRED_TIMEOUT": "8"} if seconds > 2 else {}
    done = loop(two, tmp_path, [program(tmp_path, FAILS), how], (1, 2), **late)
    for rank, (out, err, status) in enumerate(done[:2]):
        found = re.search(rf"{rank} after (\S+): {error}", out)
        assert found, (rank, out, err)
        assert float(found[1]) < within(seconds), out
        # MPICH may itself end the process, if it connects to the rank that was killed.
        assert status == 1 or (status and how == "is killed in MPI_Init"), (rank, status, err)
    out, _, status = done[2]
    assert status != 0
    if late:  # the start has failed
        assert [segments(two, host) for host in ("h1", "h2")] == [[], []]
    if how == "has another secret":
        assert "TransportError: connecting 3 ranks: h2 cannot reach rank 0's host" in out


@needs_pmi
def test_rank_that_nobody_starts_is_an_error_of_torch_in_time(
    two: Machines, tmp_path: Path
) -> None:
    """torch waits for all ranks itself, so the limit is that of init_process_group."""
    words, job = [program(tmp_path, FAILS), "is not started"], {"MASTER_ADDR": "10.91.7.1"}
    job |= {"MASTER_PORT": "29505", "WORLD_SIZE": "3"}
    begin = time.monotonic()
    done = finished(
        [start(two, host, tmp_path, words, RANK=str(rank), **job) for rank, host in ENDS]
    )
    for out, err, status in done:
        assert status == 1, (out, err)
        assert re.search(r"after \S+: Dist(Store|Network)Error", out), (out, err)
    assert "2/3 clients joined" in done[0][0]
    assert time.monotonic() - begin < within(40)


@needs_pmi
def test_ranks_do_not_wait_at_their_end_for_one_that_has_failed(
    two: Machines, tmp_path: Path
) -> None:
    begin = time.monotonic()
    done = loop(two, tmp_path, [program(tmp_path, FAILS), "ends when others are done"], (1, 2))
    assert done[2][2] == -9, done
    assert {status for *_, status in done[:2]} <= {0, 1}, done
    assert time.monotonic() - begin < within(60)


@pytest.mark.skipif(not IS_OPEN_MPI, reason="MPICH needs no mpiexec")
def test_open_mpi_gets_an_error_that_names_both_remedies(two: Machines, tmp_path: Path) -> None:
    for _, err, status in loop(two, tmp_path, [program(tmp_path, MEETS)], (1, 1)):
        assert status == 1
        assert "Open MPI connects only ranks that its own mpiexec has started" in err
        assert "gradred run" in err
        assert "mpich" in err
