#!/usr/bin/env bash
# accelerate 1.15.0 (PyTorch 2.13.0, 2 processes): `split_between_processes` of a dictionary cuts
# the caller's own dictionary. When it is split again, for the next epoch or the next model, each
# process gets its part of its part, and most samples are left out. No error is raised.
#
# Lists and tensors are left as they were, and so is a dictionary in a program with one process.
#
# Seen (x86-64, Python 3.11), the same eight numbers split three times, rank 0:
#   dictionary: [0, 1, 2, 3], [0, 1], [0]
#   list: [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  accelerate==1.15.0 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

from accelerate import PartialState

state = PartialState(cpu=True)
dictionary, numbers = {"x": list(range(8))}, list(range(8))
seen = {"dictionary": [], "list": []}
for _ in range(3):
    with state.split_between_processes(dictionary) as part:
        seen["dictionary"].append(list(part["x"]))
    with state.split_between_processes(numbers) as part:
        seen["list"].append(list(part))
for name, parts in seen.items():
    state.print(f"{name}: {', '.join(map(str, parts))}", flush=True)
state.destroy_process_group()
expected = {"dictionary": [[0, 1, 2, 3], [0, 1], [0]], "list": [[0, 1, 2, 3]] * 3}
sys.exit(state.is_main_process and seen != expected)
PROGRAM
ACCELERATE_USE_CPU=true "$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
