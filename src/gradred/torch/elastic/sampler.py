"""A sampler that records which samples have been used, and divides the others among the ranks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import torch

from gradred.horovod.basics import rank, size


class ElasticSampler(torch.utils.data.Sampler):
    """Gives each rank its share of the samples that have not been used in this epoch.

    Args:
        dataset: dataset to sample. Only its length is used.
        shuffle: shuffle the samples in each epoch, in the same order on all ranks.
        seed: seed of the shuffled order.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_num = 0, 0
        self.num_replicas, self.rank = 0, 0
        self.remaining_indices: list[int] = []
        self.num_samples, self.total_size = 0, 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch. No sample counts as used, and the shuffled order changes."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each rank has used a batch of `batch_size` samples."""
        self.processed_num += batch_size * self.num_replicas

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the position of another sampler."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        """The position of the sampler."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Divide the remaining samples among the current ranks."""
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = list(self.remaining_indices)
        while left and len(left) < self.total_size:  # all ranks get the same number
            left += left[: self.total_size - len(left)]
        return iter(left[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples
