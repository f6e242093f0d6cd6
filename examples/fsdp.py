"""Training of a sharded model by PyTorch itself: one word differs from a script for gloo.

    gradred run -np 2 python examples/fsdp.py

Each rank keeps its part of the parameters, of the gradients and of the optimizer's state. It needs
PyTorch 2.6 or newer, and scikit-learn.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from sklearn.datasets import load_digits
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    dist.init_process_group("gradred")  # this word
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = torch.nn.Sequential(*layers)
    mesh = init_device_mesh("cpu", (size,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        order = torch.randperm(1500)  # the same on all ranks
        for batch in order.split(128):
            part = batch[rank::size]
            optimizer.zero_grad()
            F.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        right = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().detach()
        dist.all_reduce(right, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch}: {100 * right.item():.1f} % of the test images are right")
    here = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank {rank} keeps {here} of {64 * 256 + 256 + 256 * 10 + 10} parameters", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
