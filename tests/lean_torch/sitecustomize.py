"""On PYTHONPATH of tests that start many processes with PyTorch's optimizers, or its DDP.

These import PyTorch's compiler when they are made, which takes each process 1.5 s of a core. They
only declare that they are not to be compiled, or ask for its mode of sharing gradients. Here they
get a stand-in with only these functions.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class Compiler(types.ModuleType):
    utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        return function

    @staticmethod
    def graph_break() -> None:
        pass


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        found = name == "torch._dynamo"
        return importlib.machinery.ModuleSpec(name, self) if found else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Compiler(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
