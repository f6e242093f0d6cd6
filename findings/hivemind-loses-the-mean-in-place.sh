#!/usr/bin/env bash
# hivemind 1.1.12: a tensor that is compressed to 8 bits in equal steps (UNIFORM_8BIT) with
# allow_inplace=True comes back without its mean. No error is raised. The same call without
# allow_inplace, and the other compressions with it, are right.
#
# The mean is subtracted before the numbers are rounded. What stands for each step is the average of
# the tensor there, and in place the tensor is the one without its mean. By its documentation the
# option only permits the input to be changed.
#
# Seen (Python 3.11, NumPy 2.2.6, torch 2.13.0), 64 numbers 9, 10, 11, 10, ...; the first four:
#   FLOAT16: [9.0, 10.0, 11.0, 10.0], in place [9.0, 10.0, 11.0, 10.0]
#   QUANTILE_8BIT: [9.0, 10.0, 11.0, 10.0], in place [9.0, 10.0, 11.0, 10.0]
#   UNIFORM_8BIT: [9.0, 10.0, 11.0, 10.0], in place [-1.0, 0.0, 1.0, 0.0]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  hivemind==1.1.12 torch==2.13.0 numpy==2.2.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

warnings.simplefilter("ignore")  # of NumPy, of a scalar made from an array

import torch
from hivemind.compression.serialization import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto.runtime_pb2 import CompressionType

numbers = [9.0, 10.0, 11.0, 10.0]
seen = {}
for name in ("FLOAT16", "QUANTILE_8BIT", "UNIFORM_8BIT"):
    results = []
    for in_place in (False, True):
        sent = serialize_torch_tensor(
            torch.tensor(numbers).repeat(16),
            CompressionType.Value(name),
            allow_inplace=in_place,
        )
        results.append(deserialize_torch_tensor(sent)[:4].tolist())
    print("{}: {}, in place {}".format(name, *results))
    seen[name] = results
expected = {name: [numbers, numbers] for name in seen}
expected["UNIFORM_8BIT"] = [numbers, [-1.0, 0.0, 1.0, 0.0]]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
