"""A script as Horovod's documentation teaches to write it: a convolutional network on digits.

    gradred run --horovod -np 2 python examples/horovod_digits.py

Nothing in it knows of gradred; it needs PyTorch and scikit-learn.
"""

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from sklearn.datasets import load_digits

EPOCHS, BATCH = 4, 32


class Net(torch.nn.Module):
    """Two convolutions and a linear layer for images of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.last = torch.nn.Linear(32 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scores of the ten digits."""
        x = F.relu(self.first(x))
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.last(x.flatten(1))


def main() -> None:
    hvd.init()
    torch.manual_seed(42)
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    data = torch.utils.data.TensorDataset(x, torch.tensor(labels))
    train, test = torch.utils.data.random_split(data, [1500, len(data) - 1500])
    sampler = torch.utils.data.distributed.DistributedSampler(
        train, num_replicas=hvd.size(), rank=hvd.rank()
    )
    loader = torch.utils.data.DataLoader(train, batch_size=BATCH, sampler=sampler)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02 * hvd.size(), momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        model.train()
        for batch, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            inputs, targets = zip(*test, strict=True)
            right = (model(torch.stack(inputs)).argmax(1) == torch.stack(targets)).float().mean()
        right = hvd.allreduce(right, name="accuracy")
        if hvd.rank() == 0:
            print(f"epoch {epoch}: {100 * right.item():.1f} % of the test images are right")


if __name__ == "__main__":
    main()
