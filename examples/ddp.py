"""Data-parallel training by PyTorch itself: one word differs from a script for gloo.

    gradred run -np 2 python examples/ddp.py

It needs PyTorch and scikit-learn.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gradred")  # this word
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
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
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
