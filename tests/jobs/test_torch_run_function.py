"""`gradred.run` of functions that use PyTorch, typed into an interactive Python."""

from __future__ import annotations

import pytest
from typed import typed

from gradred import launch

pytest.importorskip("torch")
pytest.importorskip("cloudpickle")

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

HOROVOD = """
import torch
import gradred

def train(steps):
    import gradred.torch as hvd
    hvd.init()
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))
    for _ in range(steps):
        optimizer.zero_grad()
        (weight * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
    return hvd.rank(), weight.tolist()

print(gradred.run(train, (2,), np=4))
"""

DISTRIBUTED = """
import torch
import gradred

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
    def forward(self, x):
        return (self.weight * x).sum()

def train(steps):
    import torch.distributed as dist
    dist.init_process_group("gradred")
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.tensor(dist.get_rank() + 1.0)).backward()
        optimizer.step()
    result = dist.get_rank(), model.module.weight.tolist()
    dist.destroy_process_group()
    return result

print(gradred.run(train, (2,), np=4))
"""


@pytest.mark.parametrize("program", [HOROVOD, DISTRIBUTED], ids=["horovod", "distributed"])
def test_functions_with_torch_run_on_ranks(program: str) -> None:
    printed = typed(program)
    expected = [(rank, [-5.0] * 3) for rank in range(4)]
    assert printed.strip() == str(expected)
