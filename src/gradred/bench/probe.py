"""The measurements of `gradred explain`: the call that it explains, and the model's parameters.

It runs as a rank: `python -m gradred.bench.probe FILE QUESTION ACCELERATOR`. Rank 0 writes the
findings. On a GPU there is no model, and the call alone is measured.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

import gradred
from gradred import _core
from gradred.bench import machine
from gradred.bench.contenders import MPI_OPS
from gradred.bench.explanation import KINDS, REDUCING, Question
from gradred.bench.options import Options
from gradred.bench.rank_zero import write_json
from gradred.bench.timing import call_by_call
from gradred.bench.vectors import Device
from gradred.element_types import numpy_dtype

_LONG = 256 << 10  # bytes of a message; its time minus that of a short message gives beta
_LONG_IN_MEMORY = 64 << 10  # the same for a broadcast on one host


def main() -> int:
    """Measure and write the findings; collective."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in gradred bench
    path, text, accelerator = sys.argv[1:]
    question = Question.from_text(text)
    world = MPI.COMM_WORLD
    if accelerator != "cpu":
        found = _on_device(question, accelerator, world)
        if world.rank == 0:
            write_json(Path(path), found)
        return 0
    comm = gradred.Comm(world.Dup())
    call = bind(question, comm)
    call()  # sets up the communicator
    seconds = call_seconds(question, call, world)
    info = _core.comm_info(comm)
    shared = info["shares_memory"]
    plan = _core.plan_for(comm, described(question))["plan"]
    flag = machine.one_way_latency(world)
    alpha = flag["us"] * 1e-6 if flag and shared else machine.ping_pong(world, 1, calls=500)
    found = _spread(seconds)
    found |= {
        "alpha": alpha,
        "beta": _beta(question, world, shared),
        "gamma": _reduction_cost(question),
        "gap": 0.0 if shared or world.size == 1 else machine.message_gap(world),
        "delta": _copy_cost(question),
        "call": _call_alone(question),
    }
    found |= {"plan": plan, "shares_memory": shared, "cache_groups": info["cache_groups"]}
    if world.rank == 0:
        write_json(Path(path), found)
    return 0


def _spread(seconds: list[float]) -> dict[str, Any]:
    low, middle, high = np.percentile(seconds, [10, 50, 90]).tolist()
    return {"seconds": middle, "p10": low, "p90": high, "calls": len(seconds)}


def _on_device(question: Question, accelerator: str, world: MPI.Intracomm) -> dict[str, Any]:
    device = Device(accelerator, world)
    comm = gradred.Comm(world.Dup())
    seconds = call_seconds(question, bind(question, comm, device.vector), world)
    names = world.allgather(device.name())
    return _spread(seconds) | {"way": comm.device_path, "devices": names}


def bind(
    question: Question, comm: gradred.Comm, put: Callable[[Any], Any] = np.asarray
) -> Callable[[], Any]:
    """Make the call as a program makes it, on arrays that `put` has placed."""
    kind = numpy_dtype(question.dtype)
    count = question.nbytes // kind.itemsize
    block, whole = put(np.ones(count, kind)), put(np.ones(count * comm.size, kind))
    op: Any = MPI_OPS.get(question.op, question.op)
    row = KINDS[question.collective]
    if row["reduces"]:
        method = getattr(comm, row["name"].capitalize())
        given = whole if row["has_blocks"] else block
        return partial(method, given, put(np.zeros(count, kind)), op)
    calls: dict[str, Callable[[], Any]] = {
        "allgather": partial(comm.Allgather, block, whole),
        "bcast": partial(comm.Bcast, block),
    }
    given = block if row["gives_block"] or comm.rank > 0 else whole  # of a scatter the root's
    return calls.get(row["name"]) or partial(getattr(gradred, row["name"]), given, comm=comm)


def described(question: Question) -> _core.Call:
    """Describe the call for the selector, which reads no memory."""
    kind = KINDS[question.collective]["name"]
    count = question.nbytes // numpy_dtype(question.dtype).itemsize
    return _core.Call(kind, None, 0, count, question.dtype, question.op or "sum")


def call_seconds(question: Question, call: Callable[[], Any], world: MPI.Intracomm) -> list[float]:
    """Return the time of each call, the mean over the ranks."""
    calls, warmup = Options().calls(question.nbytes)
    return _seconds(call, world, calls, warmup)


def _seconds(
    call: Callable[[], Any], world: MPI.Intracomm, calls: int, warmup: int = 10
) -> list[float]:
    comm = world.Dup()
    call_by_call([call], warmup, comm)
    seconds = call_by_call([call], calls, comm)[:, 0]
    mean: list[float] = (comm.allreduce(seconds) / comm.size).tolist()
    return mean


def _sample_bytes(question: Question) -> int:
    """Return the bytes to move in order to measure the cost per byte: the call's, within limits."""
    return min(max(question.nbytes, 4 << 10), 16 << 20)


def _reduction_cost(question: Question) -> float:
    """Measure the seconds per byte for reducing two vectors of about this length on this core."""
    if question.collective not in REDUCING:
        return 0.0
    op = "sum" if question.op == "avg" else question.op
    kind, nbytes = numpy_dtype(question.dtype), _sample_bytes(question)
    target, a, b = (_bytes(np.ones(nbytes // kind.itemsize, kind)) for _ in range(3))
    reduce = partial(_core.reduce_pair, op, question.dtype, target, a, b)
    return _median_seconds(reduce) / nbytes


def _copy_cost(question: Question) -> float:
    """Measure the seconds per byte for copying a vector of about this length on this core."""
    source, target = (np.ones(_sample_bytes(question), "uint8") for _ in range(2))
    return _median_seconds(partial(np.copyto, target, source)) / source.nbytes


def _median_seconds(call: Callable[[], object], calls: int = 20) -> float:
    """Return the median time of some calls, after one untimed call."""
    call()
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def _bytes(vector: np.ndarray[Any, Any]) -> memoryview:
    return vector.view(np.uint8).data  # a plain buffer, also for types without a buffer format


def _call_alone(question: Question) -> float:
    """Return the seconds of a call by a single rank with one element to copy."""
    item = numpy_dtype(question.dtype).itemsize
    alone = dataclasses.replace(question, nbytes=item, host_of=(0,))
    return _median_seconds(bind(alone, gradred.Comm(MPI.COMM_SELF)), calls=500)


def _beta(question: Question, world: MPI.Intracomm, shared: bool) -> float:
    """Return the seconds per byte between ranks, through shared memory or by the MPI's messages."""
    if world.size == 1:
        return _copy_cost(question)
    if shared:  # a broadcast: one core writes and another reads, and nothing else happens
        comm = gradred.Comm(world.Dup())
        long = max(_sample_bytes(question), _LONG_IN_MEMORY)
        vectors = [np.zeros(nbytes, np.uint8) for nbytes in (long, 1)]
        read, began = (_spread(_seconds(partial(comm.Bcast, one), world, 100)) for one in vectors)
        seconds = float(read["seconds"] - began["seconds"])
        return seconds / long if seconds > 0 else _copy_cost(question)  # noise of other programs
    exchanged, short = (machine.ping_pong(world, n, calls=20) for n in (_LONG, 1))
    return max(0.0, exchanged - short) / _LONG


if __name__ == "__main__":
    sys.exit(main())
