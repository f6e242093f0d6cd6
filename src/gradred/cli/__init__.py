"""The command `gradred`: one module per command, loaded only for the command that is requested.

A command's module has `configure(parser)` and `main(arguments) -> exit status`. The exit status is
0 for success, 1 if a check or gradred failed, 2 for a usage error, and 130 after an interrupt.
`run` returns the program's status.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from gradred import __version__
from gradred.cli import laboratory
from gradred.errors import Error, UsageError, explain

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of write

# The table of commands, by name, with their help; the module of a command is gradred.cli.<name>, or
# one of the laboratory.
COMMANDS = {
    "run": "start a program as the ranks of an MPI job",
    "ps": "the jobs of this user on this host: where each rank is and what it waits for",
    "bench": "measure allreduce as the OSU benchmarks do, and compare it with its peers",
    "explain": "which plan serves a call, why, and how long it takes",
    "simulate": "predict allreduce and training on clusters that need not be here",
    **laboratory.COMMANDS,
    "info": "what gradred finds here, and each setting with its source",
    "doctor": "check MPI, host, network and GPU, and say how to mend what is wrong",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; None stands for this process's own arguments."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _fill_closed_streams()
    try:
        return _dispatch(words)
    except UsageError as error:
        return _complain(words, error, USAGE)
    except Error as error:
        return _complain(words, error, FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stdout = None  # the reader has left, so there is nothing to flush
        return DONE
    except OSError as error:
        if error.errno in _NO_DESCRIPTOR:
            remedy = "Allow more open files (ulimit -n)"
            found = explain(
                "a file or connection", f"it cannot be opened ({error.strerror})", remedy
            )
            return _complain(words, Error(found), FAILED)
        if error.errno not in _FULL:
            raise
        sys.stdout = None
        remedy = "Make room, or write elsewhere"
        found = explain("output", f"it cannot be written ({error.strerror})", remedy)
        return _complain(words, Error(found), FAILED)


def _dispatch(words: list[str]) -> int:
    laboratory.require(words)
    parser = argparse.ArgumentParser(
        prog="gradred", description="Allreduce for Python programs on MPI.", allow_abbrev=False,
        epilog=laboratory.hint(),
    )  # fmt: skip
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    absent = {} if laboratory.is_here() else laboratory.COMMANDS
    for name, help_text in COMMANDS.items():
        if name in absent:
            continue
        about = f"{help_text[0].upper()}{help_text[1:]}."
        command = commands.add_parser(name, help=help_text, description=about, allow_abbrev=False)
        if words and words[0] == name:
            module = _module(name)
            module.configure(command)
            command.set_defaults(main=module.main)
    parsed, unknown = parser.parse_known_args(words)
    if unknown:
        asked = commands.choices[parsed.command] if parsed.command else parser
        asked.error(_unknown(unknown[0], asked.format_help()))
    if parsed.version:
        print(f"gradred {__version__}")
        return DONE
    if parsed.command is None:
        parser.print_usage(sys.stderr)
        known = ", ".join(commands.choices)
        print(f"gradred: name one of these commands: {known}", file=sys.stderr)
        return USAGE
    status: int = parsed.main(parsed)
    sys.stdout.flush()
    return status


def _module(command: str) -> ModuleType:
    if command in laboratory.COMMANDS:
        return laboratory.module(command)
    return importlib.import_module(f"gradred.cli.{command}")


def _fill_closed_streams() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that the caller has closed (`>&-`).

    Otherwise the next file or socket would get its number and be used as the stream.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (open until the process ends)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _unknown(word: str, help_text: str) -> str:
    options = re.findall(r"--[a-z][a-z-]*", help_text)
    near = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=0.7)
    return f"there is no {word}" + (f"; did you mean {near[0]}?" if near else "")


def _complain(words: Sequence[str], error: Error, status: int) -> int:
    command = f"gradred {words[0]}" if words and words[0] in COMMANDS else "gradred"
    print(f"{command}: {error}", file=sys.stderr)
    return status
