"""Groups of torch.distributed that go on with other ranks, started in each way."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradred import launch

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
    pytest.mark.skipif(
        torch.torch_version.TorchVersion(torch.__version__) < (2, 14),
        reason="torch has reconfigure from 2.14 on",
    ),
]

HERE = Path(__file__).parent
CHECKS, TRAINING = HERE / "torch_reconfiguring.py", HERE / "torch_going_on.py"
NAMES = re.findall(r"^@check\ndef (\w+)", CHECKS.read_text(), re.MULTILINE)
RANKS = 3
ALONE = ["torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
Start = Callable[[list[str]], "subprocess.Popen[str]"]


def new_store() -> Any:
    limit = datetime.timedelta(seconds=60)
    return dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)


def started(*command: str | Path, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
    )


def as_processes(store: Any) -> list[subprocess.Popen[str]]:
    words = str(store.port), str(RANKS)
    return [started(CHECKS, words[0], str(rank), words[1]) for rank in range(RANKS)]


def by_gradred_run(store: Any) -> list[subprocess.Popen[str]]:
    words = ["-m", "gradred", "run", "-np", str(RANKS), sys.executable, CHECKS]
    return [started(*words, str(store.port), "", "")]


def by_torchrun(store: Any) -> list[subprocess.Popen[str]]:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [started(*words, CHECKS, str(store.port), "", "")]


STARTS = {
    "processes": as_processes,
    "gradred run": by_gradred_run,
    "torchrun": by_torchrun,
}


@pytest.fixture(scope="module", params=STARTS)
def found(request: pytest.FixtureRequest) -> list[dict[str, str | None]]:
    """What each rank has found; one start for all checks, as torch's import takes long."""
    store = new_store()
    processes = STARTS[request.param](store)
    outputs = [process.communicate(timeout=280) for process in processes]
    keys = [f"found by {rank}" for rank in range(RANKS)]
    assert store.check(keys), outputs
    return [json.loads(store.get(key)) for key in keys]


@pytest.mark.parametrize("name", NAMES)
def test_group_goes_on(found: list[dict[str, str | None]], name: str) -> None:
    for report in found:
        assert report[name] is None, report[name]


class Coordinator:
    """Names the members of each generation: those that live, and then who has come since.

    Args:
        store: the store of the training.
        replaces: whether a new process takes the place of each killed one.
    """

    def __init__(self, store: Any, replaces: bool) -> None:
        self.store, self.replaces = store, replaces
        self.members = list(range(RANKS))
        self.named = RANKS

    def run(self, kills: int, start: Callable[[], object]) -> None:
        self.store.set("generation 0", json.dumps(self.members))
        for generation in range(1, kills + 1):
            key = f"lost before {generation}"
            self.wait_for(key, len(self.members) - 1)
            self.members.pop()
            if self.replaces:
                start()
                self.wait_for("names", self.named + 1)
                self.members.append(self.named)
                self.named += 1
            self.store.set(f"generation {generation}", json.dumps(self.members))

    def wait_for(self, key: str, number: int) -> None:
        begin = datetime.datetime.now()
        while self.store.add(key, 0) < number:
            assert datetime.datetime.now() - begin < datetime.timedelta(seconds=150), key
            threading.Event().wait(0.05)


def losses(
    kills: int, by_ddp: bool, how: str = "processes", replaces: bool = True, steps: int = 9
) -> list[float]:
    """The losses of a training, of which so many ranks are killed one after the other."""
    store = new_store()
    words = [TRAINING, str(store.port), str(steps), str(kills), str(int(by_ddp))]
    processes: list[subprocess.Popen[str]] = []

    def start() -> None:
        processes.append(started(*words))

    if how == "gradred run":
        run = ["-m", "gradred", "run", "-np", str(RANKS), "--grace", "2", sys.executable]
        processes.append(started(*run, *words))
    elif how == "torchrun":  # one for each rank: it starts a killed rank again
        run = ["-m", *ALONE, "--max-restarts", "3"]
        processes.extend(started(*run, *words) for _ in range(RANKS))
    else:
        for _ in range(RANKS):
            start()
    with ended(processes):
        Coordinator(store, replaces).run(kills, start if how == "processes" else lambda: None)
        outputs = [process.communicate(timeout=200) for process in processes]
    killed = [process.returncode == -signal.SIGKILL for process in processes]
    assert sum(killed) == (kills if how == "processes" else 0), outputs
    assert all(
        process.returncode == 0 for process, was in zip(processes, killed, strict=True) if not was
    ), outputs
    assert store.check(["losses"]), outputs
    found: list[float] = json.loads(store.get("losses"))
    return found


@contextlib.contextmanager
def ended(processes: list[subprocess.Popen[str]]) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()


def finished(job: subprocess.Popen[str]) -> tuple[subprocess.Popen[str], str, str]:
    """A job that has ended, what it has printed, and its errors."""
    with ended([job]):
        return job, *job.communicate(timeout=100)


@pytest.fixture(scope="module")
def undisturbed() -> Callable[[bool], list[float]]:
    return functools.cache(lambda by_ddp: losses(0, by_ddp))


@pytest.mark.parametrize("how", ["processes", "torchrun"])
def test_training_goes_on_to_the_same_loss_when_ranks_are_killed_and_replaced(
    undisturbed: Callable[[bool], list[float]], how: str
) -> None:
    expected = undisturbed(True)
    assert expected[-1] < expected[0]
    assert losses(3, True, how) == expected  # the same bits


@pytest.mark.parametrize(("how", "by_ddp"), [("processes", True), ("gradred run", False)])
def test_training_goes_on_to_the_same_loss_with_fewer_ranks(
    undisturbed: Callable[[bool], list[float]], how: str, by_ddp: bool
) -> None:
    found = losses(RANKS - 1, by_ddp, how, replaces=False)
    expected = undisturbed(by_ddp)
    assert found == pytest.approx(expected, rel=1e-9)  # other ranks sum in another order


WITHOUT_SHARED_MEMORY = """
import datetime
import os
import torch
import torch.distributed as dist

dist.init_process_group("gradred", enable_reconfigure=True)
store = dist.distributed_c10d._get_default_store()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
limit = datetime.timedelta(seconds=30)
for uuid in (1, 2):
    store.set(f"{uuid} of {rank}", dist._get_reconfigure_handle())
    handles = [store.get(f"{uuid} of {one}").decode() for one in range(size)]
    dist._reconfigure(uuid, handles[::-1], timeout=limit).wait()
    x = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    print("found", dist.get_rank() == size - 1 - rank, x.tolist(), dist._supports_window())
try:
    dist._new_window(x)
except RuntimeError as error:
    print(error)
"""


def test_ranks_without_shared_memory_use_their_mpi_and_have_no_windows() -> None:
    run = ["-m", "gradred", "run", "-np", "2", sys.executable, "-c", WITHOUT_SHARED_MEMORY]
    job, output, errors = finished(started(*run, GRADRED_SHM="0"))
    assert job.returncode == 0, errors
    assert output.count("found True [3.0, 3.0, 3.0] False") == 4, output
    assert output.count("do not share memory") == 2, output


DIES_EARLY = """
import datetime
import os
import signal
import time
import torch
import torch.distributed as dist

dist.init_process_group("gradred", enable_reconfigure=True)
store = dist.distributed_c10d._get_default_store()
rank = int(os.environ["RANK"])
store.set(f"handle {rank}", dist._get_reconfigure_handle())
handles = [store.get(f"handle {one}").decode() for one in range(3)]
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
dist._reconfigure(1, handles[:2], timeout=datetime.timedelta(seconds=30)).wait()
time.sleep(3)
x = torch.ones(1)
dist.all_reduce(x)
print("found", x.item())
"""


def test_job_goes_on_without_a_rank_that_was_killed_before_the_first_time() -> None:
    run = ["-m", "gradred", "run", "-np", "3", "--grace", "1", sys.executable, "-c", DIES_EARLY]
    job, output, errors = finished(started(*run))
    assert job.returncode == 0, errors
    assert output.count("found 2.0") == 2, output


COMES_AGAIN_AND_FAILS = """
import os
import sys
import time
import torch
import torch.distributed as dist

dist.init_process_group("gradred", enable_reconfigure=True)
store = dist.distributed_c10d._get_default_store()
rank = int(os.environ["RANK"])
store.set(f"handle {rank}", dist._get_reconfigure_handle())
handles = [store.get(f"handle {one}").decode() for one in range(3)]
dist._reconfigure(10 + rank, [handles[rank]]).wait()
dist._reconfigure(1, handles).wait()
dist.barrier()
if rank == 1:
    sys.exit(7)
time.sleep(2)
"""


def test_job_fails_if_a_rank_fails_that_was_left_out_and_has_come_again() -> None:
    run = ["-m", "gradred", "run", "-np", "3", "--grace", "1", sys.executable, "-c"]
    job, _, errors = finished(started(*run, COMES_AGAIN_AND_FAILS))
    assert job.returncode == 7, errors


ENDS_WITH_HOOKS = """
import torch
import torch.distributed as dist

dist.init_process_group("gradred")
group, seen = dist.group.WORLD, []
group.register_pre_hook(1, lambda found: seen.append(found))
group.register_post_hook(1, lambda found: seen.append(group))
dist.all_reduce(torch.ones(1))
print("found", len(seen))
"""


def test_program_may_end_with_hooks() -> None:
    run = ["-m", "gradred", "run", "-np", "2", sys.executable, "-c", ENDS_WITH_HOOKS]
    job, output, errors = finished(started(*run))
    assert job.returncode == 0, errors
    assert output.count("found 2") == 2, output


TWO_OF_FOUR = """
import datetime
import sys
import torch
import torch.distributed as dist

port, own = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, None, False)
dist.init_process_group("gradred", store=store, rank=own, world_size=4, enable_reconfigure=True)
store.set(f"handle {own}", dist._get_reconfigure_handle())
first = own // 2 * 2
handles = [store.get(f"handle {one}").decode() for one in (first, first + 1)]
dist._reconfigure(10 + first, handles).wait()
for turn in range(20):
    store.add(f"turn {turn}", 1)
    while store.add(f"turn {turn}", 0) < 4:
        pass
    x = torch.tensor([own])
    dist.all_reduce(x, group=dist.new_group(timeout=datetime.timedelta(seconds=20)))
    assert x.item() == 2 * first + 1, x
store.add("done", 1)
while store.add("done", 0) < 4:
    pass
"""


def test_new_groups_of_others_in_the_same_store_have_other_ranks() -> None:
    store = new_store()
    ranks = [started("-c", TWO_OF_FOUR, str(store.port), str(own)) for own in range(4)]
    with ended(ranks):
        errors = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, errors
