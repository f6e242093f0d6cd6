#!/usr/bin/env bash
# pytorch-ignite 0.5.5: `idist.broadcast` of a Python number returns another number, on the source
# rank too: all go through a float32. A seed of 16777217 arrives as 16777216.0, True as 1.0.
# `all_gather` and `all_reduce` of the same numbers are exact and keep the type.
#
# Seen on 2 ranks (gloo, Python 3.11, torch 2.13.0):
#   16777217: broadcast 16777216.0, all_gather 16777217, all_reduce MAX 16777217
#   0.1: broadcast 0.10000000149011612, all_gather 0.1, all_reduce MAX 0.1
#   True: broadcast 1.0, all_gather True, all_reduce MAX True
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  pytorch-ignite==0.5.5 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

import ignite.distributed as idist

idist.initialize("gloo")
expected = {2**24 + 1: 16777216.0, 0.1: 0.10000000149011612, True: 1.0}
same = True
for number, other in expected.items():
    received = idist.broadcast(number, src=0)
    gathered = idist.all_gather(number)[1]
    largest = idist.all_reduce(number, "MAX")
    if idist.get_rank() == 0:
        calls = f"broadcast {received}, all_gather {gathered}, all_reduce MAX {largest}"
        print(f"{number}: {calls}", flush=True)
    found = (str(received), str(gathered), str(largest))
    same = same and found == (str(other), str(number), str(number))
idist.barrier()
idist.finalize()
sys.exit(not same)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
