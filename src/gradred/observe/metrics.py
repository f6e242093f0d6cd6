"""Figures of this rank while the job runs, for Prometheus and OpenTelemetry: `GRADRED_METRICS`.

A thread of each rank reads the profile and the status of the rank every ten seconds. It writes
them to a file that node_exporter's textfile collector reads, or keeps them in memory, from where
one rank of each host serves those of all ranks of the job there, or hands them to OpenTelemetry.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

from gradred import _core
from gradred._util import clock
from gradred.observe import status
from gradred.observe.publishers import publisher
from gradred.observe.samples import FAMILIES, Sample
from gradred.observe.stragglers import Stragglers

INTERVAL = 10.0  # seconds between two states
_LOOK = 1.0  # seconds between two looks at whether there were calls


def read(profile: dict[str, Any], state: dict[str, Any]) -> Iterator[Sample]:
    """Yield the figures of a profile, and of a rank's status as `status.parts` returns it."""
    rank = (("rank", str(profile["rank"])),)

    def sample(family: str, value: float, **labels: str) -> Sample:
        return Sample(family, rank + tuple(labels.items()), value)

    for row in profile["rows"]:
        what = {"kind": row["kind"], "mode": row["mode"], "up_to_bytes": str(row["max_bytes"])}
        what |= {"op": row["op"] or "", "dtype": row["dtype"]}
        yield sample("gradred_operations", row["calls"], **what)
        yield sample("gradred_operation_bytes", row["bytes"], **what)
        yield sample("gradred_operation_seconds", row["time_s"], **what)
        yield sample("gradred_exposed_seconds", row["exposed_s"], **what)
        yield sample("gradred_bus_bytes", row["bus_bytes"], **what)
        for cause, seconds in row["waits"].items():
            if seconds:
                yield sample("gradred_wait_seconds", seconds, **what, cause=cause)
        for path, calls in row["ways"].items():
            yield sample("gradred_path_operations", calls, **what, path=path)
        if skew := row["skew"]:
            yield sample("gradred_skew_seconds", skew["mean_s"] * skew["samples"], **what)
            yield sample("gradred_skew_samples", skew["samples"], **what)
            for late in skew["ranks"]:
                seconds, who = late["mean_late_s"] * skew["samples"], str(late["rank"])
                yield sample("gradred_late_seconds", seconds, **what, late_rank=who)
    yield sample("gradred_waiting_seconds", state["waits_s"] or 0.0)
    yield sample("gradred_missing_ranks", len(state["missing"]))
    yield sample("gradred_lost_wake_ups", state["lost_wake_ups"])
    yield sample("gradred_communicators", profile["set_up"]["communicators"])
    yield sample("gradred_set_up_seconds", profile["set_up"]["seconds"])
    versions = profile["versions"]
    about = {"host": profile["host"], "ranks": str(profile["size"])}
    yield sample("gradred", 1, **about, version=versions["gradred"], mpi=versions["mpi"])


def begin(wanted: str) -> None:
    """Publish this rank's figures from now on, as `GRADRED_METRICS` wants it. Local."""
    global _published
    if _published is None:
        _published = Metrics(wanted)


def end() -> None:
    """Publish the last state, at the end of the program."""
    if _published is not None:
        _published.end()


class Metrics:
    """The figures of this rank, which a thread brings up to date."""

    def __init__(self, wanted: str) -> None:
        """Begin to publish; `wanted` is the setting: a file, `:PORT`, or `otel`."""
        self._last: dict[tuple[tuple[str, str], ...], tuple[float, float]] = {}
        self._last_begun, self._moved_at = "", clock.now()
        self._stragglers = Stragglers()
        self._fails = False
        self._publish = publisher(wanted)
        self._most: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradred-metrics", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Publish the last state, and end the thread."""
        self._ends.set()
        self._thread.join(_LOOK)
        if self._lock.acquire(timeout=_LOOK):  # else the thread is publishing, and too slow for us
            try:
                self._try_to_refresh()
            finally:
                self._lock.release()

    def _run(self) -> None:
        due = clock.now()
        while not self._ends.wait(clock.nap(_LOOK)):
            with self._lock:
                if not self._ends.is_set() and clock.now() >= due:
                    self._try_to_refresh()
                    due = clock.now() + INTERVAL
                else:
                    self._look()

    def _look(self) -> None:
        begun = status.last_begun(status.page_of_this_rank())
        if begun != self._last_begun:
            self._last_begun, self._moved_at = begun, clock.now()

    def _try_to_refresh(self) -> None:
        try:
            self._refresh()
            self._fails = False
        except Exception as error:  # a lack of descriptors, say: the training goes on
            if not self._fails:
                print(f"gradred: no metrics for now: {error}", file=sys.stderr, flush=True)
            self._fails = True

    def _refresh(self) -> None:
        self._look()
        profile = json.loads(_core.profile_json())
        if not profile["size"]:  # no communicator has been used
            return
        now = clock.now()
        found = list(read(profile, status.parts(status.page_of_this_rank())))
        found += self._bandwidths(found)
        rank = found[0].labels[:1]
        since = Sample("gradred_seconds_since_last_operation", rank, now - self._moved_at)
        found.append(since)
        shares = self._stragglers.shares(profile, now)
        for late, share in shares.items():
            labels = (*rank, ("late_rank", str(late)))
            found.append(Sample("gradred_straggler_share", labels, share))
        found = [self._never_less(one) for one in found]
        self._publish(found)
        if profile["rank"] == 0:
            for line in self._stragglers.news(shares, now):
                print(f"gradred: {line}", file=sys.stderr, flush=True)

    def _never_less(self, sample: Sample) -> Sample:
        """Keep a counter, which may be an estimate, from going back."""
        if FAMILIES[sample.family][0] != "counter":
            return sample
        key = (sample.family, sample.labels)
        self._most[key] = max(sample.value, self._most.get(key, 0.0))
        return sample._replace(value=self._most[key])

    def _bandwidths(self, found: list[Sample]) -> Iterator[Sample]:
        seconds = {one.labels: one.value for one in found if one.family.endswith("ration_seconds")}
        for one in found:
            if one.family != "gradred_bus_bytes":
                continue
            before = self._last.get(one.labels, (0.0, 0.0))
            moved, took = one.value - before[0], seconds[one.labels] - before[1]
            self._last[one.labels] = (one.value, seconds[one.labels])
            rate = moved / took if took > 0 else 0.0
            yield Sample("gradred_bus_bandwidth_bytes_per_second", one.labels, rate)


_published: Metrics | None = None
