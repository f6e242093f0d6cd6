"""An elastic script as Horovod's documentation teaches to write it: digits, in any number of ranks.

    gradred run --horovod -np 2 --min-np 1 python examples/horovod_elastic.py
    gradred run --horovod -np 2 --min-np 1 python examples/horovod_elastic.py --kill 1

With --kill a rank ends in the first epoch: the other goes on, until there are two again. Nothing
but that option knows of gradred; it needs PyTorch and scikit-learn.
"""

import argparse
import os
import signal

import horovod.torch as hvd
import torch
import torch.nn.functional as F  # noqa: N812 (as everybody writes it)
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 5, 32, 0.2

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kill", type=int, metavar="RANK", default=-1)
options = parser.parse_args()

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)
images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train_data = torch.utils.data.TensorDataset(x[:1500], y[:1500])

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(train_data)
loader = torch.utils.data.DataLoader(train_data, batch_size=BATCH, sampler=sampler)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    print(f"rank {hvd.rank()} of {hvd.size()}: epoch {state.epoch}", flush=True)
    while state.epoch < EPOCHS:
        for number, (batch, target) in enumerate(loader):
            if hvd.rank() == options.kill and hvd.size() > 1 and state.victim and number == 5:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            F.cross_entropy(model(batch), target).backward()
            optimizer.step()
            state.sampler.record_batch(number, BATCH)
        state.victim = False  # once is enough
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, victim=True)
state.register_reset_callbacks([lambda: print(f"now {hvd.size()} ranks", flush=True)])
train(state)
if hvd.rank() == 0:
    with torch.no_grad():
        right = (model(x[1500:]).argmax(1) == y[1500:]).float().mean().item()
    print(f"{hvd.size()} ranks at the end: {100 * right:.1f} % of the test images are right")
