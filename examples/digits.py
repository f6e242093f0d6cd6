"""Train a network on handwritten digits, data-parallel: one gradred call per step.

    gradred run -np 2 python examples/digits.py

The gradients of each rank's shard of a global batch fill one buffer; `Allreduce` adds the buffers.
Every shard divides by the length of the whole batch, so the sum is right for any number of ranks.
"""

import time
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import gradred

LAYERS = (64, 1024, 1024, 10)  # 1,126,410 weights: 4.5 MB of float32 gradients in each step
EPOCHS, BATCH, RATE, MOMENTUM = 12, 128, 0.2, 0.9
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def layers(buffer: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Views of a contiguous buffer: the matrix (inputs, outputs) and the bias of each layer."""
    for n, m in pairwise(LAYERS):
        matrix, bias, buffer = np.split(buffer, [n * m, n * m + m])
        yield matrix.reshape(n, m), bias


class Network:
    """Layers with ReLU between them, trained by gradient descent with momentum."""

    def __init__(self) -> None:
        count = sum((n + 1) * m for n, m in pairwise(LAYERS))
        self.weights, self.grads, self.velocity = (np.zeros(count, np.float32) for _ in range(3))
        self.exchange_seconds = 0.0
        rng = np.random.default_rng(0)  # all ranks start from the same weights
        for matrix, _ in layers(self.weights):
            matrix[:] = rng.standard_normal(matrix.shape) * np.sqrt(2 / len(matrix))

    def forward(self, images: Floats) -> list[Floats]:
        """The input of each layer, then the scores (n, 10) of the images (n, 64)."""
        values = [images]
        for matrix, bias in layers(self.weights):
            values[-1] = np.maximum(values[-1], 0)  # changes no image: none is negative
            values.append(values[-1] @ matrix + bias)
        return values

    def gradient(self, images: Floats, labels: Ints, batch: int) -> None:
        """Fill `grads` with these images' part of the mean cross-entropy over `batch` images."""
        *inputs, scores = self.forward(images)
        delta = np.exp(scores - scores.max(axis=1, keepdims=True))  # softmax
        delta /= delta.sum(axis=1, keepdims=True)
        delta[np.arange(len(labels)), labels] -= 1
        delta /= batch
        stack = zip(inputs, layers(self.weights), layers(self.grads), strict=True)
        for value, (matrix, _), (matrix_grad, bias_grad) in reversed(list(stack)):
            np.matmul(value.T, delta, out=matrix_grad)
            np.sum(delta, axis=0, out=bias_grad)
            delta = (delta @ matrix.T) * (value > 0)

    def update(self) -> None:
        self.velocity *= MOMENTUM
        self.velocity -= RATE * self.grads
        self.weights += self.velocity

    def step(self, comm: MPI.Intracomm, images: Floats, labels: Ints, batch: Ints) -> None:
        """Train on one global batch (indices), of which each rank computes its shard."""
        shard = np.array_split(batch, comm.size)[comm.rank]
        self.gradient(images[shard], labels[shard], len(batch))
        start = time.perf_counter()
        comm.Allreduce(MPI.IN_PLACE, self.grads)
        self.exchange_seconds += time.perf_counter() - start
        self.update()


def digits() -> tuple[Floats, Ints, list[Ints], Ints]:
    """Images (1797, 64), labels, all global batches (the same on every rank), test indices."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(1)
    test, training = np.split(rng.permutation(len(labels)), [360])
    orders = [rng.permutation(training) for _ in range(EPOCHS)]
    batches = [order[at : at + BATCH] for order in orders for at in range(0, len(order), BATCH)]
    return (images / 16).astype(np.float32), labels, batches, test


if __name__ == "__main__":
    comm = gradred.Comm(MPI.COMM_WORLD)
    images, labels, batches, test = digits()
    network = Network()
    for batch in batches:
        network.step(comm, images, labels, batch)
    if comm.rank == 0:
        right = network.forward(images[test])[-1].argmax(axis=1) == labels[test]
        print(f"accuracy {right.mean():.1%}, {network.exchange_seconds:.2f} s exchanging gradients")
