"""Print the results of a job while it runs."""

from __future__ import annotations

import json
from typing import Any


def so_far(rank: int, rows: list[dict[str, Any]]) -> None:
    """Print the rows so far on rank 0 as one line of JSON, for a job that is ended early."""
    if rank == 0:
        print(json.dumps({"rows": rows}), flush=True)
