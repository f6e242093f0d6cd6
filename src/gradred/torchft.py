"""A process group for torchft, which replaces failed replicas while others go on training.

    manager = torchft.Manager(pg=ProcessGroupGradred(), ...)

torchft makes a new group whenever replicas have failed or joined. Each group is one of gradred's
(`gradred.torch_distributed`), among processes of one host that need no MPI.
"""

from __future__ import annotations

import types
from typing import Any

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from gradred.torch_distributed import rendezvous


class ProcessGroupGradred(ProcessGroupWrapper):
    """Groups of gradred that torchft configures. See torchft's `ProcessGroup.configure`."""

    def getBackendName(self) -> str:  # noqa: N802 (torchft's name)
        """Return the name that torchft shows."""
        return "torchft-gradred"

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> Any:
        options = types.SimpleNamespace(
            store=store,
            group_rank=rank,
            group_size=world_size,
            group_id=f"torchft {self._quorum_id}",
            global_ranks_in_group=[],
            timeout=self._timeout,
        )
        return rendezvous.create(options)
