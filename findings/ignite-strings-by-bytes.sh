#!/usr/bin/env bash
# pytorch-ignite 0.5.5: `idist.all_gather` and `idist.broadcast` of strings lose the last byte if
# one character is not ASCII: the string's length replaces it, without an error.
#
# They send UTF-8, in a buffer with room for as many bytes as the longest string has characters, and
# one for the length in bytes. A string with one more byte than characters has its last byte there,
# and the length overwrites it. If the cut is within a character, the call raises
# UnicodeDecodeError, and with more such characters RuntimeError.
#
# Seen on 2 ranks (gloo, Python 3.11, torch 2.13.0):
#   abcde: all_gather 'abcde'
#   äbcde: all_gather 'äbcd\x06'
#   abcdä: all_gather UnicodeDecodeError
#   ääcde: all_gather RuntimeError
#   äbcde: broadcast 'äbcd\x06'
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


def outcome(call, text):
    try:
        return repr(call(text))
    except Exception as error:
        return type(error).__name__


same = True
GATHERED = {
    "abcde": "'abcde'",
    "äbcde": r"'äbcd\x06'",
    "abcdä": "UnicodeDecodeError",
    "ääcde": "RuntimeError",
}
lines = [
    (text, "all_gather", outcome(lambda text: idist.all_gather(text)[1], text), expected)
    for text, expected in GATHERED.items()
]
lines.append(("äbcde", "broadcast", outcome(idist.broadcast, "äbcde"), GATHERED["äbcde"]))
for text, call, found, expected in lines:
    if idist.get_rank() == 0:
        print(f"{text}: {call} {found}", flush=True)
    same = same and found == expected
idist.barrier()
idist.finalize()
sys.exit(not same)
PROGRAM
PYTHONUTF8=1 "$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
