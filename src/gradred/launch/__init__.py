"""Start the ranks of a job: find the MPI and its launcher, and follow the ranks to their end.

The public names are those of `mpi`, loaded on first use. A rank imports some modules of this
package too, and needs nothing of the launcher.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradred.launch.mpi import *  # noqa: F403

_NAMES = (
    *("Binding", "Family", "Mpi", "find_mpi", "has_placement", "inside_job", "job_command"),
    *("job_environment", "launcher_command", "meeting_place", "program_command", "proxy_command"),
    *("refuse_inside_job", "without_allocation"),
)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'gradred.launch' has no attribute {name!r}")
    value = getattr(importlib.import_module("gradred.launch.mpi"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_NAMES)
