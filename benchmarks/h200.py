"""Measure everything about gradred that needs a GPU, by one command of under ten minutes.

    python benchmarks/h200.py --out results --only machine allreduce

The sections are listed below, the most important first; each makes a record in one JSON file. Each
can run alone (`--only`), and the others continue after a failure. The file is written after each
job. A job that is ended at its limit leaves the rows so far. A job that no longer fits into the
time (`--minutes`) is left out, and its record says so:

    machine   the driver, the device, what the system lets processes share
    arrays    every kind of call on CuPy, PyTorch and Numba arrays, results checked, 2 and 4 ranks
    allreduce Allreduce of device arrays, from device to device (directly, and through workspaces)
              and through host memory, against a program without gradred: copy to the host, the
              MPI's Allreduce, copy back; 2, 4 and 8 ranks on one device, 4 ranks also with NVIDIA's
              MPS, by which they share the device at the same time
    kernels   reductions on the device against its copies: bytes moved per second
    order     calls in stream order on a stream that has other work, also if all streams share one
              hardware queue and memory is freed meanwhile; times against blocking calls
    nccl      NCCL if it runs (with a GPU for each rank, or 2.30 and later), and in a CUDA graph
    training  PyTorch's CUDA tensors by both front ends: results, times against
              copies by hand around the MPI's Allreduce, DDP's gradients against one process's
    ddp       steps of DDP, FSDP2 and the Horovod front end on GPT-2 small and ResNet-50, with ranks
              that start apart, and of gloo: the median and the worst (benchmarks/ddp.py), and
              profiles of DDP's calls
    death     a rank is killed while others have its memory open: their errors, and whether their
              device can still be used
    crowd     8 ranks on the device for half a minute, calls of all kinds, each result checked
    staging   calls through host memory against the longest of copy out, reduction and copy in
    handover  the time to signal from the host to the device and back, by several methods
    host      Allreduce of host arrays against the MPI's, 2 to 16 ranks, as many as there are cores;
              also with the MPIs of other environments (`--python other/bin/python`)

`gradred run` starts the jobs, with the MPI of this environment. The JSON record (`schema` =
"gradred-h200/3"): date, arguments, sections{name: {seconds, jobs{name: the job's record, or error,
or skipped}}}; a job that was ended has `rows` as well as `error`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradred
from gradred import _core

HERE = Path(__file__).resolve().parent
SIMULATED = HERE.parent / "tests" / "libsimulated_cuda.so"
SCHEMA = "gradred-h200/3"
RANKS = HERE / "gpu" / "ranks.py"
SHARED_BY_NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
WHOLE = "job_seconds"  # a job's record has this key when it is complete
LEAST_S = 10  # seconds that a job needs; with less it is left out
SPARE_S = 5  # seconds in which a job that exceeds its limit is ended

Record = dict[str, Any]


class Run:
    """One run of the script: its arguments, its record on disk, its time."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.end = time.monotonic() + 60 * given.minutes
        today = datetime.date.today().isoformat()
        self.file: Path = given.out / f"h200-{today}.json"
        self.record: Record = {"schema": SCHEMA, "date": today, "sections": {}}
        arguments = vars(given) | {"out": given.out.name}
        arguments["python"] = [Path(one).absolute().parent.parent.name for one in given.python]
        self.record["arguments"] = {name: str(value) for name, value in arguments.items()}
        self.jobs: Record = {}
        self.simulated = "simulated" in given.library

    def section(self, name: str) -> str:
        """Run a section; returns a description of the result."""
        begin = time.monotonic()
        self.jobs = {}
        self.record["sections"][name] = section = {"seconds": 0.0, "jobs": self.jobs}
        try:
            SECTIONS[name](self)
        except Exception as error:  # the section's results so far stay, and others follow
            self.jobs["the rest"] = {"error": f"{type(error).__name__}: {error}"}
        section["seconds"] = round(time.monotonic() - begin, 1)
        self.write()
        if any("error" in job for job in self.jobs.values()):
            return "failed"
        return "in part" if any("skipped" in job for job in self.jobs.values()) else "ok"

    def write(self) -> None:
        self.file.write_text(json.dumps(self.record, indent=1) + "\n")

    def job(
        self, name: str, section: str, ranks: int, seconds: float, *more: str, **variables: str
    ) -> None:
        """Run `gpu/ranks.py` as a job; its record is what rank 0 prints last."""
        command = ["run", "-np", str(ranks), "--timeout", "{seconds}", sys.executable, str(RANKS)]
        self.gradred(name, [*command, section, *more, *self.given.library], seconds, **variables)

    def gradred(
        self,
        name: str,
        command: list[str],
        seconds: float,
        python: str = sys.executable,
        **variables: str,
    ) -> None:
        """Run a command of gradred that prints its record, as a whole or in its last line."""
        left = self.end - time.monotonic() - SPARE_S
        if left < LEAST_S:
            self.jobs[name] = {"skipped": f"of {self.given.minutes} minutes {left:.0f} s were left"}
        else:
            limit = min(seconds, left)
            words = [word.replace("{seconds}", f"{limit:.0f}") for word in command]
            self.jobs[name] = record_of([python, "-m", "gradred", *words], limit, variables)
        self.write()


def record_of(command: list[str], limit: float, variables: dict[str, str]) -> Record:
    """Return what a command prints last, or its error. A rank may have been killed on purpose."""
    environment = os.environ | variables
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit + SPARE_S - 1, env=environment
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        text = said if isinstance(said, str) else said.decode(errors="replace")
        return (last_record(text) or {}) | {"error": str(late)}
    found = last_record(done.stdout)
    if found is not None and (done.returncode == 0 or WHOLE in found):
        return found
    error = {"error": f"exit status {done.returncode}", "stderr": done.stderr[-4000:]}
    return (found or {}) | error


def last_record(text: str) -> Record | None:
    """Parse the whole text as a record, or the last line that is one."""
    for part in (text, *reversed(text.splitlines())):
        try:
            found = json.loads(part)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str] | None]:
    """Start an MPS server for this script; yields variables for its users, or None without it."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        variables = dict.fromkeys(names, folder)
        environment = os.environ | variables
        started = subprocess.run([control, "-d"], env=environment, timeout=20)
        try:
            yield variables if started.returncode == 0 else None
        finally:
            subprocess.run([control], input=b"quit\n", env=environment, timeout=20)


def machine(run: Run) -> None:
    run.job("2 ranks", "machine", 2, 60)


def arrays(run: Run) -> None:
    for ranks in (1, 2) if run.given.short else (2, 4):
        run.job(f"{ranks} ranks", "arrays", ranks, 60)
    run.job("2 ranks, through host memory", "arrays", 2, 60, GRADRED_IPC_BYTES="none")


def handover(run: Run) -> None:
    run.job("2 ranks", "handover", 2, 60)


def kernels(run: Run) -> None:
    most = "1m" if run.given.short else "512m"
    with tempfile.TemporaryDirectory() as folder:
        run.job("rank 0", "kernels", 2, 120, most, XDG_CACHE_HOME=folder)


def allreduce(run: Run) -> None:
    most = "1m" if run.given.short else "512m"
    for ranks in (2,) if run.given.short else (4, 2, 8):
        run.job(f"{ranks} ranks", "allreduce", ranks, 120 if ranks == 8 else 60, most)
    with mps() as variables:
        name = "4 ranks, MPS"
        if variables is None:
            run.jobs[name] = {"not_measured": "nvidia-cuda-mps-control does not run here"}
        else:
            run.job(name, "allreduce", 4, 60, most, **variables)


def staging(run: Run) -> None:
    most = "2m" if run.given.short else "512m"
    ranks = 2 if run.given.short else 4
    run.job(f"{ranks} ranks", "staging", ranks, 40, most)


def order(run: Run) -> None:
    for ranks in (1, 2):
        most = "1m" if run.given.short else "64m" if ranks == 1 else "512m"
        run.job(f"{ranks} ranks", "order", ranks, 60, most)
    run.job("2 ranks, one queue", "order", 2, 30, "1m", CUDA_DEVICE_MAX_CONNECTIONS="1")


def nccl(run: Run) -> None:
    most = "1m" if run.given.short else "512m"
    several = {"SIMULATED_CUDA_DEVICES": "2"} if run.simulated else {}
    run.job("2 ranks", "nccl", 2, 40, most, **SHARED_BY_NCCL, **several)


def training(run: Run) -> None:
    most = "1m" if run.given.short else "256m"
    for ranks in (2,) if run.given.short else (2, 4):
        run.job(f"{ranks} ranks", "training", ranks, 80, most)


def ddp(run: Run) -> None:
    program = ["run", "-np", "2", "--timeout", "{seconds}", sys.executable, str(HERE / "ddp.py")]
    device = "cpu" if run.simulated else "cuda"
    short = ["--part", "0.09", "--batch", "1", "--rounds", "2"] if run.given.short else []
    with tempfile.TemporaryDirectory() as folder, mps() as variables:
        for model, buckets in (("gpt2", ["25", "1", "500"]), ("resnet50", ["25"])):
            profile = Path(folder) / f"{model}.json"
            command = [*program, "--model", model, "--device", device, *short]
            command += ["--bucket", *buckets, "--json", "-"]
            profiled = (variables or {}) | {"GRADRED_PROFILE": str(profile)}
            run.gradred(f"{model}, 2 ranks", command, 120, **profiled)
            written = profile.with_suffix(".0.json")
            if written.exists():
                run.jobs[f"{model}, profile of rank 0"] = json.loads(written.read_text())


def death(run: Run) -> None:
    run.job("2 ranks", "death", 2, 30)


def crowd(run: Run) -> None:
    ranks, seconds = (3, "2s") if run.given.short else (8, "30s")
    run.job(f"{ranks} ranks", "crowd", ranks, 60, seconds)


def host(run: Run) -> None:
    cores = len(os.sched_getaffinity(0))
    several = [ranks for ranks in (2, 16, 8, 4) if ranks <= max(cores, 2)]
    sizes = "8:64k" if run.given.short else "8:16m"
    for ranks in several[:1] if run.given.short else several:
        command = ["bench", "-np", str(ranks), "--peers", "mpi", "-m", sizes, "--json", "-"]
        run.gradred(f"{ranks} ranks", command, 40)
        for python in run.given.python:
            environment = Path(python).absolute().parent.parent.name
            run.gradred(f"{ranks} ranks, {environment}", command, 40, python)


SECTIONS: dict[str, Callable[[Run], None]] = {
    "machine": machine,
    "arrays": arrays,
    "allreduce": allreduce,
    "kernels": kernels,
    "order": order,
    "nccl": nccl,
    "training": training,
    "ddp": ddp,
    "death": death,
    "crowd": crowd,
    "staging": staging,
    "handover": handover,
    "host": host,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the record")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--short", action="store_true", help="small sizes: to try the script")
    parser.add_argument(
        "--minutes", type=float, default=9.5, help="for all of it; later jobs are left out"
    )
    parser.add_argument(
        "--python",
        nargs="+",
        default=[],
        help="interpreters of environments with gradred and other MPIs, for section host",
    )
    parser.add_argument(
        "--library",
        nargs="+",
        default=[],
        help="array libraries: cupy torch numba, or simulated; default: those that are there",
    )
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    run = Run(given)
    if not run.simulated:
        try:
            _core.cuda_driver()
        except gradred.DeviceError as error:
            sys.exit(f"h200.py: this machine has no GPU: {error}")
    how = {}
    for name in given.only:
        how[name] = run.section(name)
        seconds = run.record["sections"][name]["seconds"]
        print(f"{name:10}{seconds:8.1f} s  {how[name]}", flush=True)
    print(run.file)
    return 1 if "failed" in how.values() else 0


if __name__ == "__main__":
    sys.exit(main())
