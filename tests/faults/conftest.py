"""Clean-up after the tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults import seeing


@pytest.fixture(autouse=True)
def remove_reports() -> Iterator[None]:
    """Remove the files into which jobs wrote where their ranks were."""
    yield
    for file in seeing.written:
        file.unlink(missing_ok=True)
    seeing.written.clear()
