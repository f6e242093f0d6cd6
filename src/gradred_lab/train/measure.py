"""One repeat: each peer in turn makes its steps, and is measured and checked."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from gradred_lab.train import use
from gradred_lab.train.checks import Checker
from gradred_lab.train.framework import Cell, Peer, Trial, Workload
from gradred_lab.train.settings import Protocol

_LOOKS_EVERY = 0.005  # seconds between two looks of a rank without a part
_PERCENTILES = (50, 90, 99)

Block = dict[str, Any]
Progress = Callable[[str], None]
"""Called with a peer's name after each of its steps."""


class Ranks(NamedTuple):
    """The ranks of a job, and what measures on this one."""

    comm: Any
    """gradred's communicator: its ranks sleep while they wait."""
    meter: use.Meter

    def together(self) -> None:
        """Wait for all ranks."""
        self.comm.Allreduce(MPI.IN_PLACE, np.zeros(1))

    def patiently(self) -> None:
        """Wait for all ranks, perhaps for minutes, and use no core meanwhile."""
        request = MPI.COMM_WORLD.Ibarrier()
        while not request.Test():
            time.sleep(_LOOKS_EVERY)


class Plan(NamedTuple):
    """What is measured of a cell, and what checks it."""

    cell: Cell
    peers: dict[str, Peer]
    protocol: Protocol
    checker: Checker


def repeat(
    workload: Workload, plan: Plan, number: int, ranks: Ranks, progress: Progress
) -> dict[str, Block]:
    """Measure all peers once, each from the same first parameters. Collective.

    Args:
        workload: of the cell.
        plan: what is measured.
        number: of the repeat, from 0; each begins with another peer.
        ranks: of the job.
        progress: is called after each step.

    Returns:
        By peer its times, use and checks; the same on all ranks but for checks of rank 0.
    """
    names = list(plan.peers)
    start = number % len(names)
    order = names[start:] + names[:start]
    blocks = {}
    for name in order:
        peer = plan.peers[name]
        takes_part = peer.everyone or ranks.comm.rank == 0
        trial = workload.start(name) if takes_part else None
        step = functools.partial(progress, name)
        mine = None if trial is None else _steps(trial, peer, plan.protocol, ranks, step)
        ranks.patiently()
        blocks[name] = summary(ranks.comm.allgather(mine), plan.cell.batch)
        if trial is not None and peer.exchanges:
            blocks[name]["check"] = plan.checker.check(peer, trial)
        if trial is not None:
            trial.close()
    return {name: blocks[name] for name in names}


class Mine(NamedTuple):
    """What one rank measured: the times at which its steps ended, from the start, its use, loss."""

    ends: list[float]
    use: dict[str, Any]
    loss: float


def _steps(
    trial: Trial, peer: Peer, protocol: Protocol, ranks: Ranks, made: Callable[[], None]
) -> Mine:
    for _ in range(protocol.skip):
        trial.step()
        made()
    trial.stamps()  # waits for the device
    if peer.everyone:
        ranks.together()
    ranks.meter.begin()
    trial.stamp()
    for _ in range(protocol.steps):
        trial.step()
        trial.stamp()
        made()
    begin, *ends = trial.stamps()
    used = ranks.meter.end()
    return Mine([one - begin for one in ends], used, trial.loss())


def summary(found: Sequence[Mine | None], batch: int) -> Block:
    """Throughput and latency of a block of steps.

    The time of a block is that of the slowest rank; so is the time of each step.

    Args:
        found: by rank; None for those without a part.
        batch: samples of each rank in a step.
    """
    taken = [one for one in found if one is not None]
    ends = np.array([one.ends for one in taken])
    seconds, steps = float(ends[:, -1].max()), ends.shape[1]
    each = np.diff(ends, axis=1, prepend=0.0).max(axis=0)
    loss = float(np.mean([one.loss for one in taken]))
    tails = np.percentile(1e3 * each, _PERCENTILES)
    return {
        "samples_per_s": len(taken) * batch * steps / seconds,
        "step_ms": 1e3 * seconds / steps,
        **{f"p{p}_ms": float(tail) for p, tail in zip(_PERCENTILES, tails, strict=True)},
        "loss": loss if math.isfinite(loss) else None,  # JSON has no other numbers
        "use": use.together([{} if one is None else one.use for one in found]),
    }
