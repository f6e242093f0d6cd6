"""Texts of keys and names in trees, equal on all ranks: no addresses, and no hash seed's order."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from numbers import Integral, Number
from typing import Any


def shown(key: Any) -> str:
    """Return the text of a key. Of values of other types it is the type."""
    if isinstance(key, enum.Enum):
        return f"{type(key).__qualname__}.{key.name}"
    if isinstance(key, str | bytes | None):
        return repr(key)
    if isinstance(key, Number):
        return str(key)
    if isinstance(key, tuple | list):
        return f"({', '.join(shown(one) for one in key)})"
    if isinstance(key, set | frozenset):
        return f"{{{', '.join(sorted(shown(one) for one in key))}}}"
    if _is_record(key):
        return type(key).__qualname__ + shown(list(vars(key).values()))
    return type(key).__qualname__


def names_in(
    data: Any, children: int, others: Callable[[Any], list[str]] = lambda _: []
) -> list[str]:
    """Return what names the children of a node without keys, in the data of the node.

    That is texts and members of enumerations, wherever they are. It is also a sequence of as many
    different keys of one type as there are children, if these are several: whole numbers, or
    tuples and records of keys. Other data may differ between ranks without another meaning of the
    leaves: the number of a step, for example. `others` returns the names in values of types that
    are unknown here.
    """
    if isinstance(data, str | enum.Enum):
        return [shown(data)]
    if isinstance(data, dict):
        return names_in(list(data), children, others) + names_in([*data.values()], children, others)
    if _is_record(data):
        return [name for one in vars(data).values() for name in names_in(one, children, others)]
    if not isinstance(data, tuple | list):
        return others(data)
    if children > 1 and _are_keys(data, children):
        return [shown(one) for one in data]
    return [name for one in data for name in names_in(one, children, others)]


def _are_keys(values: tuple[Any, ...] | list[Any], count: int) -> bool:
    alike = len(values) == count and len({type(one) for one in values}) == 1
    return alike and all(map(_is_key, values)) and len({shown(one) for one in values}) == count


def _is_key(value: Any) -> bool:
    if isinstance(value, tuple) or _is_record(value):
        parts = value if isinstance(value, tuple) else tuple(vars(value).values())
        return bool(parts) and all(map(_is_key, parts))
    return isinstance(value, str | bytes | enum.Enum | Integral)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
