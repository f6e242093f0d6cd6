"""Run Horovod's own tests for PyTorch with gradred in its place.

    python tools/horovod_tests.py
    python tools/horovod_tests.py --checkout FOLDER     # of Horovod's repository

The tests are not stored here, and Horovod's package on PyPI does not contain them: without
--checkout the files go from Horovod's repository into .cache/ once. They import `horovod.torch`,
which `gradred run --horovod` provides. Tests that fail whatever the library does are listed with
the reason (`APART`). Exit status: 0 no other test fails (or the tests cannot be downloaded), 1 one
does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import urllib.request
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import tally
from processes import run_job

ROOT = Path(__file__).resolve().parent.parent
VERSION = "0.28.1"
SOURCE = f"https://raw.githubusercontent.com/horovod/horovod/v{VERSION}"
CACHE = Path(".cache", f"horovod-{VERSION}")
RESULTS = Path("build", "horovod-tests")
COMMON = "test/utils/common.py"
# Each runs in a job of its own. The last two use names of horovod.tensorflow that horovod.torch has
# as well, and so run without TensorFlow.
TESTS = (
    "test/parallel/test_torch.py",
    "test/parallel/test_process_sets_static.py",
    "test/parallel/test_process_sets_multi_comm.py",
)
TENSORFLOW, TORCH = "import horovod.tensorflow as hvd", "import horovod.torch as hvd"

# Tests that fail whatever the library does, from the PyTorch on that has this optimizer.
APART = dict.fromkeys(
    ("test_broadcast_state", "test_broadcast_state_options", "test_force_allreduce"),
    "builds torch's Muon on parameters of one dimension, which it refuses",
)


@dataclass
class Run:
    """The verdicts of one job, by test; `failed` has the text of the first rank that failed."""

    passed: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


def fetch() -> Path | str:
    """Return the folder with the tests, or why there is none."""
    for name in (COMMON, *TESTS):
        if (CACHE / name).exists():
            continue
        (CACHE / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(f"{SOURCE}/{name}", timeout=30) as answer:
                text = answer.read()
        except OSError as error:
            return f"Horovod's tests cannot be had: {error}"
        (CACHE / name).write_bytes(text)
    return CACHE


def placed(checkout: Path) -> Path:
    """Return a folder with the tests, changed to use PyTorch."""
    folder = RESULTS / "tests"
    shutil.rmtree(folder, ignore_errors=True)
    for name in (COMMON, *TESTS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        text = (checkout / name).read_text()
        (folder / name).write_text(text.replace(TENSORFLOW, TORCH))
    return folder


def run(file: Path, ranks: int, seconds: float, options: list[str]) -> Run:
    """Run one file of tests as one job."""
    out = RESULTS / f"{file.stem}-{ranks}"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    launch = ["-m", "gradred", "run", "-np", str(ranks), "--horovod"]
    program = [str(ROOT / "tests" / "compat" / "horovod_rank.py"), str(file), str(out), *options]
    begin = time.monotonic()
    job = run_job([sys.executable, *launch, sys.executable, *program], dict(os.environ), seconds)
    found = read(out, ranks, job.problem)
    print(
        f"{file.stem}, {ranks} ranks {time.monotonic() - begin:7.1f} s{len(found.passed):5} passed"
        f"{len(found.failed):4} failed{len(found.skipped):4} skipped",
        flush=True,
    )
    return found


def read(out: Path, ranks: int, problem: str | None) -> Run:
    """Join the verdicts of all ranks: a test has failed if it failed on any rank."""
    found = Run()
    for rank in range(ranks):
        if not (out / f"{rank}.xml").exists():
            log = out / f"{rank}.log"
            last = "\n".join(log.read_text().splitlines()[-30:]) if log.exists() else ""
            found.failed.setdefault(f"{out.name}", f"rank {rank} ended early ({problem})\n{last}")
            continue
        for case in xml.etree.ElementTree.parse(out / f"{rank}.xml").iter("testcase"):
            name = str(case.get("name"))
            problems = [*case.iter("failure"), *case.iter("error")]
            if problems:
                found.failed.setdefault(name, f"rank {rank}: {problems[0].text}")
            else:
                (found.passed if case.find("skipped") is None else found.skipped).add(name)
    if problem and not found.failed:
        found.failed[out.name] = f"all tests passed, then: {problem}"
    found.passed -= found.failed.keys()
    found.skipped -= found.passed | found.failed.keys()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2", help="numbers of ranks")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one job")
    parser.add_argument("--checkout", type=Path, help="folder of Horovod's repository")
    parser.add_argument("-k", help="as pytest's option")
    options = parser.parse_args()
    checkout = options.checkout.resolve() if options.checkout else None
    os.chdir(ROOT)
    tests = checkout or fetch()
    if isinstance(tests, str):
        tally.skip(tests)
        return 0
    folder, more = placed(tests).resolve(), ["-k", options.k] if options.k else []
    passed, failed, skipped, apart = 0, 0, 0, 0
    for ranks in [int(number) for number in options.ranks.split(",")]:
        for test in TESTS:
            found = run(folder / test, ranks, options.timeout, more)
            failures = {name: text for name, text in found.failed.items() if name not in APART}
            for name in sorted(found.failed.keys() & APART.keys()):
                print(f"apart, {ranks} ranks: {name}: {APART[name]}")
            for name, text in failures.items():
                print(f"FAILED with {ranks} ranks: {name}\n{text}")
            passed, failed = passed + len(found.passed), failed + len(failures)
            skipped += len(found.skipped)
            apart += len(found.failed.keys() & APART.keys())
    tally.add(passed, {"of Horovod's own tests, by themselves": skipped} if skipped else {})
    print(f"{passed} passed, {failed} failed, {skipped} skipped, {apart} apart")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
