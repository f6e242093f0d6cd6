"""The host's memory in place of GPUs, for PyTorch's own tests that ask for a GPU on each rank.

PyTorch's files stay as they are. In its modules of tests `torch` is replaced by an object that has
the functions of `torch.cuda` below, and a mode of torch sends what is meant for a GPU to the host.
"""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

HOST = torch.device("cpu")
MOVES = ("to", "_parse_to")  # functions whose numbers among the arguments name GPUs
MODULES = (
    "torch.testing._internal.common_distributed",
    "torch.testing._internal.distributed.distributed_test",
)


class Replaced(ModuleType):
    """A module in which some names have other values."""

    def __init__(self, module: ModuleType, **values: Any) -> None:
        super().__init__(module.__name__)
        self._module = module
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def nothing(*_args: Any, **_options: Any) -> None:
    """Return at once: the host has one device, and carries out calls at once."""


def cuda_of(rank: int, ranks: int) -> Replaced:
    """Return what stands for torch.cuda on this rank: as many devices as ranks."""
    return Replaced(
        torch.cuda,
        is_available=lambda: True,
        device_count=lambda: ranks,
        current_device=lambda: rank,
        set_device=nothing,
        synchronize=nothing,
        Stream=nothing,
        stream=lambda _stream: nullcontext(),
    )


def is_gpu(device: Any) -> bool:
    """Whether an argument names a GPU. A number does so only where a device is expected."""
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


def device_of(*given: Any) -> torch.device:
    """Do as torch.device, but return the host for a GPU."""
    return HOST if is_gpu(given[0]) or isinstance(given[0], int) else torch.device(*given)


class OnHost(TorchFunctionMode):
    """Functions of torch that get a GPU as their device get the host in its place."""

    def __torch_function__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if is_gpu(named.get("device")) or isinstance(named.get("device"), int):
            named["device"] = HOST
        moves = getattr(function, "__name__", "") in MOVES
        given = [HOST if is_gpu(one) or (moves and type(one) is int) else one for one in args]
        return function(*given, **named)


def without_devices(begin: Any) -> Any:
    """Return DistributedDataParallel's constructor without its arguments that name GPUs."""

    def constructor(self: Any, module: Any, *args: Any, **options: Any) -> None:
        options.pop("device_ids", None)
        options.pop("output_device", None)
        begin(self, module, *args, **options)

    return constructor


def replace_gpus(rank: int, ranks: int) -> OnHost:
    """Replace GPUs in this process. Return the mode in which the tests have to run."""
    stands = Replaced(torch, cuda=cuda_of(rank, ranks), device=device_of)
    for name in MODULES:
        module: Any = importlib.import_module(name)
        module.torch = stands
        module.TEST_CUDA = True
    parallel = torch.nn.parallel.DistributedDataParallel
    parallel.__init__ = without_devices(parallel.__init__)
    meshes: Any = importlib.import_module("torch.distributed.device_mesh")
    mesh_of = meshes.init_device_mesh
    meshes.init_device_mesh = lambda _kind, *given, **named: mesh_of("cpu", *given, **named)
    return OnHost()
