"""Horovod's own tests of its front end for Keras, unmodified, on two ranks of gradred.

They use optimizers of Keras 2, so they run with tf_keras. Horovod's repository has them; its
packages have not. So this needs the repository's folder, and mock and parameterized:

    HOROVOD_TESTS=horovod/test python -m pytest tests/frameworks/test_horovod_keras.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradred import launch

for name in ("tensorflow", "tf_keras", "mock", "parameterized"):
    pytest.importorskip(name)
FOLDER = os.environ.get("HOROVOD_TESTS", "")

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOLDER, reason="HOROVOD_TESTS names no folder"),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]

# Files, and the least number of tests that pass. All tests of the files test_keras.py and
# test_tensorflow_keras.py are for TensorFlow 1, and skipped.
FILES = {"test_tensorflow2_keras.py": 13, "test_tensorflow2_keras_process_sets.py": 1}


@pytest.mark.parametrize("file", FILES)
def test_of_horovod(file: str) -> None:
    folder = Path(FOLDER).absolute() / "parallel"
    command = [sys.executable, "-m", "gradred", "run", "--horovod", "-np", "2", sys.executable]
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", file]
    environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [int(count) for count in re.findall(r"(\d+) passed", done.stdout)]
    assert passed == [FILES[file]] * 2, done.stdout
