"""All that a machine with a GPU can say about gradred, in one command of under ten minutes.

    python benchmarks/h200.py --out results --only machine allreduce

Sections, each a record in one JSON file, each of which runs alone (`--only`) and goes on where
another fails:

    machine   the driver, the device, what the system lets processes share
    arrays    every kind of call on CuPy, PyTorch and Numba arrays, results checked, 1 to 4 ranks
    lookup    what it costs to ask the driver where an address lies: host, device, pool, managed
    kernels   reductions on the device against its copies: bytes moved per second
    allreduce Allreduce of device arrays, from device to device (where they lie for those of
              gradred.empty, else through workspaces) and through host memory, against what a
              program has to do without gradred: copy to the host, the MPI's Allreduce, copy back;
              2, 4 and 8 ranks on one device
    order     calls in the order of a stream that has other work, also where all streams share one
              queue of the hardware and memory is freed meanwhile; times against blocking calls
    host      Allreduce of host arrays against the MPI's, 2 to 16 ranks

Jobs are started by `gradred run`, with the MPI of this environment. The JSON record (`schema` =
"gradred-h200/1"): date, arguments, sections{name: {seconds, error or what the section tells}}.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCHEMA = "gradred-h200/1"
RANKS = HERE / "gpu" / "ranks.py"

Record = dict[str, Any]


def job(section: str, ranks: int, seconds: float, *more: str, **variables: str) -> Record:
    """What rank 0 of a job of `gpu/ranks.py` prints last; an error where it fails."""
    environment = os.environ | variables
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks)]
    command += ["--timeout", str(seconds), sys.executable, str(RANKS), section, *more]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=seconds + 30, env=environment
    )
    if done.returncode != 0:
        return {"error": f"exit status {done.returncode}", "stderr": done.stderr[-4000:]}
    found: Record = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def machine(given: argparse.Namespace) -> Record:
    return job("machine", 2, 60, *given.library)


def arrays(given: argparse.Namespace) -> Record:
    record = {str(ranks): job("arrays", ranks, 90, *given.library) for ranks in (1, 2, 4)}
    record["2, through host memory"] = job(
        "arrays", 2, 90, *given.library, GRADRED_IPC_BYTES="none"
    )
    return record


def lookup(given: argparse.Namespace) -> Record:
    return job("lookup", 1, 60, *given.library)


def kernels(given: argparse.Namespace) -> Record:
    most = "1m" if given.short else "256m"
    with tempfile.TemporaryDirectory() as folder:
        return job("kernels", 2, 120, most, *given.library, XDG_CACHE_HOME=folder)


def allreduce(given: argparse.Namespace) -> Record:
    counts = (2,) if given.short else (2, 4, 8)
    most = "1m" if given.short else "256m"
    return {str(ranks): job("allreduce", ranks, 120, most, *given.library) for ranks in counts}


def order(given: argparse.Namespace) -> Record:
    most = "1m" if given.short else "64m"
    record = {str(ranks): job("order", ranks, 60, most, *given.library) for ranks in (1, 2)}
    record["2, one queue"] = job(
        "order", 2, 60, "1m", *given.library, CUDA_DEVICE_MAX_CONNECTIONS="1"
    )
    return record


def host(given: argparse.Namespace) -> Record:
    record: Record = {}
    for ranks in (2,) if given.short else (2, 4, 8, 16):
        file = given.out / f"host-{ranks}ranks.json"
        command = [sys.executable, "-m", "gradred", "bench", "-np", str(ranks), "--peers", "mpi"]
        command += ["-m", "8:64k" if given.short else "8:16m", "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        well = done.returncode == 0
        record[str(ranks)] = (
            json.loads(file.read_text()) if well else {"error": done.stderr[-4000:]}
        )
    return record


SECTIONS: dict[str, Callable[[argparse.Namespace], Record]] = {
    "machine": machine,
    "arrays": arrays,
    "lookup": lookup,
    "kernels": kernels,
    "allreduce": allreduce,
    "order": order,
    "host": host,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the record")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--short", action="store_true", help="small sizes: to try the script")
    parser.add_argument(
        "--library",
        nargs="+",
        default=[],
        help="array libraries: cupy torch numba, or simulated; default: those that are there",
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    today = datetime.date.today().isoformat()
    record: Record = {"schema": SCHEMA, "date": today, "sections": {}}
    record["arguments"] = {name: str(value) for name, value in vars(given).items()}
    file = given.out / f"h200-{today}.json"
    failed = []
    for name in given.only:
        begin = time.monotonic()
        try:
            section = SECTIONS[name](given)
        except Exception as error:  # the others are worth having
            section = {"error": f"{type(error).__name__}: {error}"}
        section["seconds"] = round(time.monotonic() - begin, 1)
        record["sections"][name] = section
        file.write_text(json.dumps(record, indent=1) + "\n")
        wrong = "error" in json.dumps(section)
        failed += [name] if wrong else []
        print(f"{name:10}{section['seconds']:8.1f} s  {'failed' if wrong else 'ok'}", flush=True)
    print(file)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
