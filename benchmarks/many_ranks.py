"""Compare gradred's Allreduce with three MPIs' on one host of many cores: 4, 8 and 16 ranks.

    python benchmarks/many_ranks.py --out benchmarks/results .venv .venv-openmpi .venv-intelmpi

Each environment has gradred beside one MPI. For each number of ranks it runs
`benchmarks/allreduce.py`, from 8 B to 64 MiB, with each rank bound to a core of its own. Numbers
above that of the cores are left out, unless --crowded.

It prints the geometric mean and the least of the ratios (the MPI's time divided by gradred's), and
writes a record for each environment, many-ranks-MPI-DATE.json:

    schema   "gradred-many-ranks/1"
    versions, machine, date
    runs     [{ranks, ratio (the geometric mean), least, least_bytes, record (allreduce.py's)}]

Exit status: 0 done; 1 a run failed, or a ratio misses --mean or --least; 2 usage.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from gradred._util import cpu

PROGRAM = Path(__file__).resolve().parent / "allreduce.py"
ABOUT = ("date", "machine", "versions")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="allreduce of many ranks beside several MPIs")
    parser.add_argument("environments", type=Path, nargs="+", metavar="ENVIRONMENT")
    parser.add_argument("--ranks", type=int, action="append", help="default: 4, 8 and 16")
    parser.add_argument("--crowded", action="store_true", help="more ranks than cores, too")
    parser.add_argument("--max", type=int, default=64 << 20, metavar="BYTES")
    parser.add_argument("--seconds", type=float, default=120.0, help="each of the runs, about")
    parser.add_argument("--rounds", type=int, default=9, help="per size and pass; 3 at least")
    parser.add_argument("--passes", type=int, default=2, help="over all sizes (default: 2)")
    parser.add_argument("--mean", type=float, default=3.5, help="geometric mean that is wanted")
    parser.add_argument("--least", type=float, default=1.3, help="least ratio that is wanted")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for the records")
    given = parser.parse_args()
    for environment in given.environments:
        if not (environment / "bin" / "python").exists():
            parser.error(f"no Python in {environment}")
    return given


def run(environment: Path, ranks: int, given: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Measure with so many ranks; returns allreduce.py's record."""
    binding = "none" if ranks > cpu.cores() else "core"
    python = str((environment / "bin" / "python").absolute())
    command = [python, "-m", "gradred", "run", "-np", str(ranks), "--bind", binding]
    command += [python, str(PROGRAM), "--json", str(path)]
    for name in ("max", "seconds", "rounds", "passes"):
        command += [f"--{name}", str(getattr(given, name))]
    subprocess.run(command, check=True)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Return a run's geometric mean and its least ratio, with the record itself."""
    worst = min(record["rows"], key=lambda row: float(row["ratio"]))
    mean = geometric_mean(row["ratio"] for row in record["rows"])
    least = {"least": worst["ratio"], "least_bytes": worst["bytes"]}
    return {"ranks": record["ranks"], "ratio": mean, **least, "record": record}


def main() -> int:
    given = arguments()
    numbers = given.ranks or [4, 8, 16]
    fitting = [ranks for ranks in numbers if given.crowded or ranks <= cpu.cores()]
    lines, missed = [], not fitting
    for environment in given.environments:
        runs = []
        with tempfile.TemporaryDirectory() as folder:
            for ranks in fitting:
                runs.append(summary(run(environment, ranks, given, Path(folder) / "record.json")))
        for one in runs:
            missed |= one["ratio"] < given.mean or one["least"] < given.least
            text = f"least {one['least']:.2f} at {one['least_bytes']} B"
            lines.append(f"{environment.name}: {one['ranks']} ranks: {one['ratio']:.2f}, {text}")
        if given.out is not None and runs:
            about = {name: runs[0]["record"][name] for name in ABOUT}
            made = {"schema": "gradred-many-ranks/1", **about, "runs": runs}
            mpi = environment.name.removeprefix(".venv").strip("-") or "mpich"
            path = given.out / f"many-ranks-{mpi}-{about['date'][:10]}.json"
            path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for ranks in sorted({*numbers} - {*fitting}):
        lines.append(f"{ranks} ranks: not measured, on {cpu.cores()} cores")
    print("\n".join(lines))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
