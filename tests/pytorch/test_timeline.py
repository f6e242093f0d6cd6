"""Timelines: Horovod's events, in files that are complete after each of them."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pytorch.given import name

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("gradred.torch")

pytestmark = pytest.mark.usefixtures("initialised")


@pytest.fixture
def shared_folder(tmp_path: Path) -> Path:
    """The folder of rank 0."""
    return Path(hvd.broadcast_object(str(tmp_path), 0))


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a file; read again if a concurrent write shows half of an event."""
    for _ in range(100):
        with suppress(json.JSONDecodeError):
            return cast("list[dict[str, Any]]", json.loads(path.read_text()))
        time.sleep(0.01)
    raise AssertionError(path.read_text())


def test_timeline_has_horovods_events(shared_folder: Path) -> None:
    path = shared_folder / "timeline.{rank}.json"
    own, label = Path(str(path).replace("{rank}", str(hvd.rank()))), name()
    hvd.start_timeline(str(path), mark_cycles=True)
    assert [event["ph"] for event in events_of(own)] == ["M"]
    handles = [hvd.allreduce_async(torch.ones(2, 3), name=f'{label}."{i}"') for i in range(3)]
    started = events_of(own)  # the file is complete although nothing has ended
    for handle in handles:
        hvd.synchronize(handle)
    hvd.allgather(torch.ones(hvd.rank() + 1), name=label)
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="shape"):
            hvd.allreduce(torch.ones(hvd.rank() + 1), name=f"{label}.wrong")
    hvd.barrier()
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(1), name=f"{label}.later")
    events = events_of(own)
    assert events[: len(started)] == started
    processes = {
        event["args"]["name"]: event["pid"]
        for event in events
        if event.get("name") == "process_name" and event["pid"]
    }
    assert not any("later" in process for process in processes)
    mine = [event for event in events if event["pid"] == processes[f'allreduce.{label}."1"']]
    begun = [event["name"] for event in mine if event["ph"] == "B"]
    assert begun == ["NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "GRADRED_ALLREDUCE"]
    assert len([event for event in mine if event["ph"] == "E"]) == len(begun)
    times = [event["ts"] for event in mine if event["ph"] in "BEX"]
    assert times == sorted(times)
    ticks = [int(event["name"]) for event in mine if event["ph"] == "X"]
    assert ticks[0] == hvd.rank()
    assert all(tick in range(hvd.size()) for tick in ticks)
    # The second tick names the last rank, which ranks of several hosts do not know.
    assert len(ticks) == (1 if "TEST_HOSTS" in os.environ else 2)
    ended = [event["args"] for event in mine if event["ph"] == "E" and "args" in event]
    assert [(args["dtype"], args["shape"]) for args in ended] == [("float32", "[2, 3]")]
    assert sum(event.get("name") == "CYCLE_START" for event in events) >= 2
    if hvd.size() > 1:
        wrong = [event for event in events if event["pid"] == processes[f"allreduce.{label}.wrong"]]
        assert any(event.get("name") == "ERROR" for event in wrong)
        assert any("shape" in event.get("args", {}).get("error", "") for event in wrong)
    assert f"allgather.{label}" in processes
    hvd.stop_timeline()


def test_timeline_is_rank_zeros_and_names_process_sets(shared_folder: Path) -> None:
    path, label = shared_folder / "one.json", name()
    ranks = list(range(hvd.size()))[::2]
    hvd.init(process_sets="dynamic")
    hvd.start_timeline(str(path))
    added = hvd.size() > 1
    one = hvd.add_process_set(hvd.ProcessSet(ranks)) if added else hvd.global_process_set
    if hvd.rank() in ranks:
        hvd.allreduce(torch.ones(1), name=label, process_set=one)
    hvd.barrier()
    hvd.stop_timeline()
    if hvd.rank() == 0:
        text = path.read_text()
        prefix = f"set {one.process_set_id}: " if added else ""
        assert f'"{prefix}allreduce.{label}"' in text
        assert "CYCLE_START" not in text
        with pytest.raises(OSError, match="no such folder"):
            hvd.start_timeline(str(shared_folder / "no such folder" / "t.json"))
    if added:
        hvd.remove_process_set(one)


@pytest.mark.skipif("not os.path.exists('/dev/full')")
def test_timeline_on_a_full_disk_is_reported() -> None:
    hvd.start_timeline("/dev/full")
    hvd.allreduce(torch.ones(1), name=name())
    with pytest.warns(UserWarning, match="No space left") if hvd.rank() == 0 else nullcontext():
        hvd.stop_timeline()


def test_timeline_by_variable(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared_folder / "by variable.json"
    hvd.barrier()
    hvd.shutdown()
    monkeypatch.setenv("HOROVOD_TIMELINE", str(path))
    monkeypatch.setenv("HOROVOD_TIMELINE_MARK_CYCLES", "1")
    hvd.init(process_sets="dynamic")
    hvd.allreduce(torch.ones(1), name="by variable")
    if hvd.rank() == 0:
        text = path.read_text()
        assert "allreduce.by variable" in text
        assert "CYCLE_START" in text
    hvd.barrier()
    hvd.stop_timeline()
