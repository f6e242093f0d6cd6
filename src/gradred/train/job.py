"""`gradred train` on each rank: measure all cells that lack repeats, and write the record."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from gradred.bench.rank_zero import say
from gradred.comm import Comm
from gradred.errors import UsageError
from gradred.train import measure, system, table
from gradred.train.checks import Checker
from gradred.train.framework import Cell, Model, Peer, Session, Workload
from gradred.train.measure import Plan, Ranks
from gradred.train.progress import Bar
from gradred.train.record import Record
from gradred.train.settings import Settings
from gradred.train.use import Meter

_ALLREDUCED = (1 << 18, 1 << 22, 1 << 25)  # bytes
_CALLS = 9


def run(settings: Settings, path: Path, *, on_terminal: bool, load: float) -> int:
    """Measure on COMM_WORLD; collective. Returns 1 if a result was wrong, else 0.

    Args:
        settings: what is measured.
        path: of the record, for rank 0.
        on_terminal: whether to show a progress bar.
        load: of the host before the job began.
    """
    world = Comm(MPI.COMM_WORLD)
    found = settings.check()
    session = found.begin(world, settings.device)
    facts = system.describe(world, session, load)
    facts["allreduce_us"] = _allreduce_times(world)
    record, refusal = _continued(path, settings, facts) if world.rank == 0 else (None, None)
    pending = world.bcast(None if record is None else record.pending(settings, world.size))
    if pending is None:
        if refusal is not None:
            raise refusal
        return 2
    here = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = Ranks(world, Meter(here.rank == 0))
    here.Free()
    peers, left_out = _peers(settings, found.peers, session)
    bar = Bar(_steps(settings, pending, len(peers)), on_terminal and world.rank == 0)
    job = _Job(settings, session, ranks, peers, record, bar)
    if record is not None:
        told = table.heading(record.values, settings, world.size, list(left_out.items()))
        say(world, told)
    right = True
    for cell, done in pending:
        right &= job.measure(cell, done, found.models[cell.model])
    session.close()
    return 0 if right else 1


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


def _allreduce_times(world: Comm) -> dict[str, float]:
    """The median of some calls of gradred's allreduce by length, on the slowest rank."""
    found = {}
    for nbytes in _ALLREDUCED:
        vector, times = np.zeros(nbytes // 4, np.float32), []
        for _ in range(_CALLS):
            world.Allreduce(MPI.IN_PLACE, np.zeros(1))
            begin = time.perf_counter()
            world.Allreduce(MPI.IN_PLACE, vector)
            times.append(time.perf_counter() - begin)
        found[str(nbytes)] = 1e6 * float(np.median(np.max(world.allgather(times), axis=0)))
    return found


class _Job:
    """Measures cells one after the other."""

    def __init__(
        self,
        settings: Settings,
        session: Session,
        ranks: Ranks,
        peers: dict[str, Peer],
        record: Record | None,
        bar: Bar,
    ) -> None:
        self._settings, self._session, self._ranks = settings, session, ranks
        self._peers, self._record, self._bar = peers, record, bar

    def measure(self, cell: Cell, done: int, model: Model) -> bool:
        """Measure the repeats that a cell lacks; returns whether its results are right."""
        workload, size = self._session.open(cell), self._ranks.comm.size
        facts = _facts(workload, cell, model)
        row = None if self._record is None else self._record.begin_row(cell, size, facts)
        checker = Checker(self._ranks.comm, workload.first(), cell.precision)
        plan = Plan(cell, self._peers, self._settings.protocol, checker)
        right = True
        for number in range(done, plan.protocol.repeats):
            where = f"{cell.model}, {size} ranks, repeat {number + 1} of {plan.protocol.repeats}"
            blocks = measure.repeat(
                workload,
                plan,
                number,
                self._ranks,
                lambda peer, _, where=where: self._bar.step(f"{where}, {peer}"),  # type: ignore[misc]
            )
            checks = [one["check"]["right"] for one in blocks.values() if "check" in one]
            right &= all(checks)
            if self._record is not None and row is not None:
                self._record.add(row, blocks)
                self._record.write()
        workload.close()
        self._bar.clear()
        if row is not None:
            say(self._ranks.comm, table.lines(row))
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
