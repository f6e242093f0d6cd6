"""One call of each collective and of messages, with the tensors that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytorch.groups import RANK, SIZE, dist

ROOT = SIZE - 1


@dataclass(frozen=True)
class Call:
    """One call, and the elements of its tensors on this rank.

    A tensor of `both` is read and written. `run` gets the group, the tensors that the call writes
    (`both` among them), and those that it only reads. It blocks.
    """

    name: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    both: tuple[int, ...]
    run: Callable[[Any, list[Any], list[Any]], object]


def _messages(group: Any, out: list[Any], given: list[Any]) -> None:
    coming = group.recv(out, (RANK - 1) % SIZE, 7)
    group.send(given, (RANK + 1) % SIZE, 7).wait()
    coming.wait()


def _to_root(group: Any, out: list[Any], given: list[Any]) -> None:
    options = dist.ReduceOptions()
    options.rootRank = ROOT
    group.reduce(out or given, options).wait()


def _gather(group: Any, out: list[Any], given: list[Any]) -> None:
    options = dist.GatherOptions()
    options.rootRank = ROOT
    group.gather([out] if out else [], given, options).wait()


def _scatter(group: Any, out: list[Any], given: list[Any]) -> None:
    options = dist.ScatterOptions()
    options.rootRank = ROOT
    group.scatter(out, [given] if given else [], options).wait()


def _broadcast(group: Any, out: list[Any], given: list[Any]) -> None:
    options = dist.BroadcastOptions()
    options.rootRank = ROOT
    group.broadcast(out or given, options).wait()


_ALL, _IS_ROOT = (2,) * SIZE, RANK == ROOT

CALLS = [
    Call("allreduce", (), (), (2,), lambda g, out, _: g.allreduce(out).wait()),
    Call(
        "allreduce_coalesced", (), (), (2, 3), lambda g, out, _: g.allreduce_coalesced(out).wait()
    ),
    Call("broadcast", (2,) * _IS_ROOT, (), (2,) * (not _IS_ROOT), _broadcast),
    Call("reduce", (2,) * (not _IS_ROOT), (), (2,) * _IS_ROOT, _to_root),
    Call("allgather", (2,), _ALL, (), lambda g, out, x: g.allgather([out], x).wait()),
    Call(
        *("allgather, uneven", (RANK + 1,), tuple(range(1, SIZE + 1)), ()),
        lambda g, out, x: g.allgather([out], x).wait(),
    ),
    Call(
        *("all_gather_single", (2,), (2 * SIZE,), ()),
        lambda g, out, x: g.all_gather_single(*out, *x).wait(),
    ),
    Call(
        *("all_gather_single_coalesced", (2, 3), (2 * SIZE, 3 * SIZE), ()),
        lambda g, out, x: g.all_gather_single_coalesced(out, x).wait(),
    ),
    Call(
        *("allgather_coalesced", (2,), _ALL, ()),
        lambda g, out, x: g.allgather_coalesced([[one] for one in out], x).wait(),
    ),
    Call("gather", (2,), _ALL * _IS_ROOT, (), _gather),
    Call("scatter", _ALL * _IS_ROOT, (2,), (), _scatter),
    Call("reduce_scatter", _ALL, (2,), (), lambda g, out, x: g.reduce_scatter(out, [x]).wait()),
    Call(
        *("reduce_scatter, uneven", tuple(range(1, SIZE + 1)), (RANK + 1,), ()),
        lambda g, out, x: g.reduce_scatter(out, [x]).wait(),
    ),
    Call(
        *("reduce_scatter_single", (2 * SIZE,), (2,), ()),
        lambda g, out, x: g.reduce_scatter_single(*out, *x).wait(),
    ),
    Call(
        *("reduce_scatter_single_coalesced", (2 * SIZE, 3 * SIZE), (2, 3), ()),
        lambda g, out, x: g.reduce_scatter_single_coalesced(out, x).wait(),
    ),
    Call(
        *("all_to_all_single", (2 * SIZE,), (2 * SIZE,), ()),
        lambda g, out, x: g.all_to_all_single(*out, *x, [], []).wait(),
    ),
    Call("alltoall", _ALL, _ALL, (), lambda g, out, x: g.alltoall(out, x).wait()),
    Call("messages", (2,), (2,), (), _messages),
]


def each(only: Callable[[Call], object] = lambda _: True) -> Any:
    """The calls as parameters of a test."""
    import pytest

    chosen = [call for call in CALLS if only(call)]
    return pytest.mark.parametrize("call", chosen, ids=[call.name for call in chosen])
