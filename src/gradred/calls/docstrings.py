"""Docstrings of the functions on arrays: what several of them say stands here once.

Source code has what a function says of its own. Its decorator adds the rest.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_ARGUMENTS = {
    "op": "as in `allreduce`.",
    "out": "as in `allreduce`.",
    "comm": "any intracommunicator of mpi4py; None is COMM_WORLD.",
    "stream": "as in `allreduce`.",
    "plan": "as in `allreduce`.",
}

_RETURNS = """Returns:
    `out`, or a new array of the kind of `x`."""

_ERRORS = """Raises:
    gradred.UsageError: the arguments are inconsistent, or the ranks' calls differ.
    gradred.DeviceError: a GPU, its driver or its memory failed.
    gradred.PeerLost: the process of a peer has ended."""

_ERRORS_OF_STARTING = """Raises:
    gradred.UsageError: the arguments are inconsistent.
    gradred.DeviceError: a GPU, its driver or its memory failed."""

_IMPORTS = """Example:
    >>> import numpy, gradred
    >>> from mpi4py import MPI
"""


def blocking(function: FunctionT) -> FunctionT:
    """Complete the docstring of a function that blocks."""
    returns = {"Returns": _RETURNS} if "out" in inspect.signature(function).parameters else {}
    return _completed(function, _ARGUMENTS, {"Raises": _ERRORS, **returns})


def starting(what: Callable[..., Any]) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that completes the docstring of the function that starts `what`."""
    name = what.__name__
    first = next(iter(inspect.signature(what).parameters))
    arguments = dict.fromkeys(("root", "exclusive"), f"as in `{name}`.") | {
        first: f"as in `{name}`; must not change until the operation has ended.",
        "op": "as in `iallreduce`.",
        "out": f"as in `{name}`; the program must not use it until `wait` or `done` reports the "
        "end.",
        "comm": _ARGUMENTS["comm"],
        "stream": "as in `iallreduce`.",
        "plan": "as in `allreduce`.",
    }
    example = re.sub(rf"gradred\.{name}(\(.*\))", rf"gradred.i{name}\1.wait()", what.__doc__ or "")
    sections = {
        "Returns": f"Returns:\n    A request whose `wait()` returns what `{name}` returns.",
        "Raises": _ERRORS_OF_STARTING,
        "Example": example[example.rfind("Example:") :].replace(_IMPORTS, "Example:\n"),
    }
    return lambda function: _completed(function, arguments, sections)


def _completed(
    function: FunctionT, arguments: Mapping[str, str], sections: Mapping[str, str]
) -> FunctionT:
    if function.__doc__ is None:  # python -OO
        return function
    parts = inspect.cleandoc(function.__doc__).split("\n\n")
    named = re.compile(r"(Args|Returns|Raises|Example):\n")
    own = {found[1]: part for part in parts if (found := named.match(part))}
    said = dict(
        item.split(": ", 1) for item in re.split(r"\n    (?=\w+: )", own.get("Args", ""))[1:]
    )
    own = {**sections, **own}
    own["Example"] = own["Example"].replace("Example:\n", _IMPORTS)
    own["Args"] = "Args:" + "".join(
        f"\n    {name}: {said.get(name) or arguments[name]}"
        for name in inspect.signature(function).parameters
    )
    order = [own[name] for name in ("Args", "Returns", "Raises", "Example") if name in own]
    text = [part for part in parts if not named.match(part)]
    function.__doc__ = "\n\n".join([*text, *order])
    return function
