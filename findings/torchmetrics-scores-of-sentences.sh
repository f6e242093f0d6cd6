#!/usr/bin/env bash
# torchmetrics 1.9.0 (PyTorch 2.13.0, gloo, 2 processes): text metrics that return a score per
# sentence (return_sentence_level_score=True of CHRFScore, TranslationEditRate and
# ExtendedEditDistance) raise a TypeError in `compute` as soon as there are two processes. In one
# process, or with sync_on_compute=False, they work.
#
# The scores of all ranks are gathered into one tensor, which `compute` then wants to concatenate as
# if it were a list. WordErrorRate, and the same metrics without scores of sentences, work. A
# program that was written and tested on one process fails at the end of its first distributed
# evaluation.
#
# Seen (Python 3.11), one sentence on each rank:
#   CHRFScore: alone 0.6404, synchronized TypeError, without sentences 0.6404
#   TranslationEditRate: alone 0.3333, synchronized TypeError, without sentences 0.3333
#   ExtendedEditDistance: alone 0.3182, synchronized TypeError, without sentences 0.3182
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 torchmetrics==1.9.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys

import torch.distributed as dist
from torchmetrics.text import CHRFScore, ExtendedEditDistance, TranslationEditRate

dist.init_process_group("gloo")


def score(kind, **settings):
    metric = kind(**settings)
    metric.update(["the cat"], [["the cat is"]])
    try:
        result = metric.compute()
    except TypeError as error:
        return type(error).__name__
    return f"{result[0] if isinstance(result, tuple) else result:.4f}"


seen = []
for kind in (CHRFScore, TranslationEditRate, ExtendedEditDistance):
    alone = score(kind, return_sentence_level_score=True, sync_on_compute=False)
    together = score(kind, return_sentence_level_score=True)
    seen.append(
        f"{kind.__name__}: alone {alone}, synchronized {together}, "
        f"without sentences {score(kind)}"
    )
if dist.get_rank() == 0:
    print(*seen, sep="\n")
dist.barrier()
dist.destroy_process_group()
expected = [
    "CHRFScore: alone 0.6404, synchronized TypeError, without sentences 0.6404",
    "TranslationEditRate: alone 0.3333, synchronized TypeError, without sentences 0.3333",
    "ExtendedEditDistance: alone 0.3182, synchronized TypeError, without sentences 0.3182",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
