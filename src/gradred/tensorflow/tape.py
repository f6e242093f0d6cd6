"""A gradient tape whose gradients are reduced over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gradred.horovod.basics import Average
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.tensorflow.compression import Compression
from gradred.tensorflow.gradients import GradientReduction, How, checked_groups
from gradred.tensorflow.structures import structure_of


class _DistributedTape(tf.GradientTape):
    """Methods that take precedence over those of the tape's own class."""

    _gradred: GradientReduction

    def gradient(
        self, target: Any, sources: Any, *args: Any, use_generic_names: bool = False, **kwargs: Any
    ) -> Any:
        """The gradients of the target, reduced over all ranks. An eager call blocks.

        Args:
            target: what is differentiated.
            sources: variables or tensors, or a structure of them. All ranks pass the same ones.
            args: further arguments of `tf.GradientTape.gradient`.
            use_generic_names: no effect.
            kwargs: further keyword arguments of `tf.GradientTape.gradient`.
        """
        gradients = super().gradient(target, sources, *args, **kwargs)
        flat = tf.nest.flatten(gradients, expand_composites=False)
        reduced = self._gradred.reduce(flat, tf.nest.flatten(sources), structure_of(gradients))
        return tf.nest.pack_sequence_as(gradients, reduced)

    def register_local_source(self, source: Any) -> None:
        """Keep the gradient of this variable local: it is not reduced."""
        self._gradred.keep_local([source])


def DistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Make a tape reduce the gradients that it computes, and return the same object.

    Args:
        gradtape: a `tf.GradientTape`.
        device_dense: no effect.
        device_sparse: no effect.
        compression: what is sent, see `Compression`.
        sparse_as_dense: reduce IndexedSlices as dense tensors.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: the part of an average's division that is done before the sum.
        num_groups: deprecated; use `groups` with a number.
        groups: gradients to reduce together: a number of groups, or lists of variables. None:
            all gradients. Several groups of one graph are reduced while others are computed.
        process_set: the ranks that take part. On other ranks gradients stay local.
        scale_local_gradients: divide the gradients of local sources by the number of ranks.

    Raises:
        ValueError: the arguments are invalid.
    """
    how = How(
        compression,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        checked_groups(num_groups, groups),
        scale_local_gradients,
    )
    own = type(gradtape)
    if not issubclass(own, _DistributedTape):
        gradtape.__class__ = type(own.__name__, (_DistributedTape, own), {"__doc__": own.__doc__})
    gradtape._gradred = GradientReduction(how)
    return gradtape


def PartialDistributedGradientTape(  # noqa: N802 (Horovod's name)
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Like `DistributedGradientTape`, but the gradients of `local_layers` stay local.

    The other arguments are the same. `local_layers` is a layer of Keras, or several.
    """
    arguments = dict(locals())
    del arguments["local_layers"]
    made = DistributedGradientTape(**arguments)
    for layer in layers_of(local_layers):
        made._gradred.keep_local(layer.trainable_weights)
    return made


def layers_of(given: Any) -> Sequence[Any]:
    """The layers of an argument that takes None, one layer or several."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple, set)) else [given]
