"""The library that programs load before their MPI, so that gradred carries out their calls."""

from __future__ import annotations

import os
from pathlib import Path

from gradred.errors import UsageError

VARIABLE = "LD_PRELOAD"


def library() -> Path:
    """Return the path of the library, for LD_PRELOAD.

    Raises:
        UsageError: the package was built without it.
    """
    found = Path(__file__).resolve().parents[1] / "libgradred_mpi.so"
    if not found.exists():
        raise UsageError(str(found), "there is no such file", "Install gradred again")
    return found


def add_to(variables: dict[str, str]) -> None:
    """Make programs with these variables load the library, before what they load already.

    A tool that they load too sees the calls that gradred leaves to the MPI.
    """
    before = variables.get(VARIABLE, os.environ.get(VARIABLE, ""))
    variables[VARIABLE] = ":".join(filter(None, [str(library()), before]))
