"""Files of the flight recorder, read by torch's own analyser."""

from __future__ import annotations

import datetime
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

import torch
import torch.distributed as dist
from pytorch.every_collective import CALLS, Call
from pytorch.groups import RANK, SIZE, group_of_all  # noqa: F401 (a fixture)
from torch.distributed.flight_recorder import fr_trace

from gradred.errors import UsageError
from gradred.torch_distributed import flight_recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same folder on all ranks."""
    folders = [str(tmp_path)]
    dist.broadcast_object_list(folders, 0)
    return Path(folders[0])


@pytest.fixture
def recorder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[flight_recorder.FlightRecorder]:
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", f"{folder}/rank_")
    made = flight_recorder.FlightRecorder(64)
    monkeypatch.setattr(flight_recorder, "recorder", lambda: made)
    yield made
    made.end()


def entries_of(recorder: flight_recorder.FlightRecorder) -> list[dict[str, Any]]:
    content: dict[str, list[dict[str, Any]]] = pickle.loads(Path(recorder.dump()).read_bytes())
    return content["entries"]


def read(folder: Path, *options: str) -> Any:
    """What torch's analyser makes of the files of all ranks."""
    flight_recorder.dump()
    dist.barrier()
    fr_trace.main([str(folder), "--prefix", "rank_", "-o", f"{folder}/found{RANK}", *options])
    found = pickle.loads((folder / f"found{RANK}").read_bytes())[1]
    dist.barrier()
    return found


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_ranks_that_agree_match(call: Call, folder: Path) -> None:
    group = dist.new_group()
    if not hasattr(group, call.name.split(",")[0].split()[0]) and call.name.startswith("gather_"):
        pytest.skip("a newer PyTorch has it")
    reads, writes, both = (
        [torch.ones(length) for length in lengths]
        for lengths in (call.reads, call.writes, call.both)
    )
    call.run(group, writes + both, reads)
    found = read(folder).collectives
    assert [one.collective_name for one in found]
    for one in found:
        assert (one.pass_check, one.missing_ranks, one.type_of_mismatch) == (True, None, None)
        assert one.collective_state == "completed"


@pytest.mark.usefixtures("recorder")
def test_a_rank_that_leaves_out_an_operation_is_named(folder: Path) -> None:
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    left_out = SIZE - 1
    work = None
    if left_out != RANK:
        work = dist.all_reduce(torch.ones(7), group=group, async_op=True)
    found = read(folder).collectives
    assert [one.collective_state for one in found] == ["completed", "started"]
    assert found[1].missing_ranks == {left_out}
    assert (found[1].collective_name, found[1].input_sizes) == ("gloo:all_reduce", [[7]])
    if work is None:
        work = dist.all_reduce(torch.ones(7), group=group, async_op=True)
    work.wait()
    assert all(one.collective_state == "completed" for one in read(folder).collectives)


def test_ring_keeps_the_last_operations(recorder: flight_recorder.FlightRecorder) -> None:
    group = dist.new_group()
    for _ in range(100):
        dist.all_reduce(torch.ones(1), group=group)
    entries = entries_of(recorder)
    assert [one["collective_seq_id"] for one in entries] == list(range(37, 101))
    assert "test_ring_keeps_the_last_operations" in str(entries[0]["frames"])


def test_a_new_group_of_the_same_name_starts_anew(
    recorder: flight_recorder.FlightRecorder,
) -> None:
    for length in (1, 2):
        group = dist.new_group()
        group._name = "again"
        dist.all_reduce(torch.ones(length), group=group)
    (found,) = entries_of(recorder)
    assert (found["collective_seq_id"], found["input_sizes"]) == (1, [[2]])


def test_a_time_limit_does_not_wait_for_a_store_that_does_not_answer(
    recorder: flight_recorder.FlightRecorder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, asked = threading.Event(), threading.Event()

    class Store:
        def set(self, *_: str) -> None:
            asked.set()
            ends.wait()

    monkeypatch.setattr(flight_recorder, "_PATIENCE", datetime.timedelta(seconds=0.2))
    monkeypatch.setattr(recorder, "_shared", Store)
    try:
        waiter = threading.Thread(target=recorder.at_time_limit)
        waiter.start()
        waiter.join(20)
        assert not waiter.is_alive()
        assert asked.is_set()
        assert (folder / f"rank_{RANK}").exists()
    finally:
        ends.set()


def test_recorder_that_is_off_says_so() -> None:
    group: Any = dist.group.WORLD
    assert "recorded" not in group._watchers
    with pytest.raises(UsageError, match="TORCH_FR_BUFFER_SIZE"):
        flight_recorder.dump()
