"""Uneven data: ranks that run out of batches join, and the others go on.

    gradred run --horovod -np 2 python examples/horovod_join.py

Rank r has r + 1 shares of the digits. Nothing in it knows of gradred; it needs PyTorch and
scikit-learn.
"""

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from sklearn.datasets import load_digits

EPOCHS, BATCH = 6, 32


def main() -> None:
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    rank, size = hvd.rank(), hvd.size()
    share = 1500 // (size * (size + 1) // 2)
    begin = share * rank * (rank + 1) // 2
    mine = slice(begin, begin + share * (rank + 1))
    train = torch.utils.data.TensorDataset(x[mine], y[mine])
    loader = torch.utils.data.DataLoader(train, batch_size=BATCH, shuffle=True)

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sgd = torch.optim.SGD(model.parameters(), lr=0.2)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    for epoch in range(EPOCHS):
        for batch, target in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)  # which has made all steps
        with torch.no_grad():
            right = (model(x[1500:]).argmax(1) == y[1500:]).float().mean()
        right = hvd.allreduce(right, name="accuracy")
        if rank == 0:
            percent = f"{100 * right.item():.1f} % of the test images are right"
            print(f"epoch {epoch}: {percent}; rank {last} was the last to join")


if __name__ == "__main__":
    main()
