"""Train a network on handwritten digits with PaddlePaddle, data-parallel.

    gradred run -np 2 python examples/paddle_digits.py

Each rank takes its part of every batch. It needs PaddlePaddle and scikit-learn.
"""

import numpy as np
import paddle
from sklearn.datasets import load_digits

import gradred.paddle as hvd

EPOCHS, BATCH, TRAIN = 6, 32, 1500


def main() -> None:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    images, labels = load_digits(return_X_y=True)
    x = paddle.to_tensor((images / 16).astype(np.float32).reshape(-1, 1, 8, 8))
    y = paddle.to_tensor(labels)

    paddle.seed(42 + rank)  # each rank begins with other weights, and gets those of rank 0
    model = paddle.nn.Sequential(
        paddle.nn.Conv2D(1, 16, 3, padding=1),
        paddle.nn.ReLU(),
        paddle.nn.Conv2D(16, 32, 3, padding=1),
        paddle.nn.ReLU(),
        paddle.nn.MaxPool2D(2),
        paddle.nn.Flatten(),
        paddle.nn.Linear(32 * 16, 10),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = paddle.optimizer.Momentum(0.02 * size, 0.9, parameters=model.parameters())
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    random = np.random.default_rng(0)  # all ranks shuffle alike
    for epoch in range(EPOCHS):
        order = random.permutation(TRAIN)
        for begin in range(0, TRAIN - BATCH * size + 1, BATCH * size):
            mine = paddle.to_tensor(order[begin : begin + BATCH * size][rank::size])
            loss = paddle.nn.functional.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
        with paddle.no_grad():
            right = (model(x[TRAIN:]).argmax(1) == y[TRAIN:]).astype("float32").mean()
        right = hvd.allreduce(right, "accuracy")  # equal on all ranks already
        if rank == 0:
            print(f"epoch {epoch}: {100 * right.item():.1f} % of the test images are right")


if __name__ == "__main__":
    main()
