"""The structures of nests as texts, which ranks compare before they add up the leaves by place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


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
        return f"{{{', '.join(f'{key!r}: {_text(node[key])}' for key in sorted(node))}}}"
    if hasattr(node, "_fields"):
        fields = (f"{name}={_text(getattr(node, name))}" for name in node._fields)
        return f"{type(node).__qualname__}({', '.join(fields)})"
    if isinstance(node, (list, tuple)):
        inside = ", ".join(map(_text, node))
        return f"[{inside}]" if isinstance(node, list) else f"({inside})"
    leaves = tf.nest.flatten(node, expand_composites=False)
    return f"{type(node).__qualname__}({', '.join(map(_text, leaves))})"
