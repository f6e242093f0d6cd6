"""Windows of torch: memory of the other ranks of a host."""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from pytorch.groups import RANK, SIZE, group_of_all, since  # noqa: F401 (a fixture)

import gradred
from gradred.errors import UsageError

pytestmark = since(2, 14)
on_one_host = pytest.mark.skipif("TEST_HOSTS" in os.environ, reason="several hosts")

AFTER, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
EACH = 8


def memory(rows: int = SIZE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Zeros in shared memory, behind other elements."""
    whole: torch.Tensor = gradred.empty_like(torch.empty(40_000, dtype=dtype)).zero_()
    return whole[100 : 100 + rows * EACH].view(rows, EACH)


def some(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((EACH,), value, dtype=dtype)


@on_one_host
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("async_op", [False, True])
def test_put_is_there_after_the_signal(dtype: torch.dtype, async_op: bool) -> None:
    assert dist._supports_window()
    own = memory(dtype=dtype)
    window = dist._new_window(own)
    for turn in range(10):
        window.put(some(RANK + turn, dtype), AFTER, RANK * EACH, async_op).wait()
        window.signal(AFTER, async_op).wait()
        window.wait_signal(BEFORE, async_op).wait()
        assert own[BEFORE].tolist() == [BEFORE + turn] * EACH
        assert window.map_remote_tensor(RANK)[BEFORE].tolist() == own[BEFORE].tolist()
        remote = window.map_remote_tensor(AFTER)
        assert remote.shape == own.shape
        assert remote.dtype is dtype
        assert remote[RANK].tolist() == [RANK + turn] * EACH
        dist.barrier()
    window.tensor_deregister()


@on_one_host
def test_a_remote_tensor_is_the_memory_itself() -> None:
    own = memory()
    window = dist._new_window(own)
    remote = window.map_remote_tensor(AFTER)
    own[0, 0] = RANK + 5
    dist.barrier()
    assert remote[0, 0] == AFTER + 5
    dist.barrier()
    remote[1 % SIZE, 1] = 3
    dist.barrier()
    assert own[1 % SIZE, 1] == 3
    window.tensor_deregister()
    assert remote.numel() == SIZE * EACH  # it may still be read


@on_one_host
def test_ranks_register_tensors_of_different_shapes_and_types() -> None:
    dtype = torch.float64 if RANK % 2 else torch.int32
    window = dist._new_window()
    own = memory(RANK + 1, dtype)
    window.tensor_register(own, owning=False)
    of_next = torch.float64 if AFTER % 2 else torch.int32
    window.put(some(RANK, of_next), AFTER, AFTER * EACH, False)
    dist.barrier()
    assert own[-1].tolist() == [BEFORE] * EACH
    assert window.map_remote_tensor(RANK)[-1].tolist() == [BEFORE] * EACH
    if SIZE > 1:
        with pytest.raises(UsageError, match=f"the window of rank {AFTER} of"):
            window.put(some(0, torch.float16), AFTER, 0, False)
    with pytest.raises(UsageError, match=f"has {(AFTER + 1) * EACH} elements"):
        window.put(some(0, of_next), AFTER, AFTER * EACH + 1, False)
    with pytest.raises(UsageError, match=f"has {SIZE} ranks"):
        window.map_remote_tensor(SIZE)
    dist.barrier()
    window.tensor_deregister()


@on_one_host
@pytest.mark.parametrize("wrong", [7, torch.ones(3).to_sparse(), torch.ones(3, device="meta")])
def test_what_no_rank_can_map_is_refused_on_all_ranks(wrong: Any) -> None:
    given = wrong if RANK == SIZE - 1 else memory()
    with pytest.raises(UsageError, match=f"of rank {SIZE - 1} is "):
        dist._new_window(given)
    dist.barrier()


@on_one_host
def test_windows_have_signals_of_their_own() -> None:
    first, second = dist._new_window(memory()), dist._new_window(memory())
    limit = torch._C._distributed_c10d.WaitSignalOptions()
    limit.timeout = datetime.timedelta(milliseconds=50)
    second.signal(AFTER, False)
    with pytest.raises(gradred.TimeoutError, match="Timed out"):
        first.wait_signal(BEFORE, False, limit)
    dist.barrier()
    first.signal(AFTER, False)
    first.wait_signal(BEFORE, False)  # the wait that was given up has not taken it
    second.wait_signal(BEFORE, False)


@on_one_host
def test_private_memory_is_refused_on_all_ranks() -> None:
    own = memory() if RANK else torch.zeros(SIZE, EACH)
    window = dist._new_window()
    with pytest.raises(UsageError, match=r"rank 0 is not in memory that other.*gradred\.empty"):
        window.tensor_register(own)
    with pytest.raises(UsageError, match="has no tensor"):
        window.put(some(1), RANK, 0, False)
    window.tensor_register(memory())
    with pytest.raises(UsageError, match="has a tensor already"):
        window.tensor_register(memory())
    kind = torch._C._distributed_c10d.WindowAccessType
    assert window.get_attr(AFTER).access_type == kind.UNIFIED
    window.tensor_deregister()


@pytest.mark.skipif("TEST_HOSTS" not in os.environ, reason="one host")
def test_windows_between_hosts_are_refused() -> None:
    assert not dist._supports_window()
    assert not dist.get_backend_impl(dist.group.WORLD).supports_window
    with pytest.raises(UsageError, match="do not share memory"):
        dist._new_window(memory())
