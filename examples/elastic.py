"""Training that goes on when a rank dies: linear regression by gradient descent.

    gradred run -np 4 python examples/elastic.py                  # all ranks live
    gradred run -np 4 python examples/elastic.py --kill 1 30      # rank 1 dies in step 30

Each rank holds a share of the samples; in every step the ranks add up their gradients. Those that
live find the same coefficients without the failed ones, since they share its samples among them.
"""

import argparse
import os
import signal

import numpy as np
from mpi4py import MPI

import gradred

STEPS, RATE = 300, 0.3


def share_of(comm: gradred.Comm) -> np.ndarray:
    """Which samples are this rank's."""
    return np.array_split(np.arange(len(targets)), comm.size)[comm.rank]


def step(comm: gradred.Comm, weights: np.ndarray) -> np.ndarray:
    """The weights after one step of gradient descent, the same on all ranks."""
    mine = share_of(comm)
    errors = samples[mine] @ weights - targets[mine]
    gradient = gradred.allreduce(samples[mine].T @ errors, comm=comm)
    return weights - RATE / len(targets) * gradient


def train(comm: gradred.Comm) -> tuple[gradred.Comm, np.ndarray]:
    """Returns the communicator of those that live, and the weights."""
    weights = np.zeros(samples.shape[1])
    done = 0
    while done < STEPS:
        if options.kill == [MPI.COMM_WORLD.rank, done]:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            weights = step(comm, weights)
            done += 1
        except gradred.PeerLost as error:
            print(f"rank {MPI.COMM_WORLD.rank}: {error}")
            comm = comm.shrink()
            # Not all may have finished the last step: all go on from where rank 0 is.
            state = np.array([done, *weights])
            comm.Bcast(state)
            done, weights = int(state[0]), state[1:]
    return comm, weights


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--kill", nargs=2, type=int, metavar=("RANK", "STEP"))
options = parser.parse_args()
draw = np.random.default_rng(0)
samples = draw.normal(size=(2000, 10))
targets = samples @ draw.normal(size=10) + draw.normal(size=2000)

comm, weights = train(gradred.Comm(MPI.COMM_WORLD))
if comm.rank == 0:
    explained = 1 - ((samples @ weights - targets) ** 2).sum() / (targets**2).sum()
    print(f"{comm.size} ranks at the end, {explained:.4f} of the variance explained")
