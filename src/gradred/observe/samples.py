"""The figures that a running rank publishes, and their text for Prometheus."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# The figures by name: OpenMetrics' type, and the help text.
FAMILIES = {
    "gradred_operations": ("counter", "Operations that have ended well."),
    "gradred_operation_bytes": ("counter", "Bytes of their vectors, or of one block of them."),
    "gradred_operation_seconds": ("counter", "From call or start to end."),
    "gradred_exposed_seconds": ("counter", "The part of it that the program spent in the call."),
    "gradred_wait_seconds": ("counter", "What started operations waited for."),
    "gradred_bus_bytes": ("counter", "Bytes through each rank's link, as in nccl-tests."),
    "gradred_bus_bandwidth_bytes_per_second": ("gauge", "The same by second of the operations."),
    "gradred_path_operations": ("counter", "Timed operations by the path of their data."),
    "gradred_skew_seconds": ("counter", "First to last arrival, of sampled operations."),
    "gradred_skew_samples": ("counter", "Operations whose arrivals were sampled."),
    "gradred_late_seconds": ("counter", "How late a rank came to them, after the first."),
    "gradred_straggler_share": ("gauge", "Of the last minute: what a late rank cost the others."),
    "gradred_seconds_since_last_operation": ("gauge", "Since this rank began an operation."),
    "gradred_waiting_seconds": ("gauge", "How long this rank has waited in an operation."),
    "gradred_missing_ranks": ("gauge", "Ranks that it waits for."),
    "gradred_lost_wake_ups": ("counter", "Sleeps that were not woken: an error of gradred."),
    "gradred_communicators": ("counter", "Communicators that were set up."),
    "gradred_set_up_seconds": ("counter", "Time of these set-ups."),
    "gradred": ("info", "Versions and the host."),
}
PLAIN, OPEN = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"


class Sample(NamedTuple):
    """One figure."""

    family: str
    labels: tuple[tuple[str, str], ...]
    value: float


def text_of(samples: Sequence[Sample], *, is_open: bool = False) -> str:
    """Return figures in Prometheus's text format, or in that of OpenMetrics.

    Each family stands together, whatever the order of `samples`.
    """
    lines: list[str] = []
    for family, (kind, help_text) in FAMILIES.items():
        found = [one for one in samples if one.family == family]
        if not found:
            continue
        suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
        name = family if is_open else family + suffix
        shown = "gauge" if kind == "info" and not is_open else kind
        lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {shown}"]
        lines += [f"{family}{suffix}{{{_labels(one)}}} {one.value!r}" for one in found]
    return "\n".join([*lines, "# EOF"] if is_open else lines) + "\n"


def _labels(sample: Sample) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return ",".join(f'{name}="{quoted(value)}"' for name, value in sample.labels)
