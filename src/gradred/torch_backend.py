"""Register the backend "gradred" with torch.distributed.

An entry point calls `register` at the end of each `import torch`. A second one calls it when a
program first names the backend, from PyTorch 2.14 on. So this module imports very little, and does
nothing with a PyTorch that it does not know: an exception here would make `import torch` fail.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def register() -> None:
    """Register the backend; a second call does nothing."""
    dist = sys.modules.get("torch.distributed")
    backend = getattr(dist, "Backend", None)
    add = getattr(backend, "register_backend", None)
    if add is None or "gradred" in getattr(backend, "backend_list", ["gradred"]):
        return
    add("gradred", _create, extended_api=True, devices=["cpu", "cuda"])
    importlib.import_module("gradred.trained_by").watch()
    stand_in = importlib.import_module("gradred.torch_stand_in")
    core = sys.modules.get("torch.distributed.distributed_c10d")
    if stand_in.is_asked() and hasattr(core, "_new_process_group_helper"):
        stand_in.take_the_place_of_others(core)


def prepare(asked: str) -> None:
    """Import mpi4py's MPI, which initialises MPI only if an MPI launcher has started this process.

    Args:
        asked: name of the call, for error messages.
    """
    importlib.import_module("gradred.without_mpi").leave_mpi_alone()
    importlib.import_module("gradred")._import_mpi(asked)


def _create(options: Any, backend_options: Any = None) -> Any:
    """Make a process group; called by `init_process_group` and `new_group`."""
    prepare('init_process_group("gradred")')
    rendezvous = importlib.import_module("gradred.torch_distributed.rendezvous")  # needs torch
    return rendezvous.create(options, backend_options)
