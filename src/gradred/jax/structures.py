"""The structures of trees as texts, which ranks compare before they add up the leaves.

A text names what orders the leaves: keys, fields, and the types of containers. It is equal on all
ranks if the structures are, so it has no addresses of objects.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Any, NamedTuple

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from gradred._util.keys import names_in, shown

MOST_SHOWN = 100_000
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
    kind, data = definition.node_data()
    keys = [path[0] for path, _ in found]
    if kind is collections.defaultdict:  # JAX 0.4 names its leaves in another order
        keys = [DictKey(key) for key in data[1]]
    children = [_named(key, child) for key, (_, child) in zip(keys, found, strict=True)]
    if found and isinstance(found[0][0][0], FlattenedIndexKey):
        children.extend(_names_in(data, len(children)))
    return _node(kind, children)


def _node(kind: Any, children: list[str]) -> str:
    begin, end = _BRACKETS.get(kind, (f"{kind.__qualname__}(", ")"))
    return begin + ", ".join(children) + end


def _named(key: Any, child: Any) -> str:
    if isinstance(key, GetAttrKey):
        return f"{key.name}={_text(child)}"
    if isinstance(key, DictKey):
        return f"{shown(key.key)}: {_text(child)}"
    if isinstance(key, SequenceKey | FlattenedIndexKey):
        return _text(child)
    return f"{key}: {_text(child)}"


def _names_in(data: Any, children: int) -> list[str]:
    def other(value: Any) -> list[str]:
        return [_text_of(value)] if isinstance(value, jax.tree_util.PyTreeDef) else []

    return names_in(data, children, other)


def _text_of(definition: Any) -> str:
    """Return the text of a structure without a tree: its dictionaries' keys are among its data."""
    if definition.node_data() is None:
        return "*"
    children = [_text_of(child) for child in jax.tree_util.treedef_children(definition)]
    kind, data = definition.node_data()
    if kind is type(None):
        return "None"
    names = getattr(kind, "_fields", data)
    return _node(kind, children + _names_in(names, len(children)))
