"""Traces: Chrome's format, nested events, and the numbers of bytes of the algorithm."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from core_testing import run_threads
from threads.reference import make_inputs, view

from gradred import errors, schedules

SIZE = 4
COUNT = 1000
ELEMENT = 4  # bytes of an int32
Event = dict[str, Any]


def run(path: Path | str, name: str = "ring", slices: int = 1, **options: Any) -> None:
    inputs = view(make_inputs(SIZE, COUNT, "int32", "sum"))
    plans = schedules.make_all(name, SIZE)
    run_threads(plans, inputs, "int32", "sum", slices=slices, trace=str(path), **options)


def load(path: Path) -> list[Event]:
    """The duration events of a trace file."""
    trace = json.loads(path.read_text())
    assert trace["otherData"] == {"replaced_events": 0}
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def named(events: list[Event], start: str) -> list[Event]:
    return [event for event in events if event["name"].startswith(start)]


def inside(inner: Event, outer: Event) -> bool:
    rounding = 0.0015  # microseconds; the times are decimals with three places
    end = outer["ts"] + outer["dur"] + rounding
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= end


def test_every_rank_writes_a_trace_with_its_rank_as_pid(tmp_path: Path) -> None:
    run(tmp_path / "all.json")
    assert {path.name for path in tmp_path.iterdir()} == {f"all.{r}.json" for r in range(SIZE)}
    for rank in range(SIZE):
        trace = json.loads((tmp_path / f"all.{rank}.json").read_text())
        assert {event["pid"] for event in trace["traceEvents"]} == {rank}
        names = [event for event in trace["traceEvents"] if event["name"] == "process_name"]
        assert [event["args"]["name"] for event in names] == [f"rank {rank}"]
        for event in load(tmp_path / f"all.{rank}.json"):
            assert {"ph", "name", "pid", "tid", "ts", "dur", "args"} == event.keys()
            assert event["dur"] >= 0


@pytest.mark.parametrize(
    ("given", "files"),
    [
        ("{rank}/t.{rank}.json", ["0/t.0.json", "1/t.1.json"]),
        ("t", ["t.0", "t.1"]),
        ("a.b/t", ["a.b/t.0", "a.b/t.1"]),
        (".hidden", [".hidden.0", ".hidden.1"]),
        ("t.x.json", ["t.x.0.json", "t.x.1.json"]),
    ],
)
def test_rank_stands_in_the_file_name(tmp_path: Path, given: str, files: list[str]) -> None:
    for folder in ["0", "1", "a.b"]:
        (tmp_path / folder).mkdir()
    plans = schedules.make_all("ring", 2)
    inputs = view(make_inputs(2, 5, "int32", "sum"))
    run_threads(plans, inputs, "int32", "sum", trace=f"{tmp_path}/{given}")
    written = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()]
    assert sorted(written) == files


@pytest.mark.parametrize("name", ["ring", "rabenseifner", "direct"])
def test_messages_lie_in_their_round_and_rounds_in_their_operation(
    tmp_path: Path, name: str
) -> None:
    slices = 3
    run(tmp_path / "t.json", name, slices)
    for rank in range(SIZE):
        events = load(tmp_path / f"t.{rank}.json")
        operations = named(events, "allreduce of 1000 int32 with sum")
        assert [event["args"]["tag"] for event in operations] == list(range(slices))
        assert len({event["tid"] for event in operations}) == slices  # one line each
        rounds = named(events, "round")
        assert len(rounds) == slices * len(schedules.make(name, rank, SIZE).rounds)
        for whole in operations:
            mine = [r for r in rounds if r["args"]["operation"] == whole["args"]["operation"]]
            assert all(r["tid"] == whole["tid"] and inside(r, whole) for r in mine)
            assert all(a["ts"] + a["dur"] <= b["ts"] + 0.0015 for a, b in pairwise(mine))
        for message in [*named(events, "send"), *named(events, "receive")]:
            key = ("operation", "round")
            (outer,) = [r for r in rounds if all(r["args"][k] == message["args"][k] for k in key)]
            assert inside(message, outer)


@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("name", ["ring", "recursive_doubling", "circulant", "direct"])
def test_bytes_are_those_of_the_algorithm(tmp_path: Path, name: str, slices: int) -> None:
    run(tmp_path / "t.json", name, slices)
    sent: dict[tuple[int, int], int] = {}
    received: dict[tuple[int, int], int] = {}
    for rank in range(SIZE):
        events = load(tmp_path / f"t.{rank}.json")
        for event in named(events, "send"):
            pair = (rank, event["args"]["peer"])
            sent[pair] = sent.get(pair, 0) + event["args"]["bytes"]
        for event in named(events, "receive"):
            pair = (event["args"]["peer"], rank)
            received[pair] = received.get(pair, 0) + event["args"]["bytes"]
        both = [*named(events, "send"), *named(events, "receive")]
        per_round = sum(event["args"]["bytes"] for event in named(events, "round"))
        assert per_round == sum(event["args"]["bytes"] for event in both)
    assert sent == received
    factor = 2 if name == "recursive_doubling" else 2 * (SIZE - 1) / SIZE  # of n, per rank
    assert sum(sent.values()) == factor * COUNT * ELEMENT * SIZE


def test_trace_of_a_failed_operation_is_written_and_says_abandoned(tmp_path: Path) -> None:
    with pytest.raises(errors.TimeoutError):
        run(tmp_path / "t.json", fault="2:0:1:drop", timeout=0.2)
    (whole,) = named(load(tmp_path / "t.3.json"), "allreduce")
    assert whole["args"]["abandoned"] is True
    assert whole["dur"] >= 150_000  # microseconds until it was given up
    run(tmp_path / "well.json")
    (whole,) = named(load(tmp_path / "well.3.json"), "allreduce")
    assert whole["args"]["abandoned"] is False


def test_trace_that_cannot_be_written_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(errors.UsageError, match=r"missing/t\.0\.json.*No such file"):
        run(tmp_path / "missing" / "t.json")


def test_trace_into_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.0.json")
    with pytest.raises(errors.UsageError, match=r"t\.0\.json.*pipe that nobody reads"):
        run(tmp_path / "t.json")


def test_nothing_is_written_when_no_trace_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("")
    assert list(tmp_path.iterdir()) == []
