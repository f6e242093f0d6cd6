#!/usr/bin/env bash
# gguf 0.19.0: a block of 32 numbers that has a NaN or an infinity becomes 32 zeros in the format
# MXFP4, without an error: also the 31 numbers beside it. Of infinity NumPy warns. In Q8_0 all of
# such a block are NaN, in BF16 the one number stays what it is.
#
# The scale of a block, eight bits, has a value for NaN in the MX formats. Weights that a diverged
# training left come out as a model that has ordinary numbers, and no check for NaN finds them.
#
# Seen (x86-64, Python 3.11, NumPy 2.4.6), the first number and the other 31, which were ones:
#   MXFP4: nan becomes 0.0, others 0.0; inf becomes 0.0, others 0.0
#   Q8_0: nan becomes nan, others nan; inf becomes nan, others nan
#   BF16: nan becomes nan, others 1.0; inf becomes inf, others 1.0
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check gguf==0.19.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

warnings.simplefilter("ignore")


def line(name):
    kind, found = GGMLQuantizationType[name], []
    for special in (np.nan, np.inf):
        block = np.ones(32, np.float32)
        block[0] = special
        back = dequantize(quantize(block, kind), kind)
        others = " or ".join(sorted(set(map(str, back[1:].tolist()))))
        found.append(f"{special} becomes {back[0]}, others {others}")
    return f"{name}: {'; '.join(found)}"


seen = [line(name) for name in ("MXFP4", "Q8_0", "BF16")]
print(*seen, sep="\n")
expected = [
    "MXFP4: nan becomes 0.0, others 0.0; inf becomes 0.0, others 0.0",
    "Q8_0: nan becomes nan, others nan; inf becomes nan, others nan",
    "BF16: nan becomes nan, others 1.0; inf becomes inf, others 1.0",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
