"""Where gradred cannot work, setup.py stops before it compiles, with one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# setuptools is read before the system changes its name: it looks at the name itself.
PROGRAM = """
import platform, runpy, subprocess, sys
import setuptools.command.build_ext
{fake}
subprocess.run = lambda *_, **__: sys.exit("a compiler was started")
sys.argv = ["setup.py", "--quiet", "build_ext"]
runpy.run_path("setup.py", run_name="__main__")
"""

SYSTEMS = {
    "macOS": "sys.platform = 'darwin'; platform.system = lambda: 'Darwin'",
    "Windows": "sys.platform = 'win32'; platform.system = lambda: 'Windows'",
    "musl": "platform.libc_ver = lambda *_: ('', '')",
}


def last_line_of_build(fake: str) -> str:
    """What setup.py says last on the system that `fake` pretends."""
    pytest.importorskip("setuptools", minversion="77")
    command = [sys.executable, "-c", PROGRAM.format(fake=fake)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("system", SYSTEMS)
def test_setup_stops_with_one_sentence(system: str) -> None:
    assert last_line_of_build(SYSTEMS[system]).startswith("gradred needs Linux with glibc")


def test_setup_compiles_on_linux_with_glibc() -> None:
    assert last_line_of_build("") == "a compiler was started"
