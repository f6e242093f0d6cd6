"""Run one training program again and again, as jobs of their own, and compare their times.

    python benchmarks/repeated_training.py --runs 30 --json out.json              (needs PyTorch)

Each job has two ranks that train a model of 4 million parameters by DistributedDataParallel, each
rank on its own part of the data, and adds a validation with its own all_reduce after each epoch, as
trainers do. What differs from job to job is what nobody decides: which core a rank gets, where its
memory lies, which rank comes first. A job's figure is the median of its steps, on the slowest rank.
With --backend gloo the same jobs run with gloo. The JSON record
(`schema` = "gradred-repeated-training/1"):

    date, arguments, ranks, hosts, machine{...}, versions{...}
    parameters
    step_ms         median step of each job; worst_step_ms: the longest step of each job
    median_ms, worst_ms, worst_over_median: of step_ms
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCHEMA = "gradred-repeated-training/1"
MARK = "result "
EPOCHS, STEPS, WARM = 3, 40, 10


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="the same training, job by job")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("-np", type=int, default=2, help="ranks of each job")
    parser.add_argument("--backend", choices=("gradred", "gloo"), default="gradred")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def train(backend: str) -> None:
    """Be a rank of one job. Rank 0 prints the result."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI
    from torch import nn

    from gradred import torch_backend
    from gradred.bench.machine import describe

    torch_backend.register()  # in a checkout that is not installed, too
    torch.set_num_threads(1)
    dist.init_process_group(backend)
    torch.manual_seed(dist.get_rank())
    layers = [nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU()]
    layers += [nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, 10)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters())
    took = []
    for _ in range(EPOCHS):
        for _ in range(STEPS):
            x, y = torch.randn(32, 512), torch.randint(10, (32,))
            begin = time.perf_counter()
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            took.append(1e3 * (time.perf_counter() - begin))
        with torch.no_grad():
            right = (model(x).argmax(1) == y).float().mean()
        dist.all_reduce(right)
    slowest = torch.tensor([statistics.median(took[WARM:]), max(took[WARM:])], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    record = describe(MPI.COMM_WORLD, {})
    record["versions"]["torch"] = torch.__version__
    record["parameters"] = sum(one.numel() for one in model.parameters())
    record["step_ms"], record["worst_step_ms"] = slowest.tolist()
    if dist.get_rank() == 0:
        print(MARK + json.dumps(record), flush=True)
    dist.destroy_process_group()


def run_once(given: argparse.Namespace) -> dict[str, Any]:
    """Run one job and return its result."""
    program = [sys.executable, __file__, "--job", "--backend", given.backend]
    command = [sys.executable, "-m", "gradred", "run", "-np", str(given.np), "--timeout", "300"]
    done = subprocess.run([*command, *program], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        _, mark, text = line.partition(MARK)
        if mark:
            record: dict[str, Any] = json.loads(text)
            return record
    sys.exit(f"a job has failed with status {done.returncode}:\n{done.stderr[-2000:]}")


def main() -> int:
    given = arguments()
    if given.job:
        train(given.backend)
        return 0
    found = []
    for number in range(given.runs):
        found.append(run_once(given))
        one = found[-1]
        print(f"{number:3}: {one['step_ms']:.1f} ms, worst {one['worst_step_ms']:.1f}", flush=True)
    steps = [one.pop("step_ms") for one in found]
    worst_steps = [one.pop("worst_step_ms") for one in found]
    record = {"schema": SCHEMA} | found[0]
    record["arguments"] = {"runs": given.runs, "np": given.np, "backend": given.backend}
    record |= {"step_ms": steps, "worst_step_ms": worst_steps}
    median, worst = statistics.median(steps), max(steps)
    record |= {"median_ms": median, "worst_ms": worst, "worst_over_median": worst / median}
    print(f"median {median:.1f} ms, worst {worst:.1f} ms: {worst / median:.2f} times", flush=True)
    if given.json:
        from gradred.bench.rank_zero import write_json

        write_json(given.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
