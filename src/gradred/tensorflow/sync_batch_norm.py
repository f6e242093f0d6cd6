"""Batch normalisation with the mean and variance of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from gradred.errors import UsageError
from gradred.horovod.basics import Sum
from gradred.tensorflow.collectives import allreduce
from gradred.tensorflow.keras_in_use import IS_KERAS_2, keras


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the batches of all ranks.

    Args:
        fused: no effect.
        kwargs: arguments of `keras.layers.BatchNormalization`.

    Raises:
        gradred.UsageError: the Keras in use is Keras 2.
    """

    def __init__(self, fused: bool = False, **kwargs: Any) -> None:
        if IS_KERAS_2:
            found = "TF_USE_LEGACY_KERAS selects Keras 2, whose layer computes in another way"
            raise UsageError("SyncBatchNormalization", found, "Use Keras 3")
        super().__init__(**kwargs)

    def _moments(self, inputs: Any, mask: Any) -> Any:
        """The mean and variance of all ranks' batches.

        Each rank sums squares around its own mean; the correction to the common mean is done in
        float64 (T. Chan, G. Golub and R. LeVeque, Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances, 1979).
        """
        own_mean, own_variance = super()._moments(inputs, mask)
        mean, variance = (tf.cast(one, tf.float64) for one in (own_mean, own_variance))
        shape, channels = tf.shape(mean), tf.size(mean)
        mean, variance = tf.reshape(mean, [-1]), tf.reshape(variance, [-1])
        if mask is None:
            count = tf.size(inputs, tf.int32) // channels
        else:
            weights = tf.cast(
                tf.broadcast_to(tf.cast(mask, tf.int32), tf.shape(inputs)[:-1]), tf.int32
            )
            count = tf.reduce_sum(weights)
        count = tf.cast(tf.reshape(count, [1]), tf.float64)
        sums = tf.concat([count * mean, count * (variance + tf.square(mean))], 0)
        # Without examples the mean is no number.
        own = tf.concat([tf.where(count > 0, sums, tf.zeros_like(sums)), count], 0)
        total, squares, counts = tf.split(allreduce(own, op=Sum), tf.stack([channels, channels, 1]))
        all_mean = total / counts
        all_variance = tf.maximum(squares / counts - tf.square(all_mean), 0)
        return (
            tf.cast(tf.reshape(all_mean, shape), own_mean.dtype),
            tf.cast(tf.reshape(all_variance, shape), own_variance.dtype),
        )
