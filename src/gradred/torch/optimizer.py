"""An optimizer whose gradients are reduced over all ranks while the backward pass computes them."""

from __future__ import annotations

import copy
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import torch

from gradred.errors import explain
from gradred.torch import adasum, basics
from gradred.torch.basics import Average, size
from gradred.torch.buckets import GradientBucket, buckets_of
from gradred.torch.compression import Compression
from gradred.torch.functions import broadcast_object
from gradred.torch.groups import members_by_parameter
from gradred.torch.mpi_ops import (
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from gradred.torch.process_sets import ProcessSet, global_process_set
from gradred.torch.util import split_list

Parameter: TypeAlias = torch.nn.Parameter

_is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)  # PyTorch 2.1 lacks it


@dataclass(frozen=True)
class _How:
    """How gradients are reduced."""

    compression: Any
    op: int
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    as_buckets: bool


class _DistributedOptimizer(torch.optim.Optimizer):
    """What is added to the class of the wrapped optimizer.

    A hook on each parameter starts the reduction of its gradient when the last backward pass before
    a step has accumulated it; `step` waits for all of them.
    """

    _wrapped: type[torch.optim.Optimizer]  # whose methods do the rest

    def _begin(
        self,
        named_parameters: Iterable[tuple[str, Parameter]] | None,
        backward_passes_per_step: int,
        groups: Any,
        how: _How,
    ) -> None:
        self._how = how
        self._parameter_names = self._named(named_parameters)
        self._requires = {p for p in self._all_parameters() if p.requires_grad}
        self._priorities: dict[Parameter, int] = {}
        self._prioritise()
        self.backward_passes_per_step = backward_passes_per_step
        self._delay = dict.fromkeys(self._all_parameters(), backward_passes_per_step)
        self._handles: dict[Parameter, Any] = {}
        self._group_handles: list[Any] = []
        self._ready: dict[int, int] = {}  # gradients of a group
        self._lacking: dict[Parameter, torch.Tensor] = {}  # see _complete
        self._synchronized, self._should_synchronize = False, True
        self._groups: dict[Parameter, list[Parameter]] = {}
        self._buckets: dict[Parameter, GradientBucket] = {}
        self._agreed: set[GradientBucket] = set()  # whose layout has been compared
        included = how.process_set.included()
        self._reduces = bool(included) and (size() > 1 or basics.is_true("HOROVOD_ELASTIC"))
        lists = self._listed(groups)
        if how.as_buckets:
            if self._reduces:
                # All ranks make the same buckets; the last gradients come first.
                order = [*itertools.chain(*lists)] or self._in_one_order()[::-1]
                self._buckets = {p: one for one in buckets_of(order) for p in one.parameters}
        else:
            self._groups = members_by_parameter(lists, self._requires)
        self._hooks = [self._hook_of(one) for one in self._requires] if self._reduces else []

    def _hook_of(self, parameter: Parameter) -> Any:
        own = weakref.ref(self)  # its hooks must not keep an optimizer that is wrapped anew
        return parameter.register_post_accumulate_grad_hook(
            lambda accumulated: _call_hook(own, accumulated)
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Another one for copies of the parameters, with names and groups as here. Local."""
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        copies = dict(zip(self._all_parameters(), made._all_parameters(), strict=True))
        named = [(self._parameter_names[one], copied) for one, copied in copies.items()]
        together = [one.parameters for one in self._buckets.values()] or self._groups.values()
        lists = {id(members): [copies[one] for one in members] for members in together}
        made._begin(named, self.backward_passes_per_step, list(lists.values()), self._how)
        return made

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer; these parameters' gradients are reduced each alone."""
        self._wrapped.add_param_group(self, param_group)
        if not hasattr(self, "_how"):  # the wrapped optimizer's beginning
            return
        number = len(self.param_groups) - 1
        for index, parameter in enumerate(self.param_groups[-1]["params"]):
            self._parameter_names[parameter] = f"allreduce.added.{number}.{index}"
            self._delay[parameter] = self.backward_passes_per_step
            if parameter.requires_grad:
                self._requires.add(parameter)
                self._hooks += [self._hook_of(parameter)] if self._reduces else []
        self._prioritise()

    def _prioritise(self) -> None:
        """The next forward pass needs the first parameters first: that is how models list them."""
        self._priorities = {p: -index for index, p in enumerate(self._all_parameters())}

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

    def _listed(self, groups: Any) -> list[list[Parameter]]:
        """A number of groups as lists of nearly as many parameters each; that blocks."""
        if not isinstance(groups, int):
            return [] if groups is None else [list(group) for group in groups]
        if groups <= 0:
            remedy = "Pass a positive number, or lists of parameters"
            raise ValueError(explain("DistributedOptimizer(groups=...)", f"got {groups}", remedy))
        return [list(part) for part in split_list(self._in_one_order(), groups)]

    def _in_one_order(self) -> list[Parameter]:
        """Those that get gradients, as the first rank lists them; blocks."""
        parameters = [one for one in self._all_parameters() if one in self._requires]
        if not self._how.process_set.included():
            return parameters
        names = [self._parameter_names[parameter] for parameter in parameters]
        first = (self._how.process_set.ranks or [0])[0]
        order = broadcast_object(names, first, "optimizer.order", self._how.process_set)
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
        if group is None:
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
            if not self._how.sparse_as_dense:
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
        sent, context = self._how.compression.compress(bucket.vector)
        priority = max(self._priorities[one] for one in bucket.parameters)
        handle = allreduce_async_(sent, None, name, *self._reduction(), priority=priority)

        layout = None
        if bucket not in self._agreed:
            self._agreed.add(bucket)
            layout = bucket.compare_layout(name, self._parameter_names, self._how.process_set)

        def finish(result: Any) -> None:
            if layout is not None:
                bucket.require_one_layout(layout, self._parameter_names)
            received = self._how.compression.decompress(result, context)
            if received is not bucket.vector:
                bucket.vector.copy_(received)

        self._handles[parameter] = (handle, finish)

    def _reduction(self) -> tuple[int, float, float, ProcessSet]:
        how = self._how
        return how.op, 1.0 / how.predivide_factor, how.predivide_factor, how.process_set

    def _complete(self, parameter: Parameter) -> torch.Tensor:
        """Its gradient. One that this rank lacks is zeros; or, if it was sparse before, empty.

        For all ranks have to carry out the same operations.
        """
        if parameter.grad is None:
            without = self._lacking.get(parameter)
            parameter.grad = torch.zeros_like(parameter) if without is None else without.clone()
        elif parameter.grad.is_sparse and parameter not in self._lacking:
            found = parameter.grad.coalesce()
            none = (found.indices()[:, :0], found.values()[:0], found.shape)
            self._lacking[parameter] = torch.sparse_coo_tensor(*none, check_invariants=False)
        return parameter.grad

    def _is_sent_sparse(self, parameter: Parameter) -> bool:
        return self._complete(parameter).is_sparse and not self._how.sparse_as_dense

    def _sent(self, parameter: Parameter) -> tuple[torch.Tensor, Callable[[Any], None]]:
        """What travels of its gradient, dense; and what puts the result in its place."""
        gradient = self._complete(parameter)
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        sent, context = self._how.compression.compress(dense)

        def finish(result: Any) -> None:
            received = self._how.compression.decompress(result, context)
            if gradient.is_sparse:
                parameter.grad = received.to_sparse()
            elif received is not gradient:
                gradient.copy_(received)

        return sent, finish

    def _reduce(self, parameter: Parameter) -> tuple[Any, Callable[[Any], None]]:
        name = self._parameter_names[parameter]
        if self._is_sent_sparse(parameter):
            gradient = self._complete(parameter)
            handle = sparse_allreduce_async(gradient, name, self._how.op, self._how.process_set)

            def put(result: Any) -> None:
                parameter.grad = result

            return handle, put
        sent, finish = self._sent(parameter)
        how = self._reduction()
        handle = allreduce_async_(sent, None, name, *how, priority=self._priorities[parameter])
        return handle, finish

    def _reduce_group(self, group: Sequence[Parameter]) -> None:
        dense = []
        for parameter in group:
            if self._is_sent_sparse(parameter):
                self._handles[parameter] = self._reduce(parameter)
            else:
                dense.append(self._sent(parameter))
        if not dense:
            return
        name = "grouped." + self._parameter_names[group[0]]
        sent = [tensor for tensor, _ in dense]
        priority = max(self._priorities[one] for one in group)
        handle = grouped_allreduce_async_(sent, None, name, *self._reduction(), priority=priority)

        def finish(results: Any) -> None:
            for (_, put), result in zip(dense, results, strict=True):
                put(result)

        self._group_handles.append((handle, finish))

    # ---- before and at a step ------------------------------------------------------------------

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes accumulate locally from now on."""
        self.backward_passes_per_step = passes
        self._delay.update(dict.fromkeys(self._delay, passes))

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Those that this rank lacks count as zeros."""
        if not self._reduces:
            self._synchronized = True
            return
        late = [parameter for parameter in self._requires if parameter not in self._handles]
        for parameter in sorted(late, key=self._parameter_names.__getitem__):
            self._start(parameter)
        alone = [found for found in self._handles.values() if found is not None]
        for handle, finish in [*alone, *self._group_handles]:
            finish(synchronize(handle))
        self._begin_anew()
        self._synchronized = True

    def _begin_anew(self) -> None:
        """Nothing is in flight, and no backward pass has been made."""
        self._handles.clear()
        self._group_handles.clear()
        self._ready.clear()
        self._delay.update(dict.fromkeys(self._delay, self.backward_passes_per_step))

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In it `step` does not wait for the gradients: `synchronize` has done that."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Wait for the gradients, then make the wrapped optimizer's step.

        Args:
            closure: computes the loss, and gradients unless there are some: then the step waits for
                those each time that it has been called.
        """
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced once more",
                    stacklevel=2,
                )
            if closure is None or self._handles or self._synchronized:
                self.synchronize()
            if closure is not None:
                closure = self._reducing(closure, not self._synchronized)
        self._synchronized = False
        return self._wrapped.step(self, closure)

    def _reducing(self, closure: Callable[[], Any], computes: bool) -> Callable[[], Any]:
        """It, and the reduction of the gradients: on all ranks, where it `computes` them."""

        def reduced() -> Any:
            loss = closure()
            if computes or self._handles:
                self.synchronize()
                self._synchronized = False
            return loss

        return reduced

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; not between a backward pass and the step that uses it."""
        if self._handles:
            found = "gradients are being reduced"
            remedy = "Call optimizer.step() or optimizer.synchronize() first"
            raise AssertionError(explain("optimizer.zero_grad()", found, remedy))
        self._wrapped.zero_grad(self, set_to_none=set_to_none)

    def load_state_dict(self, state_dict: Any) -> None:
        """As the wrapped optimizer; what is in flight is forgotten."""
        self._begin_anew()
        for bucket in self._buckets.values():
            bucket.begin_anew()
        self._synchronized = False
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
                update, context = self._how.compression.compress(parameter - start)
                name = self._parameter_names[parameter]
                handle = allreduce_async_(update, name=name, op=basics.Adasum)
                handles.append((handle, context))
            for parameter, start, (handle, context) in zip(
                parameters, before, handles, strict=True
            ):
                reduced = self._how.compression.decompress(synchronize(handle), context)
                torch.add(start, reduced, out=parameter.data)
        self._delay.update(dict.fromkeys(self._delay, self.backward_passes_per_step))
        return loss


def _call_hook(own: weakref.ref[Any], parameter: Parameter) -> None:
    optimizer = own()
    if optimizer is None:
        return
    if _is_compiling():  # of a backward pass by compiled autograd
        torch.compiler.disable(optimizer._hook)(parameter)
    else:
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
        groups: gradients that are reduced together, when the last of them is there: a number of
            groups, or lists. An operation takes up to 16 of one type.
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
    wrapped.defaults.update(optimizer.defaults)
    how = _How(
        compression,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
        gradient_as_bucket_view,
    )
    wrapped._begin(named_parameters, backward_passes_per_step, groups, how)
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
