"""Pages, comments and docstrings use the words of docs/design/vocabulary.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = ROOT / "docs" / "design" / "vocabulary.md"
PYTHON = ("src", "tools", "tests", "benchmarks", "examples")


def gone() -> list[str]:
    """Return the words that the vocabulary rejects."""
    words = re.search(r"other than in backticks: (.*)", VOCABULARY.read_text(), re.DOTALL)
    assert words is not None
    return [word.strip() for word in words[1].rstrip(".\n").split(",")]


def pages() -> Iterator[tuple[Path, str]]:
    paths = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    yield from ((path, path.read_text()) for path in paths if path != VOCABULARY)


def comments_of_python() -> Iterator[tuple[Path, str]]:
    for path in (path for folder in PYTHON for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield path, token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield path, ast.get_docstring(node) or ""


def comments_of_cpp() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in (".cc", ".h", ".cu", ".in"):
            yield path, "\n".join(re.findall(r"(?m)(?:^|\s)//(.*)$", path.read_text()))


def test_words_that_are_gone_do_not_come_back() -> None:
    words = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, gone())) + r")(?!\w)", re.IGNORECASE)
    found = [
        (str(path.relative_to(ROOT)), word)
        for part in (pages(), comments_of_python(), comments_of_cpp())
        for path, text in part
        for word in words.findall(re.sub(r"`[^`]*`", "", text))
    ]
    assert found == []
