"""What an optimizer of Keras 2 (tf_keras) gets, so that its gradients are reduced over all ranks.

Keras 2 has two kinds: `tf_keras.optimizers.Optimizer`, whose `minimize` calls `compute_gradients`,
and `tf_keras.optimizers.legacy.Optimizer`, whose `minimize` calls `_compute_gradients`. As with
Horovod, both have both names here, and `apply_gradients` alone reduces nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gradred.tensorflow.gradients import GradientReduction
from gradred.tensorflow.keras_in_use import build
from gradred.tensorflow.local_passes import LocalPasses, passes_of

if TYPE_CHECKING:
    _Wrapped = Any
else:
    _Wrapped = object


class DistributedOfKeras2(_Wrapped):
    """Methods that take precedence over those of the wrapped optimizer's own class."""

    _gradred: GradientReduction
    _gradred_passes: tuple[int, bool] | None
    """See `passes_of`."""

    @property
    def _agg_helper(self) -> LocalPasses | None:
        """Horovod's name of the object that counts passes."""
        return passes_of(self)

    def compute_gradients(self, loss: Any, var_list: Any, tape: Any = None) -> list[Any]:
        """Compute gradients, and reduce them; returns pairs of gradients and variables."""
        own: Any = super()
        return self._gradred_reduced(own.compute_gradients(loss, var_list, tape))

    def _compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
    ) -> list[Any]:
        own: Any = super()
        if hasattr(own, "_compute_gradients"):
            return self._gradred_reduced(own._compute_gradients(loss, var_list, grad_loss, tape))
        return self._gradred_reduced(own.compute_gradients(loss, var_list, tape))

    def get_gradients(self, loss: Any, params: Any) -> list[Any]:
        """Compute gradients of a graph, and reduce them."""
        return self._gradred.reduce(super().get_gradients(loss, params), params)

    def apply_gradients(self, grads_and_vars: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        """Apply gradients, if they are those of the last pass."""
        passes, own = passes_of(self), super().apply_gradients
        pairs = list(grads_and_vars)
        if passes is None or passes.is_last is None:
            return own(pairs, *args, **kwargs)
        is_last, passes.is_last = passes.is_last, None
        variables = [variable for _, variable in pairs]
        with tf.init_scope():  # Keras makes variables when it first applies gradients
            build(self, variables)

        def step() -> Any:
            own(pairs, *args, **kwargs)
            return tf.constant(0)

        def count() -> Any:
            self.iterations.assign_add(1)
            return tf.constant(0)

        return tf.cond(is_last, step, count)

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._gradred.keep_local([variable])

    def _gradred_reduced(self, pairs: Iterable[Any]) -> list[Any]:
        gradients, variables = map(list, zip(*pairs, strict=True))
        passes = passes_of(self)
        if passes is None:
            return list(zip(self._gradred.reduce(gradients, variables), variables, strict=True))
        place = [number for number, one in enumerate(gradients) if one is not None]
        dense = [tf.convert_to_tensor(gradients[number]) for number in place]
        known = [variables[number] for number in place]
        reduced = tf.cond(
            passes.add(dense),
            lambda: self._gradred.reduce(passes.take(), known),
            lambda: [tf.zeros_like(one) for one in dense],
        )
        for number, one in zip(place, reduced, strict=True):
            gradients[number] = one
        return list(zip(gradients, variables, strict=True))
