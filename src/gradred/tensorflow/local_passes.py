"""Sums of the gradients of several passes on this rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class LocalPasses:
    """Sums the gradients of several passes on this rank; `averages` divides by their number."""

    def __init__(self, passes: int, averages: bool) -> None:
        self.passes, self.averages = passes, averages
        self._sums: list[Any] = []
        self._count: Any = None
        self.is_last: Any = None  # whether the newest pass was the last one, as a tensor

    @property
    def counter(self) -> Any:
        """The number of passes since the last reduction, as a variable."""
        return self._count

    def add(self, gradients: Sequence[Any]) -> Any:
        """Add the gradients of one pass. Returns whether it was the last one, as a tensor."""
        if self._count is None:
            with tf.init_scope():
                self._sums = [tf.Variable(tf.zeros(x.shape, x.dtype)) for x in gradients]
                self._count = tf.Variable(0, dtype=tf.int64)
        for total, gradient in zip(self._sums, gradients, strict=True):
            total.assign_add(gradient)
        self.is_last = tf.equal(self._count.assign_add(1), self.passes)
        return self.is_last

    def take(self) -> list[Any]:
        """The sums, which begin anew."""
        factor = 1.0 / self.passes if self.averages else 1.0
        taken = [tf.identity(total) * tf.cast(factor, total.dtype) for total in self._sums]
        with tf.control_dependencies(taken):
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            self._count.assign(0)
        return taken

    def begin_anew(self) -> None:
        """Forget what has been summed, as after an elastic job has changed."""
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        if self._count is not None:
            self._count.assign(0)


def passes_of(optimizer: Any) -> LocalPasses | None:
    """The sums of an optimizer's passes, which it does not share with others of its class.

    Args:
        optimizer: its class has the arguments of `LocalPasses` as `_gradred_passes`.

    Returns:
        None: each pass is a step, or it is no optimizer that reduces gradients.
    """
    arguments = getattr(type(optimizer), "_gradred_passes", None)
    if arguments is None:
        return None
    if "_gradred_sums" not in optimizer.__dict__:
        # Past Keras's own method, which would look for its variables.
        object.__setattr__(optimizer, "_gradred_sums", LocalPasses(*arguments))
    made: LocalPasses = optimizer.__dict__["_gradred_sums"]
    return made
