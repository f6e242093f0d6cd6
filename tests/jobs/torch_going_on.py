"""A data-parallel training whose ranks are killed, and which goes on by torch's `reconfigure`.

    python torch_going_on.py PORT STEPS KILLS DDP

The ranks and whoever starts them use a store at PORT. A process takes the next name there, and
waits for the next generation that names it: the members by their names, in the order of their
ranks. Of each of the first KILLS generations, the last member is killed in its third step, while
gradients are summed. DDP is 1 for DistributedDataParallel, and 0 for sums by hand. Rank 0 of the
last generation writes the losses of all steps to the store.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LIMIT = datetime.timedelta(seconds=60)
ROWS = 12


class Training:
    """The model, and what it has learned from how many steps."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        layers = [torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512)]
        self.model = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(512, 1)).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.0005, momentum=0.5)
        self.losses: list[float] = []

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
        }

    def take(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses = list(state["losses"])

    def agree(self) -> None:
        """All ranks take the state of the first one that has done most steps."""
        done: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(done, len(self.losses))
        state = [self.state()]
        dist.broadcast_object_list(state, done.index(max(done)))
        self.take(state[0])

    def step(self, by_ddp: torch.nn.Module | None, is_killed: bool) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        made = torch.Generator().manual_seed(len(self.losses))
        x = torch.randn(ROWS, 64, generator=made, dtype=torch.float64)[rank::size]
        self.optimizer.zero_grad()
        if is_killed:
            first = next(self.model.parameters())  # its gradient is the last one
            first.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        loss = ((by_ddp or self.model)(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if by_ddp is None:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
        whole = loss.detach().clone()
        dist.all_reduce(whole, dist.ReduceOp.AVG)
        self.optimizer.step()
        self.losses.append(whole.item())


def joined(store: dist.Store, name: int, generation: int) -> list[int] | None:
    """Become a member of a generation. None: it has other members."""
    key = f"generation {generation}"
    members: list[int] = json.loads(store.get(key))
    if name not in members:
        return None
    store.set(f"{key} handle {name}", dist._get_reconfigure_handle())
    handles = [store.get(f"{key} handle {one}").decode() for one in members]
    dist._reconfigure(generation, handles, timeout=LIMIT).wait()
    return members


def main(port: int, steps: int, kills: int, by_ddp: bool) -> None:
    store = dist.TCPStore("127.0.0.1", port, None, False, LIMIT)
    name = store.add("names", 1) - 1
    dist.init_process_group(
        "gradred", store=store, rank=0, world_size=1, timeout=LIMIT, enable_reconfigure=True
    )
    training, generation = Training(), 0
    while len(training.losses) < steps:
        members = joined(store, name, generation)
        if members is None:
            generation += 1
            continue
        try:
            training.agree()
            ddp = DistributedDataParallel(training.model, bucket_cap_mb=1) if by_ddp else None
            end = generation < kills and members[-1] == name and len(training.losses) + 2
            while len(training.losses) < steps:
                training.step(ddp, end is not False and len(training.losses) == end)
        except RuntimeError as error:
            print(f"{name}: {type(error).__name__} {error}", file=sys.stderr, flush=True)
            generation += 1
            store.add(f"lost before {generation}", 1)
    if dist.get_rank() == 0:
        store.set("losses", json.dumps(training.losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
