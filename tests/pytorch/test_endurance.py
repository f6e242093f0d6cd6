"""Many named operations of two threads, for a long time; every result is checked."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

AT_ONCE = 50  # operations in flight of each thread
SOAK = 600.0  # seconds


@pytest.fixture(scope="module", autouse=True)
def _initialised() -> Iterator[None]:
    hvd.init()
    yield
    hvd.barrier()


class Submitting(threading.Thread):
    """Sums of tensors under separate names; each thread has another order on each rank."""

    def __init__(self, number: int, rounds: int) -> None:
        super().__init__(daemon=True)
        self._number, self._rounds = number, rounds
        self.done = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        try:
            for turn in range(self._rounds):
                self._round(turn)
        except BaseException as error:
            self.wrong.append(repr(error))

    def _round(self, turn: int) -> None:
        order = torch.Generator().manual_seed(turn + 1000 * hvd.rank())
        names = torch.randperm(AT_ONCE, generator=order).tolist()
        values = {name: (turn + name) % 1000 + self._number for name in names}
        tensors = {name: torch.full((1 + name % 7,), float(values[name])) for name in names}
        handles = [
            hvd.allreduce_async_(tensors[name], name=f"{self._number}.{name}", op=hvd.Sum)
            for name in names
        ]
        for handle in handles:
            hvd.synchronize(handle)
        for name, tensor in tensors.items():
            if tensor.tolist() != [values[name] * float(hvd.size())] * len(tensor):
                self.wrong.append(f"{name} in round {turn}: {tensor.tolist()}")
        self.done += AT_ONCE


def submit_by_two_threads(operations: int) -> None:
    threads = [Submitting(number, operations // 2 // AT_ONCE) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [thread.wrong for thread in threads] == [[], []]
    assert sum(thread.done for thread in threads) == operations


@pytest.mark.timeout(120)
def test_a_hundred_thousand_operations_of_two_threads() -> None:
    submit_by_two_threads(100_000)


@pytest.mark.full
@pytest.mark.timeout(SOAK + 300)
def test_ten_minutes_take_no_more_and_more_memory() -> None:
    submit_by_two_threads(10_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    end = time.monotonic() + SOAK
    while hvd.allreduce(torch.tensor(float(time.monotonic() < end)), op=hvd.Min).item():
        submit_by_two_threads(10_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 20_000, f"{grown} KiB"
