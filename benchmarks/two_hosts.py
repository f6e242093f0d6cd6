"""Compare gradred's Allreduce with that of the MPI between two hosts: 1 and 2 ranks on each.

    .venv/bin/python benchmarks/two_hosts.py --out benchmarks/results

The hosts are namespaces of this machine, joined by a cable of a given rate (see tests/hosts), so
this needs root, iproute2 and util-linux. On each pair of hosts `benchmarks/allreduce.py` runs once,
gradred and the MPI in turn. Times of small messages are those of this machine's scheduler and
loopback, and with a rate above 1gbit the cores set the pace: compare within one record only.

Writes a record for each number of ranks, allreduce-MPI-Nranks-2hosts-DATE.json, which
tools/gen_results_table.py shows. Exit status: 0 done; 1 a run failed; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hosts import jobs, machines  # noqa: E402 (of the tests)

from gradred import launch  # noqa: E402

RANKS_PER_HOST = (1, 2)
HOSTS = ("h1", "h2")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="allreduce between two hosts of namespaces")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it; or none")
    parser.add_argument("--seconds", type=float, default=60.0, help="each of the two runs, about")
    parser.add_argument("--max", type=int, default=16 << 20, metavar="BYTES")
    parser.add_argument("--rounds", type=int, default=9, help="per size and pass; 3 at least")
    parser.add_argument("--passes", type=int, default=2, help="over all sizes (default: 2)")
    given = parser.parse_args()
    why_not = jobs.why_not()
    if why_not:
        parser.error(f"no hosts can be made here: {why_not}")
    return given


def run(made: machines.Machines, ranks: int, given: argparse.Namespace, path: Path) -> int:
    """Measure with so many ranks on each host; the exit status of the job."""
    link = "no limit of its rate" if given.rate == "none" else given.rate
    note = f"The hosts are namespaces of one machine, whose cores they share; a link with {link}"
    words = [str(ROOT / "benchmarks" / "allreduce.py"), "--json", str(path), "--note", note]
    for name in ("seconds", "max", "rounds", "passes"):
        words += [f"--{name}", str(getattr(given, name))]
    where = ",".join(f"{name}:{ranks}" for name in HOSTS)
    process = jobs.start(made, ROOT, sys.executable, *words, where=where)
    try:
        out, err = process.communicate(timeout=4 * given.seconds + 60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"benchmarks/two_hosts.py: not done after {4 * given.seconds + 60:g} s\n"
    print(out, flush=True)
    print(err, file=sys.stderr, end="", flush=True)
    return int(process.returncode)


def main() -> int:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    family = launch.find_mpi().family.lower().replace(" ", "")
    today = datetime.datetime.now(datetime.timezone.utc).date()
    with machines.Machines(len(HOSTS)) as made:
        if given.rate != "none":
            for name in HOSTS:
                made.limit(name, given.rate)
        for ranks in RANKS_PER_HOST:
            total = ranks * len(HOSTS)
            path = given.out / f"allreduce-{family}-{total}ranks-{len(HOSTS)}hosts-{today}.json"
            if run(made, ranks, given, path.resolve()) != 0:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
