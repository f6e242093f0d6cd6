#!/usr/bin/env bash
# accelerate 1.15.0 (PyTorch 2.13.0, gloo, 2 processes): `gather_object` of a dictionary returns the
# keys of all processes in one list and drops the values, without a word; of a text it returns the
# letters. By its docstring it takes dictionaries, and returns what is built like them.
#
# It joins what the processes gave by iterating over each. In a program without a launcher it
# returns the object itself, so metrics in a dictionary are right there, and lost with two processes.
#
# Seen (x86-64, Python 3.11):
#   one process: {'loss': 0.5} -> {'loss': 0.5}; two processes: -> ['loss', 'loss']
#   'done' -> ['d', 'o', 'n', 'e', 'd', 'o', 'n', 'e']; a number: TypeError
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 accelerate==1.15.0
cat > "$folder/program.py" <<'PROGRAM'
import os
import sys
import tempfile
import warnings

import torch.multiprocessing as processes

OBJECTS = {"dictionary": {"loss": 0.5}, "text": "done", "number": 3}


def run(rank, size, port, folder):
    warnings.simplefilter("ignore")
    os.environ["ACCELERATE_USE_CPU"] = "true"
    if size > 1:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState(cpu=True)
    seen = {}
    for name, given in OBJECTS.items():
        try:
            seen[name] = gather_object(given)
        except TypeError as error:
            seen[name] = type(error).__name__
    if rank == 0:
        with open(folder, "w") as file:
            file.write(repr(seen))
    if size > 1:
        state.destroy_process_group()


if __name__ == "__main__":
    found = []
    for size in (1, 2):
        with tempfile.NamedTemporaryFile("r") as file:
            processes.spawn(run, (size, 29713 + size, file.name), size)
            found.append(eval(file.read()))
        print(f"{size} processes: {found[-1]}")
    expected = {"dictionary": ["loss"] * 2, "text": list("done") * 2, "number": "TypeError"}
    sys.exit(found != [OBJECTS, expected])
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
