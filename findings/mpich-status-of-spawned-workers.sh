#!/usr/bin/env bash
# MPICH 5.0.2: mpiexec exits with status 0 though a worker of MPI_Comm_spawn exited with status 3.
# A rank that mpiexec itself has started and that exits with 3 gives status 3; so does a spawned
# worker under Open MPI 5.0.11.
#
# A batch script that looks at the status of mpiexec takes a failed manager-worker job for a good one.
#
# Seen on x86-64, Python 3.11, mpi4py 4.1.2:
#   a rank that exits with 3: status 3
#   a spawned worker that exits with 3: status 0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.2
cat > "$folder/rank.py" <<'PROGRAM'
import sys

from mpi4py import MPI

sys.exit(3 if MPI.COMM_WORLD.rank == 1 else 0)
PROGRAM
cat > "$folder/manager.py" <<'PROGRAM'
import sys

from mpi4py import MPI

if sys.argv[1:] == ["worker"]:
    MPI.Comm.Get_parent().Disconnect()
    sys.exit(3)
MPI.COMM_SELF.Spawn(sys.executable, [__file__, "worker"], 1).Disconnect()
PROGRAM
status_of() { # of a job of so many ranks of a program
  local status=0
  "$folder/env/bin/mpiexec" -n "$1" "$folder/env/bin/python" "$folder/$2" > "$folder/output" 2>&1 || status=$?
  echo "$status"
}
rank=$(status_of 2 rank.py)
worker=$(status_of 1 manager.py)
echo "a rank that exits with 3: status $rank"
echo "a spawned worker that exits with 3: status $worker"
[ "$rank $worker" = "3 0" ]
