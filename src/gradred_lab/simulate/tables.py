"""Tables of measurements in CSV files; an error names the file, the line and the column."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gradred.errors import UsageError, explain

_MOST = 1 << 20  # characters of one field; a longer one is not a table

Value: TypeAlias = str | int | float | None
Parser: TypeAlias = Callable[[str], Value]


@dataclass(frozen=True)
class Column:
    """One column: how its text is read, and whether a table may lack it."""

    parse: Parser
    may_lack: bool = False


@dataclass(frozen=True)
class Record:
    """One line of a table: its number in the file, and its values by column."""

    line: int
    values: Mapping[str, Value]

    def text(self, name: str) -> str:
        """The text of a column, empty where the table lacks it."""
        value = self.values[name]
        return "" if value is None else str(value)

    def count(self, name: str) -> int:
        """The whole number of a column."""
        value = self.values[name]
        assert isinstance(value, int)
        return value

    def number(self, name: str) -> float | None:
        """The number of a column, None where the field is empty or absent."""
        value = self.values[name]
        assert not isinstance(value, str)
        return None if value is None else float(value)


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
    path: str, columns: Mapping[str, Column], ascending: Sequence[tuple[str, str]] = ()
) -> list[Record]:
    """The records of a CSV file with a heading; columns that nobody asked for are passed over.

    Args:
        path: the file.
        columns: those that are read.
        ascending: pairs of columns with numbers, of which the second one's is not the smaller.

    Raises:
        UsageError: the file cannot be read, lacks a column, or a field is not what it should be.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    csv.field_size_limit(_MOST)
    begun = 0  # lines of the file before the record that is read now
    try:
        heading = [field.strip() for field in next(reader, [])]
        places = _places(path, heading, columns)
        records = []
        begun = reader.line_num
        for fields in reader:
            begun = reader.line_num
            if any(field.strip() for field in fields):
                records.append(_record(path, begun, fields, heading, places, columns))
                _require_ascending(path, records[-1], ascending)
        return records
    except csv.Error as error:
        where = f"{path}, line {begun + 1}"
        if "unexpected end of data" in str(error):
            found = "a field begins with a quotation mark, and none ends it"
            raise UsageError(explain(where, found, 'Add the second ", or leave out both')) from None
        raise UsageError(explain(where, str(error), "Write it as CSV")) from None


def _text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        found = f"it cannot be read ({error.strerror})"
        raise UsageError(explain(path, found, "Name a CSV file")) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"byte {content[error.start]:#04x} is not UTF-8"
        raise UsageError(explain(f"{path}, line {line}", found, "Save it as UTF-8")) from None


def _places(path: str, heading: list[str], columns: Mapping[str, Column]) -> dict[str, int]:
    """Return the index of each column in the table's heading."""
    where = f"{path}, line 1"
    if not any(heading):
        remedy = f"Begin with a line of the columns {', '.join(columns)}"
        raise UsageError(explain(where, "there is no heading", remedy))
    twice = sorted({name for name in heading if name in columns and heading.count(name) > 1})
    if twice:
        found = "two columns have this name"
        raise UsageError(explain(f"{where}, column {twice[0]}", found, "Leave one out"))
    lacking = [name for name, c in columns.items() if not c.may_lack and name not in heading]
    if lacking:
        found = f"the heading lacks it (it has {', '.join(heading[:20])})"
        remedy = "Add the column"
        if len(heading) == 1 and re.search(r"[;\t|]", heading[0]):
            remedy = "Separate the fields of all lines by commas"
        elif lacking[0] in map(str.lower, heading):
            remedy = "Write the names of columns in lower case"
        raise UsageError(explain(f"{where}, column {lacking[0]}", found, remedy))
    return {name: heading.index(name) for name in columns if name in heading}


def _record(
    path: str,
    line: int,
    fields: list[str],
    heading: list[str],
    places: Mapping[str, int],
    columns: Mapping[str, Column],
) -> Record:
    if len(fields) != len(heading):
        found = f"it has {len(fields)} fields, and the heading has {len(heading)}"
        at = min(len(fields), len(heading))
        where = f"{path}, line {line}, column {[*heading, ''][at] or at + 1}"
        raise UsageError(explain(where, found, "Give one field per column"))
    values: dict[str, Value] = dict.fromkeys(columns)
    for name, place in places.items():
        try:
            values[name] = columns[name].parse(fields[place].strip())
        except ValueError as error:
            where = f"{path}, line {line}, column {name}"
            raise UsageError(explain(where, f"it {error}", "Correct the field")) from None
    return Record(line, values)


def _require_ascending(path: str, record: Record, pairs: Sequence[tuple[str, str]]) -> None:
    """Raise UsageError for the first pair of columns that is out of order."""
    for smaller, larger in pairs:
        least, value = record.number(smaller), record.number(larger)
        if least is not None and value is not None and value < least:
            found = f"it is {value:g}, and {smaller} is {least:g}"
            where = f"{path}, line {record.line}, column {larger}"
            raise UsageError(explain(where, found, f"Give at least {smaller}"))
