"""`gradred train` on each rank: measure all cells that lack repeats, and write the record."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred.bench.rank_zero import say
from gradred.comm import Comm
from gradred.errors import UsageError
from gradred_lab.train import measure, system, table
from gradred_lab.train.checks import Checker
from gradred_lab.train.framework import Cell, Model, Peer, Session, Workload
from gradred_lab.train.measure import Plan, Ranks
from gradred_lab.train.progress import Bar
from gradred_lab.train.record import Record
from gradred_lab.train.settings import Protocol, Settings
from gradred_lab.train.use import Meter

_ALLREDUCED = (1 << 18, 1 << 22, 1 << 25)  # bytes
_CALLS = 9


def run(settings: Settings, path: Path, *, on_terminal: bool, load: float) -> int:
    """Measure on COMM_WORLD; collective. Returns 1 if a result was wrong, else 0.

    Args:
        settings: what is measured.
        path: of the record, for rank 0.
        on_terminal: whether a progress bar can stay in its line.
        load: of the host before the job began.
    """
    world = Comm(MPI.COMM_WORLD)
    found = settings.check()
    session = found.begin(world, settings.device)
    facts = system.describe(world, session, load)
    facts["allreduce_us"] = _allreduce_times(world, session)
    record, refusal = _continued(path, settings, facts) if world.rank == 0 else (None, None)
    pending = world.bcast(None if record is None else record.pending(settings, world.size))
    if pending is None:
        if refusal is not None:
            raise refusal
        return 2
    peers, left_out = _peers(settings, found.peers, session)
    if record is not None:
        say(world, table.heading(record.values, settings, world.size, list(left_out.items())))
    steps = _steps(settings, pending, len(peers))
    bar = Bar(steps, on_terminal=on_terminal, writes=world.rank == 0)
    job = _Job(settings.protocol, session, _ranks(world), peers, bar)
    right = [job.measure(cell, record, found.models[cell.model], done) for cell, done in pending]
    session.close()
    return 0 if all(right) else 1


def _ranks(world: Comm) -> Ranks:
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    is_leader = here.rank == 0
    here.Free()
    return Ranks(world, Meter(is_leader))


def _continued(
    path: Path, settings: Settings, facts: dict[str, Any]
) -> tuple[Record | None, UsageError | None]:
    """The record, or why these ranks cannot continue it."""
    try:
        record = Record.of(path, settings)
        record.begin_job(facts["ranks"], facts)
    except UsageError as error:
        return None, error
    return record, None


def _peers(
    settings: Settings, known: Any, session: Session
) -> tuple[dict[str, Peer], dict[str, str]]:
    why_not = {name: session.why_not(name) for name in settings.peers}
    peers = {name: known[name] for name in settings.peers if not why_not[name]}
    return peers, {name: why for name, why in why_not.items() if why}


def _steps(settings: Settings, pending: list[tuple[Cell, int]], peers: int) -> int:
    protocol = settings.protocol
    repeats = sum(protocol.repeats - done for _, done in pending)
    return repeats * peers * (protocol.skip + protocol.steps)


def _allreduce_times(world: Comm, session: Session) -> dict[str, float]:
    """The median of some calls of gradred's allreduce by length, on the slowest rank.

    The vectors are where gradients are: in the memory of the device.
    """
    found = {}
    for nbytes in _ALLREDUCED:
        vector, times = session.zeros(nbytes // 4), []
        for _ in range(_CALLS):
            world.Allreduce(MPI.IN_PLACE, np.zeros(1))
            begin = time.perf_counter()
            gradred.allreduce(vector, out=vector, comm=world)
            session.wait()
            times.append(time.perf_counter() - begin)
        found[str(nbytes)] = 1e6 * float(np.median(np.max(world.allgather(times), axis=0)))
    return found


@dataclasses.dataclass(frozen=True)
class _Job:
    """Measures cells one after the other."""

    protocol: Protocol
    session: Session
    ranks: Ranks
    peers: dict[str, Peer]
    bar: Bar

    def measure(self, cell: Cell, record: Record | None, model: Model, done: int) -> bool:
        """Measure the repeats that a cell lacks; returns whether its results are right."""
        workload, comm = self.session.open(cell), self.ranks.comm
        facts = _facts(workload, cell, model)
        row = None if record is None else record.begin_row(cell, comm.size, facts)
        plan = Plan(
            cell, self.peers, self.protocol, Checker(comm, workload.first(), cell.precision)
        )
        right = True
        for number in range(done, self.protocol.repeats):
            repeat = f"repeat {number + 1} of {self.protocol.repeats}"
            self.bar.begin(f"{cell.model}, {table.ranks_text(comm.size)}, {repeat}")
            blocks = measure.repeat(workload, plan, number, self.ranks, self.bar.step)
            right &= all(one["check"]["right"] for one in blocks.values() if "check" in one)
            if record is not None and row is not None:
                record.add(row, blocks)
                record.write()
        workload.close()
        self.bar.clear()
        if row is not None:
            say(comm, table.lines(row))
        return right


def _facts(workload: Workload, cell: Cell, model: Model) -> dict[str, Any]:
    """What a row says of its model; on all ranks, as they all take the same time for it."""
    layers = workload.layers()
    return {
        "about": model.about,
        "unit": model.unit,
        "reduced": model.reduction(cell.size),
        "parameters": workload.parameters,
        **workload.describe(),
        "layers": layers._asdict(),
    }
