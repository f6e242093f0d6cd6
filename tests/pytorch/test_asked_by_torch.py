"""What torch's C++ code asks of a group of gradred, from PyTorch 2.14 on."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from pytorch.groups import RANK, SIZE, group_of_all, since  # noqa: F401 (a fixture)

from gradred.errors import UsageError

QUESTIONS = ("splitting", "time_estimate", "shrinking", "reconfigure", "window")


@since(2, 14)
def test_group_has_a_store_and_a_backend() -> None:
    group = dist.group.WORLD
    assert group is not None
    store = group.get_group_store()
    store.set(f"from {RANK}", "here")
    store.wait([f"from {rank}" for rank in range(SIZE)])
    backend = dist.get_backend_impl(group)
    assert isinstance(backend, torch._C._distributed_c10d.Backend)
    assert (backend.rank(), backend.size(), backend.name()) == (RANK, SIZE, "gradred")
    assert backend.get_error() == torch._C._distributed_c10d.ErrorType.SUCCESS


@since(2, 14)
def test_questions_are_answered() -> None:
    group = dist.group.WORLD
    backend = dist.get_backend_impl(group)
    assert backend.supports_coalescing
    for word in QUESTIONS:
        assert getattr(backend, f"supports_{word}") is False
    assert not dist._supports_reconfigure(group)
    assert not dist._supports_window(group)
    with pytest.raises(RuntimeError, match="gradred does not support get_reconfigure_handle"):
        dist._get_reconfigure_handle(group)
    with pytest.raises(RuntimeError, match="gradred does not support new_window"):
        dist._new_window(group=group)


@since(2, 14)
def test_reconfigure_is_refused_when_the_group_is_made() -> None:
    options = dist.distributed_c10d._DistributedBackendOptions()
    options.enable_reconfigure = True
    from gradred.torch_distributed.rendezvous import create

    with pytest.raises(UsageError, match="stay the same"):
        create(options)
