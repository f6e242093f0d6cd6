"""`gradred bench` on each rank: measure every size, print the table, write the record."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from gradred.bench import machine, options, overlap, plot, table, timing
from gradred.bench.collectives import COLLECTIVES
from gradred.bench.contenders import Calls, Contender, gather, title_of
from gradred.bench.inputs import Array, Inputs
from gradred.bench.options import Options
from gradred.bench.rank_zero import say, write_so_far
from gradred.bench.timing import Seconds, call_by_call
from gradred.bench.vectors import Device, Vector, in_host_memory
from gradred.element_types import numpy_dtype
from gradred.errors import UsageError
from gradred.launch import wrong_launcher

Made = TypeVar("Made")

SCHEMA = "gradred-bench/1"
_PERCENTILES = (10, 50, 90, 99)


def run(asked: Options) -> int:
    """Measure on COMM_WORLD; collective. Returns 1 if a result was wrong, else 0.

    Raises:
        UsageError: on rank 0, for all ranks: these ranks cannot run the benchmark.
    """
    world = MPI.COMM_WORLD
    try:
        _require_peers(world.size)
        _require_sizes(asked, world.size)
        files = (asked.json, asked.plot) if world.rank == 0 else (None, None)
        _on_all(world, lambda: options.require_writable(*files))
        device = None
        if asked.accelerator != "cpu":
            device = _on_all(world, lambda: Device(asked.accelerator, world))
        contenders = gather(asked, world, device)
    except UsageError:
        if world.rank > 0:
            return 2
        raise
    bench = _Bench(asked, contenders, world, device)
    record = {"schema": SCHEMA} | machine.describe(world, dataclasses.asdict(asked))
    if device is not None:
        record["devices"] = world.allgather(device.name())
    record |= {"flag": machine.one_way_latency(world), "clock_us": timing.clock_cost() * 1e6}
    record |= {"complete": False, "rows": []}
    right = True
    for dtype in asked.types:
        right = right and bench.measure_type(dtype, record)
    record["complete"] = right
    bench.keep(record, last=True)
    if world.rank == 0 and asked.plot is not None:
        draw(record, Path(asked.plot))
    return 0 if right else 1


def _require_peers(size: int) -> None:
    if size < 2:
        wrong_launcher.refuse_wrong_launcher()
        found = "this process is alone, and it takes two ranks at least"
        raise UsageError("one rank", found, "Start them with: gradred bench -np 2")


def _require_sizes(asked: Options, size: int) -> None:
    for dtype in asked.types:
        if not asked.sizes(dtype, size):
            what = f"--collective {asked.collective} -m {asked.smallest}:{asked.largest} -T {dtype}"
            found = f"that has no element for each of {size} ranks"
            raise UsageError(what, found, "Give a larger range")


def _on_all(world: MPI.Intracomm, make: Callable[[], Made]) -> Made | None:
    """Return what `make` returns; an error of any rank is raised on all."""
    made, refusal = None, None
    try:
        made = make()
    except UsageError as error:
        refusal = error
    refused = [error for error in world.allgather(refusal) if error is not None]
    if refused:
        raise refused[0]
    return made


class _Bench:
    """The contenders, and the ranks that run them."""

    def __init__(
        self,
        asked: Options,
        contenders: Sequence[Contender],
        world: MPI.Intracomm,
        device: Device | None,
    ) -> None:
        self._asked, self._device = asked, device
        self._collective = COLLECTIVES[asked.collective]
        self._contenders = contenders
        self._names = [contender.name for contender in contenders]
        self._comm = world.Dup()  # its barriers and sums do not affect a contender's communicator

    def measure_type(self, dtype: str, record: dict[str, Any]) -> bool:
        """Add and print a row for each size; stops and returns False after a wrong result."""
        asked, comm = self._asked, self._comm
        sizes = asked.sizes(dtype, comm.size)
        # Without a reduction the inputs only have to differ.
        inputs = Inputs(dtype, asked.op if self._collective.reduces else "max", comm.size)
        kind = numpy_dtype(dtype)
        longest = self._collective.lengths(sizes[-1] // kind.itemsize, comm.size)
        filled, empty = (np.zeros(count, kind) for count in longest)
        inputs.fill(filled, comm.rank)
        send, receive = self._placed(filled), self._placed(empty)
        columns = table.columns(asked, self._names)
        comments = _comments(record, self._names)
        self._say(table.preamble(asked, dtype, comm.size, machine.mpi_name(), comments))
        self._say(table.header(columns))
        for size in sizes:
            count = size // kind.itemsize
            row: dict[str, Any] = {"type": dtype, "bytes": size, "count": count}
            long = self._collective.lengths(count, comm.size)
            expected = inputs.result(asked.collective, count, comm.rank)
            row |= self._measure(size, send[: long[0]], receive[: long[1]], expected)
            record["rows"].append(row)
            self._say(table.line(columns, row))
            self.keep(record)
            wrong = [name for name, result in row["results"].items() if not result["checked"]]
            if wrong:
                problem = (
                    f"DATA VALIDATION ERROR at {size} bytes: {', '.join(wrong)} gave a wrong result"
                )
                say(comm, f"gradred bench: {problem}", error=True)
                return False
        return True

    def keep(self, record: dict[str, Any], *, last: bool = False) -> None:
        """Write the measurements so far to the file requested, so that a crash loses nothing."""
        if self._comm.rank == 0 and self._asked.json is not None:
            write_so_far(self._asked.json, record, last=last)

    def _say(self, text: str) -> None:
        say(self._comm, text, error=self._asked.json == "-")  # then stdout is for the record

    def _placed(self, values: Array) -> Vector:
        return values if self._device is None else self._device.vector(values)

    def _measure(
        self, nbytes: int, send: Vector, receive: Vector, expected: Array
    ) -> dict[str, Any]:
        """Check and time one size; returns the rest of its row."""
        iterations, warmup = self._asked.calls(nbytes)
        bound = [contender.bind(send, receive) for contender in self._contenders]
        try:
            checked = self._check(bound, expected, receive)
            runs = [calls.run for calls in bound]
            call_by_call(runs, warmup, self._comm)
            seconds = call_by_call(runs, iterations, self._comm)
            results = self._summarise(seconds, nbytes)
            if self._asked.mode == "nonblocking":
                self._add_overlap(results, bound, seconds, iterations)
            again = self._check(bound, expected, receive)
        finally:
            for calls in bound:
                calls.free()
        for index, name in enumerate(self._names):
            results[name]["checked"] = checked[index] and again[index]
        return {"iterations": iterations, "warmup": warmup, "results": results}

    def _check(self, bound: Sequence[Calls], expected: Array, receive: Vector) -> list[bool]:
        """Return whether each contender's result is exact on every rank."""
        right = []
        for calls in bound:
            receive.fill(0)
            calls.load()
            calls.run()
            right.append(np.array_equal(in_host_memory(calls.output()), expected))
            calls.unload()
        return list(map(bool, np.min(self._comm.allgather(right), axis=0)))

    def _summarise(self, seconds: Seconds, nbytes: int) -> dict[str, dict[str, Any]]:
        """Return by name the average, least and largest of the ranks' means, and percentiles."""
        means = np.array(self._comm.allgather(seconds.mean(axis=0)))
        calls = self._comm.allreduce(seconds) / self._comm.size
        percentiles = sorted({*_PERCENTILES, *self._asked.tails})
        tails = np.percentile(calls, percentiles, axis=0, method="inverted_cdf")
        results: dict[str, dict[str, Any]] = {}
        for index, name in enumerate(self._names):
            mean = float(means[:, index].mean())
            moved = self._collective.moved(nbytes, self._comm.size)
            compared = timing.ratio(calls[:, index], calls[:, 0])
            results[name] = {
                "avg_us": mean * 1e6,
                "min_us": float(means[:, index].min()) * 1e6,
                "max_us": float(means[:, index].max()) * 1e6,
                **{
                    f"p{percent}_us": float(tail[index]) * 1e6
                    for percent, tail in zip(percentiles, tails, strict=True)
                },
                "algbw_gbs": moved / mean / 1e9,
                "busbw_gbs": moved / mean / 1e9 * self._collective.busy(self._comm.size),
                "ratio": compared.median,
                "ratio_p10": compared.p10,
                "ratio_p90": compared.p90,
            }
        return results

    def _add_overlap(
        self,
        results: dict[str, dict[str, Any]],
        bound: Sequence[Calls],
        pure: Seconds,
        iterations: int,
    ) -> None:
        mine = overlap.measure(bound, pure, self._asked.tests, iterations, self._comm)
        means = np.mean(self._comm.allgather(mine), axis=0)
        for name, parts in zip(self._names, means, strict=True):
            found = overlap.Overlapped(*map(float, parts))
            results[name] |= {f"{k}_us": v * 1e6 for k, v in found._asdict().items()}
            pure_us = results[name]["avg_us"]
            for percent, computed in (
                ("overlap_percent", found.compute),
                ("worked_overlap_percent", found.worked),
            ):
                results[name][percent] = overlap.overlap(pure_us * 1e-6, found.overall, computed)


def _comments(record: dict[str, Any], names: list[str]) -> list[str]:
    """Return comments that explain the times."""
    clock = f"each call timed alone, one reading of the clock included: {record['clock_us']:.2f} us"
    flag = record["flag"]
    devices = [f"vectors on {name}" for name in dict.fromkeys(record.get("devices", ()))]
    lines = [*devices, clock, f"{flag['us']:.2f} us: {flag['what']}"]
    ranks, cores = -(-record["ranks"] // record["hosts"]), record["machine"]["cores"]
    if ranks > cores:
        lines.append(f"{ranks} ranks of a host share {cores} cores: most of the time they wait")
    if len(names) > 1:
        lines.append(
            f"ratio: time over {names[0]}'s, call by call, the median; above 1 it is slower"
        )
    return lines


def draw(record: dict[str, Any], path: Path) -> None:
    """Draw a line for each contender and type."""
    what = record["arguments"]
    lines = []
    for dtype in what["types"]:
        rows = [row for row in record["rows"] if row["type"] == dtype]
        names = list(rows[0]["results"]) if rows else []
        for name in names:
            results = [row["results"][name] for row in rows]
            label = title_of(name)
            if len(what["types"]) > 1:
                label += f", {dtype}"
            lines.append(_line(label, [row["bytes"] for row in rows], results, name != names[0]))
    types = ", ".join(what["types"])
    reduces = COLLECTIVES[what["collective"]].reduces
    reduced = f"{types} {what['op']}" if reduces else types
    first = what["plan"] if what["plan"] not in ("", "all") else "gradred"
    legend = plot.Legend(
        title=f"{what['mode']} {what['collective']}, {record['ranks']} ranks, {reduced}",
        line="median of the calls",
        band="10-90 % of the calls",
        below=f"time / {first}'s, median",
    )
    plot.draw(path, legend, lines)


def _line(label: str, sizes: list[int], results: list[dict[str, Any]], compared: bool) -> plot.Line:
    return plot.Line(
        label=label,
        sizes=sizes,
        times=[result["p50_us"] for result in results],
        low=[result["p10_us"] for result in results],
        high=[result["p90_us"] for result in results],
        ratios=[result["ratio"] for result in results] if compared else None,
    )
