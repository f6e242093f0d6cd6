"""PyTorch on one rank: its groups, its device and the settings that matter to speed."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from typing import Any

import torch
import torch.distributed as dist

import gradred.torch as horovod
from gradred_lab.train.framework import Cell, Workload
from gradred_lab.train.pytorch.table import BUILDERS
from gradred_lab.train.pytorch.trial import Place
from gradred_lab.train.pytorch.workload import TorchWorkload


class Torch:
    """A session. Collective.

    Args:
        world: communicator of all ranks.
        device: `cpu` or `cuda`; ranks of a host use its CUDA devices in turn.
    """

    def __init__(self, world: Any, device: str) -> None:
        horovod.init()
        dist.init_process_group("gradred")
        self._place = Place(
            world=world,
            device=_device(device, horovod.local_rank()),
            groups={"gradred": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")},
        )
        if device == "cuda":
            torch.cuda.set_device(self._place.device)

    def versions(self) -> dict[str, str]:
        """PyTorch's version, its libraries, threads of a rank."""
        build = [line.strip(" -") for line in torch.__config__.show().splitlines()]
        libraries = [line for line in build if "DNN" in line and line.startswith("Intel")]
        has_torchvision = importlib.util.find_spec("torchvision") is not None
        return {
            "torch": torch.__version__,
            "torchvision": importlib.metadata.version("torchvision")
            if has_torchvision
            else "not installed",
            "torch_libraries": "; ".join(libraries),
            "torch_cpu": torch.backends.cpu.get_cpu_capability(),
            "torch_threads": str(torch.get_num_threads()),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS", "not set"),
            "cuda": str(torch.version.cuda or "not built in"),
            "cudnn": str(torch.backends.cudnn.version() or "not built in"),
        }

    def devices(self) -> list[str]:
        """The CUDA device."""
        is_cuda = self._place.device.type == "cuda"
        return [torch.cuda.get_device_name(self._place.device)] if is_cuda else []

    def why_not(self, peer: str) -> str:
        """Whether another backend has taken the place of gloo, as GRADRED_TORCH=1 asks for."""
        is_gloo = "gloo" in dist.get_backend(self._place.groups["gloo"])
        return "" if is_gloo or peer != "ddp-gloo" else "gradred stands in for it (GRADRED_TORCH)"

    def zeros(self, count: int) -> Any:
        """A tensor of so many float32 on this rank's device."""
        return torch.zeros(count, device=self._place.device)

    def wait(self) -> None:
        """Wait for the CUDA device."""
        if self._place.device.type == "cuda":
            torch.cuda.synchronize()

    def open(self, cell: Cell) -> Workload:
        """Make the model with the same seed on every rank, and a batch of this rank's own."""
        torch.manual_seed(1)
        module, name = BUILDERS[cell.model]
        network = getattr(
            importlib.import_module(f"gradred_lab.train.pytorch.models.{module}"), name
        )
        return TorchWorkload(network(cell.size), cell, self._place)

    def close(self) -> None:
        """Leave the groups."""
        dist.destroy_process_group()


def _device(kind: str, local_rank: int) -> torch.device:
    if kind == "cuda":
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")
