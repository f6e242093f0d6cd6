"""Callbacks of Keras 3 for training on several ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gradred.errors import explain
from gradred.horovod.basics import Average, rank, size
from gradred.horovod.process_sets import global_process_set
from gradred.tensorflow.collectives import Reduction, reduce_group
from gradred.tensorflow.compression import Compression
from gradred.tensorflow.functions import broadcast_variables
from gradred.tensorflow.keras_in_use import keras, variables_of


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the weights of the model and the state of its optimizer after the first batch.

    Args:
        root_rank: the rank whose values are sent.
        device: no effect.
        local_variables: variables that keep their values on each rank.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self._local = {id(one) for one in local_variables or ()}
        self._done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, when all variables have been made."""
        if self._done:
            return
        variables = [*self.model.weights, *variables_of(self.model.optimizer)]
        shared = [one for one in variables if id(one) not in self._local]
        broadcast_variables(shared, self.root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all ranks.

    Put it before callbacks that use metrics, such as ReduceLROnPlateau.

    Args:
        device: no effect.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Replace the metrics by their averages."""
        if not logs:
            return
        names = sorted(logs)
        values = np.array([float(logs[name]) for name in names])
        how = Reduction(Compression.none, Average, (1.0, 1.0), "metrics", global_process_set)
        how = how._replace(structure=f"metrics {', '.join(names)}")
        (averages,) = reduce_group([tf.constant(values, tf.float64)], how)
        logs.update(zip(names, averages.numpy().tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the learning rate by a factor that depends on the epoch.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch, or a number.
        start_epoch: first epoch.
        end_epoch: epoch before which the callback ends. None: it does not end.
        staircase: change the rate at the begin of an epoch, not at each batch.
        momentum_correction: no effect: the momentum of Keras 3's optimizers is constant. If the
            optimizer has one, a warning says so.
        steps_per_epoch: number of batches, if Keras does not know it.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self.current_epoch = 0
        self.staircase = staircase
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.staircase = True
            self.multiplier = lambda _: multiplier

    def _adjust(self, epoch: float) -> None:
        self.model.optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)

    def _rate(self) -> float:
        return float(tf.convert_to_tensor(self.model.optimizer.learning_rate))

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of batches of an epoch.

        Raises:
            ValueError: it is needed, and unknown.
        """
        if self.momentum_correction and getattr(self.model.optimizer, "momentum", None):
            warnings.warn(
                "momentum_correction has no effect: the momentum of Keras 3's optimizers is "
                "constant. Pass momentum_correction=False",
                stacklevel=2,
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                found = "Keras does not know the number of batches"
                remedy = "Pass steps_per_epoch"
                raise ValueError(explain(type(self).__name__, found, remedy))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remember the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate."""
        if self.current_epoch < self.start_epoch or (
            self.end_epoch is not None and self.current_epoch >= self.end_epoch
        ):
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the learning rate to the metrics, as "lr"."""
        if logs is not None:
            logs["lr"] = self._rate()


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from `initial_lr / size()` to `initial_lr` in the first epochs.

    A large learning rate, for the large batch of all ranks, is then reached in small steps (P.
    Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, 2017).

    Args:
        initial_lr: the learning rate after the warm-up.
        warmup_epochs: number of epochs.
        momentum_correction: see `LearningRateScheduleCallback`.
        steps_per_epoch: number of batches, if Keras does not know it.
        verbose: print the learning rate at the end, on rank 0.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            done = (epoch + 1.0 / self.steps_per_epoch) / warmup_epochs
            return (done * (size() - 1) + 1) / size()

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the learning rate to the metrics, as "lr"."""
        super().on_epoch_end(epoch, logs)
        is_last = self.end_epoch is not None and epoch == self.end_epoch - 1
        if is_last and self.verbose and rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate()}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model so far, on rank 0.

    Put a `MetricAverageCallback` before it, so that `monitor` is that of all ranks.

    Args:
        monitor: the metric.
        verbose: see `keras.callbacks.ModelCheckpoint`.
        save_weights_only: see there.
        mode: see there.
        save_freq: see there.
        filepath: the file. Horovod, which has no such argument, takes it from Spark.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str = "best.keras",
    ) -> None:
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if rank() == 0:
            super()._save_model(*args, **kwargs)
