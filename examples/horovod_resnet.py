"""A residual network on synthetic images, trained as Horovod's ImageNet example trains one.

    gradred run --horovod -np 2 python examples/horovod_resnet.py

Images have 224 by 224 pixels, and the network is ResNet-18's. On a few cores that takes minutes;
this takes seconds:

    gradred run --horovod -np 2 python examples/horovod_resnet.py --image-size 32 --width 8

Nothing in it knows of gradred; it needs PyTorch.
"""

import argparse
import time

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from torch import nn

CLASSES = 10


class Block(nn.Module):
    """Two convolutions, whose result is added to what goes in."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(wider), nn.BatchNorm2d(wider)])
        self.past = nn.Sequential()
        if stride != 1 or channels != wider:
            projection = nn.Conv2d(channels, wider, 1, stride, bias=False)
            self.past = nn.Sequential(projection, nn.BatchNorm2d(wider))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images with fewer pixels and more channels."""
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.past(x))


def resnet(width: int, blocks: int) -> nn.Sequential:
    """Four stages of so many blocks; ResNet-18 has a width of 64 and 2 blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 7, 2, padding=3, bias=False)]
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage in range(4):
        wider = width << stage
        for block in range(blocks):
            layers.append(Block(channels, wider, 2 if stage > 0 and block == 0 else 1))
            channels = wider
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


class Images(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """A coarse pattern for each class, in noise."""

    def __init__(self, count: int, size: int, first: int = 0) -> None:
        self.count, self.size, self.first = count, size, first
        coarse = torch.randn(CLASSES, 3, 7, 7, generator=torch.Generator().manual_seed(0))
        self.patterns = F.interpolate(coarse, (size, size), mode="bilinear")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = index % CLASSES
        noise = torch.Generator().manual_seed(self.first + index)
        return self.patterns[label] + torch.randn(3, self.size, self.size, generator=noise), label


def loader_of(images: Images, batch: int, shuffle: bool) -> torch.utils.data.DataLoader:
    sampler = torch.utils.data.distributed.DistributedSampler(
        images, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffle
    )
    return torch.utils.data.DataLoader(images, batch_size=batch, sampler=sampler)


def train_epoch(model, optimizer, scheduler, loader) -> float:
    """Images of all ranks per second."""
    model.train()
    begin, seen = time.perf_counter(), 0
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        seen += len(x)
    return seen * hvd.size() / (time.perf_counter() - begin)


def accuracy(model, loader) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(x).argmax(1) == y).float().mean() for x, y in loader]
    return hvd.allreduce(torch.stack(right).mean(), name="accuracy").item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image-size", type=int, default=224, help="pixels each way")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--blocks", type=int, default=2, help="of each of the four stages")
    parser.add_argument("--batch", type=int, default=16, help="images of a rank")
    parser.add_argument("--batches", type=int, default=12, help="of an epoch, on each rank")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel as float16")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(42)
    count = options.batch * options.batches * hvd.size()
    train = loader_of(Images(count, options.image_size), options.batch, shuffle=True)
    unseen = Images(4 * options.batch * hvd.size(), options.image_size, first=1 << 30)
    test = loader_of(unseen, options.batch, shuffle=False)

    model = resnet(options.width, options.blocks)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    optimizer = hvd.DistributedOptimizer(
        sgd,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    steps = options.epochs * len(train)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
    for epoch in range(options.epochs):
        train.sampler.set_epoch(epoch)
        rate = train_epoch(model, optimizer, scheduler, train)
        percent = 100 * accuracy(model, test)
        if hvd.rank() == 0:
            result = f"{percent:.1f} % of the test images are right"
            print(f"epoch {epoch}: {result}; {rate:.1f} images a second")


if __name__ == "__main__":
    main()
