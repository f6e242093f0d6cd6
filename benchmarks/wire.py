"""Time allreduces with a compressed wire between two hosts against the MPI's and gradred's own.

    .venv/bin/python benchmarks/wire.py --rate 1gbit --out benchmarks/results

The hosts are network namespaces of this machine with links of a given rate (tests/hosts), so it
needs root, iproute2 and util-linux. One rank runs on each. In each round every way runs once, in
alternating order, on standard normal float32; the slower rank counts. Results are compared: all
ranks have the same bits, and errors are those that docs/wire.md allows.

The JSON record (`schema` = "gradred-wire/1"): date, machine{...}, versions{...}, arguments,
rows [{bytes, way, us, ratio, ratio_p10, ratio_p90, ratio_of_least, largest_error}]. `way` is "mpi",
"gradred" or a wire; `us` is a median; `ratio` is the median over the rounds of its time divided by
the MPI's. `ratio_of_least` is that of the least times of all rounds, which other programs that use
the cores disturb less.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def measure(given: argparse.Namespace) -> None:
    """Measure, as one rank of the job."""
    from mpi4py import MPI

    import gradred
    from gradred.bench.machine import describe
    from gradred.bench.rank_zero import say, write_json

    world = MPI.COMM_WORLD
    comm = gradred.Comm(world)
    rows = []
    for nbytes in given.sizes:
        everyone = [
            np.random.default_rng(rank).standard_normal(nbytes // 4).astype(np.float32)
            for rank in range(world.size)
        ]
        x, y = everyone[world.rank], np.empty(nbytes // 4, np.float32)
        exact = np.sum(everyone, axis=0, dtype=np.float64)

        def compressed(wire: str, x: np.ndarray = x, y: np.ndarray = y) -> Callable[[], object]:
            return lambda: gradred.allreduce(x, out=y, comm=comm, wire=wire)

        ways: dict[str, Callable[[], object]] = {
            "mpi": lambda x=x, y=y: world.Allreduce(x, y),
            "gradred": lambda x=x, y=y: comm.Allreduce(x, y),
            **{wire: compressed(wire) for wire in given.wires},
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        errors = {}
        for way, call in ways.items():  # also warms up
            call()
            errors[way] = float(np.abs(y - exact).max())
            if len(set(world.allgather(y.tobytes()))) != 1:
                raise SystemExit(f"{way}: ranks have different bits")
        for number in range(given.rounds):
            for way in list(ways) if number % 2 else reversed(ways):
                world.Barrier()
                begin = time.perf_counter()
                ways[way]()
                times[way].append(world.allreduce(time.perf_counter() - begin, MPI.MAX))
        for way, took in times.items():
            ratios = np.divide(took, times["mpi"])
            low, middle, high = np.percentile(ratios, (10, 50, 90)).tolist()
            row = {"bytes": nbytes, "way": way, "us": float(np.median(took)) * 1e6}
            row |= {"ratio": middle, "ratio_p10": low, "ratio_p90": high}
            row["ratio_of_least"] = least = min(took) / min(times["mpi"])
            rows.append(row | {"largest_error": errors[way]})
            spread = f"{middle:5.2f} ({low:.2f} to {high:.2f}), of the least {least:.2f}"
            say(world, f"{nbytes:10} {way:9} {row['us']:12.0f} us  {spread}  {errors[way]:.2g}")
    about = describe(world, {"rate": given.rate, "rounds": given.rounds, "sizes": given.sizes})
    if world.rank == 0:
        write_json(given.json, {"schema": "gradred-wire/1", "rows": rows, **about})


def on_hosts(given: argparse.Namespace) -> int:
    """Start the job on two hosts; returns its exit status."""
    from hosts import jobs, machines

    from gradred import launch

    if why_not := jobs.why_not():
        raise SystemExit(f"no hosts can be made here: {why_not}")
    family = launch.find_mpi().family.lower().replace(" ", "")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    given.out.mkdir(parents=True, exist_ok=True)
    path = (given.out / f"wire-{given.rate}-{family}-2hosts-{today}.json").resolve()
    words = [__file__, "--json", str(path), "--rate", given.rate, "--rounds", str(given.rounds)]
    words += ["--sizes", *map(str, given.sizes), "--wires", *given.wires]
    with machines.Machines(2) as made, tempfile.TemporaryDirectory() as cache:
        for host in ("h1", "h2"):
            made.limit(host, given.rate)
        own = {"XDG_CACHE_HOME": cache, "GRADRED_TUNE": "1"}
        process = jobs.start(made, ROOT, sys.executable, *words, where="h1:1,h2:1", **own)
        try:
            out, err = process.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    print(out, err, flush=True)
    return int(process.returncode)


def main() -> int:
    parser = argparse.ArgumentParser(description="allreduce with a compressed wire")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[65536, 1 << 20, 64 << 20])
    forms = ("bf16", "fp16", "int8", "fp8_e4m3", "int4", "auto")
    parser.add_argument("--wires", nargs="+", default=forms, choices=forms)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)  # a rank of the job
    given = parser.parse_args()
    if given.json is not None:
        measure(given)
        return 0
    return on_hosts(given)


if __name__ == "__main__":
    sys.exit(main())
