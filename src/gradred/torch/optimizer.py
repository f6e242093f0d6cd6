"""An optimizer whose gradients are reduced over all ranks while the backward pass computes them."""

from __future__ import annotations

import copy
import functools
import pickle
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gradred.errors import explain
from gradred.horovod import adasum, basics
from gradred.horovod.basics import Average, size
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.torch.compression import Compression, GatheredCompressor, OwingWire
from gradred.torch.gradients import AdasumReduction, GradientReduction, How, Parameter
from gradred.torch.leaf_gradients import LeafReduction
from gradred.torch.wire_gradients import WireReduction

if TYPE_CHECKING:
    from torch.optim import Optimizer as _Wrapped

    from gradred.leaves import LeavesLike
else:
    _Wrapped = object


_SUMS = "Use op=Average or op=Sum"


class _Distributed(_Wrapped):
    """Methods that take precedence over those of the wrapped optimizer's own class."""

    _gradred_reduction: GradientReduction
    _gradred_own_step: Callable[..., Any] | None = None  # set on the object before it was wrapped

    @property
    def _parameter_names(self) -> dict[Parameter, str]:
        return self._gradred_reduction.names

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that accumulate locally before a reduction."""
        return self._gradred_reduction.passes

    @backward_passes_per_step.setter
    def backward_passes_per_step(self, passes: int) -> None:
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set how many backward passes accumulate locally before a reduction."""
        self._gradred_reduction.set_passes(passes)

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Gradients that this rank lacks count as zeros."""
        self._gradred_reduction.take_in(self.param_groups)
        self._gradred_reduction.synchronize()

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Context in which `step` does not reduce gradients, as `synchronize` has done so."""
        return self._gradred_reduction.skip_synchronize()

    def step(self, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Wait until the gradients are reduced, then make the optimizer's own step.

        Args:
            closure: computes the loss. If no gradients were computed before the step, the closure
                computes them as well. The step then waits for their reduction after each call.
            args: further arguments of the optimizer's own step.
            kwargs: further keyword arguments of the optimizer's own step.
        """
        own = self._gradred_own_step or super().step
        is_closure = callable(closure)  # else None, or an argument of the optimizer's own step

        def make(reducing: Any) -> Any:
            first = reducing if is_closure else closure
            given = () if first is None and not args else (first, *args)
            return own(*given, **kwargs)

        self._gradred_reduction.take_in(self.param_groups)
        return self._gradred_reduction.step(make, closure if is_closure else None)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients. Do not call it between a backward pass and the step using it."""
        self._gradred_reduction.require_none_in_flight("optimizer.zero_grad()")
        super().zero_grad(*args, **kwargs)

    def add_param_group(self, *args: Any, **kwargs: Any) -> None:
        """Add a parameter group. The gradients of its parameters are reduced one by one."""
        super().add_param_group(*args, **kwargs)
        self._gradred_reduction.take_in(self.param_groups)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Load a state. Reductions in flight are discarded."""
        self._gradred_reduction.forget()
        super().load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the optimizer and its parameters, with the same names and groups. Local."""
        self._gradred_reduction.take_in(self.param_groups)
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        copies = dict(zip(_parameters_of(self), _parameters_of(made), strict=True))
        made._gradred_reduction = self._gradred_reduction.for_copies(copies)
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        found = "reductions are of this process"
        remedy = "Save optimizer.state_dict(), and wrap the optimizer of the other process"
        raise pickle.PicklingError(explain("pickle of a DistributedOptimizer", found, remedy))


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    gradient_as_bucket_view: bool = False,
    leaves: LeavesLike | None = None,
) -> Any:
    """Make an optimizer average its gradients over all ranks, and return the same object.

    Reductions start while the backward pass runs, and `step` waits for them. The object's class
    becomes a class derived from its own. It keeps its state, options, attributes, hooks and
    schedulers. Wrapping it a second time replaces the arguments of the first time.

    Args:
        optimizer: the optimizer to wrap, of any class.
        named_parameters: `model.named_parameters()`. None: parameters are named by position.
        compression: what is sent, see `Compression`.
        backward_passes_per_step: number of backward passes that accumulate locally before a
            reduction.
        op: Average, Sum, or Adasum. Adasum combines the steps that the ranks make separately.
        gradient_predivide_factor: the part of an average's division that is done before the sum.
        num_groups: deprecated; use `groups` with a number.
        groups: gradients to reduce together once all of them are computed: a number of groups, or
            lists of parameters. One operation takes up to 16 tensors of one type.
        sparse_as_dense: reduce sparse gradients as dense ones.
        process_set: the ranks that take part. Other ranks run the plain optimizer.
        gradient_as_bucket_view: store gradients contiguously in shared arrays (`gradred.empty`),
            which other ranks read directly. One operation reduces some MiB of them. Gradients
            keep their memory from step to step. If `zero_grad` has set a gradient to None, the
            new one is copied there after the backward pass. Sparse gradients need
            `sparse_as_dense`, and `groups` is not supported. Horovod has no such argument.
        leaves: the number of backward passes of each rank before a step, or a list with a number
            for each rank. A fixed binary tree adds up the gradients of all passes of all ranks, so
            that the bits do not depend on the number of ranks. A parameter has a gradient in each
            pass, or in none. Until `synchronize` or `step` gradients are None; clip them after
            `synchronize`. The call compares the ranks' values, blocking. It takes the place of
            `backward_passes_per_step`. Horovod has no such argument.

    Raises:
        ValueError: the arguments are invalid.
    """
    how = How(
        compression,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        gradient_as_bucket_view,
        type(optimizer).__name__,
        leaves,
    )
    _check(how, backward_passes_per_step, groups is not None or num_groups > 0)
    if num_groups:
        warnings.warn("num_groups is deprecated: pass groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    kind = WireReduction if isinstance(compression, OwingWire) else GradientReduction
    if op == basics.Adasum and size() > 1:
        adasum.check(process_set)
        kind = AdasumReduction
    if leaves is not None:
        kind = LeafReduction
    passes = backward_passes_per_step
    _wrap(optimizer, kind(optimizer.param_groups, named_parameters, passes, groups, how))
    return optimizer


def _check(how: How, passes: int, groups_given: bool) -> None:
    """Raise ValueError for arguments that contradict each other."""
    adds_up, is_adasum = how.op in (Average, basics.Sum), how.op == basics.Adasum
    is_gathered = isinstance(how.compression, GatheredCompressor)
    is_divided, has_leaves = how.predivide_factor != 1.0, how.leaves is not None
    is_plain = how.compression is Compression.none and not (groups_given or how.as_buckets)
    owes = isinstance(how.compression, OwingWire)
    is_of_all = how.process_set is global_process_set
    without_buckets = "Leave gradient_as_bucket_view out"
    for is_wrong, found, remedy in (
        (is_gathered and not adds_up, "gathered gradients are added up", _SUMS),
        (
            is_gathered and how.as_buckets,
            "compressed gradients are gathered one by one",
            without_buckets,
        ),
        (
            how.as_buckets and groups_given,
            "groups and gradient_as_bucket_view are two ways to reduce gradients together",
            "Use one of them",
        ),
        (
            is_divided and how.op != Average,
            "gradient_predivide_factor goes with Average",
            "Use op=Average",
        ),
        (passes <= 0, f"backward_passes_per_step={passes}", "Pass 1 or more"),
        (
            is_adasum and how.as_buckets,
            "Adasum reduces each parameter's update, not gradients",
            without_buckets,
        ),
        (
            owes and (groups_given or how.as_buckets or is_divided or not (adds_up and is_of_all)),
            "a wire with feedback averages all gradients of all ranks together",
            f"{_SUMS}, without groups, gradient_predivide_factor, gradient_as_bucket_view and "
            "process_set",
        ),
        (
            has_leaves and not (adds_up and is_plain and not is_divided),
            "leaves are sums of gradients",
            f"{_SUMS}, without compression, groups, gradient_predivide_factor and "
            "gradient_as_bucket_view",
        ),
        (
            has_leaves and passes != 1,
            "leaves is the number of backward passes, too",
            "Leave backward_passes_per_step out",
        ),
    ):
        if is_wrong:
            raise ValueError(explain("DistributedOptimizer", found, remedy))


def _wrap(optimizer: Any, reduction: GradientReduction) -> None:
    """Make the object reduce its gradients. Replaces an earlier reduction of the same object."""
    if isinstance(optimizer, _Distributed):
        optimizer._gradred_reduction.end()
    else:
        own_step = vars(optimizer).get("step")  # schedulers set it on the object
        optimizer.__class__ = _class_of(type(optimizer))
        if own_step is not None:
            optimizer._gradred_own_step = own_step
            is_bound = isinstance(own_step, types.MethodType)  # else: avoid a reference cycle
            owner = optimizer if is_bound else weakref.proxy(optimizer)
            optimizer.step = types.MethodType(_like(own_step, _Distributed.step), owner)
    optimizer._gradred_reduction = reduction


def _class_of(own: type) -> type:
    """A class of the same name, derived from `own`, with the methods of `_Distributed`."""
    names = ("step", "zero_grad", "add_param_group", "load_state_dict")
    body: dict[str, Any] = {"__doc__": own.__doc__, "__module__": __name__}
    for name in names:
        if hasattr(own, name):
            body[name] = _like(getattr(own, name), getattr(_Distributed, name))
    return type(own.__name__, (_Distributed, own), body)


def _like(own: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with the signature of `own` and the attributes that PyTorch set on `own`."""

    @functools.wraps(own)
    def alike(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return alike
