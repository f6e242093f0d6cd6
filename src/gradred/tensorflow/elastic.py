"""Training that resumes from its last commit after an operation has failed or a rank has ended.

`run` restores the state and calls the function again: with all ranks, or with the remaining ranks
of one host. `gradred run --min-np` and similar commands replace ranks and add hosts
(docs/elastic.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from gradred.errors import TransportError, explain
from gradred.horovod.elastic import state as any_state
from gradred.horovod.elastic.state import ObjectState, Saved, State
from gradred.horovod.errors import HorovodInternalError
from gradred.tensorflow.functions import broadcast_variables
from gradred.tensorflow.keras_in_use import build, variables_of
from gradred.tensorflow.local_passes import passes_of

__all__ = ["ObjectState", "State", "TensorFlowKerasState", "TensorFlowState", "run"]


@contextmanager
def _internal_errors() -> Iterator[None]:
    """Convert TensorFlow's errors of gradred's operations to HorovodInternalError."""
    try:
        yield
    except (tf.errors.AbortedError, tf.errors.UnknownError) as error:
        text = str(error.message)
        if "gradred" not in text.lower():
            raise
        if isinstance(error, tf.errors.AbortedError):
            raise HorovodInternalError(text) from TransportError(text)
        raise HorovodInternalError(text) from error


class _Variables(Saved):
    """Variables of a state.

    Args:
        variables: returns them.
        begin_anew: forgets what ranks have of their own; those that join the job have none of it.
    """

    def __init__(
        self, variables: Callable[[], Sequence[Any]], begin_anew: Callable[[], None] = lambda: None
    ) -> None:
        self._variables, self._begin_anew = variables, begin_anew
        self.save()

    def save(self) -> None:
        """Save a copy of the values."""
        self._copies = [tf.convert_to_tensor(one).numpy() for one in self._variables()]

    def restore(self) -> None:
        """Restore the values from the copy."""
        for variable, value in zip(self._variables(), self._copies, strict=True):
            variable.assign(value)
        self._begin_anew()

    def saved(self) -> Any:
        """The values of the last `save`."""
        return self._copies

    def take(self, saved: Any) -> None:
        """Continue from such values.

        Raises:
            ValueError: the numbers or shapes of variables differ from those of this state.
        """
        if [one.shape for one in saved] != [one.shape for one in self._copies]:
            remedy = "Use another folder (--elastic-dir) for another program"
            asked = "the state of an elastic job"
            raise ValueError(explain(asked, "it has other variables than this program", remedy))
        self._copies = saved

    def sync(self) -> None:
        """Broadcast the values of rank 0."""
        with _internal_errors():
            broadcast_variables(self._variables(), 0)
        self._begin_anew()
        self.save()


class TensorFlowState(ObjectState):
    """State of variables and plain values.

    Args:
        variables: the variables.
        session: no effect.
        kwargs: plain values. Each becomes an attribute.
    """

    def __init__(self, variables: Sequence[Any], session: Any = None, **kwargs: Any) -> None:
        given = list(variables)
        self._parts = {"variables": _Variables(lambda: given)}
        super().__init__(**kwargs)


class TensorFlowKerasState(ObjectState):
    """State of a model of Keras, its optimizer and plain values.

    Gradients that `backward_passes_per_step` has summed on the ranks are not part of it. They are
    dropped by `restore` and `sync`, so that all ranks begin a step together.

    Args:
        model: the model, which has been built.
        optimizer: the optimizer. None: that of the compiled model.
        backend: no effect.
        kwargs: plain values. Each becomes an attribute.

    Raises:
        ValueError: the model has not been built, so that it has no weights.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        if not model.built:
            remedy = "Call model.build(...), or give it an Input"
            raise ValueError(explain("TensorFlowKerasState", "the model is not built", remedy))
        if self.optimizer is not None:
            build(self.optimizer, model.trainable_variables)
        self._parts = {"variables": _Variables(self._variables, self._begin_anew)}
        super().__init__(**kwargs)

    def _variables(self) -> Sequence[Any]:
        of_optimizer = [] if self.optimizer is None else variables_of(self.optimizer)
        return [*self.model.weights, *of_optimizer]

    def _begin_anew(self) -> None:
        passes = passes_of(self.optimizer)
        if passes is not None:
            passes.begin_anew()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a training function whose first argument is a `State`; see `gradred.torch.elastic`.

    Errors of gradred's operations that TensorFlow reports count as failures.
    """

    @functools.wraps(func)
    def converting(*args: Any, **kwargs: Any) -> Any:
        with _internal_errors():
            return func(*args, **kwargs)

    return any_state.run_fn(converting)
