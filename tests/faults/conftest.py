"""What every test of faults leaves behind, and takes away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults import seeing


@pytest.fixture(autouse=True)
def remove_reports() -> Iterator[None]:
    """Take away the files in which jobs wrote where their ranks were."""
    yield
    for file in seeing.written:
        file.unlink(missing_ok=True)
    seeing.written.clear()
