"""The full sweep of what goes wrong: on both MPIs, its records and the page made of them.

    python tools/fault_sweep.py

runs tests/faults (kills at random moments among them), tests/hosts (as root) and what of tests/jobs
is about ends, with all that they leave out by day, and replaces docs/faults/*.jsonl and
docs/faults.md. Each record says when it was made, and at which commit. An MPI of which a test
failed keeps its old record; `--mpi openmpi` does one of them alone. Takes about a quarter of an
hour on two cores. A test that fails is tried again, and tools/nightly.py names it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import tally
from processes import Beside

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path("build", "faults")
RECORDS = Path("docs", "faults")
ENVIRONMENTS = {"mpich": Path(".venv"), "openmpi": Path(".venv-openmpi")}
# Each part mostly waits, so those of an MPI run beside each other; every test is in one of them.
# With both MPIs at once their bounds would measure the machine.
PARTS = {
    "ranks": ["tests/faults/test_faults.py"],
    "kills": ["tests/faults/test_kills.py"],
    "others": [
        "tests/faults",
        "--ignore=tests/faults/test_faults.py",
        "--ignore=tests/faults/test_kills.py",
        "tests/hosts",
        "tests/jobs/test_run_command.py",
        "tests/jobs/test_ends.py",
        "tests/jobs/test_endurance.py",
    ],
}


@dataclass(frozen=True)
class Part:
    """One pytest, under way."""

    job: Beside
    stem: Path
    command: list[str]

    @property
    def record(self) -> Path:
        return self.stem.with_suffix(".jsonl")

    @property
    def results(self) -> Path:
        return self.stem.with_suffix(".xml")

    @classmethod
    def start(cls, mpi: str, name: str) -> Part:
        stem = BUILD / f"{mpi}-{name}"
        for kind in (".jsonl", ".xml"):
            stem.with_suffix(kind).unlink(missing_ok=True)
        shutil.rmtree(stem, ignore_errors=True)
        record = stem.with_suffix(".jsonl").absolute()
        command = ["env", f"FAULTS_RECORD={record}", "OMP_NUM_THREADS=1"]
        command.append("TESTS_STRICT_TIMES=1")  # the page tells how soon ranks know
        command += [str(ENVIRONMENTS[mpi] / "bin" / "python"), "-m", "pytest", "-q", "--full"]
        command += ["-o", f"cache_dir={stem.absolute()}", "-rfs", "--tb=short", *PARTS[name]]
        results = f"--junit-xml={stem.with_suffix('.xml')}"
        return cls(Beside([*command, results], stem.with_suffix(".log")), stem, command)

    def end(self) -> tuple[bool, int, int]:
        """Whether all is well; how many tests passed, and how many were skipped.

        What has failed beside the other parts gets a second try, which the report of a nightly run
        tells.
        """
        again = [*self.command, "--last-failed"]
        well = self.job.wait() == 0 or tally.passed_again(
            self.stem, lambda: subprocess.run(again, check=False).returncode == 0
        )
        if not self.results.exists():
            return False, 0, 0
        cases = list(ElementTree.parse(self.results).iter("testcase"))
        skipped = sum(case.find("skipped") is not None for case in cases)
        return well and len(cases) > skipped, len(cases) - skipped, skipped


def commit() -> str:
    """What is swept; says so where it is not what the repository holds."""
    # What a sweep, and the nightly run around it, write themselves.
    written = [":!docs/faults", ":!docs/faults.md", ":!docs/nightly.*"]
    ask = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *written]
    changed = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    ask = ["git", "describe", "--always", "--abbrev=10"]
    done = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return f"{done} with changes" if changed else done


def sweep(mpis: list[str]) -> list[str]:
    """The MPIs of which something failed."""
    swept, date = commit(), f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
    failed = []
    for mpi in mpis:
        parts = [Part.start(mpi, name) for name in PARTS]
        ends = [part.end() for part in parts]
        if not all(well for well, *_ in ends):
            failed.append(mpi)
            continue
        lines = [line for part in parts if part.record.exists() for line in part.record.open()]
        of = json.loads(lines[0])
        head = {"mpi": of["mpi"], "version": of["version"], "part": "sweep"}
        head |= {"date": date, "commit": swept}
        head |= {"passed": sum(end[1] for end in ends), "skipped": sum(end[2] for end in ends)}
        (RECORDS / f"{mpi}.jsonl").write_text(json.dumps(head) + "\n" + "".join(lines))
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", choices=ENVIRONMENTS, help="only this one")
    for mpi in ENVIRONMENTS:
        parser.add_argument(f"--{mpi}", type=Path, help="its environment, ready to be used")
    options = parser.parse_args()
    os.chdir(ROOT)
    BUILD.mkdir(parents=True, exist_ok=True)
    mpis = [options.mpi] if options.mpi else list(ENVIRONMENTS)
    for mpi in mpis:
        if ready := getattr(options, mpi):
            ENVIRONMENTS[mpi] = ready
            continue
        command = ["tools/environment.py", str(ENVIRONMENTS[mpi]), f"{mpi},test,demo"]
        subprocess.run([sys.executable, *command], check=True)
    begin = time.monotonic()
    failed = sweep(mpis)
    subprocess.run([sys.executable, "tools/gen_faults_docs.py", "--write"], check=True)
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    print(f"the sweep of faults took {time.monotonic() - begin:.0f} s; {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
