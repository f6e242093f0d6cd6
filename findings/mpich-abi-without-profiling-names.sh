#!/usr/bin/env bash
# MPICH 5.0.2: its library of MPI 5's standard ABI, libmpi_abi.so.1, has 15 functions without their
# PMPI names: MPI_Address, MPI_Errhandler_create, MPI_Errhandler_get, MPI_Errhandler_set,
# MPI_Type_extent, MPI_Type_hindexed, MPI_Type_hvector, MPI_Type_lb, MPI_Type_struct and MPI_Type_ub,
# which MPI 3.0 has removed, and five MPIX functions, among them MPIX_Grequest_start. MPICH's usual
# library, libmpi.so.12 of the same package, has all of them by both names, and 58 MPIX functions.
#
# MPI 5.0 promises (section 15.2.1) that each function can also be called by its PMPI name. A
# profiling tool that replaces one of these 15 and calls the PMPI name ends with a missing symbol
# once a program runs with the standard ABI; a library that looks PMPIX_Grequest_start up finds that
# MPICH has no such requests, which it has.
#
# Seen (x86-64): libmpi.so.12: 0 of 15 without a PMPI name; libmpi_abi.so.1: 15 of 15.
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2
cat > "$folder/program.py" <<'PROGRAM'
import ctypes
import pathlib
import sys

REMOVED = (
    "Address Errhandler_create Errhandler_get Errhandler_set Type_extent Type_hindexed "
    "Type_hvector Type_lb Type_struct Type_ub"
)
OWN = "Grequest_class_allocate Grequest_class_create Grequest_start Type_iov Type_iov_len"
NAMES = [f"MPI_{name}" for name in REMOVED.split()] + [f"MPIX_{name}" for name in OWN.split()]
found = {}
for name in ("libmpi.so.12", "libmpi_abi.so.1"):
    library = ctypes.CDLL(str(pathlib.Path(sys.prefix, "lib", name)))
    there = [one for one in NAMES if hasattr(library, one)]
    alone = [one for one in there if not hasattr(library, f"P{one}")]
    found[name] = (len(there), len(alone))
    print(f"{name}: {len(alone)} of {len(there)} without a PMPI name")
sys.exit(found != {"libmpi.so.12": (15, 0), "libmpi_abi.so.1": (15, 15)})
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
