#!/usr/bin/env bash
# accelerate 1.15.0 (PyTorch 2.13.0, gloo, 2 processes): `gather_for_metrics` drops samples, or
# keeps repeated ones, if the loader's sampler has another length than the dataset. No error is
# raised.
#
# It has to cut off what was repeated to fill the last batch. How much that is it counts by the
# length of the dataset, also where the loader goes through a subset of it, as with
# SubsetRandomSampler or a sampler with weights. With dispatch_batches=True, or a `Subset` for a
# dataset, the same samples come back once each.
#
# Seen (x86-64, Python 3.11), batches of 2, samples in order:
#   dataset of 9, sampler of 8: [0, 1, 2, 3, 4], dispatched [0, 1, 2, 3, 4, 5, 6, 7]
#   dataset of 10, sampler of 7: [0, 1, 2, 3, 4, 5], dispatched [0, 1, 2, 3, 4, 5, 6]
#   dataset of 8, sampler of 7: [0, 1, 2, 3, 4, 5, 6, 0], dispatched [0, 1, 2, 3, 4, 5, 6]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  accelerate==1.15.0 torch==2.13.0 numpy
cat > "$folder/program.py" <<'PROGRAM'
import sys

from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, Sampler


class First(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(self.count))

    def __len__(self):
        return self.count


def gathered(size, count, dispatch):
    configuration = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    loader = DataLoader(range(size), batch_size=2, sampler=First(count))
    batches = accelerator.prepare(loader)
    return [int(x) for batch in batches for x in accelerator.gather_for_metrics(batch)]


expected = {(9, 8): [0, 1, 2, 3, 4], (10, 7): [0, 1, 2, 3, 4, 5], (8, 7): [0, 1, 2, 3, 4, 5, 6, 0]}
changed = False
for (size, count), kept in expected.items():
    found, dispatched = gathered(size, count, None), gathered(size, count, True)
    Accelerator(cpu=True).print(
        f"dataset of {size}, sampler of {count}: {found}, dispatched {dispatched}", flush=True
    )
    changed |= found != kept or dispatched != list(range(count))
Accelerator(cpu=True).end_training()
sys.exit(changed)
PROGRAM
ACCELERATE_USE_CPU=true "$folder/env/bin/torchrun" --standalone --nproc-per-node 2 \
  "$folder/program.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
