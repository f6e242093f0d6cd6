"""The buffers that `gradred.request` keeps alive for operations in flight, and the cost of that."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import pytest

pytest.importorskip("mpi4py")
MPI = pytest.importorskip("mpi4py.MPI", exc_type=ImportError)

from gradred import request  # noqa: E402 (it imports mpi4py.MPI)

OTHERS = 100_000
IN_FLIGHT = 50  # number of the others at one time


class Operation:
    """An operation that ends when `over` is set, and counts how often it is asked."""

    asked = 0
    holds_memory = False

    def __init__(self) -> None:
        self.over = False

    @property
    def ended(self) -> bool:
        Operation.asked += 1
        return self.over


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    request._in_flight.clear()
    Operation.asked = 0
    yield
    request._in_flight.clear()


def test_one_operation_that_never_ends_holds_no_others_buffers_and_costs_no_time() -> None:
    never = Operation()
    request.keep_alive(never, "its buffers")  # type: ignore[arg-type]
    running: collections.deque[Operation] = collections.deque()
    most = 0
    for _ in range(OTHERS):
        running.append(Operation())
        request.keep_alive(running[-1], bytearray(8))  # type: ignore[arg-type]
        if len(running) > IN_FLIGHT:
            running.popleft().over = True
        most = max(most, len(request._in_flight))
    assert most <= 3 * IN_FLIGHT
    assert Operation.asked <= 5 * OTHERS
    assert request._in_flight[never] == "its buffers"  # type: ignore[index]


def test_operations_that_end_in_any_order_are_let_go_by_later_ones() -> None:
    first = [Operation() for _ in range(100)]
    for one in first:
        request.keep_alive(one, "buffers")  # type: ignore[arg-type]
    assert len(request._in_flight) == 100
    for one in first[::-3]:
        one.over = True
    for _ in range(50):
        last = Operation()
        last.over = True
        request.keep_alive(last, "buffers")  # type: ignore[arg-type]
    assert set(request._in_flight) == {one for one in first if not one.over}  # type: ignore[comparison-overlap]


class EmptiedByAnother(collections.OrderedDict[Operation, str]):
    """Another thread takes the last entry just after this thread has seen that there is one."""

    def popitem(self, last: bool = True) -> tuple[Operation, str]:
        self.clear()
        return super().popitem(last)


def test_two_threads_may_let_go_of_the_same_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    held = EmptiedByAnother({Operation(): "buffers"})
    monkeypatch.setattr(request, "_in_flight", held)
    mine = Operation()
    request.keep_alive(mine, "mine")  # type: ignore[arg-type]
    assert dict(held) == {mine: "mine"}
