"""An optimizer whose gradients are reduced over all ranks while the backward pass computes them."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias

import torch

from gradred.errors import explain
from gradred.torch import adasum, basics
from gradred.torch.basics import Average, size
from gradred.torch.buckets import GradientBucket, buckets_of
from gradred.torch.compression import Compression
from gradred.torch.functions import broadcast_object
from gradred.torch.mpi_ops import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from gradred.torch.process_sets import ProcessSet, global_process_set

Parameter: TypeAlias = torch.nn.Parameter


class _DistributedOptimizer(torch.optim.Optimizer):
    """What is added to the class of the wrapped optimizer.

    A hook on each parameter starts the reduction of its gradient when the last backward pass before
    a step has accumulated it; `step` waits for all of them.
    """

    _wrapped: type[torch.optim.Optimizer]  # whose methods do the rest

    def _begin(
        self,
        named_parameters: Iterable[tuple[str, Parameter]] | None,
        compression: Any,
        backward_passes_per_step: int,
        op: int,
        gradient_predivide_factor: float,
        groups: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
        gradient_as_bucket_view: bool,
    ) -> None:
        self._compression, self._op, self._set = compression, op, process_set
        self._sparse_as_dense = sparse_as_dense
        self._predivide = gradient_predivide_factor
        self._parameter_names = self._named(named_parameters)
        self.backward_passes_per_step = backward_passes_per_step
        self._delay = dict.fromkeys(self._all_parameters(), backward_passes_per_step)
        self._handles: dict[Parameter, Any] = {}
        self._synchronized, self._should_synchronize = False, True
        self._requires = {p for p in self._all_parameters() if p.requires_grad}
        self._groups = self._grouped(groups)
        self._buckets: dict[Parameter, GradientBucket] = {}
        self._ready: dict[int, int] = {}  # gradients of a group
        included = process_set.included()
        self._reduces = bool(included) and (size() > 1 or basics.is_true("HOROVOD_ELASTIC"))
        self._hooks = []
        if self._reduces and gradient_as_bucket_view:
            # All ranks make the same buckets, of one rank's order; the last gradients come first.
            order = self._in_one_order([p for p in self._all_parameters() if p.requires_grad])
            self._buckets = {p: one for one in buckets_of(order[::-1]) for p in one.parameters}
        if self._reduces:
            own = weakref.ref(self)  # its hooks must not keep an optimizer that is wrapped anew
            for parameter in self._requires:
                hook = parameter.register_post_accumulate_grad_hook(
                    lambda accumulated: _call_hook(own, accumulated)
                )
                self._hooks.append(hook)

    def _all_parameters(self) -> Iterator[Parameter]:
        for group in self.param_groups:
            yield from group["params"]

    def _named(self, named: Iterable[tuple[str, Parameter]] | None) -> dict[Parameter, str]:
        asked = "DistributedOptimizer(named_parameters=...)"
        if named is None:
            return {
                parameter: f"allreduce.noname.{i}.{j}"
                for i, group in enumerate(self.param_groups)
                for j, parameter in enumerate(group["params"])
            }
        pairs = list(named)
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            remedy = "Pass model.named_parameters()"
            raise ValueError(explain(asked, "there is something other than a pair", remedy))
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            double = sorted({name for name in names if names.count(name) > 1})
            remedy = "Give each parameter a name of its own"
            raise ValueError(explain(asked, f"names come twice: {', '.join(double)}", remedy))
        found = {parameter: name for name, parameter in pairs}
        if any(parameter not in found for parameter in self._all_parameters()):
            remedy = "Name all parameters of the optimizer"
            raise ValueError(explain(asked, "a parameter of the optimizer has no name", remedy))
        return found

    def _grouped(self, groups: Any) -> dict[Parameter, list[Parameter]]:
        """By parameter, those whose gradients are reduced as one operation."""
        if groups is None:
            return {}
        asked, wanted = "DistributedOptimizer(groups=...)", list(self._all_parameters())
        if isinstance(groups, int):
            if groups <= 0:
                remedy = "Pass a positive number, or lists of parameters"
                raise ValueError(explain(asked, f"got {groups}", remedy))
            wanted = self._in_one_order(wanted)
            each, more = divmod(len(wanted), groups)
            lists, begin = [], 0
            for number in range(groups):
                end = begin + each + (number < more)
                lists.append(wanted[begin:end])
                begin = end
        else:
            lists = [list(group) for group in groups]
        made: dict[Parameter, list[Parameter]] = {}
        for group in lists:
            for parameter in group:
                if not isinstance(parameter, torch.Tensor):
                    remedy = "Pass lists of parameters"
                    raise ValueError(explain(asked, "a group has something else in it", remedy))
                if parameter in made:
                    remedy = "Put each into one group"
                    raise ValueError(explain(asked, "a parameter is in two groups", remedy))
                made[parameter] = group
        return made

    def _in_one_order(self, parameters: Sequence[Parameter]) -> list[Parameter]:
        """As the first rank has them; blocks."""
        if not self._set.included():
            return list(parameters)
        names = [self._parameter_names[parameter] for parameter in parameters]
        first = (self._set.ranks or [0])[0]
        order = broadcast_object(names, first, "optimizer.order", self._set)
        if sorted(order) != sorted(names):
            odd = ", ".join(sorted(set(order) ^ set(names))[:6])
            found = f"this rank and rank {first} have other parameters: {odd}"
            remedy = "Build the same model on all ranks"
            raise ValueError(explain("DistributedOptimizer", found, remedy))
        by_name = dict(zip(names, parameters, strict=True))
        return [by_name[name] for name in order]

    # ---- while the backward pass runs ----------------------------------------------------------

    def _hook(self, parameter: Parameter) -> None:
        if self._delay[parameter] <= 0:
            found = "a gradient was computed more than backward_passes_per_step times"
            remedy = "Raise backward_passes_per_step to accumulate gradients locally"
            raise AssertionError(
                explain("the backward pass before optimizer.step()", found, remedy)
            )
        self._delay[parameter] -= 1
        if self._delay[parameter] == 0:
            self._start(parameter)

    def _start(self, parameter: Parameter) -> None:
        if parameter in self._buckets:
            self._start_in_bucket(parameter)
            return
        group = self._groups.get(parameter)
        if group is None or parameter.grad is None or parameter.grad.is_sparse:
            self._handles[parameter] = self._reduce(parameter)
            return
        self._handles[parameter] = None  # it waits for its group
        self._ready[id(group)] = self._ready.get(id(group), 0) + 1
        if self._ready[id(group)] == len(group):
            self._ready[id(group)] = 0
            self._reduce_group(group)

    def _start_in_bucket(self, parameter: Parameter) -> None:
        bucket = self._buckets[parameter]
        if parameter.grad is not None and parameter.grad.is_sparse:
            if not self._sparse_as_dense:
                name = self._parameter_names[parameter]
                remedy = "Pass sparse_as_dense=True, or leave gradient_as_bucket_view out"
                found = f"the gradient of {name} is sparse, and a bucket's are dense"
                raise ValueError(explain("gradient_as_bucket_view", found, remedy))
            parameter.grad = parameter.grad.to_dense()
        self._handles[parameter] = None  # it waits for its bucket
        if not bucket.take(parameter):
            return
        bucket.begin_anew()
        name = "bucket." + self._parameter_names[bucket.parameters[0]]
        sent, context = self._compression.compress(bucket.vector)
        handle = allreduce_async_(sent, None, name, self._op, *self._scales(), self._set)

        def finish(result: Any) -> None:
            received = self._compression.decompress(result, context)
            if received is not bucket.vector:
                bucket.vector.copy_(received)

        self._handles[parameter] = (handle, finish)

    def _scales(self) -> tuple[float, float]:
        return 1.0 / self._predivide, self._predivide

    def _reduce(self, parameter: Parameter) -> tuple[Any, Callable[[Any], None]]:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        name, gradient = self._parameter_names[parameter], parameter.grad
        if gradient.is_sparse and not self._sparse_as_dense:
            handle = sparse_allreduce_async(gradient, name, self._op, self._set)

            def put(result: Any) -> None:
                parameter.grad = result

            return handle, put
        was_sparse = gradient.is_sparse
        dense = gradient.to_dense() if was_sparse else gradient
        sent, context = self._compression.compress(dense)
        handle = allreduce_async_(sent, None, name, self._op, *self._scales(), self._set)

        def finish(result: Any) -> None:
            received = self._compression.decompress(result, context)
            if was_sparse:
                parameter.grad = received.to_sparse()
            elif received is not gradient:
                gradient.copy_(received)

        return handle, finish

    def _reduce_group(self, group: Sequence[Parameter]) -> None:
        for parameter in group:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        pairs = [self._compression.compress(parameter.grad) for parameter in group]
        name = "grouped." + self._parameter_names[group[0]]
        sent = [tensor for tensor, _ in pairs]
        handle = grouped_allreduce_async_(sent, None, name, self._op, *self._scales(), self._set)

        def finish(results: Any) -> None:
            for parameter, result, (_, context) in zip(group, results, pairs, strict=True):
                received = self._compression.decompress(result, context)
                if received is not parameter.grad and parameter.grad is not None:
                    parameter.grad.copy_(received)

        for parameter in group:
            self._handles[parameter] = None
        self._handles[group[0]] = (handle, finish)

    # ---- before and at a step ------------------------------------------------------------------

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes accumulate locally from now on."""
        self.backward_passes_per_step = passes
        for parameter in self._delay:
            self._delay[parameter] = passes

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Those that this rank lacks count as zeros."""
        if not self._reduces:
            self._synchronized = True
            return
        late = [parameter for parameter in self._requires if parameter not in self._handles]
        for parameter in sorted(late, key=self._parameter_names.__getitem__):
            self._start(parameter)
        for handle, finish in [found for found in self._handles.values() if found is not None]:
            finish(synchronize(handle))
        self._handles.clear()
        self._ready.clear()
        for parameter in self._delay:
            self._delay[parameter] = self.backward_passes_per_step
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In it `step` does not wait for the gradients: `synchronize` has done that."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Wait for the gradients, then make the wrapped optimizer's step."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced once more",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return self._wrapped.step(self, closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; not between a backward pass and the step that uses it."""
        if self._handles:
            found = "gradients are being reduced"
            remedy = "Call optimizer.step() or optimizer.synchronize() first"
            raise AssertionError(explain("optimizer.zero_grad()", found, remedy))
        self._wrapped.zero_grad(self, set_to_none=set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the wrapped optimizer; what is in flight is forgotten."""
        self._handles.clear()
        self._ready.clear()
        for bucket in self._buckets.values():
            bucket.begin_anew()
        self._synchronized = False
        for parameter in self._delay:
            self._delay[parameter] = self.backward_passes_per_step
        self._wrapped.load_state_dict(self, state_dict)


class _AdasumOptimizer(_DistributedOptimizer):
    """Each rank makes the wrapped optimizer's step of its own gradients, on trial.

    What these change in the parameters is reduced, by Adasum, and put in place of the trial.
    """

    def _hook(self, parameter: Parameter) -> None:
        if self._delay[parameter] <= 0:
            _DistributedOptimizer._hook(self, parameter)  # which raises
        self._delay[parameter] -= 1

    def synchronize(self) -> None:
        """Nothing: gradients are not reduced."""

    def skip_synchronize(self) -> NoReturn:
        """Not with Adasum: raises AssertionError."""
        found = "gradients are not reduced before a step"
        raise AssertionError(explain("skip_synchronize", found, "Leave it out with op=Adasum"))

    def step(self, closure: Any = None) -> Any:
        """Make the wrapped optimizer's step, and the sum of all ranks' steps of it: blocks."""
        parameters = [one for one in self._all_parameters() if one in self._requires]
        before = [parameter.detach().clone() for parameter in parameters]
        loss = self._wrapped.step(self, closure)
        handles = []
        with torch.no_grad():
            for parameter, start in zip(parameters, before, strict=True):
                update, context = self._compression.compress(parameter - start)
                name = self._parameter_names[parameter]
                handle = allreduce_async_(update, name=name, op=basics.Adasum)
                handles.append((handle, context))
            for parameter, start, (handle, context) in zip(
                parameters, before, handles, strict=True
            ):
                reduced = self._compression.decompress(synchronize(handle), context)
                torch.add(start, reduced, out=parameter.data)
        self._delay.update(dict.fromkeys(self._delay, self.backward_passes_per_step))
        return loss


def _call_hook(own: weakref.ref[Any], parameter: Parameter) -> None:
    optimizer = own()
    if optimizer is not None:
        optimizer._hook(parameter)


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
) -> Any:
    """An optimizer of the same class, whose gradients are averaged over all ranks.

    Reductions begin while the backward pass runs; `step` waits for them.

    Args:
        optimizer: the one to wrap; its parameter groups are taken over, its state is not.
        named_parameters: `model.named_parameters()`; None names them by their places.
        compression: what travels, see `Compression`.
        backward_passes_per_step: so many accumulate locally before a reduction.
        op: Average, Sum, or Adasum, of the steps that ranks make each by themselves.
        gradient_predivide_factor: of an average: so much of the division comes before the sum.
        num_groups: deprecated; `groups` with a number.
        groups: gradients that are reduced as one operation: a number of groups, or lists.
        sparse_as_dense: sparse gradients are reduced as dense ones.
        process_set: the ranks that take part; others run the plain optimizer.
        gradient_as_bucket_view: gradients lie behind each other in memory that other ranks read
            (`gradred.empty`), some MiB of them are one operation, and nothing is copied. A step
            then has gradients where they were before; those that `zero_grad` has set to None are
            copied there after the backward pass. Not Horovod's; no sparse gradients, no `groups`.

    Raises:
        ValueError: the arguments do not fit.
    """
    groups_given = groups is not None or num_groups > 0
    _check(
        op,
        backward_passes_per_step,
        gradient_predivide_factor,
        groups_given,
        gradient_as_bucket_view,
    )
    if num_groups:
        warnings.warn("num_groups is deprecated: pass groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if op == basics.Adasum and size() > 1:
        adasum.check(process_set)
        added: Any = _AdasumOptimizer
    else:
        added = _DistributedOptimizer
    made = _class_with(optimizer.__class__, added)
    wrapped: Any = made.__new__(made)
    made._wrapped.__init__(wrapped, optimizer.param_groups)
    wrapped._begin(
        named_parameters,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        groups,
        sparse_as_dense,
        process_set,
        gradient_as_bucket_view,
    )
    return wrapped


def _check(
    op: int, passes: int, predivide_factor: float, groups_given: bool, as_buckets: bool
) -> None:
    asked = "DistributedOptimizer"
    if as_buckets and groups_given:
        found = "groups and gradient_as_bucket_view are two ways to reduce gradients together"
        raise ValueError(explain(asked, found, "Use one of them"))
    if predivide_factor != 1.0 and op != Average:
        remedy = "Use op=Average"
        raise ValueError(explain(asked, "gradient_predivide_factor goes with Average", remedy))
    if passes <= 0:
        found = f"backward_passes_per_step={passes}"
        raise ValueError(explain(asked, found, "Pass 1 or more"))
    if op == basics.Adasum and as_buckets:
        found = "Adasum reduces each parameter's update, not gradients"
        raise ValueError(explain(asked, found, "Leave gradient_as_bucket_view out"))


def _class_with(base: type, added: type) -> Any:
    """A class like `base`, by its name, with the methods of `added`; `base` is its `_wrapped`."""
    body = {
        name: value
        for kind in (_DistributedOptimizer, added)
        for name, value in vars(kind).items()
        if name not in ("__dict__", "__weakref__", "__module__", "__doc__")
    }
    return type(base.__name__, (base,), {**body, "_wrapped": base, "__doc__": base.__doc__})
