"""Schemes of data-parallel training: parameter servers, allreduce, mesh, hierarchy, local SGD.

`Training` trains a NumPy or PyTorch model by any of them; one option switches. docs/schemes.md
describes them. Importing this package does not initialise MPI; `Training` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradred.schemes.ddp import DdpCompression, ddp_hook
    from gradred.schemes.store import Sgd
    from gradred.schemes.table import SCHEMES, Options
    from gradred.schemes.training import Training

__all__ = ["SCHEMES", "DdpCompression", "Options", "Sgd", "Training", "ddp_hook"]

_MODULES = {
    "DdpCompression": "ddp",
    "Options": "table",
    "SCHEMES": "table",
    "Sgd": "store",
    "Training": "training",
    "ddp_hook": "ddp",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'gradred.schemes' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gradred.schemes.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
