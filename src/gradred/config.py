"""The knobs: each is an environment variable `GRADRED_<NAME>` and settable in code.

A value set in code wins over the environment, which wins over the default. The environment is
read whenever values are asked for, so nothing depends on the order of imports. The table itself
stands in `csrc/runtime/knobs.cc`, since programs without Python have the same knobs.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal

from gradred import _core

PREFIX = "GRADRED_"
PROFILE_TABLE = "1"
"""The value of `profile` that names no file."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault to inject, by its coordinate: rank, operation number and round, all from 0."""

    rank: int
    operation: int
    round: int
    kind: str
    argument: str = ""

    def __str__(self) -> str:
        text = f"{self.rank}:{self.operation}:{self.round}:{self.kind}"
        return f"{text}:{self.argument}" if self.argument else text


@dataclasses.dataclass(frozen=True)
class Value:
    """A knob's value and where it comes from."""

    value: Any
    source: Literal["default", "environment", "code"]


def parse_duration(text: str) -> float:
    """Seconds in `90`, `1.5s`, `200ms`, `2min` or `1h`; ValueError names the form expected."""
    return _core.parse_duration(text)


def variable(name: str) -> str:
    """The environment variable of a knob: `timeout` -> `GRADRED_TIMEOUT`."""
    return PREFIX + name.upper()


def show(name: str, value: Any) -> str:
    """A knob's value as one would write it in the environment."""
    # The core would take a whole number for seconds.
    as_text = isinstance(value, Fault) or type(value) is int
    return _core.show_knob(name, str(value) if as_text else value)


def load() -> types.SimpleNamespace:
    """All values, checked, as attributes.

    Raises:
        UsageError: for a `GRADRED_*` variable that is no knob, or a value that cannot be read;
            the message names the nearest knob or the form expected.
    """
    return types.SimpleNamespace(**{name: entry.value for name, entry in snapshot().items()})


def check(variables: Mapping[str, str]) -> None:
    """Look at variables that another process is to get, as `load` looks at this one's.

    Raises:
        UsageError: as `load`.
    """
    _core.check_knobs(dict(variables))


def get(name: str) -> Any:
    """The value of one knob, by its name in lower case without the prefix."""
    _core.require_knob(name)
    return snapshot()[name].value


def set(name: str, value: Any) -> None:  # noqa: A001
    """Set a knob for this process; it wins over the environment.

    Args:
        name: the knob, for example `"timeout"`.
        value: a value, or the text one would write in the environment (`"1.5s"`).

    Raises:
        UsageError: unknown knob, or a value of another form.

    Note:
        A communicator reads the knobs when it is made: set them before.
    """
    _core.set_knob(name, str(value), f"gradred.config.set({name!r}, {value!r})")


def reset(name: str | None = None) -> None:
    """Forget what `set` did to one knob, or to all."""
    if name is None:
        _core.reset_knobs()
    else:
        _core.reset_knob(name)


def snapshot() -> Mapping[str, Value]:
    """Each knob's value with its source, in the order of the table."""
    values = {name: Value(*found) for name, found in _core.knob_values().items()}
    fault = values["fault"]
    if fault.value is not None:
        rank, operation, round_, kind, *argument = fault.value.split(":", 4)
        typed = Fault(int(rank), int(operation), int(round_), kind, *argument)
        values["fault"] = dataclasses.replace(fault, value=typed)
    return types.MappingProxyType(values)


def table() -> list[tuple[str, str, str]]:
    """Variable, default and help of each knob, as text."""
    return [(variable, default, text) for _, variable, default, text in _core.knob_table()]
