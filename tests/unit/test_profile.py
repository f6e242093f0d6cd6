"""The profile's record and table: what is merged, worded, rounded and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradred import _profile, config
from gradred.errors import UsageError

pytest.importorskip("mpi4py")


def counted(**changes: Any) -> Any:
    """A row as the extension gives it."""
    row: dict[str, Any] = {
        "kind": "allreduce",
        "op": "sum",
        "dtype": "float32",
        "mode": "blocking",
        "max_bytes": 1024,
        "calls": 100,
        "bytes": 100_000,
        "timed_calls": 10,
        "time_s": 2.0,
        "exposed_s": 2.0,
        "looks": 10,
        "skew_s": 0.1,
        "longest_skew_s": 0.05,
        "ranks": [(0, 0.01, 2), (1, 0.09, 8)],
        "compared": 0,
        "own_s": 0.0,
        "mpi_s": 0.0,
        "comparing_s": 0.0,
    }
    return row | changes


def record(*rows: Any, wall: float = 10.0, set_up: float = 0.5) -> dict[str, Any]:
    everything: Any = {
        "rank": 0,
        "size": 2,
        "wall_s": wall,
        "set_ups": 1,
        "set_up_s": set_up,
        "rows": list(rows),
    }
    return _profile.describe(everything)


@pytest.fixture(autouse=True)
def loaded() -> None:
    import gradred.comm  # noqa: F401 (finds the MPI, whose version the record names)


def test_record_has_the_fields_of_its_schema() -> None:
    found = record(counted())
    assert found["schema"] == "gradred-profile/1"
    top, described = (_profile.__doc__ or "").split("rows  ", 1)
    for key in found.keys() - {"schema"}:
        assert key in top or key == "rows", key
    for key in found["rows"][0]:
        assert key in described, key
    json.dumps(found)


def test_share_is_what_is_exposed_with_set_up_of_the_wall_time() -> None:
    started = counted(mode="started", time_s=5.0, exposed_s=1.0)
    assert record(counted(), started)["exposed_s"] == pytest.approx(3.5)
    assert record(counted(), started)["share"] == pytest.approx(0.35)
    assert record(wall=0.0, set_up=0.0)["share"] == 0.0


def test_call_and_start_of_persistent_operations_are_one_row() -> None:
    called = counted(mode="persistent", calls=3, time_s=1.0, exposed_s=1.0)
    begun = counted(mode="persistent", calls=4, time_s=2.0, exposed_s=0.5)
    (row,) = record(called, begun)["rows"]
    assert (row["calls"], row["time_s"], row["exposed_s"]) == (7, 3.0, 1.5)
    assert row["skew"]["samples"] == 20
    assert row["skew"]["mean_s"] == pytest.approx(0.01)


def test_rows_come_most_exposed_first() -> None:
    rows = record(counted(exposed_s=1.0), counted(max_bytes=8, exposed_s=3.0))["rows"]
    assert [row["max_bytes"] for row in rows] == [8, 1024]


def test_slowest_rank_is_the_one_with_the_most_lateness() -> None:
    skew = record(counted(ranks=[(0, 0.9, 1), (5, 0.1, 9)]))["rows"][0]["skew"]
    assert skew["slowest_rank"] == 0
    assert skew["ranks"][0] == {"rank": 0, "mean_late_s": pytest.approx(0.09), "last": 1}
    assert record(counted(looks=0, ranks=[]))["rows"][0]["skew"] is None


def test_mpi_keeps_the_waiting_and_replaces_the_rest() -> None:
    row = counted(compared=2, own_s=0.001, mpi_s=0.005)
    mpi = record(row)["rows"][0]["mpi"]
    assert (mpi["samples"], mpi["gradred_s"], mpi["mpi_s"]) == (2, 0.001, 0.005)
    assert mpi["total_s"] == pytest.approx(2.0 + 100 * 0.004)
    assert record(counted())["rows"][0]["mpi"] is None


def test_moving_calls_have_no_operation() -> None:
    (row,) = record(counted(kind="bcast"))["rows"]
    assert row["op"] is None
    assert _profile.name(row) == "bcast float32"


def test_table_has_a_line_per_row_of_at_most_100_columns_and_ends_with_the_share() -> None:
    widest = counted(
        kind="reduce_scatter_block", mode="started", dtype="float32", max_bytes=1 << 29, calls=10**7
    )
    lines = _profile.table(record(counted(), widest, counted(mode="persistent"))).splitlines()
    assert all(len(line) <= 100 for line in lines)
    header = lines[1].split(" up to ")[1]
    assert header.split() == ["calls", "data", "time", "exposed", "skew", "slowest", "by", "MPI"]
    row = next(line for line in lines if line.startswith("allreduce sum float32 "))
    cells = row.removeprefix("allreduce sum float32").split()
    assert cells == [
        *("1", "KiB", "100", "97.7", "KiB", "2", "s", "2", "s", "10", "ms", "1", "80%", "-")
    ]
    assert any(line.startswith("allreduce sum float32, persistent ") for line in lines)
    assert lines[-1].startswith("65.0 % of the time since the first call went into gradred")


def test_table_shows_the_most_exposed_rows_and_counts_the_others() -> None:
    rows = [counted(dtype=f"t{n}", exposed_s=float(n)) for n in range(40)]
    lines = _profile.table(record(*rows)).splitlines()
    assert "t39 " in lines[2]
    assert "t10 " in lines[31]
    assert lines[32] == "and 10 rows of less: GRADRED_PROFILE=FILE writes them all"


def test_table_without_calls_says_so() -> None:
    assert _profile.table(record()).endswith("no call has ended\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0 ns"), (3.2e-9, "3 ns"), (9.996e-7, "1 us"), (1.234e-6, "1.23 us")),
        *((9.994e-5, "99.9 us"), (1e-4, "100 us"), (9.996e-4, "1 ms"), (0.5, "500 ms")),
        *((0.99996, "1 s"), (12.34, "12.3 s"), (4321.0, "4321 s")),
    ],
)
def test_time_has_three_digits_and_a_unit(value: float, text: str) -> None:
    assert _profile.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB")),
        *((1023 * 1024, "1 MiB"), (100 << 30, "100 GiB"), (1 << 62, "4096 PiB")),
    ],
)
def test_size_has_three_digits_and_a_unit(value: int, text: str) -> None:
    assert _profile.size(value) == text


def test_file_that_cannot_be_written_is_refused_with_its_path(tmp_path: Path) -> None:
    path = str(tmp_path / "missing" / "profile.json")
    with pytest.raises(UsageError, match=r"missing/profile\.json.*No such file"):
        _profile.write(record(counted()), path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1", "1"), ("on", "1"), ("True", "1"), ("0", None), ("off", None), ("", None)),
        *(("none", None), ("out/p.{rank}.json", "out/p.{rank}.json"), (" p.json ", "p.json")),
    ],
)
def test_knob_is_off_a_table_or_a_file(
    monkeypatch: pytest.MonkeyPatch, text: str, value: str | None
) -> None:
    monkeypatch.setenv("GRADRED_PROFILE", text)
    assert config.load().profile == value
