"""The structures of nests as texts, which ranks compare before they add up the leaves by place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from gradred._util.keys import names_in, shown


def structure_of(nest: Any) -> str:
    """Describe a nest, such as `{'a': *, 'b': [*, None]}`. Empty for a tensor, or a plain list.

    Of a plain list without None the ranks compare count, types and shapes in any case. As in
    `tf.nest`, the items of a dictionary are in the order of their keys.
    """
    items = nest if isinstance(nest, (list, tuple)) and not hasattr(nest, "_fields") else [nest]
    if not any(one is None or tf.nest.is_nested(one) for one in items):
        return ""
    return _text(nest)


def _text(node: Any) -> str:
    if node is None:
        return "None"
    if not tf.nest.is_nested(node):
        return "*"
    if isinstance(node, Mapping):
        return f"{{{', '.join(f'{shown(key)}: {_text(node[key])}' for key in sorted(node))}}}"
    of_attrs = (one.name for one in getattr(type(node), "__attrs_attrs__", ()))
    fields = getattr(node, "_fields", None) or list(of_attrs)
    if fields:
        return _node(node, [f"{name}={_text(getattr(node, name))}" for name in fields])
    if hasattr(node, "__tf_flatten__"):
        data, children = node.__tf_flatten__()
        return _node(node, [*map(_text, children), *names_in(data, len(children))])
    if isinstance(node, (list, tuple)):
        inside = ", ".join(map(_text, node))
        return f"[{inside}]" if isinstance(node, list) else f"({inside})"
    return _node(node, map(_text, tf.nest.flatten(node, expand_composites=False)))


def _node(node: Any, parts: Iterable[str]) -> str:
    return f"{type(node).__qualname__}({', '.join(parts)})"
