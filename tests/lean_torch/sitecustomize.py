"""On PYTHONPATH of tests that start many processes with PyTorch's optimizers, or its DDP.

These import PyTorch's compiler when they are made, which takes each process 1.5 s of a core. They
only declare that they are not to be compiled, or ask for its mode of sharing gradients; torchvision
asks whether a device has it. Here they get a stand-in with only these functions.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class Utilities(types.ModuleType):
    @staticmethod
    def get_optimize_ddp_mode() -> str:
        return "no_optimization"

    @staticmethod
    def is_compile_supported(_: str) -> bool:
        return False


class Compiler(types.ModuleType):
    utils = Utilities("torch._dynamo.utils")

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        return function

    @staticmethod
    def graph_break() -> None:
        pass


MODULES = {"torch._dynamo": Compiler, "torch._dynamo.utils": Utilities}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_package = name == "torch._dynamo"
        spec = importlib.machinery.ModuleSpec(name, self, is_package=is_package)
        return spec if name in MODULES else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return MODULES[spec.name](spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
