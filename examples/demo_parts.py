"""The two trainings of the demo: `train` on ranks through gradred, `check` in one process alone.

    gradred run -np 2 python examples/demo_parts.py train FOLDER
    python examples/demo_parts.py check FOLDER

All bits of the weights must equal those of the one process, which computes the gradient of every
shard and adds them up. Two numbers have one sum in either order. More have not, so with more than
2 ranks both trainings first round the gradients to multiples of 2^-20, whose sums are exact in
every order (pre-rounding: Demmel and Nguyen, Fast Reproducible Floating-Point Summation, 2013).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import digits
import numpy as np
from mpi4py import MPI

import gradred


class Rounded(digits.Network):
    """Gradients of which up to `ranks` add up exactly in float32, in every order."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self._largest = min(4.0, 16 / ranks)  # 16 is 2^24 times 2^-20

    def gradient(self, images: digits.Floats, labels: digits.Ints, batch: int) -> None:
        super().gradient(images, labels, batch)
        if np.abs(self.grads).max() >= self._largest:
            raise ArithmeticError("gradients are too large for their sums to be exact")
        self.grads += np.float32(12)  # the neighbours of 8 to 16 in float32 are 2^-20 apart
        self.grads -= np.float32(12)


def network(ranks: int) -> digits.Network:
    """The network whose weights cannot depend on the order in which gradients are added."""
    return digits.Network() if ranks <= 2 else Rounded(ranks)


def train(comm: MPI.Intracomm, folder: Path) -> None:
    """Train on the ranks of `comm`; rank 0 leaves the weights and the figures in `folder`."""
    images, labels, batches, test = digits.digits()
    net = network(comm.size)
    for done, batch in enumerate(batches, 1):
        net.step(comm, images, labels, batch)
        if comm.rank == 0:  # ranks have no terminal: the process that has one draws the bar
            (folder / "progress").write_text(f"{done}/{len(batches)}\n")
    alike = len(set(comm.allgather(net.weights.tobytes()))) == 1
    if comm.rank == 0:
        right = net.forward(images[test])[-1].argmax(axis=1) == labels[test]
        np.save(folder / "weights.npy", net.weights)
        write(
            folder / "training.json",
            ranks=comm.size,
            accuracy=float(np.mean(right)),
            tested=len(test),
            steps=len(batches),
            bytes=net.grads.nbytes,
            exchange_seconds=net.exchange_seconds,
            ranks_alike=alike,
        )


def alone(ranks: int, steps: int | None = None) -> digits.Floats:
    """The weights after the same training in this one process, on the shards of `ranks` ranks."""
    images, labels, batches, _ = digits.digits()
    net = network(ranks)
    for batch in batches[:steps]:
        total = np.zeros_like(net.grads)
        for shard in np.array_split(batch, ranks):
            net.gradient(images[shard], labels[shard], len(batch))
            total += net.grads
        net.grads[:] = total
        net.update()
    return net.weights


def check(folder: Path) -> None:
    """Compare the weights of the ranks with those of this one process, bit by bit."""
    training = json.loads((folder / "training.json").read_text())
    theirs, ours = np.load(folder / "weights.npy"), alone(training["ranks"])
    write(
        folder / "check.json",
        equal=training["ranks_alike"] and ours.tobytes() == theirs.tobytes(),
        weights=len(ours),
        different=int(np.count_nonzero(ours.view(np.uint32) != theirs.view(np.uint32))),
        largest_difference=float(np.abs(ours - theirs).max()),
    )


def write(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    what, where = sys.argv[1:]
    if what == "train":
        train(gradred.Comm(MPI.COMM_WORLD), Path(where))
    else:
        check(Path(where))
