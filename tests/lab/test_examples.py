"""The commands of the laboratory's pages end within a minute, as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounds import within

DOCS = Path(__file__).resolve().parents[2] / "docs"
MINUTE = 60.0
_OF_THE_READER = re.compile(r"\b(FIT\.csv|ROWS\.csv|bench\.json|trace\.json|train\.py)\b")
_HANGS = 600  # seconds


def examples() -> list[str]:
    """The commands that need no file of the reader's, in the order of the pages."""
    blocks = [
        block
        for page in sorted(DOCS.glob("*.md"))
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)
    ]
    lines = [line for block in blocks for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("gradred simulate ")]
    return list(dict.fromkeys(one for one in commands if not _OF_THE_READER.search(one)))


def test_pages_have_such_examples() -> None:
    assert len(examples()) >= 7


@pytest.mark.parametrize("command", examples())
def test_example_of_a_page_ends_within_a_minute(command: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = [sys.executable, "-m", *shlex.split(command, comments=True)]
    begin = time.monotonic()
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=_HANGS
    )
    seconds = time.monotonic() - begin
    assert done.returncode == 0, done.stderr
    assert seconds < within(MINUTE), f"{command} took {seconds:.0f} s"
