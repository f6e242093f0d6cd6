"""Compression with error feedback as a communication hook of DistributedDataParallel."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradred.compression import Compressor, Floats
from gradred.schemes.store import mean_of


class DdpCompression:
    """The state of `ddp_hook`: what compresses, and the error of each bucket.

    Args:
        compression: as in `gradred.compression.Compressor`: `topk:0.01`, `int8`, ...
        group: the process group of the model; None: the default one.

    Raises:
        UsageError: there is no such compression.
    """

    def __init__(self, compression: str, group: Any = None) -> None:
        self.compressor, self.group = Compressor(compression), group
        self.sent_bytes = 0
        """The bytes of all payloads of this rank."""
        self._parameters: list[Any] = []  # as they first came, which is the same on all ranks
        self._numbers: dict[int, int] = {}  # by the identity of a parameter
        self._keys: list[tuple[int, ...]] = []  # of buckets
        self._owed: dict[int, Floats] = {}  # of parameters between two layouts

    def key(self, bucket: Any) -> tuple[int, ...]:
        """The numbers of a bucket's parameters; what they are owed follows them to a new bucket.

        DDP makes other buckets after the first step, in the order in which gradients came.
        """
        parameters = bucket.parameters()
        for one in parameters:
            if id(one) not in self._numbers:
                self._numbers[id(one)] = len(self._parameters)
                self._parameters.append(one)
        key = tuple(self._numbers[id(one)] for one in parameters)
        if key not in self._keys:
            for other in [other for other in self._keys if set(other) & set(key)]:
                self._keys.remove(other)
                self._dissolve(other)
            if any(number in self._owed for number in key):
                self.compressor.give_owed(key, np.concatenate([self._of(one) for one in key]))
            self._keys.append(key)
        return key

    def _dissolve(self, key: tuple[int, ...]) -> None:
        owed = self.compressor.take_owed(key)
        if isinstance(owed, np.ndarray):
            ends = np.cumsum([self._parameters[number].numel() for number in key])
            self._owed |= zip(key, np.split(owed, ends[:-1]), strict=True)

    def _of(self, number: int) -> Floats:
        """What a parameter is owed, which then belongs to its new bucket."""
        nothing = np.zeros(self._parameters[number].numel(), np.float32)
        return self._owed.pop(number, nothing)


def ddp_hook(state: DdpCompression, bucket: Any) -> Any:
    """Gather compressed gradients of all ranks, and average them.

    Pass it to `model.register_comm_hook(DdpCompression("topk"), ddp_hook)`. It works with any
    backend that has all_gather. Gradients on a GPU are compressed in host memory.

    Args:
        state: of this model.
        bucket: `torch.distributed.GradBucket`, float32.

    Returns:
        A future of the bucket's averaged gradients, in the bucket's memory.
    """
    import torch
    import torch.distributed as dist

    buffer = bucket.buffer()
    count, size = buffer.numel(), dist.get_world_size(state.group)
    values = buffer.detach().cpu().numpy()
    payload = torch.from_numpy(np.array(state.compressor.encode(state.key(bucket), values)))
    state.sent_bytes += payload.numel()
    payload = payload.to(buffer.device)
    gathered = [torch.empty_like(payload) for _ in range(size)]
    work = dist.all_gather(gathered, payload, group=state.group, async_op=True)

    def averaged(done: Any) -> Any:
        done.value()  # raises if it has failed
        payloads = [one.cpu().numpy() for one in gathered]
        mean = mean_of([state.compressor.decode(one, count) for one in payloads])
        buffer.copy_(torch.from_numpy(mean))
        return buffer

    return work.get_future().then(averaged)


ddp_hook.__annotations__ = {}  # torch compares annotations with its own classes
