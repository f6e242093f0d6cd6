"""The collectives: their arguments, results and gradients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import mlir

from gradred import ops
from gradred.errors import UsageError
from gradred.jax.names import name_here, numbered
from gradred.jax.ranks import TARGET, engine, ffi
from gradred.jax.structures import Structure, structure_of
from gradred.jax.uses import number_later

Tree = TypeVar("Tree")
Arrays = tuple[Any, ...]


def allreduce(tree: Tree, op: ops.OpLike = "sum", *, name: str | None = None) -> Tree:
    """Reduce arrays over all ranks; every rank gets the result.

    All leaves make one operation. It may be used under `jax.jit`, `grad`, `vmap`, `lax.scan` and
    `checkpoint`. The calling thread does not wait for other ranks; the result does.

    The gradient of a sum is the sum over all ranks of the cotangents, and that of a mean is their
    mean. So `jax.grad` of a function of such a sum is the gradient of what all ranks compute
    together. Other operations have no gradient.

    Args:
        tree: an array, or a pytree of arrays. All ranks pass the same structure, shapes and types.
            Without arrays nothing is called.
        op: a name from `gradred.OPS`, or an `MPI.Op`. "avg" truncates integers toward zero.
        name: the same on all ranks; by default the place of the call in the program. A program may
            use a name several times. If two threads do so at the same time, the second collective
            is an error.

    Returns:
        The tree with the reduced arrays.

    Raises:
        gradred.UsageError: there is no such operation.
        jax.errors.JaxRuntimeError: when the result is used: the ranks' trees differ, a rank's
            process has ended or left, or `GRADRED_TIMEOUT` is over. The text begins with the name
            of gradred's error.

    Example:
        >>> import gradred.jax  # doctest: +SKIP
        >>> jax.jit(gradred.jax.allreduce)(jax.numpy.ones(2))  # doctest: +SKIP
        Array([2., 2.], dtype=float32)
    """
    return _of_tree(Collective("allreduce", op=_op_named(op, "allreduce")), tree, name)


def pmean_tree(grads: Tree, *, name: str | None = None) -> Tree:
    """Average arrays over all ranks, as one operation: `allreduce` with the operation "avg".

    Args:
        grads: a pytree of arrays, such as gradients; as in `allreduce`.
        name: see `allreduce`.

    Returns:
        The tree with the means.
    """
    return _of_tree(Collective("allreduce", op="avg"), grads, name)


def bcast(tree: Tree, root: int = 0, *, name: str | None = None) -> Tree:
    """Give every rank the arrays of the rank `root`, such as the parameters to begin with.

    The gradient with respect to the arrays of `root` is the sum over all ranks of the cotangents;
    that with respect to the other ranks' arrays is zero.

    Args:
        tree: an array, or a pytree of arrays; as in `allreduce`.
        root: the rank whose arrays all ranks get.
        name: see `allreduce`.

    Returns:
        The tree with the arrays of `root`.

    Raises:
        gradred.UsageError: there is no such rank.
    """
    if not 0 <= root < engine().size:
        found = f"root {root} is none of the {engine().size} ranks"
        raise UsageError("gradred.jax.bcast", found, "Ranks count from 0")
    return _of_tree(Collective("broadcast", root=root), tree, name)


def all_gather(x: Any, *, name: str | None = None) -> Any:
    """Concatenate the arrays of all ranks along the first axis, in the order of the ranks.

    The gradient is the `reduce_scatter` of the cotangents.

    Args:
        x: an array of the shape (n, ...), the same on all ranks. A scalar counts as n = 1.
        name: see `allreduce`.

    Returns:
        An array of the shape (size * n, ...).
    """
    array = jnp.asarray(x)
    return _of_array(Collective("allgather"), array.reshape(array.shape or (1,)), name)


def reduce_scatter(x: Any, op: ops.OpLike = "sum", *, name: str | None = None) -> Any:
    """Reduce arrays over all ranks; each rank gets its part of the first axis of the result.

    The gradient of a sum is the `all_gather` of the cotangents, and that of a mean is this divided
    by the number of ranks. Other operations have no gradient.

    Args:
        x: an array of the shape (size * n, ...), the same on all ranks.
        op: see `allreduce`.
        name: see `allreduce`.

    Returns:
        An array of the shape (n, ...): rank 0 gets the first n rows, and so on.

    Raises:
        gradred.UsageError: the first axis cannot be divided by the number of ranks.
    """
    array = _divisible(jnp.asarray(x), "reduce_scatter")
    return _of_array(Collective("reducescatter", op=_op_named(op, "reduce_scatter")), array, name)


def all_to_all(x: Any, *, name: str | None = None) -> Any:
    """Exchange parts of the first axis: part i of rank j becomes part j on rank i.

    The gradient is the `all_to_all` of the cotangents.

    Args:
        x: an array of the shape (size * n, ...), the same on all ranks.
        name: see `allreduce`.

    Returns:
        An array of the same shape.

    Raises:
        gradred.UsageError: the first axis cannot be divided by the number of ranks.
    """
    return _of_array(Collective("alltoall"), _divisible(jnp.asarray(x), "all_to_all"), name)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One call as all ranks make it, except its arrays: the static part of a traced call."""

    kind: str
    """A kind of named operation (`gradred.named`)."""
    op: str = "sum"
    root: int = 0
    only_rank: int = -1
    """The rank that gets the result, if the others get zeros; -1: all ranks get it."""
    name: str = ""
    is_named: bool = False
    """Whether the program has given the name."""
    structure: Structure = Structure()  # noqa: RUF009 (immutable)
    """Of the tree that the program has passed."""

    def gradient(self, **changed: Any) -> Collective:
        """Return the collective of the cotangents."""
        name = f"{self.name}, gradient"
        name = name if self.is_named else numbered(name)
        return dataclasses.replace(self, name=name, **changed)

    def shape(self, given: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the result for an array of the shape `given`."""
        if self.kind == "allgather":
            return (engine().size * given[0], *given[1:])
        if self.kind == "reducescatter":
            return (given[0] // engine().size, *given[1:])
        return tuple(given)


def _of_tree(collective: Collective, tree: Tree, name: str | None) -> Tree:
    leaves, definition = jax.tree_util.tree_flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    if not arrays:
        return tree
    shaped = dataclasses.replace(collective, structure=structure_of(tree, definition))
    named = _named(shaped, arrays, name)
    made: Tree = jax.tree_util.tree_unflatten(definition, _differentiable(named, *arrays))
    return made


def _of_array(collective: Collective, array: Any, name: str | None) -> Any:
    return _differentiable(_named(collective, [array], name), array)[0]


def _named(collective: Collective, arrays: Sequence[Any], name: str | None) -> Collective:
    engine()  # the first call makes it, and registers the handler
    if name is not None:
        return dataclasses.replace(collective, name=name, is_named=True)
    return dataclasses.replace(collective, name=name_here(collective.kind, arrays))


def _op_named(op: ops.OpLike, asked: str) -> str:
    resolved = ops.resolve(op)
    if resolved is None or resolved[0] not in ops.OPS:
        found = "JAX programs have gradred's own operations alone"
        remedy = f"Use one of {', '.join(ops.OPS)}"
        raise UsageError(f"gradred.jax.{asked} with op={op!r}", found, remedy)
    return resolved[0]


def _divisible(array: Any, asked: str) -> Any:
    if array.ndim == 0 or array.shape[0] % engine().size:
        found = f"the first axis of an array of the shape {array.shape} has no equal part for each"
        found += f" of the {engine().size} ranks"
        remedy = "Pad it to a multiple of gradred.jax.size()"
        raise UsageError(f"gradred.jax.{asked}", found, remedy)
    return array


# ---- transformations -------------------------------------------------------------------------


def _collective(collective: Collective, *arrays: Any) -> Arrays:
    return _batchable(collective)(*arrays)


def _forward(collective: Collective, *arrays: Any) -> tuple[Arrays, None]:
    if collective.kind in ("allreduce", "reducescatter") and collective.op not in ("sum", "avg"):
        found = f"the operation {collective.op!r} has no gradient"
        remedy = "Differentiate through a sum or a mean, or apply jax.lax.stop_gradient first"
        raise UsageError(f"the gradient of '{collective.name}'", found, remedy)
    return _differentiable(collective, *arrays), None


def _backward(collective: Collective, _: None, cotangents: Arrays) -> Arrays:
    """Reduce the cotangents as one operation; None: an array of integers, which has none."""
    has_one = [one.dtype != jax.dtypes.float0 for one in cotangents]
    given = [one for one, has in zip(cotangents, has_one, strict=True) if has]
    if not given:
        return (None,) * len(cotangents)
    made = iter(_transposed(collective, given))
    return tuple(next(made) if has else None for has in has_one)


def _transposed(collective: Collective, cotangents: Sequence[Any]) -> Any:
    if collective.kind == "broadcast":
        # Zeros made here would leave the other ranks without a use of the sum, and XLA drops that.
        root = collective.root
        summed = collective.gradient(kind="allreduce", root=0, only_rank=root)
        return _differentiable(summed, *cotangents)
    if collective.kind == "allgather":
        return _differentiable(collective.gradient(kind="reducescatter"), *cotangents)
    if collective.kind == "reducescatter":
        whole = _differentiable(collective.gradient(kind="allgather", op="sum"), *cotangents)
        return [one / engine().size for one in whole] if collective.op == "avg" else whole
    if collective.only_rank >= 0:
        spread = collective.gradient(kind="broadcast", root=collective.only_rank, only_rank=-1)
        return _differentiable(spread, *cotangents)
    return _differentiable(collective.gradient(), *cotangents)


_differentiable: Any = jax.custom_vjp(_collective, nondiff_argnums=(0,))
_differentiable.defvjp(_forward, _backward)


def _batchable(collective: Collective) -> Callable[..., Arrays]:
    """Return the function of the arrays; under vmap it is one call for the whole batch."""
    function: Any = custom_vmap(lambda *arrays: _call(collective, arrays))

    def rule(_: int, is_batched: list[bool], *arrays: Any) -> tuple[Arrays, tuple[bool, ...]]:
        if collective.kind in ("allreduce", "broadcast"):
            return function(*arrays), tuple(is_batched)
        # The first axis stays the one that the ranks divide, and the batch becomes the second.
        results = function(*(jnp.moveaxis(array, 0, 1) for array in arrays))
        return tuple(jnp.moveaxis(one, 1, 0) for one in results), (True,)

    function.def_vmap(rule)
    return function  # type: ignore[no-any-return]


def _call(collective: Collective, arrays: Arrays) -> Arrays:
    return tuple(_primitive.bind(*arrays, collective=collective))


# ---- the call in a program ---------------------------------------------------------------------

# To XLA it is a pure function of the arguments: it drops a call of which no rank uses the result,
# and jax.checkpoint may make it again.
_primitive: Any = Primitive(TARGET)
_primitive.multiple_results = True


def _results(*arrays: Any, collective: Collective) -> list[Any]:
    return [jax.core.ShapedArray(collective.shape(one.shape), one.dtype) for one in arrays]


def _outside_of_jit(*arrays: Any, collective: Collective) -> list[Any]:
    with jax.disable_jit(False):
        return list(_compiled(collective)(*arrays))


@functools.lru_cache(maxsize=1024)
def _compiled(collective: Collective) -> Any:
    return jax.jit(lambda *arrays: _call(collective, arrays))


def _lower(context: Any, *arrays: Any, collective: Collective) -> Any:
    number_later(context.module_context.module)
    attributes = {"kind": collective.kind, "op": collective.op, "name": collective.name}
    numbers = {"root": str(collective.root), "only_rank": str(collective.only_rank)}
    text, number = collective.structure
    structure = {"structure": text, "structure_hash": str(number)}
    return ffi.ffi_lowering(TARGET)(context, *arrays, **attributes, **numbers, **structure, use="")


_primitive.def_abstract_eval(_results)
_primitive.def_impl(_outside_of_jit)
mlir.register_lowering(_primitive, _lower)
