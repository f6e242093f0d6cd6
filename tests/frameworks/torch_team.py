"""Ranks that run PyTorch's own tests of a backend of torch.distributed, one after the other.

PyTorch's runner starts processes for each test, which takes most of the time. Here a team of ranks
runs all tests until one fails. Each test has its own process group.
"""

from __future__ import annotations

import datetime
import importlib
import multiprocessing
import os
import time
import traceback
import unittest
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
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

    os.environ["TEMP_DIR"] = at
    torch.set_num_threads(1)
    module = theirs()
    module.BACKEND = LikeGloo(backend)
    module.PROFILING_SUPPORTED_BACKENDS.append(backend)
    module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    bases = (module.TestDistBackend, module.DistributedTest._DistTestBase)
    cases = type("Cases", bases, {"__module__": __name__})
    while True:
        name, store = asked.recv()
        case = cases(name)
        case.rank, case.file_name = rank, store
        asked.send(run_in_a_group(module, case, name, backend))


def run_in_a_group(module: Any, case: Any, name: str, backend: str) -> Verdict:
    """Run one test on this rank."""
    import torch.distributed as dist

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


class Team:
    """Ranks that run tests together until one fails.

    Args:
        backend: the backend of their process groups.
        at: a folder for their files only.
    """

    def __init__(self, backend: str, at: Path) -> None:
        self._at, self.tests = at, 0
        for name in ("barrier", "test_dir"):
            (at / name).mkdir(parents=True)
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(RANKS):
            ours, others = spawn.Pipe()
            process = spawn.Process(
                target=run_rank, args=(rank, backend, str(at), others), daemon=True
            )
            process.start()
            others.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, name: str) -> Verdict:
        """Run one test on all ranks. Ends the team if the test fails."""
        for left in [*self._at.glob("barrier/*"), *self._at.glob("test_dir/*")]:
            left.unlink()
        self.tests += 1
        for pipe in self._pipes:
            pipe.send((name, str(self._at / f"store-{self.tests}")))
        verdict = joined(self._verdicts())
        if verdict.word == FAILED:
            self.end()
        return verdict

    def _verdicts(self) -> list[Verdict]:
        """The verdict of each rank."""
        found: dict[int, Verdict] = {}
        end = time.monotonic() + LONGEST
        while len(found) < RANKS and (left := end - time.monotonic()) > 0:
            silent = {self._pipes[rank]: rank for rank in range(RANKS) if rank not in found}
            for pipe in wait(list(silent), left):
                assert isinstance(pipe, Connection)
                verdict = told(pipe)
                found[silent[pipe]] = verdict
                if verdict.word == FAILED:
                    end = min(end, time.monotonic() + AFTER_A_FAILURE)
        return [found.get(rank, Verdict(FAILED, "it did not end")) for rank in range(RANKS)]

    def end(self) -> None:
        """End all ranks at once, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def told(pipe: Connection) -> Verdict:
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
