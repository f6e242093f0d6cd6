"""The settings (knobs) of gradred.

Each setting is an environment variable `GRADRED_<NAME>` and can also be set in code. A value set
in code takes precedence over the environment, which takes precedence over the default. The
environment is read each time that values are requested, so the order of imports does not matter.
The table of the settings is in `csrc/runtime/knobs.cc`, since programs without Python use it too.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal

from gradred import _core

PREFIX = "GRADRED_"


@dataclasses.dataclass(frozen=True)
class Value:
    """A setting's value and its source."""

    value: Any
    source: Literal["default", "environment", "code"]


def parse_duration(text: str) -> float:
    """Return the seconds in `90`, `1.5s`, `200ms`, `2min` or `1h`.

    Raises:
        ValueError: the text has another form; the message names the form expected.
    """
    return _core.parse_duration(text)


def variable(name: str) -> str:
    """Return the environment variable of a setting: `timeout` -> `GRADRED_TIMEOUT`."""
    return PREFIX + name.upper()


def show(name: str, value: Any) -> str:
    """Return a setting's value in the form that the environment variable takes."""
    # The core would read a whole number as seconds, so it gets the number as text.
    return _core.show_knob(name, str(value) if type(value) is int else value)


def load() -> types.SimpleNamespace:
    """Return all settings, checked, as attributes.

    Raises:
        UsageError: a `GRADRED_*` variable is not a setting, or a value cannot be read;
            the message names the nearest knob or the form expected.
    """
    return types.SimpleNamespace(**{name: entry.value for name, entry in snapshot().items()})


def check(variables: Mapping[str, str]) -> None:
    """Check the variables of another process as `load` checks those of this process.

    Raises:
        UsageError: as for `load`.
    """
    _core.check_knobs(dict(variables))


def get(name: str) -> Any:
    """Return the value of one setting, by its name in lower case without the prefix."""
    _core.require_knob(name)
    return snapshot()[name].value


def set(name: str, value: Any) -> None:  # noqa: A001
    """Set a setting for this process; this takes precedence over the environment.

    Args:
        name: the setting, for example `"timeout"`.
        value: a value, or its text as in the environment (`"1.5s"`).

    Raises:
        UsageError: the setting is unknown, or the value has another form.

    Note:
        A communicator reads the settings when it is made, so call this before.
    """
    _core.set_knob(name, str(value), f"gradred.config.set({name!r}, {value!r})")


def reset(name: str | None = None) -> None:
    """Undo what `set` did to one setting, or to all settings."""
    if name is None:
        _core.reset_knobs()
    else:
        _core.reset_knob(name)


def snapshot() -> Mapping[str, Value]:
    """Return each setting's value with its source, in the order of the table."""
    values = {name: Value(*found) for name, found in _core.knob_values().items()}
    return types.MappingProxyType(values)


def table() -> list[tuple[str, str, str]]:
    """Return the variable, default and help of each setting, as text."""
    return [(variable, default, text) for _, variable, default, text in _core.knob_table()]
