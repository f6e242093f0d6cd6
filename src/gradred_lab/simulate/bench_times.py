"""What messages cost by a record of `gradred bench --json`."""

from __future__ import annotations

from pathlib import Path

from gradred.errors import UsageError
from gradred.simulate import calibration
from gradred.simulate.plans import Layout
from gradred_lab.simulate.exchange import Exchange

_OWN = "gradred"  # the name of the plan that gradred chooses, in a record


def read(path: Path) -> tuple[Layout, Exchange]:
    """The ranks that were measured, and the medians of gradred's own choice of plans.

    Raises:
        UsageError: the file cannot be read, or has no blocking allreduces at two lengths.
    """
    record = calibration.read_record(path, "--messages")
    times = {
        int(row["bytes"]): calibration.microseconds(row["results"][_OWN]) * 1e-6
        for row in record["rows"]
        if _OWN in row["results"]
    }
    if len(times) < 2:
        found = f"it has {len(times)} lengths at which gradred was measured"
        raise UsageError(f"--messages {path}", found, "Measure with: gradred bench --json FILE")
    return calibration.layout_of(record), Exchange.measured(times)
