"""Pages, comments, docstrings and names use the words of docs/design/vocabulary.md."""

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
CPP = (".cc", ".h", ".cu", ".in")


def gone(*places: str) -> list[str]:
    """Return the words that the vocabulary rejects, from its lists that begin so."""
    text = " ".join(VOCABULARY.read_text().split())
    lists = [re.search(rf"{place}: ([^.]*)\.", text) for place in places]
    return [word.strip() for found in lists if found for word in found[1].split(",")]


def parts(words: list[str]) -> re.Pattern[str]:
    """Return a pattern of the words as parts of names: `sent_word`, `kWord`, `WORD`, and alone."""
    lower, title, upper = (
        "|".join(map(change, words)) for change in (str.lower, str.title, str.upper)
    )
    return re.compile(
        rf"(?<![A-Za-z])(?:{lower})(?![a-z])|(?:{title})(?![a-z])|(?<![A-Za-z])(?:{upper})(?![A-Za-z])"
    )


def pages() -> Iterator[tuple[Path, str]]:
    paths = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    yield from ((path, path.read_text()) for path in paths if path != VOCABULARY)


def comments_of_python(words: re.Pattern[str]) -> Iterator[tuple[Path, str]]:
    """The comments and docstrings of the files that have one of the words anywhere."""
    for path in (path for folder in PYTHON for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        if not words.search(source):
            continue
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield path, token.string
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                yield path, ast.get_docstring(node) or ""


def comments_of_cpp() -> Iterator[tuple[Path, str]]:
    for path in (ROOT / "csrc").rglob("*"):
        if path.suffix in CPP:
            yield path, "\n".join(re.findall(r"(?m)(?:^|\s)//(.*)$", path.read_text()))


def test_words_that_are_gone_do_not_come_back() -> None:
    words = re.compile(
        r"(?<!\w)("
        + "|".join(map(re.escape, gone("of a name too", "In pages and comments also")))
        + r")(?!\w)",
        re.IGNORECASE,
    )
    found = [
        (str(path.relative_to(ROOT)), word)
        for part in (pages(), comments_of_python(words), comments_of_cpp())
        for path, text in part
        for word in words.findall(re.sub(r"`[^`]*`", "", text))
    ]
    assert found == []


def sources() -> Iterator[Path]:
    yield from (path for path in (ROOT / "csrc").rglob("*") if path.suffix in CPP)
    yield from (path for folder in PYTHON for path in (ROOT / folder).rglob("*.py*"))


def test_no_name_and_no_string_has_a_word_that_is_gone() -> None:
    words = parts(gone("of a name too", "In code also"))
    found = [
        (str(path.relative_to(ROOT)), word)
        for path in sources()
        if path.suffix != ".pyc"
        for word in words.findall(f"{path.relative_to(ROOT)}\n{path.read_text()}")
    ]
    assert found == []


def test_every_list_of_the_vocabulary_is_read() -> None:
    lists = [
        gone(place) for place in ("of a name too", "In pages and comments also", "In code also")
    ]
    assert all(lists), lists


def test_words_are_found_as_parts_of_names_only() -> None:
    words = parts(["sent", "word"])
    for name in ("sent", "sent_", "is_sent_to", "kWord", "WordList", "LAST_WORD", "'the word'"):
        assert words.search(name), name
    for name in ("present", "absently", "sentence", "words", "Wordy", "SWORD", "passwords"):
        assert not words.search(name), name
