"""Elastic training with Keras; see `gradred.tensorflow.elastic`."""

from __future__ import annotations

from typing import Any

from gradred.tensorflow.elastic import TensorFlowKerasState
from gradred.tensorflow.elastic import run as run
from gradred.tensorflow.keras_in_use import keras


class KerasState(TensorFlowKerasState):
    """State of a model of Keras, its optimizer and plain values; see `TensorFlowKerasState`."""


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state after batches.

    Args:
        state: the state.
        batches_per_commit: number of batches between two commits.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count batches from 0."""
        self._left = self.batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batch, and commit the state after every `batches_per_commit` batches."""
        self._left -= 1
        if self._left == 0:
            self.state.commit()
            self._left = self.batches_per_commit


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of the batch in `state.batch`; it is 0 after each epoch.

    Args:
        state: the state.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The next epoch begins with batch 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps the number of ended epochs in `state.epoch`, also over several calls of `fit`.

    Args:
        state: the state.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self._begin = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Count on from the epochs that the state has."""
        self._begin = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.state.epoch = self._begin + epoch + 1
