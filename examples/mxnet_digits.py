"""Train a network on handwritten digits with MXNet's Gluon, data-parallel.

    gradred run -np 2 python examples/mxnet_digits.py

Each rank takes its part of every batch. It needs MXNet 1.9 and scikit-learn.
"""

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits

import gradred.mxnet as hvd

EPOCHS, BATCH, TRAIN = 6, 32, 1500


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    images, labels = load_digits(return_X_y=True)
    x = mx.nd.array((images / 16).reshape(-1, 1, 8, 8))
    y = mx.nd.array(labels)

    mx.random.seed(42 + rank)  # each rank begins with other weights, and gets those of rank 0
    net = mx.gluon.nn.HybridSequential()
    net.add(
        mx.gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
        mx.gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        mx.gluon.nn.MaxPool2D(2),
        mx.gluon.nn.Flatten(),
        mx.gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    net(x[:1])  # the first batch decides the shapes of the parameters
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    options = {"learning_rate": 0.02 * size, "momentum": 0.9}
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", options)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    random = np.random.default_rng(0)  # all ranks shuffle alike
    for epoch in range(EPOCHS):
        order = random.permutation(TRAIN)
        for begin in range(0, TRAIN - BATCH * size + 1, BATCH * size):
            mine = mx.nd.array(order[begin : begin + BATCH * size][rank::size], dtype="int32")
            with mx.autograd.record():
                loss = loss_of(net(x.take(mine)), y.take(mine))
            loss.backward()
            trainer.step(BATCH)
        right = (net(x[TRAIN:]).argmax(axis=1) == y[TRAIN:]).mean()
        right = hvd.allreduce(right, "accuracy").asscalar()  # equal on all ranks already
        if rank == 0:
            print(f"epoch {epoch}: {100 * right:.1f} % of the test images are right")


if __name__ == "__main__":
    main()
