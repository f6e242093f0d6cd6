"""The Keras that TensorFlow uses: Keras 3, or Keras 2 with TF_USE_LEGACY_KERAS=1.

Keras 2 is the package tf_keras. Its name here is `keras`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

# tf.keras is Keras 2 without a version.
IS_KERAS_2 = str(getattr(tf.keras, "__version__", "2")).startswith("2")

if TYPE_CHECKING:
    keras: Any
elif IS_KERAS_2:
    import tf_keras as keras
else:
    import keras

__all__ = ["IS_KERAS_2", "build", "keras", "variables_of"]


def build(optimizer: Any, variables: list[Any]) -> None:
    """Make the variables of an optimizer, if it has not made them."""
    if not hasattr(optimizer, "build"):  # a legacy optimizer of Keras 2
        optimizer._create_all_weights(variables)
    elif not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
        optimizer.build(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer."""
    found = optimizer.variables
    return list(found() if callable(found) else found)
