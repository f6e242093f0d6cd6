"""The structures of trees as texts, which ranks compare before they add up the leaves.

A text names what orders the leaves: keys, fields, and the types of containers. It is equal on all
ranks if the structures are, so it has no addresses of objects.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

MOST_SHOWN = 4000
"""The characters of a text that travel. The hash is that of the whole text."""

_MOST_KNOWN = 1024
_BRACKETS = {dict: ("{", "}"), list: ("[", "]"), tuple: ("(", ")")}


class Structure(NamedTuple):
    """The structure of a tree; without a text and a hash for an array alone."""

    text: str = ""
    hash: int = 0


_known: dict[Any, Structure] = {}


def structure_of(tree: Any, definition: Any) -> Structure:
    """Return the structure of a tree with this `PyTreeDef`."""
    if jax.tree_util.treedef_is_leaf(definition):
        return Structure()
    try:
        found = _known.get(definition)
    except (TypeError, ValueError):  # data of a node cannot be hashed, or not be compared
        return _described(tree)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[definition] = _described(tree)
    return found


def _described(tree: Any) -> Structure:
    text = _text(tree)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return Structure(text[:MOST_SHOWN], int.from_bytes(digest, "little") or 1)


def _text(node: Any) -> str:
    """Return the text of a tree, such as `{'a': *, 'b': (*, None)}`."""
    if node is None:
        return "None"
    found, definition = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if found and not found[0][0]:
        return "*"
    children = [_named(path[0], child) for path, child in found]
    kind, data = definition.node_data()
    begin, end = _BRACKETS.get(kind, (f"{kind.__qualname__}(", ")"))
    if found and isinstance(found[0][0][0], FlattenedIndexKey):
        children.extend(_names_in(data))
    return begin + ", ".join(children) + end


def _named(key: Any, child: Any) -> str:
    if isinstance(key, GetAttrKey):
        return f"{key.name}={_text(child)}"
    if isinstance(key, DictKey):
        return f"{_shown(key.key)}: {_text(child)}"
    if isinstance(key, SequenceKey | FlattenedIndexKey):
        return _text(child)
    return f"{key}: {_text(child)}"


def _shown(name: Any) -> str:
    """Return the text of a key.

    It has no addresses and depends on no hash seed. Of values of other types it is the type.
    """
    if isinstance(name, enum.Enum):
        return f"{type(name).__qualname__}.{name.name}"
    if isinstance(name, str | bytes | int | float | complex | None):
        return repr(name)
    if isinstance(name, tuple | list):
        return f"({', '.join(_shown(one) for one in name)})"
    if isinstance(name, set | frozenset):
        return f"{{{', '.join(sorted(_shown(one) for one in name))}}}"
    return type(name).__qualname__


def _names_in(data: Any) -> list[str]:
    """Return the names in the data of a node whose children have no keys.

    Other data may differ between ranks without another meaning of the leaves.
    """
    if isinstance(data, str):
        return [repr(data)]
    if isinstance(data, tuple | list):
        return [name for one in data for name in _names_in(one)]
    return []
