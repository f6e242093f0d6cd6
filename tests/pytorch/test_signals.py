"""Signal handlers that write to the input of a blocking call, or raise in it.

They run before the call's tensors are read or after its end; see tests/mpi/test_signals.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch
from signalled import SIGNAL, HandlerError, during

hvd = pytest.importorskip("gradred.torch")

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = [
    pytest.mark.usefixtures("initialised"),
    pytest.mark.skipif(SIZE < 2, reason="a peer sends the signal"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # names that torch 2.13 renamed
]
WRITTEN = 1000.0


def copied(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A call in place, as one that returns the result."""

    def carry_out(x: Any) -> Any:
        call(x)
        return x

    return carry_out


def into(shape: Callable[[Any], Any], call: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    def carry_out(x: Any) -> Any:
        made = shape(x)
        call(made, x)
        return torch.stack(made) if isinstance(made, list) else made

    return carry_out


def block(x: Any) -> Any:
    return torch.empty(x.numel() // SIZE)


# Each reads a tensor of as many elements for each rank.
HOROVOD: dict[str, Callable[[Any], Any]] = {
    "allreduce": hvd.allreduce,
    "allreduce_": copied(hvd.allreduce_),
    "grouped_allreduce": lambda x: hvd.grouped_allreduce([x, x.clone()])[0],
    "allgather": hvd.allgather,
    "broadcast": lambda x: hvd.broadcast(x, 0),
    "broadcast_": copied(lambda x: hvd.broadcast_(x, 0)),
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
}
if SIZE & (SIZE - 1) == 0:
    HOROVOD["Adasum"] = lambda x: hvd.allreduce(x, op=hvd.Adasum)
TORCH: dict[str, Callable[[Any], Any]] = {
    "all_reduce": copied(dist.all_reduce),
    "reduce": copied(lambda x: dist.reduce(x, 0)),
    "broadcast": copied(lambda x: dist.broadcast(x, 0)),
    "all_gather": into(lambda x: [torch.empty_like(x) for _ in range(SIZE)], dist.all_gather),
    "all_gather_into_tensor": into(lambda x: x.repeat(SIZE), dist.all_gather_into_tensor),
    "reduce_scatter_tensor": into(block, dist.reduce_scatter_tensor),
    "all_to_all_single": into(torch.empty_like, dist.all_to_all_single),
}
COUNTS = [1, 1000, 100_000]


def given(count: int) -> Any:
    return torch.full((SIZE * count,), RANK + 1.0)


def assert_as_without_a_signal(
    call: Callable[[Any], Any], count: int, carry_out: Callable[..., Any]
) -> None:
    expected = call(given(count)).clone()
    x = given(count)

    def write() -> None:
        x[-1] = WRITTEN

    result = carry_out(lambda: call(x), write)
    if result is x and RANK == 0:  # the handler has run after the call
        assert x[-1] == WRITTEN
        x[-1] = expected[-1]
    assert torch.equal(result, expected)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", HOROVOD)
def test_handler_that_writes_changes_no_result_of_horovods_calls(name: str, count: int) -> None:
    assert_as_without_a_signal(HOROVOD[name], count, during)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", TORCH)
def test_handler_that_writes_changes_no_result_of_torchs_calls(name: str, count: int) -> None:
    assert_as_without_a_signal(TORCH[name], count, during)


def just_after_the_start(call: Callable[[], Any], handler: Callable[[], None]) -> Any:
    """Make a call on all ranks, of which rank 0 comes first. The test raises the signal there."""
    before = signal.signal(SIGNAL, lambda *_: handler()) if RANK == 0 else None
    try:
        if RANK:
            time.sleep(0.1)
        return call()
    finally:
        if RANK == 0:
            signal.signal(SIGNAL, before)


def with_a_signal(call: Callable[..., Any], after: bool) -> Callable[..., Any]:
    """The function, on rank 0 with a signal before or after it."""

    def signalled(*given: Any, **how: Any) -> Any:
        if RANK == 0 and not after:
            signal.raise_signal(SIGNAL)
        result = call(*given, **how)
        if RANK == 0 and after:
            signal.raise_signal(SIGNAL)
        return result

    return signalled


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", HOROVOD)
def test_no_handler_runs_between_horovods_start_and_wait(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carry_out(call: Callable[[], Any], handler: Callable[[], None]) -> Any:
        with monkeypatch.context() as patched:
            for start in [one for one in vars(hvd.mpi_ops) if "_async" in one]:
                starting = getattr(hvd.mpi_ops, start)
                patched.setattr(hvd.mpi_ops, start, with_a_signal(starting, after=True))
            return just_after_the_start(call, handler)

    assert_as_without_a_signal(HOROVOD[name], count, carry_out)


@since(2, 8)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", TORCH)
def test_no_handler_runs_between_torchs_start_and_wait(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradred.torch_distributed.work import GradredWork

    def carry_out(call: Callable[[], Any], handler: Callable[[], None]) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(GradredWork, "wait", with_a_signal(GradredWork.wait, after=False))
            return just_after_the_start(call, handler)

    assert_as_without_a_signal(TORCH[name], count, carry_out)


def leave() -> NoReturn:
    raise HandlerError


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("call", [hvd.allreduce_, dist.all_reduce], ids=["Horovod", "torch"])
def test_exception_of_a_handler_is_raised_after_the_call(call: Any, count: int) -> None:
    x = torch.ones(count)
    if RANK == 0:
        with pytest.raises(HandlerError):
            during(lambda: call(x), leave)
    else:
        during(lambda: call(x), leave)
    assert torch.equal(x, torch.full((count,), 1.0 if call is hvd.allreduce_ else float(SIZE)))
    call(x)  # the group is still usable


class RaisingAfter:
    """An engine whose calls end with an exception on rank 0, as a handler raises it after them."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.engine, name)

        def raising(*given: Any, **how: Any) -> Any:
            made = call(*given, **how)
            if RANK == 0 and made is not None:  # None: not submitted, as on older PyTorch
                raise HandlerError
            return made

        return raising


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("call", [dist.all_reduce, lambda x, **how: dist.broadcast(x, 0, **how)])
def test_submitted_operation_counts_also_if_a_handler_raises_after_it(
    call: Any, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = dist.distributed_c10d._get_default_group()
    x = torch.ones(3, 2, dtype=torch.bool).t()  # which the core alone does not serve
    with monkeypatch.context() as patched:
        patched.setattr(group, "_engine", RaisingAfter(group._engine))
        if RANK == 0:
            with pytest.raises(HandlerError):
                call(x, async_op=asynchronous)
        else:
            request = call(x, async_op=asynchronous)
            if asynchronous:
                request.wait()
    y = torch.full((5,), RANK + 1.0)
    dist.all_reduce(y)
    assert torch.equal(y, torch.full((5,), SIZE * (SIZE + 1) / 2))
