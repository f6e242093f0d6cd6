#!/usr/bin/env bash
# torchdata 0.11.0 (PyTorch 2.13.0): with StatefulDistributedSampler, a state that is saved at the
# end of an epoch gives an empty next epoch: the loader that loads it has no batches, in the epoch
# after that it has all of them. No error is raised. With RandomSampler, and with PyTorch's own
# DistributedSampler, the same state of the same loader begins a new epoch.
#
# The loader notes that its iterator has finished, and starts anew. The sampler's state has the
# number of samples it gave, and it skips as many. A job that saves after each epoch and is
# restarted loses one epoch of training, and an evaluation over it is that of no samples. `len` of
# the loader is still 2.
#
# Seen (Python 3.11), 8 samples, rank 0 of 2, batches of 2:
#   RandomSampler: epochs of 4 and 4 batches after loading, len 4
#   DistributedSampler: epochs of 2 and 2 batches after loading, len 2
#   StatefulDistributedSampler: epochs of 0 and 2 batches after loading, len 2
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 torchdata==0.11.0 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import sys
import warnings

warnings.simplefilter("ignore")

from torch.utils.data import DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

SAMPLES = list(range(8))


def loader(kind):
    place = {} if kind is RandomSampler else {"num_replicas": 2, "rank": 0}
    return StatefulDataLoader(SAMPLES, batch_size=2, sampler=kind(SAMPLES, **place))


seen = []
for kind in (RandomSampler, DistributedSampler, StatefulDistributedSampler):
    first = loader(kind)
    for _ in first:
        pass
    second = loader(kind)
    second.load_state_dict(first.state_dict())
    epochs = [len(list(second)) for _ in range(2)]
    seen.append(
        f"{kind.__name__}: epochs of {epochs[0]} and {epochs[1]} batches after loading, "
        f"len {len(second)}"
    )
print(*seen, sep="\n")
expected = [
    "RandomSampler: epochs of 4 and 4 batches after loading, len 4",
    "DistributedSampler: epochs of 2 and 2 batches after loading, len 2",
    "StatefulDistributedSampler: epochs of 0 and 2 batches after loading, len 2",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
