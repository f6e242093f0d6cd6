#!/usr/bin/env bash
# safetensors 0.8.0 with PyTorch 2.13.0: conjugated tensors are saved as what they are conjugates
# of, and negated views without their sign. No error is raised. `torch.save` of both is right.
#
# `x.conj()` is a view whose "conjugate" bit says that its numbers have to be conjugated when they
# are read; the imaginary part of it has a "negative" bit. The memory is written as it is. A sum
# over ranks, or anything else that makes new numbers, has neither bit, so what is lost depends on
# the last thing that was done with a tensor.
#
# Seen (Python 3.11, CPU build):
#   conjugated: [(1-2j), (3+4j)], safetensors [(1+2j), (3-4j)], torch.save [(1-2j), (3+4j)]
#   negated: [[-2.0]], safetensors [[2.0]], torch.save [[-2.0]]
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check \
  safetensors==0.8.0 torch==2.13.0 numpy packaging
cat > "$folder/program.py" <<'PROGRAM'
import io
import sys

import torch
from safetensors.torch import load, save


def by_torch(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


tensors = {
    "conjugated": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negated": torch.tensor([[1 + 2j]]).conj().imag,
}
seen = []
for name, tensor in tensors.items():
    saved = load(save({"x": tensor}))["x"]
    seen.append(
        f"{name}: {tensor.tolist()}, safetensors {saved.tolist()}, "
        f"torch.save {by_torch(tensor).tolist()}"
    )
print(*seen, sep="\n")
expected = [
    "conjugated: [(1-2j), (3+4j)], safetensors [(1+2j), (3-4j)], torch.save [(1-2j), (3+4j)]",
    "negated: [[-2.0]], safetensors [[2.0]], torch.save [[-2.0]]",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
