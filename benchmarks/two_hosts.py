"""Compare gradred's Allreduce with that of the MPI between two hosts: 1 x 1, 2 x 2 and 3 + 1 ranks.

    .venv/bin/python benchmarks/two_hosts.py --out benchmarks/results

The hosts are namespaces of this machine, joined by a cable of a given rate (see tests/hosts), so
this needs root, iproute2 and util-linux. On each pair of hosts `benchmarks/allreduce.py` runs once,
gradred and the MPI in turn. What gradred measures of the hosts to choose plans by is measured anew
for each layout, and kept in a folder that goes. Times of small messages are those of this machine's
scheduler and loopback, and with a rate above 1gbit the cores set the pace: compare within one
record only.

Writes a record for each layout, allreduce-MPI-Nranks-2hosts-DATE.json (and 3+1ranks), which
tools/gen_results_table.py shows. Exit status: 0 done; 1 a run failed; 2 usage.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from hosts import jobs, machines  # noqa: E402 (of the tests)

from gradred import launch  # noqa: E402

LAYOUTS = {"2ranks": (1, 1), "4ranks": (2, 2), "3+1ranks": (3, 1)}
HOSTS = ("h1", "h2")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="allreduce between two hosts of namespaces")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER")
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc has it; or none")
    parser.add_argument("--seconds", type=float, default=60.0, help="each of the runs, about")
    parser.add_argument("--max", type=int, default=16 << 20, metavar="BYTES")
    parser.add_argument(
        "--layout", choices=LAYOUTS, action="append", help="one alone; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=9, help="per size and pass; 3 at least")
    parser.add_argument("--passes", type=int, default=2, help="over all sizes (default: 2)")
    given = parser.parse_args()
    why_not = jobs.why_not()
    if why_not:
        parser.error(f"no hosts can be made here: {why_not}")
    return given


def run(
    made: machines.Machines, ranks: tuple[int, ...], given: argparse.Namespace, path: Path
) -> int:
    """Measure with so many ranks on the hosts; the exit status of the job."""
    link = "no limit of its rate" if given.rate == "none" else given.rate
    note = f"The hosts are namespaces of one machine, whose cores they share; a link with {link}"
    words = [str(ROOT / "benchmarks" / "allreduce.py"), "--json", str(path), "--note", note]
    for name in ("seconds", "max", "rounds", "passes"):
        words += [f"--{name}", str(getattr(given, name))]
    where = ",".join(f"{name}:{count}" for name, count in zip(HOSTS, ranks, strict=True))
    with tempfile.TemporaryDirectory() as cache:
        return run_job(made, given, words, where, cache)


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
        for name in given.layout or LAYOUTS:
            path = given.out / f"allreduce-{family}-{name}-{len(HOSTS)}hosts-{today}.json"
            if run(made, LAYOUTS[name], given, path.resolve()) != 0:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
