"""Tells torch.distributed that there is a backend "gradred", and no more.

An entry point calls `register` at the end of each `import torch`, so it imports next to nothing,
and leaves a PyTorch alone that it does not know: an exception here would break the import.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def register() -> None:
    """Make the name known; again does nothing."""
    dist = sys.modules.get("torch.distributed")
    backend = getattr(dist, "Backend", None)
    add = getattr(backend, "register_backend", None)
    if add is None or "gradred" in getattr(backend, "backend_list", ["gradred"]):
        return
    add("gradred", _create, extended_api=True, devices=["cpu", "cuda"])
    importlib.import_module("gradred.trained_by").watch()


def _create(options: Any, backend_options: Any = None) -> Any:
    """What `init_process_group` and `new_group` call."""
    importlib.import_module("gradred.without_mpi").leave_mpi_alone()
    importlib.import_module("gradred")._import_mpi('init_process_group("gradred")')
    rendezvous = importlib.import_module("gradred.torch_distributed.rendezvous")  # needs torch
    return rendezvous.create(options, backend_options)
