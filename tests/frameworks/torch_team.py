"""Ranks that run PyTorch's own tests of a backend of torch.distributed, one after the other.

PyTorch's runner starts processes for each test, which takes most of the time. Here a team of ranks
runs all tests until one fails. Each test has its own process group. Where a test takes GPUs, it
gets the host's memory (host_devices.py).
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
import unittest
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

MODULE = "torch.testing._internal.distributed.distributed_test"
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
RANKS = 3  # ranks 1 and 2 form the groups of some ranks
LONGEST = 150.0  # limit of one test, in seconds
AFTER_A_FAILURE = 5.0  # seconds in which the other ranks report their verdict


@dataclass
class Verdict:
    """The verdict of one test; `text` is the reason, or the errors."""

    word: str
    text: str = ""


class LikeGloo(str):
    """A name that compares equal to "gloo", for tests that ask which backend they have."""

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or other == "gloo"

    __hash__ = str.__hash__


def theirs() -> Any:
    """PyTorch's module of tests, loaded as for gloo."""
    os.environ |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    os.environ["BACKEND"] = "gloo"  # read once: which tests are left out for the backend
    module = importlib.import_module(MODULE)
    os.environ["BACKEND"] = "mpi"  # read by each test: MPI's groups of few ranks are not left out
    return module


def run_rank(rank: int, backend: str, at: str, asked: Connection) -> None:
    """A process of a team: runs the tests that it receives, and sends back the verdicts."""
    import torch
    from frameworks.host_devices import replace_gpus

    from gradred import torch_backend

    torch_backend.register()
    os.environ["TEMP_DIR"] = at
    torch.set_num_threads(1)
    module = theirs()
    on_host = replace_gpus(rank, RANKS)
    module.BACKEND = LikeGloo(backend)
    module.PROFILING_SUPPORTED_BACKENDS.append(backend)
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    bases = (module.TestDistBackend, module.DistributedTest._DistTestBase)
    cases = type("Cases", bases, {"__module__": __name__})
    while True:
        name, store = asked.recv()
        case = cases(name)
        case.rank, case.file_name = rank, store
        with on_host:
            verdict = run_in_a_group(module, case, name, backend)
        asked.send(verdict)


def run_in_a_group(module: Any, case: Any, name: str, backend: str) -> Verdict:
    """Run one test on this rank."""
    import torch.distributed as dist

    # PyTorch's decorator for several levels leaves the last one behind.
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    dist.set_debug_level_from_env()
    dist.init_process_group(
        backend,
        init_method=case.init_method,
        rank=case.rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=module.CUSTOM_PG_TIMEOUT.get(name, 60)),
    )
    module.Barrier.barrier_id = 0
    module.Barrier.sync()
    verdict = run(case, name)
    if verdict.word != FAILED:  # otherwise this team runs no other test
        module.Barrier.sync(timeout=LONGEST)
        if dist.is_initialized():
            dist.destroy_process_group()
    return verdict


def run(case: Any, name: str) -> Verdict:
    """Run one test in a process group that exists."""
    importlib.import_module("torch.testing._internal.common_utils").set_rng_seed()
    skips = importlib.import_module("torch.testing._internal.common_distributed").TEST_SKIPS
    try:
        getattr(case, name)()
    except unittest.SkipTest as reason:
        return Verdict(SKIPPED, str(reason))
    except SystemExit as left:
        reasons = [skip.message for skip in skips.values() if skip.exit_code == left.code]
        return Verdict(SKIPPED, reasons[0]) if reasons else Verdict(FAILED, f"exit {left.code}")
    except Exception:
        return Verdict(FAILED, traceback.format_exc())
    return Verdict(PASSED)


@dataclass
class Started:
    """Processes of a team, by rank, and how to end all of them at once, whatever they do."""

    pipes: list[Connection]
    end: Callable[[], None]


def spawned(backend: str, at: Path) -> Started:
    """Start the ranks as new processes, as PyTorch's class of tests does. None initialises MPI.

    They are forked from a process that has imported PyTorch, and in which no thread runs.
    """
    os.environ["PYTHONPATH"] = python_path()
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["frameworks.torch_preloaded"])
    pipes, processes = [], []
    for rank in range(RANKS):
        ours, others = server.Pipe()
        given = (rank, backend, str(at), others)
        process = server.Process(target=run_rank, args=given, daemon=True)
        process.start()
        others.close()
        pipes.append(ours)
        processes.append(process)

    def end() -> None:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()

    return Started(pipes, end)


def python_path() -> str:
    """The paths of this process, for processes that it starts, and the folder of all tests."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), *sys.path]))


def in_one_job(backend: str, at: Path) -> Started:
    """Start the ranks as one MPI job, by `gradred run`."""
    address = str(at / "ranks")
    program = [sys.executable, "-m", "frameworks.torch_rank", backend, str(at), address]
    with Listener(address, "AF_UNIX") as listener, (at / "output").open("w") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "gradred", "run", "-np", str(RANKS), "--grace", "0", *program],
            env={**os.environ, "PYTHONPATH": python_path()},
            stdout=output,
            stderr=output,
        )

        def call_off() -> None:
            job.wait()
            with contextlib.suppress(OSError):  # the listener is closed: all ranks have come
                Client(address, "AF_UNIX").close()

        threading.Thread(target=call_off, daemon=True).start()
        pipes: dict[int, Connection] = {}
        while len(pipes) < RANKS:
            pipe = listener.accept()
            try:
                pipes[pipe.recv()] = pipe
            except EOFError:
                text = (at / "output").read_text()
                raise RuntimeError(f"the job has ended before its ranks came:\n{text}") from None

    def end() -> None:
        job.terminate()
        job.wait()

    return Started([pipes[rank] for rank in range(RANKS)], end)


STARTS = {"spawned": spawned, "one job": in_one_job}


class Team:
    """Ranks that run tests together until one fails.

    Args:
        start: how they are started: a name of `STARTS`.
        backend: the backend of their process groups.
        at: a folder for their files only.
    """

    def __init__(self, start: str, backend: str, at: Path) -> None:
        self._at, self.tests = at, 0
        for name in ("barrier", "test_dir"):
            (at / name).mkdir(parents=True)
        self._ranks = STARTS[start](backend, at)

    def run(self, name: str) -> Verdict:
        """Run one test on all ranks. Ends the team if the test fails."""
        for left in [*self._at.glob("barrier/*"), *self._at.glob("test_dir/*")]:
            left.unlink()
        self.tests += 1
        for pipe in self._ranks.pipes:
            pipe.send((name, str(self._at / f"store-{self.tests}")))
        verdict = joined(self._verdicts(LONGEST))
        if verdict.word == FAILED:
            self.end()
        return verdict

    def _verdicts(self, limit: float) -> list[Verdict]:
        """The verdict of each rank, within so many seconds."""
        found: dict[int, Verdict] = {}
        end = time.monotonic() + limit
        while len(found) < RANKS and (left := end - time.monotonic()) > 0:
            silent = {self._ranks.pipes[rank]: rank for rank in range(RANKS) if rank not in found}
            for pipe in wait(list(silent), left):
                assert isinstance(pipe, Connection)
                verdict = verdict_from(pipe)
                found[silent[pipe]] = verdict
                if verdict.word == FAILED:
                    end = min(end, time.monotonic() + AFTER_A_FAILURE)
        return [found.get(rank, Verdict(FAILED, "it did not end")) for rank in range(RANKS)]

    def end(self) -> None:
        """End all ranks at once, whatever they do."""
        self._ranks.end()


def verdict_from(pipe: Connection) -> Verdict:
    """The verdict of one rank."""
    try:
        verdict: Verdict = pipe.recv()
    except EOFError:
        return Verdict(FAILED, "the process has ended")
    return verdict


def joined(verdicts: list[Verdict]) -> Verdict:
    """The test has failed if it failed on any rank, and is skipped if all ranks skip it."""
    word = next(
        word for word in (FAILED, PASSED, SKIPPED) if any(one.word == word for one in verdicts)
    )
    texts = [f"rank {rank}: {one.text}" for rank, one in enumerate(verdicts) if one.word == word]
    return Verdict(word, verdicts[0].text if word == SKIPPED else "\n".join(texts))
