"""An optimizer of Keras whose gradients are reduced over all ranks before each step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from gradred.errors import explain
from gradred.horovod import basics
from gradred.horovod.basics import Average, Sum
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.tensorflow.compression import Compression
from gradred.tensorflow.gradients import GradientReduction, How, checked_groups
from gradred.tensorflow.keras_in_use import IS_KERAS_2, keras
from gradred.tensorflow.local_passes import passes_of
from gradred.tensorflow.optimizer_of_keras_2 import DistributedOfKeras2
from gradred.tensorflow.tape import layers_of

if TYPE_CHECKING:
    _Wrapped = Any
else:
    _Wrapped = object


class Distributed(_Wrapped):
    """Methods that take precedence over those of the wrapped optimizer's own class."""

    _gradred: GradientReduction
    _gradred_passes: tuple[int, bool] | None
    """See `passes_of`."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """Reduce the gradients over all ranks, then make the optimizer's own step.

        Args:
            grads: gradients, in the same order on all ranks.
            trainable_variables: their variables. None: those that the optimizer was built for.
        """
        gradients = list(grads)
        variables = (
            self._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        passes = passes_of(self)
        if passes is None:
            return super().apply(self._gradred.reduce(gradients, variables), trainable_variables)
        if not self.built:
            with tf.init_scope():
                self.build(variables)
        place = [number for number, one in enumerate(gradients) if one is not None]
        is_last = passes.add([tf.convert_to_tensor(gradients[number]) for number in place])

        def step() -> Any:
            for number, total in zip(place, passes.take(), strict=True):
                gradients[number] = total
            super(Distributed, self).apply(
                self._gradred.reduce(gradients, variables), trainable_variables
            )
            return tf.constant(0)

        def count() -> Any:
            self.iterations.assign_add(1)
            return tf.constant(0)

        return tf.cond(is_last, step, count)

    def register_local_var(self, variable: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._gradred.keep_local([variable])


_KIND: Any = DistributedOfKeras2 if IS_KERAS_2 else Distributed


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make an optimizer of Keras average its gradients over all ranks; returns the same object.

    The object's class becomes a class derived from its own, under the same name, so that a saved
    model names Keras's class. Compile the model with it before `fit`. A model is then compiled
    without XLA, which cannot wait for other ranks.

    Args:
        optimizer: an optimizer of Keras 3, also a `LossScaleOptimizer`; with
            TF_USE_LEGACY_KERAS=1 one of Keras 2 (tf_keras).
        name: no effect.
        device_dense: no effect.
        device_sparse: no effect.
        compression: what is sent, see `Compression`.
        sparse_as_dense: reduce IndexedSlices, as the gradients of embeddings, as dense tensors.
        gradient_predivide_factor: the part of an average's division that is done before the sum.
        op: Average or Sum.
        backward_passes_per_step: number of calls whose gradients are summed on this rank before
            they are reduced, and applied.
        average_aggregated_gradients: divide these sums by that number.
        num_groups: deprecated; use `groups` with a number.
        groups: gradients to reduce together: a number of groups, or lists of variables. None: all
            gradients. Several groups are reduced while others are computed.
        process_set: the ranks that take part. On other ranks gradients stay local.
        scale_local_gradients: divide the gradients of local variables by the number of ranks.

    Raises:
        ValueError: the arguments are invalid.
        TypeError: it is not an optimizer of the Keras in use.
    """
    asked = "DistributedOptimizer"
    kinds = [keras.optimizers.Optimizer]
    if IS_KERAS_2:
        kinds.append(keras.optimizers.legacy.Optimizer)
    if not isinstance(optimizer, tuple(kinds)):
        version = "2" if IS_KERAS_2 else "3"
        kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
        found = f"a {kind} is not a Keras {version} optimizer"
        remedy = f"Pass one of {keras.__name__}.optimizers; for others use DistributedGradientTape"
        raise TypeError(explain(asked, found, remedy))
    if op not in (Average, Sum):
        raise ValueError(explain(asked, f"op={op}", "Use Average or Sum"))
    if backward_passes_per_step <= 0:
        found = f"backward_passes_per_step={backward_passes_per_step}"
        raise ValueError(explain(asked, found, "Pass 1 or more"))
    how = How(
        compression,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        checked_groups(num_groups, groups),
        scale_local_gradients,
    )
    passes = None
    if backward_passes_per_step > 1:
        passes = (backward_passes_per_step, average_aggregated_gradients)
    _wrap(optimizer, GradientReduction(how), passes)
    return optimizer


def PartialDistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like `DistributedOptimizer`, but the gradients of `local_layers` stay local.

    The other arguments are the same. `local_layers` is a layer, or several. They have to be built.
    """
    arguments = dict(locals())
    del arguments["local_layers"]
    made = DistributedOptimizer(**arguments)
    for layer in layers_of(local_layers):
        made._gradred.keep_local(layer.trainable_weights)
    return made


def _wrap(optimizer: Any, reduction: GradientReduction, passes: tuple[int, bool] | None) -> None:
    """Make the object reduce its gradients. Replaces an earlier reduction of the same object."""
    own = _own_class(optimizer)
    body = {
        "__doc__": own.__doc__,
        "__module__": own.__module__,
        # Of the class, so that from_config makes such an optimizer, too.
        "_gradred": reduction,
        "_gradred_passes": passes,
    }
    optimizer.__dict__.pop("_gradred_sums", None)
    object.__setattr__(optimizer, "__class__", type(own.__name__, (_KIND, own), body))
    _adapt_compile()


def _own_class(optimizer: Any) -> type:
    """Keras's or the program's class of an optimizer."""
    kind = type(optimizer)
    return kind.__mro__[2] if issubclass(kind, _KIND) else kind


# ---- models -------------------------------------------------------------------------------------


@functools.cache
def _adapt_compile() -> None:
    """Let all models adapt after `compile`; see `adapt`."""
    # Keras compares a model's method with that of this class.
    owner: Any = next(one for one in keras.Model.__mro__ if "compile" in vars(one))
    own = owner.compile

    @functools.wraps(own)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 (Keras's name)
        made = own(self, *args, **kwargs)
        adapt(self)
        return made

    owner.compile = compile


def adapt(model: Any) -> None:
    """Make a compiled model fit an optimizer that reduces gradients.

    The model is executed without XLA. If Keras has put a `LossScaleOptimizer` around the optimizer,
    that reduces the gradients instead: all ranks then find the same ones finite.
    """
    outer = getattr(model, "optimizer", None)
    inner = getattr(outer, "inner_optimizer", None)
    if isinstance(inner, _KIND) and not isinstance(outer, _KIND):
        reduction, passes = inner._gradred, inner._gradred_passes
        object.__setattr__(inner, "__class__", _own_class(inner))
        _wrap(outer, reduction, passes)
    if isinstance(outer, _KIND) and model.jit_compile:
        model.jit_compile = False
        if basics.is_initialized() and basics.rank() == 0:
            print(
                "gradred: the model is executed without XLA (jit_compile=False), which cannot wait "
                "for other ranks",
                file=sys.stderr,
            )
