"""A k-means program on mpi4py that adopted gradred by one line, the one marked below.

    gradred run -np 2 python examples/adopt.py

Each rank holds a part of scikit-learn's handwritten digits; in every iteration the ranks add up
the sums and counts of their clusters. Delete the marked line (and the import) and the program is
what it was: `gradred.Comm` is an mpi4py communicator, every other method is unchanged.
"""

import numpy as np
from mpi4py import MPI
from sklearn.datasets import load_digits

import gradred

CLUSTERS = 10

comm = MPI.COMM_WORLD
comm = gradred.Comm(comm)  # <- the one line

images, labels = load_digits(return_X_y=True)
start = np.random.default_rng(0).choice(len(images), CLUSTERS, replace=False)
centres = comm.bcast(images[start])
mine = np.array_split(np.arange(len(images)), comm.size)[comm.rank]
images, labels = images[mine], labels[mine]

sums, counts, error = np.zeros((CLUSTERS, 64)), np.zeros(CLUSTERS, np.int64), np.zeros(1)
iterations = 0
while True:
    iterations += 1
    distances = ((images[:, None] - centres) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1)
    members = nearest == np.arange(CLUSTERS)[:, None]  # (clusters, images)
    sums[:], counts[:], error[0] = (
        members @ images,
        members.sum(axis=1),
        distances.min(axis=1).sum(),
    )
    comm.Allreduce(MPI.IN_PLACE, sums)
    comm.Allreduce(MPI.IN_PLACE, counts)
    comm.Allreduce(MPI.IN_PLACE, error)
    moved = sums / np.maximum(counts, 1)[:, None]
    if np.array_equal(moved, centres):
        break
    centres = moved

votes = np.zeros((CLUSTERS, 10), np.int64)
np.add.at(votes, (nearest, labels), 1)
comm.Allreduce(MPI.IN_PLACE, votes)
if comm.rank == 0:
    purity = votes.max(axis=1).sum() / votes.sum()
    print(f"{iterations} iterations, squared error {error[0]:.1f}, purity {purity:.1%}")
