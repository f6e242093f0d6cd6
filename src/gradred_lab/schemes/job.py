"""`gradred schemes` on each rank: train under every scheme, print the table, write the record."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from gradred.bench import machine
from gradred.bench.rank_zero import say, write_so_far
from gradred.comm import Comm
from gradred.compression import Floats
from gradred.schemes.store import Sgd
from gradred.schemes.table import Options
from gradred.schemes.training import Training
from gradred_lab import pictures
from gradred_lab.schemes import report, workload
from gradred_lab.schemes.settings import Settings

_SNAPSHOTS = 100  # of the parameters in each case


def run(settings: Settings, cases: Sequence[Options], workers: int) -> int:
    """Run all cases on COMM_WORLD; collective. Returns 0.

    Args:
        settings: of all cases.
        cases: in the order of the table.
        workers: the first ranks of COMM_WORLD; the others are servers when a case has some.
    """
    world = Comm(MPI.COMM_WORLD)
    data = workload.load(settings.data)
    record = {"schema": report.SCHEMA} | machine.describe(world, dataclasses.asdict(settings))
    record |= {"workers": workers, "complete": False, "rows": []}
    to_stderr = settings.json == "-"
    width = max(len(report.name(dataclasses.asdict(case))) for case in cases)
    say(world, report.heading(record, settings, width), error=to_stderr)
    for case in cases:
        row = _run(case, settings, data, world, workers)
        record["rows"].append(row)
        say(world, report.line(row, width), error=to_stderr)
        record["complete"] = len(record["rows"]) == len(cases)
        if world.rank == 0 and settings.json is not None:
            write_so_far(settings.json, record, last=record["complete"])
    if world.rank == 0 and settings.plot is not None:
        pictures.losses(record, [report.name(row) for row in record["rows"]], Path(settings.plot))
    return 0


def _run(
    case: Options, settings: Settings, data: workload.Data, world: Comm, workers: int
) -> dict[str, Any]:
    """Run one case; the row is complete on rank 0."""
    takes_part = world.rank < workers + case.server_ranks
    comm = world.Split(0 if takes_part else 1, world.rank)
    mine = _train(case, settings, data, comm, workers) if takes_part else {}
    world.Allreduce(MPI.IN_PLACE, np.zeros(1))  # ranks without a part sleep here, not in the MPI
    comm.Free()
    everyone = world.gather(mine)
    return {} if everyone is None else _row(case, settings, data, workers, everyone)


def _train(
    case: Options, settings: Settings, data: workload.Data, comm: MPI.Intracomm, workers: int
) -> dict[str, Any]:
    """Train as one worker, or serve; returns what this rank has measured."""
    layers = (data.x.shape[1], *settings.hidden, data.classes)
    start = workload.initial(layers, settings.seed)
    is_torch = settings.model == "torch"
    network: Any = workload.TorchNetwork(start) if is_torch else None
    rule = Sgd(settings.rate, settings.momentum)
    given = network.parameters if is_torch else start
    with Training(given, rule=rule, comm=comm, **dataclasses.asdict(case)) as training:
        if network is None:
            gradients = training.gradients
            if not case.contiguous:
                gradients = [np.zeros_like(one) for one in start]
            weights = training.weights if case.contiguous else start
            network = workload.NumpyNetwork(weights, gradients)
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        curve = _loop(training, network, settings, data, workers)
    found: dict[str, Any] = {"curve": curve, "given_bytes": training.given_bytes}
    if training.exchange is not None:
        transport = training.exchange.transport
        found |= {"sent_bytes": transport.sent_bytes, "received_bytes": transport.received_bytes}
    return found | {"final": training.weights}


def _loop(
    training: Training, network: Any, settings: Settings, data: workload.Data, workers: int
) -> list[tuple[float, int, int, list[Floats]]]:
    """Make all steps; returns snapshots: seconds, steps, gradients contained, parameters."""
    worker, case = training.rank, training.options
    batches = workload.Batches(data.training, settings.batch * workers, settings.seed)
    drawn = np.random.default_rng((settings.seed, worker))
    every = max(1, settings.iterations // _SNAPSHOTS)
    is_numpy = settings.model == "numpy"
    in_place = case.contiguous or not is_numpy
    curve: list[tuple[float, int, int, list[Floats]]] = []
    begin = time.perf_counter()
    for step in training.steps(settings.iterations):
        late = settings.stragglers.get(worker, 0.0)
        if settings.jitter:
            late += drawn.exponential(settings.jitter)
        if late:
            time.sleep(late)
        rows = batches.of(step)[worker * settings.batch : (worker + 1) * settings.batch]
        hooks = (training.ready, training.need) if is_numpy and in_place else ()
        network.backward(data.x[rows], data.y[rows], *hooks)
        last = step + 1 == settings.iterations
        looks = (step + 1) % every == 0 or last
        gradients = None if in_place else network.gradients
        training.update(gradients, wait=looks or not (case.priority and hooks))
        if looks:
            seconds = time.perf_counter() - begin
            kept = [one.copy() for one in training.weights] if worker == 0 else []
            curve.append((seconds, step + 1, training.version, kept))
    return curve


def _row(
    case: Options,
    settings: Settings,
    data: workload.Data,
    workers: int,
    everyone: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    taken = [one for one in everyone if one]
    x, y = data.x[: data.training], data.y[: data.training]
    each = 1 if case.row.together else workers  # versions for each iteration of all workers
    curve: dict[str, list[float]] = {name: [] for name in ("seconds", "iterations", "loss")}
    for seconds, steps, version, weights in everyone[0]["curve"]:
        loss, _ = workload.evaluate(weights, x, y)
        point = seconds, (version / each if version else float(steps)), loss
        for values, value in zip(curve.values(), point, strict=True):
            values.append(float(f"{value:.6g}"))
    reached = next((at for at, loss in enumerate(curve["loss"]) if loss <= settings.loss), None)
    final = everyone[0]["final"]
    loss, _ = workload.evaluate(final, x, y)
    _, accuracy = workload.evaluate(final, data.x[data.training :], data.y[data.training :])
    ends = [one["curve"][-1][0] for one in everyone[:workers]]
    sent = [one["sent_bytes"] for one in taken if "sent_bytes" in one]
    return {
        **dataclasses.asdict(case),
        "workers": workers,
        "server_ranks": case.server_ranks,
        "iterations": settings.iterations,
        "seconds": max(ends),
        "seconds_of_workers": ends,
        "given_bytes": sum(one["given_bytes"] for one in everyone[:workers])
        / workers
        / settings.iterations,
        "sent_bytes": sum(sent) / settings.iterations if sent else None,
        "iterations_to_loss": None if reached is None else curve["iterations"][reached],
        "seconds_to_loss": None if reached is None else curve["seconds"][reached],
        "loss": loss,
        "accuracy": accuracy,
        "curve": curve,
    }
