"""An optimizer of PaddlePaddle whose gradients are reduced while the backward pass computes them.

PaddlePaddle calls a function that `_register_backward_hook` has been given after it has added a
gradient to `parameter.grad`. This starts the reduction of the gradient, in place.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import paddle

from gradred.errors import UsageError, explain
from gradred.horovod import basics
from gradred.horovod.basics import Average, size
from gradred.horovod.operations import synchronize
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.paddle.front_end import COLLECTIVES

if TYPE_CHECKING:
    from paddle.optimizer import Optimizer as _Wrapped
else:
    _Wrapped = object

_numbers = itertools.count()  # of the optimizers that have been wrapped


class _Distributed(_Wrapped):
    """Methods that take precedence over those of the wrapped optimizer's own class."""

    _gradred_reduction: GradientReduction

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Gradients that this rank lacks count as zeros.

        The next `step` reduces nothing, unless a backward pass has run in between.
        """
        self._gradred_reduction.synchronize()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Wait until the gradients are reduced, then make the optimizer's own step."""
        self._gradred_reduction.before_step()
        return super().step(*args, **kwargs)

    def minimize(self, *args: Any, **kwargs: Any) -> Any:
        """Wait until the gradients are reduced, then make the optimizer's own step."""
        self._gradred_reduction.before_step()
        return super().minimize(*args, **kwargs)

    def clear_grad(self, *args: Any, **kwargs: Any) -> Any:
        """Clear the gradients. Do not call it between a backward pass and the step using it."""
        self._gradred_reduction.require_none_in_flight("optimizer.clear_grad()")
        return super().clear_grad(*args, **kwargs)

    clear_gradients = clear_grad


class GradientReduction:
    """Reduces the gradients of parameters over all ranks.

    `passes` backward passes accumulate locally before a reduction under the names.
    """

    def __init__(
        self, names: dict[Any, str], passes: int, op: int, process_set: ProcessSet
    ) -> None:
        self._names, self._passes, self._op, self._set = names, passes, op, process_set
        # The next forward pass needs the first parameters first.
        self._priorities = {one: -index for index, one in enumerate(names)}
        self._left = dict.fromkeys(names, passes)  # backward passes before the reduction
        self._handles: dict[Any, int] = {}
        self._reduced = False  # by `synchronize`, since the last backward pass
        self._problem: Exception | None = None  # what the backward pass has met
        self._on = process_set.takes_part() and size() > 1
        for parameter in names if self._on else ():
            if parameter.stop_gradient:
                continue  # frozen: if the program unfreezes it later, `synchronize` reduces it
            # Hooks cannot be removed, and must not keep the optimizer alive.
            hook = functools.partial(_call_hook, weakref.ref(self), weakref.ref(parameter))
            parameter._register_backward_hook(hook)

    def end(self) -> None:
        """Start no more reductions."""
        self._on = False

    def hook(self, parameter: Any) -> None:
        """Start the reduction if this was the last backward pass before a step.

        PaddlePaddle would continue after an exception, and raise it without its text. So
        `synchronize` raises it.
        """
        if self._on and self._problem is None:
            try:
                self._count(parameter)
            except Exception as error:
                self._problem = error

    def _count(self, parameter: Any) -> None:
        if self._left[parameter] == 0:
            found = (
                f"the gradient of {self._names[parameter]!r} was computed more than "
                "backward_passes_per_step times since the last step of that optimizer"
            )
            remedy = (
                "Call its step() or synchronize() after each backward pass, or raise "
                "backward_passes_per_step to accumulate gradients locally"
            )
            raise UsageError("the backward pass before optimizer.step()", found, remedy)
        self._reduced = False
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            self._start(parameter)

    def _start(self, parameter: Any) -> None:
        gradient = self._gradient_of(parameter)
        how = (self._op, 1.0, 1.0, self._set, self._priorities[parameter])
        name = self._names[parameter]
        self._handles[parameter] = COLLECTIVES.allreduce(gradient, gradient, name, *how)

    def _gradient_of(self, parameter: Any) -> paddle.Tensor:
        """The parameter's gradient in C order, made of zeros if there is none."""
        if parameter.grad is None:
            parameter.grad = paddle.zeros_like(parameter)
        elif parameter.grad.is_dense() and not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()  # ranks may have other orders of axes
        return parameter.grad

    def before_step(self) -> None:
        """Reduce the gradients, unless `synchronize` has done so."""
        if not self._reduced:
            self.synchronize()
        self._reduced = False

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Raises what the backward pass has met."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        for parameter in self._names if self._on else ():
            if parameter not in self._handles and not parameter.stop_gradient:
                self._start(parameter)
        handles, self._handles = self._handles, {}
        self._left = dict.fromkeys(self._names, self._passes)
        for handle in handles.values():
            synchronize(handle)
        self._reduced = True

    def require_none_in_flight(self, asked: str) -> None:
        """Raise UsageError between a backward pass and the step that uses its gradients."""
        if self._handles:
            found = "gradients are being reduced"
            raise UsageError(asked, found, "Call optimizer.step() or optimizer.synchronize() first")


def _call_hook(own: weakref.ref[GradientReduction], of: weakref.ref[Any]) -> None:
    reduction, parameter = own(), of()
    if reduction is not None and parameter is not None:
        reduction.hook(parameter)


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: Any,
    named_parameters: Iterable[tuple[str, Any]] | None = None,
    backward_passes_per_step: int = 1,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Make an optimizer average its gradients over all ranks, and return the same object.

    Reductions start while the backward pass runs, and `step` or `minimize` waits for them. The
    object's class becomes a class derived from its own, of the same name. Wrapping it a second
    time replaces the arguments of the first time. All ranks wrap their optimizers in one order.

    Args:
        optimizer: an optimizer of PaddlePaddle, in dynamic mode.
        named_parameters: `model.named_parameters()`, for the names in reports of waiting ranks.
            None: the parameters are named by position.
        backward_passes_per_step: number of backward passes that accumulate locally before a
            reduction. Their sum is reduced.
        op: Average or Sum.
        process_set: the ranks that take part. Other ranks run the plain optimizer.

    Raises:
        ValueError: the arguments are invalid.
        gradred.UsageError: static mode is on.
    """
    _check(backward_passes_per_step, op)
    given = optimizer._parameter_list
    parameters = [
        one for part in given for one in (part["params"] if isinstance(part, dict) else [part])
    ]
    names = _named(parameters, named_parameters)
    if isinstance(optimizer, _Distributed):
        optimizer._gradred_reduction.end()
    else:
        optimizer.__class__ = _class_of(type(optimizer))
    optimizer._gradred_reduction = GradientReduction(
        names, backward_passes_per_step, op, process_set
    )
    return optimizer


def _check(passes: int, op: int) -> None:
    asked = "DistributedOptimizer"
    if not paddle.in_dynamic_mode():
        found = "static mode has no gradients that a program could reach"
        raise UsageError(asked, found, "Call paddle.disable_static()")
    if passes <= 0:
        found = f"backward_passes_per_step={passes}"
        raise ValueError(explain(asked, found, "Pass 1 or more"))
    if op not in (Average, basics.Sum):
        raise ValueError(explain(asked, f"op={op}", "Use Average or Sum"))


def _named(parameters: list[Any], named: Iterable[tuple[str, Any]] | None) -> dict[Any, str]:
    """The parameters, with names that are unique among optimizers."""
    number = next(_numbers)
    known = {} if named is None else {id(one): name for name, one in named}
    if named is not None and any(id(one) not in known for one in parameters):
        asked = "DistributedOptimizer(named_parameters=...)"
        found = "a parameter of the optimizer has no name"
        raise ValueError(explain(asked, found, "Name all parameters of the optimizer"))
    return {
        one: f"optimizer {number}, {known.get(id(one), f'parameter {place}')}"
        for place, one in enumerate(parameters)
    }


def _class_of(own: type) -> type:
    """A class of the same name, derived from `own`, with the methods of `_Distributed`."""
    return type(own.__name__, (_Distributed, own), {"__doc__": own.__doc__, "__module__": __name__})
