"""The text of metrics, as Prometheus's own parsers read it, and who counts as a straggler."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from gradred.observe import metrics, samples, stragglers

openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
prometheus = pytest.importorskip("prometheus_client.parser")

STATE: dict[str, Any] = {"waits_s": 0.25, "missing": [1, 3], "lost_wake_ups": 0}


def profile(**fields: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        **{"kind": "allreduce", "op": "sum", "dtype": "float32", "mode": "blocking"},
        **{"max_bytes": 4096, "calls": 10, "bytes": 40960, "bus_bytes": 40960.0},
        **{"time_s": 0.5, "exposed_s": 0.5, "ways": {"in line": 3, 'a "\\path"\n': 1}},
        **{"waits": {"line": 0.0, "peers": 0.125}, "skew": None},
    }
    return {
        **{"rank": 2, "size": 4, "host": "node", "rows": [row | fields]},
        "set_up": {"communicators": 1, "seconds": 0.01},
        "versions": {"gradred": "0.1", "mpi": "MPICH"},
    }


def test_both_formats_have_every_figure_with_its_labels() -> None:
    found = list(metrics.read(profile(), STATE))
    old = list(prometheus.text_string_to_metric_families(samples.text_of(found)))
    text = samples.text_of(found, is_open=True)
    new = list(openmetrics.text_string_to_metric_families(text))
    for families in (old, new):
        by_name = {(one.name, tuple(sorted(one.labels.items()))): one.value
                   for family in families for one in family.samples}  # fmt: skip
        assert len(by_name) == len(found)
        of_rank = tuple(sorted({"rank": "2"}.items()))
        assert by_name["gradred_missing_ranks", of_rank] == 2
        assert by_name["gradred_waiting_seconds", of_rank] == 0.25
        (paths,) = [
            value for (name, labels), value in by_name.items()
            if name == "gradred_path_operations_total" and ("path", 'a "\\path"\n') in labels
        ]  # fmt: skip
        assert paths == 1
    assert {family.type for family in new} == {"counter", "gauge", "info"}


def with_lateness(late: list[float], last: list[int], calls: int) -> dict[str, Any]:
    """A profile in which each rank was late by so many seconds in all, and so often the last."""
    ranks = [
        {"rank": rank, "mean_late_s": late[rank] / calls, "last": last[rank]}
        for rank in range(len(late))
    ]
    skew = {"samples": calls, "mean_s": max(late) / calls, "ranks": ranks}
    return profile(calls=calls, skew=skew)


def test_rank_that_is_always_late_is_a_straggler() -> None:
    found = stragglers.Stragglers()
    assert found.shares(with_lateness([0, 0, 0], [10, 10, 10], 30), now=0) == {}
    late = with_lateness([0, 0, 7.5], [10, 10, 1510], 1530)  # 5 ms in 1,500 operations of a minute
    assert found.shares(late, now=30) == {}  # half a minute is too short to tell
    (share,) = found.shares(late, now=60).values()
    assert share == pytest.approx(0.125)
    assert list(found.shares(late, now=60.5)) == [2]


def test_a_little_late_or_late_by_turns_is_no_straggler() -> None:
    begin = with_lateness([0, 0, 0], [0, 0, 0], 1)
    for late, last in (
        ([0, 0, 1.0], [0, 0, 200]),  # always last, and it cost 2 %
        ([20.0, 20.0, 20.0], [70, 60, 70]),  # by turns
        ([9.0, 0, 30.0], [50, 0, 150]),  # three times in four
    ):
        found = stragglers.Stragglers()
        found.shares(begin, now=0)
        assert found.shares(with_lateness(late, last, 200), now=60) == {}
    few = stragglers.Stragglers()
    few.shares(begin, now=0)
    assert few.shares(with_lateness([0, 0, 30.0], [0, 0, 6], 7), now=60) == {}


def test_evenly_slow_ranks_have_no_straggler() -> None:
    chance = random.Random(3)
    late, last = [0.0] * 3, [0] * 3
    found = stragglers.Stragglers()
    found.shares(with_lateness(late, [1, 0, 0], 1), now=0)
    for _ in range(1000):
        came = [chance.uniform(0, 0.05) for _ in late]
        last[came.index(max(came))] += 1
        late = [was + at - min(came) for was, at in zip(late, came, strict=True)]
    assert found.shares(with_lateness(late, last, 1000), now=60) == {}


def test_straggler_is_named_once_in_ten_minutes() -> None:
    found = stragglers.Stragglers()
    (line,) = found.news({3: 0.2}, now=100)
    assert line.startswith("rank 3 was the last to come to at least 90% of the operations")
    assert "waited 20% of the time" in line
    assert found.news({3: 0.2}, now=600) == []
    assert len(found.news({3: 0.2, 1: 0.3}, now=701)) == 2


def test_dashboard_asks_for_metrics_that_there_are() -> None:
    file = Path(__file__).parents[2] / "examples" / "grafana-dashboard.json"
    panels = json.loads(file.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    suffix = {"counter": "_total", "info": "_info"}
    known = {name + suffix.get(kind, "") for name, (kind, _) in samples.FAMILIES.items()}
    assert len(asked) == len(panels)
    for one in asked:
        assert set(re.findall(r"gradred_\w+", one)) <= known
        assert "{{" not in one
