"""GRADRED_TORCH=1: groups that a program requests from gloo, or from torch's "mpi", are gradred's.

This module imports nothing of torch, since `import torch` calls it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from typing import Any

VARIABLE = "GRADRED_TORCH"
_OF_MPI = -1  # torch's size of a group whose ranks its backend "mpi" knows


def is_asked() -> bool:
    """Return whether the environment asks for it. `gradred.config` checks the value."""
    return os.environ.get(VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")


def take_the_place_of_others(core: Any) -> None:
    """Make gradred the backend of CPU tensors, and of all groups whose backend is gloo or mpi.

    The backend of such a group is called gradred. A second call does nothing.

    Args:
        core: the module torch.distributed.distributed_c10d. Its private function that creates all
            groups is replaced by one that changes the requested backend. All versions from 2.1 on
            have it.
    """
    creates = core._new_process_group_helper
    if hasattr(creates, "__wrapped__"):
        return
    core.Backend.default_device_backend_map["cpu"] = "gradred"
    signature = inspect.signature(creates)

    @functools.wraps(creates)
    def create(*args: Any, **kwargs: Any) -> Any:
        asked = signature.bind(*args, **kwargs)
        backend = str(asked.arguments["backend"])
        used = _used(backend, core)
        if used != backend:
            asked.arguments["backend"] = core.Backend(used)
            if asked.arguments["group_size"] == _OF_MPI:
                asked.arguments.update(_world(asked.arguments["timeout"]))
            if asked.arguments["group_rank"] == 0:
                _say()
        return creates(*asked.args, **asked.kwargs)

    core._new_process_group_helper = create


def _world(timeout: Any) -> dict[str, Any]:
    """The arguments that torch leaves to its own backend "mpi". Blocking and collective."""
    importlib.import_module("gradred.torch_backend").prepare('init_process_group("mpi")')
    world = importlib.import_module("gradred.torch_distributed.world")  # needs torch
    store, rank, size = world.of_job(timeout)
    return {"store": store, "group_rank": rank, "group_size": size}


def _used(backend: str, core: Any) -> str:
    """Return the backends of a group for which the program named `backend`.

    A program that names none gets the one of the accelerator, or of the CPU if there is none.
    """
    if backend.lower() == "undefined":
        return backend if core.torch.cuda.is_available() else "gradred"
    return re.sub(r"\b(gloo|mpi)\b", "gradred", backend, flags=re.IGNORECASE)


@functools.cache
def _say() -> None:
    print(
        f"gradred: {VARIABLE}=1: gradred carries out what this program requests from gloo or mpi",
        file=sys.stderr,
    )
