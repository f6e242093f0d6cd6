#!/usr/bin/env bash
# MPICH 5.0.2: mpiexec -help lists -wdir under "Global options (passed to all executables)", with
# -genv. But of a job of several programs (a : b) only the program of the section in which -wdir
# stands begins in that folder; the others begin where mpiexec was started. -genv in the first
# section does reach all.
#
# Programs that read their input by relative names then find the wrong files, or none.
#
# Seen on x86-64, Python 3.11:
#   -genv in the first section: set, set
#   -wdir in the first section: there, elsewhere
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2
mpiexec=$folder/env/bin/mpiexec
"$mpiexec" -help | sed -n '/^Global options/,/^Local options/p' | grep -q -- '-wdir {dirname}'
mkdir "$folder/asked"
there="case \$PWD in */asked) echo there;; *) echo elsewhere;; esac"
is_set="echo \${FOUND:-unset}"
first=$("$mpiexec" -wdir "$folder/asked" -n 1 sh -c "$there" : -n 1 true)
second=$("$mpiexec" -wdir "$folder/asked" -n 1 true : -n 1 sh -c "$there")
a=$("$mpiexec" -genv FOUND set -n 1 sh -c "$is_set" : -n 1 true)
b=$("$mpiexec" -genv FOUND set -n 1 true : -n 1 sh -c "$is_set")
echo "-genv in the first section: $a, $b"
echo "-wdir in the first section: $first, $second"
[ "$a $b $first $second" = "set set there elsewhere" ]
