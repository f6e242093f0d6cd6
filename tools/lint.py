"""Check formatting, types and spelling of all code; `--fix` corrects what a tool can correct.

Runs every check even if an earlier one fails, and prints the failed checks at the end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def checks(fix: bool) -> dict[str, list[str]]:
    """Return name and command of each check."""
    cpp = sorted(str(path) for path in Path("csrc").rglob("*") if path.suffix in (".h", ".cc"))
    python = [str(BIN / "python"), "-m"]
    return {
        "clang-format": [
            str(BIN / "clang-format"),
            *(["-i"] if fix else ["-n", "-Werror", "-ferror-limit=1"]),
            *cpp,
        ],
        "ruff format": [str(BIN / "ruff"), "format", *([] if fix else ["--check"]), "."],
        "ruff check": [
            str(BIN / "ruff"),
            "check",
            "--output-format=concise",
            *(["--fix"] if fix else []),
            ".",
        ],
        "mypy": [*python, "mypy"],
        "mypy tools": [*python, "mypy", *sorted(str(path) for path in Path("tools").glob("*.py"))],
        "mypy calls": [*python, "mypy", "tests/mpi/test_declared_calls.py"],
        "stubtest": [*python, "mypy.stubtest", "gradred._core", "--concise"],
        "codespell": [str(BIN / "codespell"), *(["-w"] if fix else [])],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fix", action="store_true")
    options = parser.parse_args()
    os.chdir(ROOT)
    failed = []
    for name, command in checks(options.fix).items():
        print(f"-- {name}", flush=True)
        if subprocess.run(command).returncode:
            failed.append(name)
    if failed:
        print(f"lint: {', '.join(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
