"""Compare gradred's Allreduce with the MPI's between hosts: 1 x 1, 2 x 2, 3 + 1, 4 x 1 ranks.

    .venv/bin/python benchmarks/between_hosts.py --out benchmarks/results

The hosts are network namespaces of this machine, each with a link of a given rate and its part of
the machine's cores (see tests/hosts): without that it depends on where the kernel puts the ranks
whether two hosts wait for one core. So it needs root, iproute2 and util-linux. On each layout
`benchmarks/allreduce.py` runs once, or with --every-call `benchmarks/every_call.py`, in alternating
blocks. gradred measures the hosts anew for each layout, to choose plans, and stores the figures in
a temporary folder.

Times of small messages are those of this machine's scheduler and loopback. With a rate above 1gbit
the cores limit the speed. So compare times only within one record.

It writes a record for each layout, allreduce-MPI-Nranks-Nhosts-DATE.json (and 3+1ranks), or
every-call-..., which tools/gen_results_table.py shows. If the rate is limited one of allreduces has

    wire   {bytes_per_s: of one TCP stream from host to host, measured just before;
            factor: bytes that leave each host, as a multiple of the vector's length, 2 (h - 1) / h;
            share: the least time that follows from both, divided by the longest vector's time}

Exit status: 0 done; 1 a run failed; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hosts import jobs, machines  # noqa: E402 (a module of the tests)

from gradred import launch  # noqa: E402

EVERY_CALL_SIZES = (8, 1024, 65536, 1 << 20, 16 << 20)
LAYOUTS = {
    "2ranks-2hosts": (1, 1),
    "4ranks-2hosts": (2, 2),
    "3+1ranks-2hosts": (3, 1),
    "4ranks-4hosts": (1, 1, 1, 1),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="allreduce between hosts of namespaces")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it; or none")
    parser.add_argument("--seconds", type=float, default=60.0, help="each of the runs, about")
    parser.add_argument("--max", type=int, default=16 << 20, metavar="BYTES")
    parser.add_argument(
        "--layout", choices=LAYOUTS, action="append", help="one alone; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=9, help="per size and pass; 3 at least")
    parser.add_argument("--passes", type=int, default=2, help="over all sizes (default: 2)")
    parser.add_argument("--every-call", action="store_true", help="not allreduce alone")
    given = parser.parse_args()
    why_not = jobs.why_not()
    if why_not:
        parser.error(f"no hosts can be made here: {why_not}")
    return given


def run(
    made: machines.Machines, ranks: tuple[int, ...], given: argparse.Namespace, path: Path
) -> int:
    """Measure with so many ranks on the hosts; returns the exit status of the job."""
    link = "no limit of its link" if given.rate == "none" else f"a link with {given.rate}"
    note = f"The hosts are namespaces of one machine, each with its part of its cores and {link}"
    program, options = "allreduce", ["seconds", "max", "rounds", "passes"]
    if given.every_call:
        program, options = "every_call", ["seconds", "rounds"]
    words = [str(ROOT / "benchmarks" / f"{program}.py"), "--json", str(path)]
    if given.every_call:
        words += ["--sizes", *(str(nbytes) for nbytes in EVERY_CALL_SIZES if nbytes <= given.max)]
    else:
        words += ["--note", note]
    for name in options:
        words += [f"--{name}", str(getattr(given, name))]
    where = ",".join(f"h{number}:{count}" for number, count in enumerate(ranks, 1))
    with tempfile.TemporaryDirectory() as cache:
        return run_job(made, given, words, where, cache)


STREAM_BYTES = 128 << 20
RECEIVER = f"""
import socket, time
server = socket.create_server(("", 7007))
print("up", flush=True)
stream, begin, left = server.accept()[0], time.perf_counter(), {STREAM_BYTES}
while left > 0:
    left -= len(stream.recv(1 << 20))
print({STREAM_BYTES} / (time.perf_counter() - begin))
"""
SENDER = f"""
import socket
stream = socket.create_connection(("h2", 7007))
stream.sendall(bytes({STREAM_BYTES}))
stream.recv(1)  # until the other end has read all
"""


def stream_bytes_per_s(made: machines.Machines) -> float:
    """Measure the rate of one TCP stream from h1 to h2."""
    receiver = made.start("h2", [sys.executable, "-c", RECEIVER], os.environ, ROOT)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    made.start("h1", [sys.executable, "-c", SENDER], os.environ, ROOT).communicate(timeout=120)
    return float(receiver.communicate(timeout=120)[0])


def add_wire(path: Path, bytes_per_s: float) -> None:
    """Add to a record how near its longest vector came to the limit of the link."""
    record = json.loads(path.read_text(encoding="utf-8"))
    hosts, longest = record["hosts"], record["rows"][-1]
    factor = 2 * (hosts - 1) / hosts
    least_us = longest["bytes"] * factor / bytes_per_s * 1e6
    share = least_us / longest["gradred_us"]
    record["wire"] = {"bytes_per_s": bytes_per_s, "factor": factor, "share": share}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{longest['bytes']} B: {100 * share:.1f} % of what the wire allows", flush=True)


def run_job(
    made: machines.Machines, given: argparse.Namespace, words: list[str], where: str, cache: str
) -> int:
    own = {"GRADRED_TUNE": "1", "XDG_CACHE_HOME": cache}
    process = jobs.start(made, ROOT, sys.executable, *words, where=where, **own)
    try:
        out, err = process.communicate(timeout=4 * given.seconds + 60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"benchmarks/between_hosts.py: not done after {4 * given.seconds + 60:g} s\n"
    print(out, flush=True)
    print(err, file=sys.stderr, end="", flush=True)
    return int(process.returncode)


def measure(name: str, given: argparse.Namespace) -> int:
    """Measure one layout on hosts of its own; returns the exit status of the job."""
    family = launch.find_mpi().family.lower().replace(" ", "")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    what = "every-call" if given.every_call else "allreduce"
    path = (given.out / f"{what}-{family}-{name}-{today}.json").resolve()
    ranks = LAYOUTS[name]
    with machines.Machines(len(ranks), own_cores=True) as made:
        if given.rate == "none":
            return run(made, ranks, given, path)
        for number in range(1, len(ranks) + 1):
            made.limit(f"h{number}", given.rate)
        bytes_per_s = stream_bytes_per_s(made)
        status = run(made, ranks, given, path)
        if status == 0 and not given.every_call:
            add_wire(path, bytes_per_s)
        return status


def main() -> int:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    return int(any(measure(name, given) != 0 for name in given.layout or LAYOUTS))


if __name__ == "__main__":
    sys.exit(main())
