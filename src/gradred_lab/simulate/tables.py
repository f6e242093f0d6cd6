"""Tables of measurements in CSV files; an error names the file, the line and the column."""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gradred.errors import UsageError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

Parser: TypeAlias = Callable[[str], Any]
Missing: TypeAlias = Callable[[Mapping[str, Any]], "tuple[str, str, str] | None"]


MOST_BYTES = 64 << 20
"""Of a file."""
MOST_ROWS = 100_000
"""Of a table; of one with measurements, `MOST_MEASURED`, which are compared with each other."""
MOST_MEASURED = 10_000
MOST_RANKS = 10_000_000


@dataclass(frozen=True)
class Column:
    """One column: how its text is read, and whether a table may lack it."""

    parse: Parser
    may_lack: bool = False


def words(text: str) -> str:
    """Any text, without spaces around it."""
    return text


def name(text: str) -> str:
    """A text that may not be empty."""
    if not text:
        raise ValueError("is empty")
    return text


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _whole(text, 1)


def processes(text: str) -> int:
    """A number of ranks, nodes or GPUs: a whole number of at least 1, and at most ten million."""
    found = count(text)
    if found > MOST_RANKS:
        raise ValueError(f"is {found:,}, and at most {MOST_RANKS:,} can be predicted")
    return found


def size(text: str) -> int:
    """A whole number of at least 0."""
    return _whole(text, 0)


def optional_count(text: str) -> int | None:
    """A whole number of at least 1, or nothing."""
    return None if not text else _whole(text, 1)


def time(text: str) -> float:
    """A finite number above 0."""
    value = optional_time(text)
    if value is None:
        raise ValueError("is empty")
    return value


def optional_time(text: str) -> float | None:
    """A finite number above 0, or nothing."""
    return _number(text, "a number above 0", zero=False)


def optional_spread(text: str) -> float | None:
    """A finite number of at least 0, or nothing."""
    return _number(text, "a number of at least 0", zero=True)


def ignored(text: str) -> None:
    """Whatever it is: the command has no use for it."""


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) < least:
        raise ValueError(f"is {text!r}, no whole number of at least {least}")
    return int(text)


def _number(text: str, what: str, *, zero: bool) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"is {text!r}, not {what}")
    return value


def read(
    path: str,
    columns: Mapping[str, Column],
    ascending: Sequence[tuple[str, str]] = (),
    missing: Missing | None = None,
    most: int = MOST_ROWS,
) -> list[dict[str, Any]]:
    """The values of each line by column; columns that nobody asked for are passed over.

    Args:
        path: a CSV file with a heading.
        columns: those that are read; one that the table lacks is read as empty.
        ascending: pairs of columns with numbers, of which the second one's is not the smaller.
        missing: says of a line's values which column lacks what, and the remedy.
        most: rows that it may have.

    Raises:
        UsageError: the file cannot be read, is too long, lacks a column, or a field is not what it
            should be.
    """
    texts = _texts(path)
    places = _places(path, texts.iloc[0].tolist(), columns)
    texts = texts[(texts != "").any(axis=1)].iloc[1:]
    if len(texts) > most:
        found = f"it has {len(texts):,} rows, and at most {most:,} are read"
        raise UsageError(path, found, "Leave out some, or give several files in turn")
    values = {}
    for name, column in columns.items():
        own = texts[places[name]] if name in places else [""] * len(texts)
        values[name] = [
            _value(f"{path}, line {line}, column {name}", column, text)
            for line, text in zip(texts.index, own, strict=True)
        ]
    for smaller, larger in ascending:
        for line, least, value in zip(texts.index, values[smaller], values[larger], strict=True):
            if least is not None and value is not None and value < least:
                found = f"it is {value:g}, and {smaller} is {least:g}"
                where = f"{path}, line {line}, column {larger}"
                raise UsageError(where, found, f"Give at least {smaller}")
    records = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    for line, record in zip(texts.index, records, strict=True):
        if missing is not None and (lack := missing(record)):
            name, found, remedy = lack
            raise UsageError(f"{path}, line {line}, column {name}", found, remedy)
    return records


def _value(where: str, column: Column, text: str) -> Any:
    try:
        return column.parse(text)
    except ValueError as error:
        raise UsageError(where, f"it {error}", "Correct the field") from None


def _texts(path: str) -> DataFrame:
    """The fields of a file without spaces around them, by the lines where its records begin."""
    import pandas

    text = _text(path)
    read = functools.partial(
        pandas.read_csv, header=None, dtype=str, keep_default_na=False, skip_blank_lines=False
    )
    try:
        found = read(io.StringIO(text))
    except pandas.errors.EmptyDataError:
        found = pandas.DataFrame([[""]])
    except pandas.errors.ParserError as error:
        record = re.search(r"in line (\d+)|at row (\d+)", str(error))
        before = int(record[2] or int(record[1]) - 1) if record else 0
        line = 1 + _lines(read(io.StringIO(text), nrows=before)).sum()
        raise _malformed(f"{path}, line {line}", str(error)) from None
    lines = _lines(found)
    found.index = lines.cumsum() - lines + 1
    for line, fields in zip(found.index, csv.reader(io.StringIO(text, newline="")), strict=True):
        if 0 < len(fields) < found.shape[1] and any(field.strip() for field in fields):
            raise _of_width(f"{path}, line {line}", len(fields), found.shape[1])
    return found.apply(lambda column: column.str.strip())


def _lines(records: DataFrame) -> Series:
    """The lines of each record: a field between quotation marks may have several."""
    return 1 + records.apply(lambda column: column.str.count(r"\r\n?|\n")).sum(axis=1)


def _malformed(where: str, error: str) -> UsageError:
    if "EOF inside string" in error:
        found = "a field begins with a quotation mark, and none ends it"
        return UsageError(where, found, 'Add the second ", or leave out both')
    width = re.search(r"Expected (\d+) fields in line \d+, saw (\d+)", error)
    if width is None:
        return UsageError(where, error, "Write it as CSV")
    return _of_width(where, int(width[2]), int(width[1]))


def _of_width(where: str, fields: int, columns: int) -> UsageError:
    found = f"it has {fields} fields, and the heading has {columns}"
    where = f"{where}, column {min(fields, columns) + 1}"
    return UsageError(where, found, "Give one field per column")


def _text(path: str) -> str:
    try:
        if (nbytes := Path(path).stat().st_size) > MOST_BYTES:
            found = f"it has {nbytes >> 20} MiB, and at most {MOST_BYTES >> 20} are read"
            raise UsageError(path, found, "Leave out rows or columns")
        content = Path(path).read_bytes()
    except OSError as error:
        found = f"it cannot be read ({error.strerror})"
        raise UsageError(path, found, "Name a CSV file") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"byte {content[error.start]:#04x} is not UTF-8"
        raise UsageError(f"{path}, line {line}", found, "Save it as UTF-8") from None


def _places(path: str, heading: list[str], columns: Mapping[str, Column]) -> dict[str, int]:
    """Return the index of each column in the table's heading."""
    where = f"{path}, line 1"
    if not any(heading):
        remedy = f"Begin with a line of the columns {', '.join(columns)}"
        raise UsageError(where, "there is no heading", remedy)
    twice = sorted({name for name in heading if name in columns and heading.count(name) > 1})
    if twice:
        found = "two columns have this name"
        raise UsageError(f"{where}, column {twice[0]}", found, "Leave one out")
    lacking = [name for name, c in columns.items() if not c.may_lack and name not in heading]
    if lacking:
        found = f"the heading lacks it (it has {', '.join(heading[:20])})"
        remedy = "Add the column"
        if len(heading) == 1 and re.search(r"[;\t|]", heading[0]):
            remedy = "Separate the fields of all lines by commas"
        elif lacking[0] in map(str.lower, heading):
            remedy = "Write the names of columns in lower case"
        raise UsageError(f"{where}, column {lacking[0]}", found, remedy)
    return {name: heading.index(name) for name in columns if name in heading}
