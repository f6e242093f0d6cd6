"""The variables that a launcher sets for a rank."""

from __future__ import annotations

import os

from gradred.launch.variables import RANK_VARIABLES


def get_env_rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the number of ranks; (0, 1) if no launcher has set them.

    Raises:
        RuntimeError: only one of the two variables is set.
    """
    for rank, size in (("HOROVOD_RANK", "HOROVOD_SIZE"), *RANK_VARIABLES):
        found = (os.environ.get(rank), os.environ.get(size))
        if found[0] is not None and found[1] is not None:
            return int(found[0]), int(found[1])
        if found != (None, None):
            raise RuntimeError(f"{rank} and {size} are set only together: {found}")
    return 0, 1
