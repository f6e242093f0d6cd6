"""Run the full sweep of faults on both MPIs, and make its records and page.

    python tools/fault_sweep.py

runs tests/faults (with kills at random moments), tests/hosts (as root) and the tests of tests/jobs
about ends. It includes the tests that the gate leaves out, and replaces docs/faults/*.jsonl and
docs/faults.md. Each record has its date and commit. An MPI with a failed test keeps its old record;
`--mpi openmpi` sweeps only that one. The sweep takes about a quarter of an hour on two cores. A
failed test is tried again, and tools/nightly.py reports it.
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
# Each part mostly waits, so the parts of one MPI run at the same time; every test is in one part.
# With both MPIs at the same time, the tests' time limits would measure the machine.
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
    """One pytest that runs."""

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
        command.append("TESTS_STRICT_TIMES=1")  # the page has the times until ranks notice
        command += [str(ENVIRONMENTS[mpi] / "bin" / "python"), "-m", "pytest", "-q", "--full"]
        command += ["-o", f"cache_dir={stem.absolute()}", "-rfs", "--tb=short", *PARTS[name]]
        results = f"--junit-xml={stem.with_suffix('.xml')}"
        return cls(Beside([*command, results], stem.with_suffix(".log")), stem, command)

    def end(self) -> tuple[bool, int, int]:
        """Return whether all passed, and the numbers of passed and skipped tests.

        Tests that failed while the other parts ran get a second try; the nightly run's report lists
        them.
        """
        again = [*self.command, "--last-failed"]
        status = self.job.wait()
        well = status == 0 or (  # 1: tests failed; others: pytest ran no or not all tests
            status == 1
            and tally.passed_again(
                self.stem, lambda: subprocess.run(again, check=False).returncode == 0
            )
        )
        if not self.results.exists():
            return False, 0, 0
        cases = list(ElementTree.parse(self.results).iter("testcase"))
        skipped = sum(case.find("skipped") is not None for case in cases)
        return well and len(cases) > skipped, len(cases) - skipped, skipped


def commit() -> str:
    """Return the commit that is swept, with a note if the checkout differs from it."""
    # Files that a sweep, and the nightly run around it, write themselves.
    written = [":!docs/faults", ":!docs/faults.md", ":!docs/nightly.*"]
    ask = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *written]
    changed = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    ask = ["git", "describe", "--always", "--abbrev=10"]
    done = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return f"{done} with changes" if changed else done


def sweep(mpis: list[str]) -> list[str]:
    """Run the sweep; returns the MPIs with a failure."""
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
