"""One rank of a run of Horovod's own tests: `python horovod_rank.py FILE OUT [pytest's options]`.

`gradred run --horovod` starts it, so the tests import gradred's front end as `horovod.torch`.
OUT/RANK.xml holds each test's verdict, OUT/RANK.log the output.
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    file, out, *options = sys.argv[1:]
    # Before MPI is initialised; the tests themselves read these variables, too.
    rank = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    log = os.open(f"{out}/{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    at = ["--rootdir", os.path.dirname(file), "-c", os.devnull, "-p", "no:cacheprovider"]
    return int(pytest.main([*at, "-v", f"--junitxml={out}/{rank}.xml", *options, file]))


if __name__ == "__main__":
    sys.exit(main())
