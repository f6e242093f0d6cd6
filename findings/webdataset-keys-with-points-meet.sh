#!/usr/bin/env bash
# webdataset 1.0.2: samples whose keys have a point after the last slash are written without an
# error by TarWriter, and read as one sample: "image.0001" and "image.0002" come back as one with
# the key "image", and the name of each value begins with what was behind the point. A point in a
# folder's name is kept, and neither writer nor reader says anything.
#
# The reader takes the key to end at the first point. A shard of such samples has one sample, for
# one of the ranks; what looks for "cls" finds none.
#
# Seen (Python 3.11), two samples with a class and a text each:
#   image.0001, image.0002 -> image: 0001.cls, 0001.txt, 0002.cls, 0002.txt
#   image-0001, image-0002 -> image-0001: cls, txt; image-0002: cls, txt
#   run.1/a, run.1/b -> run.1/a: cls, txt; run.1/b: cls, txt
# Exit status 0: it is still so. 1: it has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check webdataset==1.0.2 numpy==2.4.6
cat > "$folder/program.py" <<'PROGRAM'
import os
import sys
import tempfile

import webdataset


def read_back(keys):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "shard.tar")
        with webdataset.TarWriter(path) as writer:
            for key in keys:
                writer.write({"__key__": key, "cls": 7, "txt": key})
        samples = list(webdataset.WebDataset(path, shardshuffle=False).decode())
    return "; ".join(
        f"{sample['__key__']}: {', '.join(name for name in sample if not name.startswith('__'))}"
        for sample in samples
    )


PAIRS = (("image.0001", "image.0002"), ("image-0001", "image-0002"), ("run.1/a", "run.1/b"))
seen = [f"{', '.join(keys)} -> {read_back(keys)}" for keys in PAIRS]
print(*seen, sep="\n")
expected = [
    "image.0001, image.0002 -> image: 0001.cls, 0001.txt, 0002.cls, 0002.txt",
    "image-0001, image-0002 -> image-0001: cls, txt; image-0002: cls, txt",
    "run.1/a, run.1/b -> run.1/a: cls, txt; run.1/b: cls, txt",
]
sys.exit(seen != expected)
PROGRAM
"$folder/env/bin/python" "$folder/program.py"
