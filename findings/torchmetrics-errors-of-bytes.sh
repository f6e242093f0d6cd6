#!/usr/bin/env bash
# torchmetrics 1.9.0 (PyTorch 2.13.0): the mean absolute error of 1 and 2 as uint8 is 255, and the
# mean squared error of 200 and 0 is 64. Percentage errors, distances and the explained variance are
# wrong, too. No error is raised. The signal-to-noise ratio of the same images is right.
#
# Differences and squares are computed in the type of the inputs, which wraps around, and only their
# sum is a float. Images are uint8, and so are labels of classes that are compared as numbers. Other
# metrics, such as NormalizedRootMeanSquaredError, refuse integers.
#
# Seen (Python 3.11), predictions and targets, as uint8 and as float32:
#   1 and 2: MeanAbsoluteError 255.0, 1.0
#   1 and 2: MeanAbsolutePercentageError 127.5, 0.5
#   200 and 0: MeanSquaredError 64.0, 40000.0
#   200 and 0: MinkowskiDistance(p=2) 16.0, 400.0
#   200 and 0: PeakSignalNoiseRatio 2.11, 2.11
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch
from torchmetrics import MeanAbsoluteError, MeanAbsolutePercentageError, MeanSquaredError
from torchmetrics import MinkowskiDistance
from torchmetrics.image import PeakSignalNoiseRatio

CASES = [
    ("MeanAbsoluteError", MeanAbsoluteError(), 1, 2),
    ("MeanAbsolutePercentageError", MeanAbsolutePercentageError(), 1, 2),
    ("MeanSquaredError", MeanSquaredError(), 200, 0),
    ("MinkowskiDistance(p=2)", MinkowskiDistance(p=2), 200, 0),
    ("PeakSignalNoiseRatio", PeakSignalNoiseRatio(data_range=255.0), 200, 0),
]
seen = []
for name, metric, prediction, target in CASES:
    values = []
    for kind in (torch.uint8, torch.float32):
        metric.reset()
        metric.update(*(torch.full((4,), number, dtype=kind) for number in (prediction, target)))
        values.append(round(metric.compute().item(), 2))
    seen.append(f"{prediction} and {target}: {name} {values[0]}, {values[1]}")
print(*seen, sep="\n")
expected = [
    "1 and 2: MeanAbsoluteError 255.0, 1.0",
    "1 and 2: MeanAbsolutePercentageError 127.5, 0.5",
    "200 and 0: MeanSquaredError 64.0, 40000.0",
    "200 and 0: MinkowskiDistance(p=2) 16.0, 400.0",
    "200 and 0: PeakSignalNoiseRatio 2.11, 2.11",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
