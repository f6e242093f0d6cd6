"""The backend "gradred" of torch.distributed and tensors on devices without support.

gradred refuses such tensors, or passes them to the backend of their device.
"""

from __future__ import annotations

import datetime
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pytorch.groups import RANK, SIZE, dist, group_of_all, since, torch

from gradred.torch_distributed import other_devices, process_group
from gradred.torch_distributed.work import GradredWork

__all__ = ["group_of_all"]  # a fixture of this module
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # names that torch 2.13 renamed


def calls_with(x: Any, group: Any = None, beside: str = "cpu") -> dict[str, Callable[[], Any]]:
    """Every collective with this tensor of SIZE elements, and with others on a device."""
    host = torch.empty(SIZE, dtype=x.dtype, device=beside)
    return {
        "all_reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 0, group=group),
        "reduce": lambda: dist.reduce(x, 0, group=group),
        "all_gather": lambda: dist.all_gather([host] * SIZE, x, group=group),
        "all_gather of other sizes": lambda: dist.all_gather([x] * SIZE, host[:1], group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(host, x[:1], group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(x[:1], [host[:1]] * SIZE, group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(host[:1], x, group=group),
        "reduce_scatter_tensor's output": lambda: dist.reduce_scatter_tensor(
            x[:1], host, group=group
        ),
        "gather": lambda: dist.gather(x, [host] * SIZE if RANK == 0 else None, 0, group=group),
        "scatter": lambda: dist.scatter(x, [host] * SIZE if RANK == 0 else None, 0, group=group),
        "all_to_all": lambda: dist.all_to_all(list(host.split(1)), list(x.split(1)), group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(host, x, group=group),
        "all_to_all_single's output": lambda: dist.all_to_all_single(x, host, group=group),
        "send": lambda: dist.isend(x, (RANK + 1) % SIZE, group=group),
        "recv": lambda: dist.irecv(x, (RANK - 1) % SIZE, group=group),
    }


@pytest.mark.parametrize("call", calls_with(torch.empty(0)))
@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_tensors_that_are_not_on_the_host_are_refused(call: str) -> None:
    with pytest.raises(ValueError, match="the tensor is on meta"):
        calls_with(torch.ones(SIZE, device="meta"))[call]()


@since(2, 2)
@pytest.mark.parametrize(
    "call", ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]
)
def test_types_that_have_no_sum_here_are_refused_by_name_and_moved_all_the_same(call: str) -> None:
    x = torch.ones(SIZE).to(torch.float8_e4m3fnuz)
    with pytest.raises(ValueError, match=r"does not reduce torch\.float8_e4m3fnuz"):
        calls_with(x)[call]()
    dist.broadcast(x, 0)
    dist.all_to_all_single(torch.empty_like(x), x)


def test_tensors_elsewhere_have_a_group_of_another_backend() -> None:
    other = dist.new_group(backend="gloo")
    x = torch.ones(2)
    dist.all_reduce(x, group=other)
    dist.all_reduce(x)
    assert (x == SIZE * SIZE).all()


class Noting(dist.ProcessGroup):  # type: ignore[misc]
    """A backend for another device, which records its calls."""

    def __init__(self, *_: Any) -> None:
        super().__init__(RANK, SIZE)
        self.noted: list[str] = []

    def _get_backend(self, device: Any) -> Any:
        return self

    def __getattribute__(self, name: str) -> Any:
        if name in process_group.COLLECTIVES:
            self.noted.append(name)
            return lambda *_, **__: GradredWork([], lambda: None, [], None)
        return super().__getattribute__(name)


@pytest.fixture(scope="module")
def of_two_devices() -> Any:
    dist.Backend.register_backend("noting", Noting, devices=["meta"])
    return dist.new_group(backend="cpu:gradred,meta:noting")


@pytest.mark.parametrize("call", calls_with(torch.empty(0)))
@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_tensors_on_other_devices_go_to_the_backend_asked_for(
    call: str, of_two_devices: Any
) -> None:
    calls_with(torch.ones(SIZE, device="meta"), of_two_devices, "meta")[call]()
    noting = of_two_devices.other_devices.group_for(torch.device("meta"))
    assert isinstance(noting, Noting)
    assert len(noting.noted) == 1
    noting.noted.clear()
    x = torch.ones(2)
    dist.all_reduce(x, group=of_two_devices)
    assert (x == SIZE).all()
    assert noting.noted == []


@pytest.mark.skipif(SIZE == 1, reason="a message takes two ranks")
def test_what_is_asked_for_is_handed_on_whole(of_two_devices: Any) -> None:
    x, y = (torch.ones(SIZE, device="meta") for _ in range(2))
    group = of_two_devices
    calls = {
        "allreduce_coalesced": ([x, y],),
        "all_gather_single_coalesced": ([x], [y[:1]]),
        "allgather_into_tensor_coalesced": ([x], [y[:1]]),
        "allgather_coalesced": ([[x] * SIZE], [y]),
        "reduce_scatter_single_coalesced": ([x[:1]], [y]),
        "reduce_scatter_tensor_coalesced": ([x[:1]], [y]),
    }
    noting = group.other_devices.group_for(torch.device("meta"))
    for name, arguments in calls.items():
        getattr(group, name)(*arguments)
        assert noting.noted == [name]
        noting.noted.clear()
    batch = [
        dist.P2POp(dist.isend, x, (RANK + 1) % SIZE, group),
        dist.P2POp(dist.irecv, y, (RANK - 1) % SIZE, group),
    ]
    assert [one.group for one in map(other_devices.served, batch)] == [noting, noting]
    assert hasattr(dist.batch_isend_irecv, "__wrapped__"), "torch's own is asked"
    dist.batch_isend_irecv(batch)
    assert sorted(noting.noted) == ["recv", "send"]
    noting.noted.clear()


def test_a_call_that_is_handed_on_keeps_no_tensor(of_two_devices: Any) -> None:
    x = torch.ones(SIZE, device="meta")
    seen = weakref.ref(x)
    dist.all_reduce(x, group=of_two_devices)
    of_two_devices.other_devices.group_for(torch.device("meta")).noted.clear()
    gc.disable()
    try:
        del x
        assert seen() is None
    finally:
        gc.enable()


@since(2, 6)
def test_a_device_of_the_group_whose_backend_torch_asks_for_before_it_knows_the_group(
    of_two_devices: Any,
) -> None:
    core, device = dist.distributed_c10d, torch.device("meta:0")
    store = core._world.pg_map[of_two_devices][1]
    ranks = list(range(SIZE))
    named: dict[str, Any] = {"group_name": "bound", "device_id": device}
    named["timeout"] = datetime.timedelta(seconds=60)
    made, _ = core._new_process_group_helper(
        SIZE, RANK, ranks, "cpu:gradred,meta:noting", store, **named
    )
    core._world.pg_group_ranks[made] = {rank: rank for rank in ranks}
    assert isinstance(made.other_devices.group_for(device), Noting)
    x = torch.ones(2)
    dist.all_reduce(x, group=made)
    assert (x == SIZE).all()


def test_another_backend_may_have_the_host() -> None:
    group = dist.new_group(backend="cpu:gloo,cuda:gradred")
    assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    assert group._get_backend(torch.device("cuda")) is (group.backend or group)
    x = torch.ones(3)
    dist.all_reduce(x, group=group)
    assert (x == SIZE).all()


def test_a_group_of_two_backends_gives_each_device_its_own() -> None:
    group = dist.new_group(backend="cpu:gradred,cuda:gloo")
    assert group._get_backend(torch.device("cpu")) is (group.backend or group)
    assert isinstance(group._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
    with pytest.raises(RuntimeError, match="backend"):
        group._get_backend(torch.device("xpu"))
