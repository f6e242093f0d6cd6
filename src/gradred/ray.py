"""Groups of gradred for Ray's collectives among actors, `ray.util.collective`.

    ray.util.collective.register_collective_backend("gradred", gradred.ray.Group)

Ray requires that line in the driver and in each actor. Each group is one of gradred's for
torch.distributed (`gradred.torch_distributed`), so it needs no mpiexec.
"""

from __future__ import annotations

import contextlib
import datetime
import time
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from ray import get_runtime_context
from ray.experimental import internal_kv
from ray.util import get_node_ip_address
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import (
    AllGatherOptions,
    AllReduceOptions,
    BarrierOptions,
    BroadcastOptions,
    RecvOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    SendOptions,
)
from torch.distributed import distributed_c10d

from gradred._util import clock
from gradred.errors import TimeoutError, UsageError  # noqa: A004
from gradred.torch_distributed import rendezvous

Lists = Sequence[Sequence[Any]]

_TIME_LIMIT = datetime.timedelta(minutes=30)  # torch's own of a group
_CONNECT = datetime.timedelta(seconds=5)  # one try to reach the store
_NAP = 0.05  # seconds
_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}


class Group(BaseGroup):
    """A group of actors. The arrays of NumPy, CuPy and PyTorch are reduced where they are.

    Ray makes it when an actor calls `init_collective_group`, or its first collective. That waits
    for all actors of the group, at most 30 minutes.

    Args:
        world_size: the number of actors.
        rank: of this actor.
        group_name: the name that Ray knows the group by.

    Raises:
        gradred.UsageError: the actors are on several hosts, and the MPI of one needs its own
            mpiexec, or was initialised before; see `gradred.connect`.
        gradred.TimeoutError: an actor has not come in time.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        key = store_key(group_name)
        store = _open_store(key) if rank == 0 else _store_at(key, group_name)
        options = types.SimpleNamespace(
            store=store,
            group_rank=rank,
            group_size=world_size,
            group_id=f"Ray {group_name}",
            global_ranks_in_group=[],
            timeout=_TIME_LIMIT,
        )
        try:
            self._made = rendezvous.create(options)
        finally:
            if rank == 0:  # by now all have read it; a later group may have the same name
                internal_kv._internal_kv_del(key)
        self._store = store  # rank 0's serves the others

    @classmethod
    def backend(cls) -> str:
        """Return the name that Ray shows."""
        return "gradred"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Return whether groups can be made: always, since this module has been imported."""
        return True

    def destroy_group(self) -> None:
        """Free the group; operations in flight fail on all ranks. All ranks have to call it."""
        self._made.shutdown()

    def allreduce(self, tensor: Sequence[Any], allreduce_options: Any = AllReduceOptions) -> None:
        """Reduce in place. Blocking, as all calls of a group are."""
        opts = _options(distributed_c10d.AllreduceOptions(), allreduce_options)
        self._made.allreduce([_only(tensor, "allreduce")], opts).wait()

    def barrier(self, barrier_options: Any = BarrierOptions) -> None:
        """Wait for all ranks."""
        self._made.barrier(_options(distributed_c10d.BarrierOptions(), barrier_options)).wait()

    def reduce(self, tensor: Sequence[Any], reduce_options: Any = ReduceOptions) -> None:
        """Reduce into the root's array; the others' keep their elements."""
        opts = _options(distributed_c10d.ReduceOptions(), reduce_options)
        self._made.reduce([_only(tensor, "reduce")], opts).wait()

    def broadcast(self, tensor: Sequence[Any], broadcast_options: Any = BroadcastOptions) -> None:
        """Copy the root's array into those of all ranks."""
        opts = _options(distributed_c10d.BroadcastOptions(), broadcast_options)
        self._made.broadcast([_only(tensor, "broadcast")], opts).wait()

    def allgather(
        self,
        tensor_list: Lists,
        tensor: Sequence[Any],
        allgather_options: Any = AllGatherOptions,
    ) -> None:
        """Write all ranks' arrays into those of `tensor_list`, by rank."""
        opts = _options(distributed_c10d.AllgatherOptions(), allgather_options)
        outputs = _all(_only_list(tensor_list, "allgather"))
        self._made.allgather([outputs], [_only(tensor, "allgather")], opts).wait()

    def reducescatter(
        self,
        tensor: Sequence[Any],
        tensor_list: Lists,
        reducescatter_options: Any = ReduceScatterOptions,
    ) -> None:
        """Reduce the arrays of `tensor_list`, and write that of this rank's place to `tensor`."""
        opts = _options(distributed_c10d.ReduceScatterOptions(), reducescatter_options)
        inputs = _all(_only_list(tensor_list, "reducescatter"))
        self._made.reduce_scatter([_only(tensor, "reducescatter")], [inputs], opts).wait()

    def send(self, tensor: Sequence[Any], send_options: SendOptions) -> None:
        """Send an array to another rank, which has to call `recv`."""
        _require_one_gpu(send_options.dst_gpu_index, send_options.n_elements, "send")
        self._made.send([_only(tensor, "send")], send_options.dst_rank, 0).wait()

    def recv(self, tensor: Sequence[Any], recv_options: RecvOptions) -> None:
        """Receive into an array what another rank sends."""
        _require_one_gpu(recv_options.src_gpu_index, recv_options.n_elements, "recv")
        self._made.recv([_only(tensor, "recv")], recv_options.src_rank, 0).wait()


def store_key(group_name: str) -> str:
    """Return Ray's key of the place of a group's store.

    All jobs of a cluster share these keys, and may have groups of one name: "default", for example.
    So it has the namespace of the job, as names of actors have.
    """
    return f"gradred store of {group_name} in {get_runtime_context().namespace}"


def _open_store(key: str) -> dist.TCPStore:
    """Make rank 0's store, and tell the others where it is."""
    host = get_node_ip_address()
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    internal_kv._internal_kv_put(key, f"{host} {store.port}".encode(), overwrite=True)
    return store


def _store_at(key: str, group_name: str) -> dist.TCPStore:
    """Find rank 0's store. What is read may be of an earlier group whose rank 0 was killed."""
    until = clock.now() + _TIME_LIMIT.total_seconds()
    while clock.now() < until:
        if place := internal_kv._internal_kv_get(key):
            host, port = place.decode().split()
            with contextlib.suppress(dist.DistError):
                return dist.TCPStore(host, int(port), timeout=_CONNECT)
        time.sleep(clock.nap(_NAP))
    asked = f"Ray's collective group {group_name}"
    raise TimeoutError(asked, "rank 0 has not come", "See whether it makes the group, too")


def _options(made: Any, given: Any) -> Any:
    """Say in torch's options what Ray's say."""
    if hasattr(given, "reduceOp"):
        made.reduceOp = _OPS[given.reduceOp]
    if hasattr(given, "root_rank"):
        made.rootRank = given.root_rank
    if given.timeout_ms > datetime.timedelta(0):
        made.timeout = given.timeout_ms
    return made


def _only(tensors: Sequence[Any], asked: str) -> torch.Tensor:
    """Return the array as a tensor in the same memory. Ray passes a list, of one for each GPU."""
    if len(tensors) != 1:
        _refuse_more(f"{len(tensors)} arrays", asked)
    return torch.as_tensor(tensors[0])


def _only_list(lists: Lists, asked: str) -> Sequence[Any]:
    if len(lists) != 1:
        _refuse_more(f"{len(lists)} lists of arrays", asked)
    return lists[0]


def _all(arrays: Sequence[Any]) -> list[torch.Tensor]:
    return [torch.as_tensor(one) for one in arrays]


def _require_one_gpu(number: int, count: int, asked: str) -> None:
    if number or count:
        _refuse_more(f"GPU {number} of the peer and {count} elements", asked)


def _refuse_more(found: str, asked: str) -> None:
    remedy = "Give each actor one GPU, and pass one array, whole"
    raise UsageError(f"ray.util.collective.{asked} with gradred", found, remedy)
