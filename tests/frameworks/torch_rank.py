"""A rank of an MPI job that runs PyTorch's own tests: `python -m frameworks.torch_rank`.

Its arguments are the backend, the folder of the team, and the address at which the team listens.
"""

from __future__ import annotations

import sys
from multiprocessing.connection import Client

from frameworks.torch_team import run_rank
from mpi4py import MPI


def main() -> None:
    backend, at, address = sys.argv[1:]
    rank = MPI.COMM_WORLD.Get_rank()
    pipe = Client(address, "AF_UNIX")
    pipe.send(rank)
    run_rank(rank, backend, at, pipe)


if __name__ == "__main__":
    main()
