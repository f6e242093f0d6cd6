"""The programs of a job, which `:` separates on the command line, as for both MPIs' mpiexec."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence

from gradred.cli.option_types import positive
from gradred.errors import UsageError

_SEPARATOR = ":"
_NOT_A_SEPARATOR = (
    f"if {_SEPARATOR!r} is an argument of the program before it, write -- before that"
)


@dataclasses.dataclass(frozen=True)
class Part:
    """One program of the command line.

    Attributes:
        words: the program and its arguments.
        ranks: the number of its ranks; None if the hosts decide, which a single program may ask.
        variables: the texts of its own -x.
        folder: the folder in which it starts; None for this one.
    """

    words: list[str]
    ranks: int | None
    variables: Sequence[str] = ()
    folder: str | None = None

    def __str__(self) -> str:
        return shlex.join(self.words)


def configure(parser: argparse._ActionsContainer) -> None:
    """Declare the options that belong to one program."""
    parser.add_argument(
        "-np",
        "-n",
        type=positive,
        metavar="N",
        dest="ranks",
        help="number of ranks (default: one per slot of the given hosts)",
    )
    hidden = argparse.SUPPRESS
    parser.add_argument("--num-proc", type=positive, dest="ranks", default=hidden, help=hidden)
    parser.add_argument(
        "--wdir", metavar="DIR", dest="wdir", help="folder in which the program starts"
    )
    parser.add_argument("-wdir", "-wd", dest="wdir", default=hidden, help=hidden)


def parse(arguments: argparse.Namespace) -> list[Part]:
    """Return the programs, with the ranks of each if there are several.

    Raises:
        UsageError: there is no program, or an option behind `:` belongs before the first program.
    """
    words, rest = _split(arguments.program)
    parts = [Part(words, arguments.ranks, (), arguments.wdir)]
    while rest is not None:
        found = _options_of_one(rest)
        words, rest = _split(found.program)
        parts.append(Part(words, found.ranks, found.variables, found.wdir))
    if not all(part.words for part in parts):
        raise UsageError("no program", "there is nothing to start", "Name one after the options")
    for part in parts if len(parts) > 1 else ():
        if part.ranks is None:
            remedy = f"Write -np N before each program; {_NOT_A_SEPARATOR}"
            raise UsageError(str(part), "the number of its ranks is missing", remedy)
    return parts


def _split(words: list[str]) -> tuple[list[str], list[str] | None]:
    """Return the first program, and the words behind `:`; None if there is no other program."""
    if words[:1] == ["--"]:
        return words[1:], None
    if _SEPARATOR not in words:
        return words, None
    end = words.index(_SEPARATOR)
    return words[:end], words[end + 1 :]


def _options_of_one(words: list[str]) -> argparse.Namespace:
    """Parse the options of a program behind `:`."""
    parser = _Parser(prog="gradred run", allow_abbrev=False, add_help=False)
    configure(parser)
    parser.add_argument("-x", action="append", default=[], dest="variables")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    found, unknown = parser.parse_known_args(words)
    if unknown:
        what = "behind it only -np, -x and --wdir precede a program"
        remedy = f"Write other options before the first program; {_NOT_A_SEPARATOR}"
        raise UsageError(f"{unknown[0]} behind {_SEPARATOR!r}", what, remedy)
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        """Raise UsageError in place of the usage, which is that of the words before."""
        what = f"the options of a program behind {_SEPARATOR!r}"
        raise UsageError(what, message, f"Correct them; {_NOT_A_SEPARATOR}")
