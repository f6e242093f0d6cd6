"""Reduction of an optimizer's gradients while the backward pass computes them."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch

from gradred.errors import UsageError, explain
from gradred.horovod import basics
from gradred.horovod.basics import size
from gradred.horovod.objects import broadcast_object
from gradred.horovod.process_sets import ProcessSet
from gradred.horovod.settings import is_true
from gradred.horovod.util import split_list
from gradred.horovod.wires import wire_of
from gradred.torch.buckets import GradientBucket, buckets_of
from gradred.torch.compression import Compression, GatheredCompressor
from gradred.torch.groups import members_by_parameter
from gradred.torch.mpi_ops import (
    allgather_async,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)

if TYPE_CHECKING:
    from gradred.leaves import LeavesLike

Parameter: TypeAlias = torch.nn.Parameter
ParamGroups: TypeAlias = Sequence[Mapping[str, Any]]

_is_compiling = getattr(torch.compiler, "is_compiling", lambda: False)  # PyTorch 2.1 lacks it


@dataclass(frozen=True)
class How:
    """Settings of the reduction; see the arguments of `DistributedOptimizer`."""

    compression: Any
    op: int
    predivide_factor: float
    sparse_as_dense: bool
    process_set: ProcessSet
    as_buckets: bool
    optimizer: str  # the name of its class, for messages
    leaves: LeavesLike | None = None


_started: dict[tuple[int, str], weakref.ref[GradientReduction]] = {}
"""The reductions started and not yet waited for, by the engine's id and the parameter's name."""

_users: dict[int, list[weakref.ref[GradientReduction]]] = {}
"""The reductions started and not yet waited for, by the id of the parameter."""

_clashed: weakref.WeakSet[GradientReduction] = weakref.WeakSet()
"""Both of two reductions that met in a name or a gradient, until they begin anew.

Tracebacks keep them alive in a notebook, when optimizers made later have taken their place.
"""


class GradientReduction:
    """Reduces the gradients of an optimizer's parameters over all ranks.

    Each parameter has a hook. After the last backward pass before a step, the hook starts the
    reduction of the accumulated gradient. `step` waits for all reductions.

    Args:
        param_groups: parameter groups of the optimizer.
        named: pairs of names and parameters. None: parameters are named by position.
        passes: number of backward passes that accumulate locally before a reduction.
        groups: number of groups, or lists of parameters, whose gradients are reduced together.
        how: all other settings.

    Raises:
        ValueError: the arguments are invalid.
    """

    def __init__(
        self,
        param_groups: ParamGroups,
        named: Iterable[tuple[str, Parameter]] | None,
        passes: int,
        groups: Any,
        how: How,
    ) -> None:
        self._self = weakref.ref(self)
        self._how = how
        self.passes = passes
        self.names = _named(param_groups, named)
        parameters = [one for group in param_groups for one in group["params"]]
        # The next forward pass needs the first parameters first, as models list them in that order.
        self._priorities = {p: -index for index, p in enumerate(parameters)}
        for other in [one for one in _clashed if one.meets(self.names)]:
            other.end()
        # Number of backward passes left before the reduction, of each parameter with a gradient.
        self._left = {p: passes for p in parameters if p.requires_grad}
        self._handles: dict[Parameter, Any] = {}
        self._claimed: list[tuple[int, str]] = []  # this object's keys in `_started`
        self._group_handles: list[Any] = []
        self._ready: dict[int, int] = {}  # number of gradients computed, by id of the group
        self._lacking: dict[Parameter, torch.Tensor] = {}  # empty sparse gradients, see _complete
        self._synchronized, self._waits = False, True
        self._groups: dict[Parameter, list[Parameter]] = {}
        self._buckets: dict[Parameter, GradientBucket] = {}
        self._agreed: set[GradientBucket] = set()  # buckets whose layout was compared
        takes_part = how.process_set.takes_part()
        needed = size() > 1 or how.leaves is not None or is_true("HOROVOD_ELASTIC")
        self._reduces = takes_part and needed
        lists = self._listed(groups)
        if how.as_buckets:
            if self._reduces:
                # All ranks make the same buckets. Backward passes compute the last gradients first.
                order = [*itertools.chain(*lists)] or self._in_one_order()[::-1]
                self._buckets = {p: one for one in buckets_of(order) for p in one.parameters}
        else:
            self._groups = members_by_parameter(lists, self._left)
        self._hooks = [self._hook_of(one) for one in self._left] if self._reduces else []

    def _hook_of(self, parameter: Parameter) -> Any:
        own = self._self  # a weak reference: hooks must not keep the optimizer alive
        return parameter.register_post_accumulate_grad_hook(
            lambda accumulated: _call_hook(own, accumulated)
        )

    def take_in(self, param_groups: ParamGroups) -> None:
        """Also reduce parameters added or unfrozen meanwhile, each in an operation of its own."""
        for parameter in itertools.chain.from_iterable(group["params"] for group in param_groups):
            if parameter in self._left:
                continue
            if parameter not in self.names:
                first = min(self.names.values(), default="allreduce")  # unique among optimizers
                self.names[parameter] = f"{first}.added.{len(self.names)}"
            if parameter.requires_grad:
                self._priorities.setdefault(parameter, -len(self._priorities))
                self._left[parameter] = self.passes
                self._hooks += [self._hook_of(parameter)] if self._reduces else []

    def for_copies(self, copies: Mapping[Parameter, Parameter]) -> GradientReduction:
        """A reduction with the same names and groups, for copies of the parameters. Local."""
        named = [(self.names[one], copied) for one, copied in copies.items()]
        together = [one.parameters for one in self._buckets.values()] or self._groups.values()
        lists = {id(members): [copies[one] for one in members] for members in together}
        param_groups = [{"params": list(copies.values())}]
        return type(self)(param_groups, named, self.passes, list(lists.values()), self._how)

    def meets(self, names: Mapping[Parameter, str]) -> bool:
        """Whether it has one of these parameters, or one of these names."""
        mine = self.names
        return not (mine.keys().isdisjoint(names) and {*mine.values()}.isdisjoint(names.values()))

    def end(self) -> None:
        """Start no more reductions, and discard those in flight."""
        self.forget()
        for hook in self._hooks:
            hook.remove()

    def _listed(self, groups: Any) -> list[list[Parameter]]:
        """The groups as lists. Splits the parameters evenly if `groups` is a number, and blocks."""
        if not isinstance(groups, int):
            return [] if groups is None else [list(group) for group in groups]
        if groups <= 0:
            remedy = "Pass a positive number, or lists of parameters"
            raise ValueError(explain("DistributedOptimizer(groups=...)", f"got {groups}", remedy))
        return [list(part) for part in split_list(self._in_one_order(), groups)]

    def _in_one_order(self) -> list[Parameter]:
        """Parameters with gradients, in the order of the first rank in the set. Blocks."""
        parameters = list(self._left)
        if not self._how.process_set.takes_part():
            return parameters
        names = [self.names[parameter] for parameter in parameters]
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
        if self._left[parameter] <= 0:
            found = (
                f"the gradient of {self.names[parameter]!r} was computed more than "
                f"backward_passes_per_step times ({self.passes}) since the last step of {self}"
            )
            remedy = (
                "Call its step() or synchronize() after each backward pass, or raise "
                "backward_passes_per_step to accumulate gradients locally"
            )
            raise AssertionError(
                explain("the backward pass before optimizer.step()", found, remedy)
            )
        self._left[parameter] -= 1
        if self._left[parameter] == 0:
            self._start(parameter)

    def _start(self, parameter: Parameter) -> None:
        self._claim(parameter)
        if parameter in self._buckets:
            self._start_in_bucket(parameter)
            return
        group = self._groups.get(parameter)
        if group is None:
            self._handles[parameter] = self._reduce(parameter)
            return
        self._handles[parameter] = None  # the group is not complete yet
        self._ready[id(group)] = self._ready.get(id(group), 0) + 1
        if self._ready[id(group)] == len(group):
            self._ready[id(group)] = 0
            self._reduce_group(group)

    def _claim(self, parameter: Parameter) -> None:
        """Reserve a name until `_begin_anew`. Raises UsageError if another optimizer has it."""
        key = id(self._how.process_set._engine), self.names[parameter]
        known = _started.get(key)
        holder = None if known is None else known()
        if holder is not None and holder is not self:
            _clashed.update((self, holder))
            found = f"another DistributedOptimizer has this name already: {holder} and {self}"
            passed = "named_parameters=model.named_parameters(prefix='one')"
            remedy = f"Give each a prefix of its own: {passed}"
            raise UsageError(f"reducing {key[1]!r}", found, remedy)
        _started[key] = self._self
        self._claimed.append(key)
        self._share(parameter)

    def _share(self, parameter: Parameter) -> None:
        """Become a user of the parameter's gradient until `_begin_anew`.

        Two optimizers may reduce one gradient alike. In place, one operation follows the other; the
        average of averages is the same number. And where both send copies, nothing writes to the
        gradient before `synchronize`.

        Raises:
            UsageError: one optimizer sends a copy of what the other one reduces in place, or a
                bucket of one of them takes the gradient away, or their operations differ.
        """
        users = _users.setdefault(id(parameter), [])
        for user in users:
            other = user()
            if other is None or other is self or parameter not in other._handles:
                continue
            if not self._may_share_with(other):
                _clashed.update((self, other))
                found = f"{other} is reducing it, and {self} would use what is not complete yet"
                remedy = (
                    "Call synchronize() of the first before the second computes gradients, or wrap "
                    "both with one op and process set, without compression and "
                    "gradient_as_bucket_view"
                )
                raise UsageError(f"reducing {self.names[parameter]!r}", found, remedy)
        users.append(self._self)

    def _may_share_with(self, other: GradientReduction) -> bool:
        """Whether both may have one gradient in flight."""
        mine, theirs = self._how, other._how
        if mine.as_buckets or theirs.as_buckets or self._copies != other._copies:
            return False
        if wire_of(mine.compression) != wire_of(theirs.compression):
            return False
        return self._copies or (mine.op == theirs.op and mine.process_set is theirs.process_set)

    def _await_other_users(self) -> None:
        """Finish what other optimizers have in flight on these gradients: the program may write."""
        users = [user() for parameter in self._handles for user in _users.get(id(parameter), [])]
        for other in {id(one): one for one in users if one not in (None, self)}.values():
            assert other is not None
            for parameter in self._handles.keys() & other._handles.keys():
                found, other._handles[parameter] = other._handles[parameter], None
                if found is not None:
                    handle, finish = found
                    finish(synchronize(handle))
            for handle, finish in other._group_handles:
                finish(synchronize(handle))
            other._group_handles.clear()

    @property
    def _copies(self) -> bool:
        """Whether it sends copies of gradients, and not the gradients themselves."""
        one = self._how.compression
        return one is not Compression.none and not wire_of(one)

    def __str__(self) -> str:
        names = list(self.names.values())
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"the {self._how.optimizer} of {names[0]!r}{more}" if names else "an optimizer"

    def _start_in_bucket(self, parameter: Parameter) -> None:
        bucket = self._buckets[parameter]
        if parameter.grad is not None and parameter.grad.is_sparse:
            if not self._how.sparse_as_dense:
                name = self.names[parameter]
                remedy = "Pass sparse_as_dense=True, or leave gradient_as_bucket_view out"
                found = f"the gradient of {name} is sparse, and a bucket's are dense"
                raise ValueError(explain("gradient_as_bucket_view", found, remedy))
            parameter.grad = parameter.grad.to_dense()
        self._handles[parameter] = None  # the bucket is not complete yet
        if not bucket.take(parameter):
            return
        bucket.begin_anew()
        name = "bucket." + self.names[bucket.parameters[0]]
        sent, context = self._how.compression.compress(bucket.vector)
        priority = max(self._priorities[one] for one in bucket.parameters)
        how, wire = self._reduction(), wire_of(self._how.compression)
        handle = allreduce_async_(sent, None, name, *how, priority=priority, wire=wire)

        layout = None
        if bucket not in self._agreed:
            self._agreed.add(bucket)
            layout = bucket.compare_layout(name, self.names, self._how.process_set)

        def finish(result: Any) -> None:
            if layout is not None:
                bucket.require_one_layout(layout, self.names)
            received = self._how.compression.decompress(result, context)
            if received is not bucket.vector:
                bucket.vector.copy_(received)

        self._handles[parameter] = (handle, finish)

    def _reduction(self) -> tuple[int, float, float, ProcessSet]:
        how = self._how
        return how.op, 1.0 / how.predivide_factor, how.predivide_factor, how.process_set

    def _complete(self, parameter: Parameter) -> torch.Tensor:
        """The parameter's gradient; if this rank has none, one of zeros.

        If the gradient was sparse before, it is a sparse tensor without elements instead. All ranks
        have to carry out the same operations, including those without a gradient.
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
        """Return the dense tensor to send, and a function that stores the result."""
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
        name = self.names[parameter]
        if self._is_sent_sparse(parameter):
            gradient = self._complete(parameter)
            handle = sparse_allreduce_async(gradient, name, self._how.op, self._how.process_set)

            def put(result: Any) -> None:
                parameter.grad = result

            return handle, put
        if isinstance(self._how.compression, GatheredCompressor):
            return self._gather(parameter, self._how.compression)
        sent, finish = self._sent(parameter)
        how, wire = self._reduction(), wire_of(self._how.compression)
        priority = self._priorities[parameter]
        handle = allreduce_async_(sent, None, name, *how, priority=priority, wire=wire)
        return handle, finish

    def _gather(
        self, parameter: Parameter, compressor: GatheredCompressor
    ) -> tuple[Any, Callable[[Any], None]]:
        """Start to gather the compressed gradients of all ranks, whose sum replaces this one."""
        gradient, name = self._complete(parameter), self.names[parameter]
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        payload = compressor.payload(name, dense)
        handle = allgather_async(payload, f"compressed.{name}", self._how.process_set)

        def finish(result: Any) -> None:
            ranks = result.numel() // payload.numel()
            total = compressor.total(result, ranks, dense)
            if self._how.op == basics.Average:
                total /= ranks
            if gradient.is_sparse:
                parameter.grad = total.to_sparse()
            else:
                gradient.copy_(total)

        return handle, finish

    def _reduce_group(self, group: Sequence[Parameter]) -> None:
        dense = []
        by_itself = isinstance(self._how.compression, GatheredCompressor)
        for parameter in group:
            if by_itself or self._is_sent_sparse(parameter):
                self._handles[parameter] = self._reduce(parameter)
            else:
                dense.append(self._sent(parameter))
        if not dense:
            return
        name = "grouped." + self.names[group[0]]
        sent = [tensor for tensor, _ in dense]
        priority = max(self._priorities[one] for one in group)
        how, wire = self._reduction(), wire_of(self._how.compression)
        handle = grouped_allreduce_async_(sent, None, name, *how, priority=priority, wire=wire)

        def finish(results: Any) -> None:
            for (_, put), result in zip(dense, results, strict=True):
                put(result)

        self._group_handles.append((handle, finish))

    # ---- before and at a step ------------------------------------------------------------------

    def set_passes(self, passes: int) -> None:
        """Set how many backward passes accumulate locally before a reduction."""
        self.passes = passes
        self._left.update(dict.fromkeys(self._left, passes))

    def synchronize(self) -> None:
        """Block until all gradients are reduced. Gradients that this rank lacks count as zeros."""
        if not self._reduces:
            self._synchronized = True
            return
        late = [parameter for parameter in self._left if parameter not in self._handles]
        frozen = [one for one in late if one.grad is None and not one.requires_grad]
        for parameter in sorted(late, key=self.names.__getitem__):
            self._start(parameter)
        alone = [found for found in self._handles.values() if found is not None]
        for handle, finish in [*alone, *self._group_handles]:
            finish(synchronize(handle))
        if not self._copies:
            self._await_other_users()
        for parameter in frozen:  # a gradient of zeros would move it by momentum or weight decay
            parameter.grad = None
        self._begin_anew()
        self._synchronized = True

    def _begin_anew(self) -> None:
        """Reset the handles, and the number of backward passes left for each parameter."""
        _clashed.discard(self)
        for key in self._claimed:
            _started.pop(key, None)
        self._claimed.clear()
        for parameter in self._handles:
            left = [one for one in _users.pop(id(parameter), []) if one() not in (None, self)]
            if left:
                _users[id(parameter)] = left
        self._handles.clear()
        self._group_handles.clear()
        self._ready.clear()
        self._left.update(dict.fromkeys(self._left, self.passes))

    def forget(self) -> None:
        """Discard reductions in flight, and the record that `synchronize` was called."""
        self._begin_anew()
        for bucket in self._buckets.values():
            bucket.begin_anew()
        self._synchronized = False

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Context in which `step` does not reduce gradients, as `synchronize` has done so."""
        self._waits = False
        try:
            yield
        finally:
            self._waits = True

    def step(self, make: Callable[[Any], Any], closure: Any) -> Any:
        """Wait until the gradients are reduced, then make the optimizer's own step.

        Args:
            make: makes the optimizer's own step, given a closure or None.
            closure: computes the loss. If no gradients were computed before the step, the closure
                computes them as well. The step then waits for their reduction after each call.
        """
        if self._waits:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): the gradients are reduced once more",
                    stacklevel=4,
                )
            if closure is None or self._handles or self._synchronized:
                self.synchronize()
            if closure is not None:
                closure = self._reducing(closure, not self._synchronized)
        self._synchronized = False
        return make(closure)

    def _reducing(self, closure: Callable[[], Any], computes: bool) -> Callable[[], Any]:
        """The closure, followed by the reduction of the gradients.

        Args:
            closure: computes the loss.
            computes: whether it also computes gradients, on all ranks.
        """

        def reduced() -> Any:
            loss = closure()
            if computes or self._handles:
                self.synchronize()
                self._synchronized = False
            return loss

        return reduced

    def require_none_in_flight(self, asked: str) -> None:
        """Raise AssertionError between a backward pass and the step that uses its gradients."""
        if self._handles:
            remedy = "Call optimizer.step() or optimizer.synchronize() first"
            raise AssertionError(explain(asked, "gradients are being reduced", remedy))


class AdasumReduction(GradientReduction):
    """Reduces the changes that optimizer steps make, instead of gradients.

    Each rank first makes the optimizer's step with its own gradients. Adasum then combines the
    changes of all ranks, and each parameter becomes its old value plus the combined change.
    """

    @property
    def _copies(self) -> bool:
        return True  # the optimizer's own step uses the gradients

    def _hook(self, parameter: Parameter) -> None:
        if self._left[parameter] <= 0:
            super()._hook(parameter)  # this raises an error
        self._left[parameter] -= 1

    def synchronize(self) -> None:
        """Do nothing: gradients are not reduced."""

    def skip_synchronize(self) -> NoReturn:
        """Raise AssertionError: Adasum does not support this."""
        found = "gradients are not reduced before a step"
        raise AssertionError(explain("skip_synchronize", found, "Leave it out with op=Adasum"))

    def step(self, make: Callable[[Any], Any], closure: Any) -> Any:
        """Make the optimizer's own step, and replace it by the Adasum of all steps. Blocks."""
        before = {parameter: parameter.detach().clone() for parameter in self._left}
        for parameter in before:
            self._claim(parameter)
        loss = make(closure)
        with torch.no_grad():
            for parameter, start in before.items():
                update, context = self._how.compression.compress(parameter - start)
                handle = allreduce_async_(update, name=self.names[parameter], op=basics.Adasum)
                self._handles[parameter] = (handle, context)
            for parameter, (handle, context) in self._handles.items():
                reduced = self._how.compression.decompress(synchronize(handle), context)
                torch.add(before[parameter], reduced, out=parameter.data)
        self._begin_anew()
        return loss


def _call_hook(own: weakref.ref[GradientReduction], parameter: Parameter) -> None:
    reduction = own()
    if reduction is None:
        return
    if _is_compiling():  # in a backward pass of compiled autograd
        torch.compiler.disable(reduction._hook)(parameter)
    else:
        reduction._hook(parameter)


def _named(
    param_groups: ParamGroups, named: Iterable[tuple[str, Parameter]] | None
) -> dict[Parameter, str]:
    """The name of each parameter, under which the ranks reduce its gradient."""
    by_place = {
        parameter: f"allreduce.noname.{i}.{j}"
        for i, group in enumerate(param_groups)
        for j, parameter in enumerate(group["params"])
    }
    if named is None:
        return by_place
    asked = "DistributedOptimizer(named_parameters=...)"
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
    if not by_place.keys() <= found.keys():
        remedy = "Name all parameters of the optimizer"
        raise ValueError(explain(asked, "a parameter of the optimizer has no name", remedy))
    return found
