"""Works in flight, which inputs have to wait for that are copied at the call.

The engine orders operations by the memory that they use. An input that is copied first, as lists
and tensors with gaps are, has to be copied after the operations in flight that write there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from gradred.torch_distributed.work import GradredWork

_works: set[weakref.ref[GradredWork]] = set()


def note(work: GradredWork) -> None:
    """Remember a work as long as the program has it."""
    _works.add(weakref.ref(work, _works.discard))


def after_writes(tensors: Iterable[Any]) -> None:
    """Wait for the works in flight that write to these tensors."""
    if not _works:
        return
    read = list(_extents(tensors))
    for known in list(_works):
        work = known()
        if work is not None and not work.has_ended and _overlap(read, work.written):
            work.wait()


def _overlap(read: list[tuple[int, int]], written: Iterable[Any]) -> bool:
    return any(
        begin < end_of_read and begin_of_read < end
        for begin, end in _extents(written)
        for begin_of_read, end_of_read in read
    )


def _extents(tensors: Iterable[Any]) -> Iterator[tuple[int, int]]:
    """The addresses from the first to behind the last element of each tensor."""
    for one in tensors:
        if isinstance(one, (list, tuple)):
            yield from _extents(one)
        elif isinstance(one, torch.Tensor) and one.layout is torch.strided and one.numel():
            steps = zip(one.shape, one.stride(), strict=True)
            elements = 1 + sum((length - 1) * stride for length, stride in steps)
            yield one.data_ptr(), one.data_ptr() + elements * one.itemsize
