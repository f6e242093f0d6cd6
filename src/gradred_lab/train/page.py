"""A report as data: headings, paragraphs, tables and figures; written as Markdown or as HTML."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Heading:
    """A heading of a level from 1 on."""

    text: str
    level: int = 2


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Text; words between backticks are code, and those between double stars strong."""

    text: str


@dataclasses.dataclass(frozen=True)
class Bullets:
    """A list of texts."""

    items: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Table:
    """Texts in rows; all columns but the first so many are numbers."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclasses.dataclass(frozen=True)
class Figure:
    """An SVG file beside the report."""

    path: Path
    about: str


Block = Heading | Paragraph | Bullets | Table | Figure


def markdown(blocks: Sequence[Block]) -> str:
    """The page as Markdown."""
    return "\n\n".join(map(_markdown, blocks)) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Bullets):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Figure):
        return f"![{block.about}]({block.path.name})"
    lines = [
        block.titles,
        ["---" if i < block.left else "---:" for i in range(len(block.titles))],
        *block.rows,
    ]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines)


_STYLE = """
body { font: 16px/1.5 sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ccc; padding: 0.2rem 0.7rem; text-align: right; }
th.left, td.left { text-align: left; }
svg { max-width: 100%; height: auto; }
"""


def page(title: str, blocks: Sequence[Block]) -> str:
    """The page as HTML in one file: figures are inside."""
    body = "\n".join(map(_html, blocks))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Bullets):
        items = "".join(f"<li>{_inline(item)}</li>" for item in block.items)
        return f"<ul>{items}</ul>"
    if isinstance(block, Figure):
        drawn = block.path.read_text(encoding="utf-8")
        return f"<figure>{drawn[drawn.index('<svg') :]}</figure>"
    head = _row(block.titles, "th", block.left)
    return f"<table>{head}{''.join(_row(row, 'td', block.left) for row in block.rows)}</table>"


def _row(cells: Sequence[str], tag: str, left: int) -> str:
    parts = []
    for i, cell in enumerate(cells):
        side = ' class="left"' if i < left else ""
        parts.append(f"<{tag}{side}>{_inline(cell)}</{tag}>")
    return f"<tr>{''.join(parts)}</tr>"


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    strong = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", strong)
