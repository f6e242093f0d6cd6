"""Training of an elastic job: `elastic_training.py [--sampler] [RANK:STEP[:HOW]...]`.

The results do not depend on the number of ranks, except for rounding. RANK ends in STEP, once, by
SIGKILL or HOW ("raise"). RANK:r:SEED ends RANK at a random moment, once. Rank 0 prints a line of
JSON at the end. `MARK` is the prefix of the names of files that record which ranks have ended
already.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading

import horovod.torch as hvd
import torch

MARK = os.environ["MARK"]
STEPS = int(os.environ.get("STEPS", "60"))
PAUSE = float(os.environ.get("PAUSE", "0.01"))
starts: list[int] = []


def once(name: str) -> bool:
    """Whether this process is the first of all processes to ask for this name."""
    try:
        os.close(os.open(f"{MARK}.{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def end(how: str) -> None:
    if how == "raise":
        raise RuntimeError("on purpose")
    os.kill(os.getpid(), signal.SIGKILL)


hvd.init()
for word in sys.argv[1:]:
    rank, step, *how = word.split(":")
    if step == "r" and int(rank) == hvd.rank() and once(word):
        moment = random.Random(how[0]).uniform(0.0, STEPS * PAUSE * 1.2)
        timer = threading.Timer(moment, end, ["kill"])
        timer.daemon = True
        timer.start()

torch.manual_seed(0)
samples = torch.randn(240, 10, dtype=torch.float64)
targets = samples @ torch.randn(10, 1, dtype=torch.float64)
model = torch.nn.Linear(10, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), op=hvd.Sum
)
state = hvd.elastic.TorchState(model, optimizer, step=0)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    starts.append(state.step)
    while state.step < STEPS:
        mine = torch.arange(240)[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        (((model(samples[mine]) - targets[mine]) ** 2).sum() / 240).backward()
        for word in sys.argv[1:]:
            rank, step, *how = word.split(":")
            now = step != "r" and (int(rank), int(step)) == (hvd.rank(), state.step)
            if now and once(word):
                end(how[0] if how else "kill")
        optimizer.step()
        state.step += 1
        state.commit()
        threading.Event().wait(PAUSE)


train(state)
if hvd.rank() == 0:
    loss = float(((model(samples) - targets) ** 2).mean().detach())
    print(json.dumps({"loss": loss, "ranks": hvd.size(), "starts": starts}), flush=True)
