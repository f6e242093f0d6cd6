"""The one table of knobs: each is an environment variable `GRADRED_<NAME>` and settable in code.

A value set in code wins over the environment, which wins over the default. The environment is
read whenever values are asked for, so nothing depends on the order of imports.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

from gradred.errors import UsageError, explain

PREFIX = "GRADRED_"

_TIME_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0}
_SIZE_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9},
    **{"k": 2**10, "m": 2**20, "g": 2**30, "kib": 2**10, "mib": 2**20, "gib": 2**30},
}
_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True)
_FLAGS |= dict.fromkeys(("0", "false", "no", "off"), False)
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-zA-Z]*)\s*")
_UNSET = ("", "none", "auto")
PROFILE_TABLE = "1"
"""The value of `profile` that names no file."""

T = TypeVar("T")
FaultKind = Literal["drop", "delay", "corrupt", "die", "fail"]


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault to inject, by its coordinate: rank, operation number and round, all from 0."""

    rank: int
    operation: int
    round: int
    kind: FaultKind
    argument: str = ""

    def __str__(self) -> str:
        text = f"{self.rank}:{self.operation}:{self.round}:{self.kind}"
        return f"{text}:{self.argument}" if self.argument else text


def _scaled(text: str, units: Mapping[str, float], form: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(form)
    return float(match[1]) * units[match[2].lower()]


def parse_duration(text: str) -> float:
    """Seconds in `90`, `1.5s`, `200ms`, `2min` or `1h`; ValueError names the form expected."""
    form = "a duration above zero such as 90, 1.5s, 200ms, 2min or 1h"
    seconds = _scaled(text, _TIME_UNITS, form)
    if not 0 < seconds < math.inf:
        raise ValueError(form)
    return seconds


def parse_size(text: str) -> int:
    """Bytes in `4096`, `64k`, `4MiB` or `1GB`; K, M, G and KiB, MiB, GiB count in 1024s.

    Raises:
        ValueError: with the form expected, also for a fraction of a byte.
    """
    form = "a size such as 4096, 64k, 4MiB or 1GB"
    size = _scaled(text, _SIZE_UNITS, form)
    if not size.is_integer():
        raise ValueError(form)
    return int(size)


def _parse_flag(text: str) -> bool:
    if text.strip().lower() not in _FLAGS:
        raise ValueError("1 or 0 (also true, false, yes, no, on, off)")
    return _FLAGS[text.strip().lower()]


def _parse_count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise ValueError("a whole number, at least 1")
    return int(text)


def _parse_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z][\w.+-]*", text.strip()):
        raise ValueError("a name")
    return text.strip()


def _parse_profile(text: str) -> str | None:
    on = _FLAGS.get(text.strip().lower())
    return text.strip() if on is None else PROFILE_TABLE if on else None


def _parse_fault(text: str) -> Fault:
    form = "rank:operation:round:kind[:argument] with kind drop, delay, corrupt, die or fail"
    kinds = "|".join(get_args(FaultKind))
    match = re.fullmatch(rf"(\d+):(\d+):(\d+):({kinds})(?::(.+))?", text.strip())
    if match is None:
        raise ValueError(form)
    kind: Any = match[4]
    return Fault(int(match[1]), int(match[2]), int(match[3]), kind, match[5] or "")


def _optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """The same parser, with an empty text, `none` or `auto` for no value."""
    return lambda text: None if text.strip().lower() in _UNSET else parse(text)


def _knob(default: T, parse: Callable[[str], T], unset: str, meaning: str) -> T:
    """A row of the table; `unset` is how a default of None is shown."""
    field: T = dataclasses.field(
        default=default, metadata={"parse": parse, "unset": unset, "help": meaning}
    )
    return field


@dataclasses.dataclass(frozen=True)
class Config:
    """All knobs with their types; the fields are the table."""

    warn_after: float = _knob(
        60.0,
        parse_duration,
        "",
        "Report the ranks that are missing once a wait has lasted this long, and again each time "
        "that doubles.",
    )
    timeout: float | None = _knob(
        None,
        _optional(parse_duration),
        "none",
        "Raise TimeoutError on every rank after a wait of this long. A blocking call counts whole, "
        "with the work in it, so this must be longer than the longest call.",
    )
    deterministic: bool = _knob(
        False,
        _parse_flag,
        "",
        "Choose the plan from size, layout, count, type and op alone, so that a repeated run gives "
        "the same bits.",
    )
    tune: bool = _knob(
        True,
        _parse_flag,
        "",
        "Measure links and the MPI in the first call over several hosts, once for their layout, "
        "and choose plans by that; 0: by round figures. Rank 0's value decides.",
    )
    trace: str | None = _knob(
        None,
        _optional(str.strip),
        "none",
        "Write each rank's operations to this file, in Chrome's trace format; its folder is made.",
    )
    profile: str | None = _knob(
        None,
        _optional(_parse_profile),
        "0",
        "Count what calls cost: 1 prints a table on rank 0 when the program ends, a file name also "
        "writes each rank's figures to this file as JSON; its folder is made. Rank 0's value "
        "decides.",
    )
    allow_singleton: bool = _knob(
        False,
        _parse_flag,
        "",
        "Accept a communicator of size 1 although the launcher started more ranks.",
    )
    plan: str | None = _knob(
        None,
        _optional(_parse_name),
        "auto",
        "Use the plan of this name wherever it can carry out the call.",
    )
    slices: int | None = _knob(
        None,
        _optional(_parse_count),
        "auto",
        "Cut a vector into this many slices and keep them all in flight.",
    )
    shm: bool = _knob(
        True, _parse_flag, "", "Use the shared-memory plans between ranks of one host."
    )
    fault: Fault | None = _knob(  # noqa: RUF009
        None,
        _optional(_parse_fault),
        "none",
        "For tests: inject a fault, written rank:operation:round:kind[:argument] with kind drop, "
        "delay, corrupt, die or fail.",
    )
    carry_env: bool = _knob(
        True,
        _parse_flag,
        "",
        "Let `gradred run` carry all variables of its shell to ranks on other hosts, unencrypted; "
        "0 makes `--no-env` the default.",
    )
    progress_thread: bool = _knob(
        True,
        _parse_flag,
        "",
        "Let a thread drive non-blocking operations while the program computes.",
    )


@dataclasses.dataclass(frozen=True)
class Value:
    """A knob's value and where it comes from."""

    value: Any
    source: Literal["default", "environment", "code"]


_KNOBS = {field.name: field for field in dataclasses.fields(Config)}
_set_in_code: dict[str, Any] = {}


def variable(name: str) -> str:
    """The environment variable of a knob: `timeout` -> `GRADRED_TIMEOUT`."""
    return PREFIX + name.upper()


def show(name: str, value: Any) -> str:
    """A knob's value as one would write it in the environment."""
    if value is None:
        return str(_KNOBS[name].metadata["unset"])
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):  # all its digits, and no exponent: parse_duration takes none
        import decimal  # here, as it is seldom needed

        return f"{decimal.Decimal(repr(value)).normalize():f}s"
    return str(value)


def load() -> Config:
    """All values, checked.

    Raises:
        UsageError: for a `GRADRED_*` variable that is no knob, or a value that cannot be read;
            the message names the nearest knob or the form expected.
    """
    return Config(**{name: entry.value for name, entry in snapshot().items()})


def check(variables: Mapping[str, str]) -> None:
    """Look at variables that another process is to get, as `load` looks at this one's.

    Raises:
        UsageError: as `load`.
    """
    _values_in(variables)


def get(name: str) -> Any:
    """The value of one knob, by its name in lower case without the prefix."""
    _check_name(name, name)
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
    _check_name(name, name)
    _set_in_code[name] = _parse(name, str(value), f"gradred.config.set({name!r}, {value!r})")


def reset(name: str | None = None) -> None:
    """Forget what `set` did to one knob, or to all."""
    if name is None:
        _set_in_code.clear()
    else:
        _check_name(name, name)
        _set_in_code.pop(name, None)


def snapshot() -> Mapping[str, Value]:
    """Each knob's value with its source, in the order of the table."""
    environment = _values_in(os.environ)
    values: dict[str, Value] = {}
    for name, field in _KNOBS.items():
        if name in _set_in_code:
            values[name] = Value(_set_in_code[name], "code")
        elif name in environment:
            values[name] = Value(environment[name], "environment")
        else:
            values[name] = Value(field.default, "default")
    return types.MappingProxyType(values)


def table() -> list[tuple[str, str, str]]:
    """Variable, default and help of each knob, as text."""
    return [
        (variable(name), show(name, field.default), field.metadata["help"])
        for name, field in _KNOBS.items()
    ]


def _values_in(variables: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, text in variables.items():
        if key.startswith(PREFIX):
            name = key[len(PREFIX) :].lower()
            _check_name(name, key)
            found[name] = _parse(name, text, f"{key}={text}")
    return found


def _check_name(name: str, asked: str) -> None:
    if name in _KNOBS and (asked == name or asked == variable(name)):
        return
    import difflib  # here, as it is seldom needed

    near = difflib.get_close_matches(name, _KNOBS, n=1, cutoff=0.0)[0]
    spelled = variable(near) if asked.startswith(PREFIX) else near
    raise UsageError(explain(asked, "there is no such knob", f"The nearest one is {spelled}"))


def _parse(name: str, text: str, asked: str) -> Any:
    try:
        return _KNOBS[name].metadata["parse"](text)
    except ValueError as error:
        raise UsageError(explain(asked, "cannot be read", f"Write {error}")) from None
