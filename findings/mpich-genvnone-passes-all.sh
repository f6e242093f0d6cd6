#!/usr/bin/env bash
# MPICH 5.0.2: `mpiexec -genvnone` ("do not pass any environment variables", says -help) and
# `-envnone` pass all of the environment to ranks on the host where mpiexec runs, and
# `-genvlist A` passes B as well.
#
# A benchmark or a test that asks for a clean environment runs with the caller's settings, for
# example with his OMP_NUM_THREADS.
#
# Seen on x86-64, Python 3.11:
#   -genvnone: A=1 B=2
#   -envnone: A=1 B=2
#   -genvlist A: A=1 B=2
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2
mpiexec=$folder/env/bin/mpiexec
"$mpiexec" -help | grep -q -- '-genvnone  *do not pass any environment variables'
export A=1 B=2
passed=$(
  for options in "-genvnone" "-envnone" "-genvlist A"; do
    # shellcheck disable=SC2086 # an option and its value are two words
    found=$("$mpiexec" $options -n 1 sh -c 'echo A=$A B=$B')
    echo "$options: $found"
  done
)
echo "$passed"
[ "$(grep -c 'A=1 B=2$' <<< "$passed")" = 3 ]
