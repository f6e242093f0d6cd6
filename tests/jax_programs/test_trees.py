"""A leaf meets the leaf of its own name on the other ranks, or all ranks get an error."""

from __future__ import annotations

import dataclasses
import enum
import timeit
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("jax")

import jax
import jax.numpy as jnp

import gradred.jax as collectives

Program = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(params=["at once", "jit"])
def program(request: pytest.FixtureRequest) -> Program:
    return jax.jit if request.param == "jit" else lambda function: function


class Weights(NamedTuple):
    kernel: Any
    bias: Any


class Named:
    """A node whose children have keys, and whose data say nothing of them."""

    def __init__(self, names: tuple[Any, ...], leaves: tuple[Any, ...], step: Any = 0) -> None:
        self.names, self.leaves, self.step = names, leaves, step


class Ordered(Named):
    """A node whose children have no keys: its data name them."""


jax.tree_util.register_pytree_with_keys(
    Named,
    lambda x: (
        [(jax.tree_util.GetAttrKey(n), v) for n, v in zip(x.names, x.leaves, strict=True)],
        (x.names, x.step),
    ),
    lambda data, leaves: Named(data[0], tuple(leaves), data[1]),
)
jax.tree_util.register_pytree_node(
    Ordered,
    lambda x: (x.leaves, (x.names, x.step)),
    lambda data, leaves: Ordered(data[0], tuple(leaves), data[1]),
)


class Part(enum.Enum):
    """Has no texts as values."""

    UPPER = 1
    LOWER = 2


@dataclasses.dataclass(frozen=True, order=True)
class Place:
    layer: int
    name: str = "w"


def wrapped(tree: Any) -> Ordered:
    """A node with the leaves of a tree, whose data is the tree's structure."""
    leaves, definition = jax.tree.flatten(tree)
    return Ordered((definition,), tuple(leaves))


# pairs of trees with equal leaves
UNLIKE: dict[str, tuple[Any, Any, str, str]] = {
    "OrderedDict": (
        OrderedDict(a=1.0, b=2.0),
        OrderedDict(b=1.0, a=2.0),
        "OrderedDict('a': *, 'b': *)",
        "OrderedDict('b': *, 'a': *)",
    ),
    "namedtuple": (
        namedtuple("Pair", "a b")(1.0, 2.0),
        namedtuple("Pair", "b a")(1.0, 2.0),  # type: ignore[no-redef]
        "Pair(a=*, b=*)",
        "Pair(b=*, a=*)",
    ),
    "keys": ({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}, "{'a': *, 'b': *}", "{'a': *, 'c': *}"),
    "None": ([None, 1.0], [1.0, None], "[None, *]", "[*, None]"),
    "tuple": ((1.0, 2.0), [1.0, 2.0], "(*, *)", "[*, *]"),
    "nesting": ([[1.0], 2.0], [1.0, [2.0]], "[[*], *]", "[*, [*]]"),
    "alone": ({"a": 1.0}, 1.0, "{'a': *}", "arrays without a tree"),
    "empty": ([1.0, {}], [1.0, ()], "[*, {}]", "[*, ()]"),
    "keyed": (
        Named(("a", "b"), (1.0, 2.0)),
        Named(("b", "a"), (1.0, 2.0)),
        "Named(a=*, b=*)",
        "Named(b=*, a=*)",
    ),
    "unkeyed": (
        Ordered(("a", "b"), (1.0, 2.0)),
        Ordered(("b", "a"), (1.0, 2.0)),
        "Ordered(*, *, 'a', 'b')",
        "Ordered(*, *, 'b', 'a')",
    ),
    "numbers": (
        Ordered((1, 2), (1.0, 2.0)),
        Ordered((2, 1), (1.0, 2.0)),
        "Ordered(*, *, 1, 2)",
        "Ordered(*, *, 2, 1)",
    ),
    "pairs": (
        Ordered(((0, 1), (1, 0)), (1.0, 2.0)),
        Ordered(((1, 0), (0, 1)), (1.0, 2.0)),
        "Ordered(*, *, (0, 1), (1, 0))",
        "Ordered(*, *, (1, 0), (0, 1))",
    ),
    "members": (
        Ordered(tuple(Part), (1.0, 2.0)),
        Ordered(tuple(Part)[::-1], (1.0, 2.0)),
        "Ordered(*, *, Part.UPPER, Part.LOWER)",
        "Ordered(*, *, Part.LOWER, Part.UPPER)",
    ),
    "one member": (
        Ordered((), (1.0, 2.0), step=Part.UPPER),
        Ordered((), (1.0, 2.0), step=Part.LOWER),
        "Ordered(*, *, Part.UPPER)",
        "Ordered(*, *, Part.LOWER)",
    ),
    "record": (
        Ordered((Place(1, "a"),), (1.0,)),
        Ordered((Place(1, "b"),), (1.0,)),
        "Ordered(*, 'a')",
        "Ordered(*, 'b')",
    ),
    "keys of records": (
        {Place(1): 1.0},
        {Place(2): 1.0},
        "{Place(1, 'w'): *}",
        "{Place(2, 'w'): *}",
    ),
    "structure": (
        wrapped({"a": 1.0, "b": [None, 2.0]}),
        wrapped({"a": 1.0, "b": [2.0, None]}),
        "Ordered(*, *, {*, [None, *], 'a', 'b'})",
        "Ordered(*, *, {*, [*, None], 'a', 'b'})",
    ),
    "structure of fields": (
        wrapped(Weights(1.0, 2.0)),
        wrapped(namedtuple("Weights", "bias kernel")(1.0, 2.0)),
        "Weights(*, *, 'kernel', 'bias')",
        "Weights(*, *, 'bias', 'kernel')",
    ),
}


@pytest.mark.parametrize("case", UNLIKE)
def test_trees_of_another_structure_are_an_error_with_both(
    program: Program, case: str, rank: int, size: int
) -> None:
    if size == 1:
        pytest.skip("one rank has no peer")
    first, other, *texts = UNLIKE[case]
    if program is jax.jit and case.startswith("structure") and jax.__version_info__ < (0, 5):
        pytest.skip("this JAX compares no structures of structures under jit")
    function = program(lambda tree: collectives.allreduce(tree, name=f"unlike {case}"))
    errors = (jax.errors.JaxRuntimeError, ValueError)
    with pytest.raises(errors, match="Mismatched tree structures") as found:
        jax.block_until_ready(function(first if rank == 0 else other))
    assert all(text in str(found.value) for text in texts), found.value
    assert jax.tree.leaves(function(first)) == [size * x for x in jax.tree.leaves(first)]


def test_first_difference_of_large_trees_is_shown(program: Program, rank: int, size: int) -> None:
    """Their texts are longer than a message."""
    if size == 1:
        pytest.skip("one rank has no peer")
    layers = {f"layer {i:04}": Weights(1.0, None) for i in range(1500)}
    if rank > 0:
        layers["layer 1234"] = Weights(None, 1.0)
    function = program(lambda tree: collectives.allreduce(tree, name="large"))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)) as found:
        jax.block_until_ready(function([{"params": layers}]))
    text = str(found.value)
    assert "Mismatched tree structures at [0]['params']['layer 1234']: " in text
    assert "has kernel=*, bias=None, rank" in text or "has kernel=*, bias=None. All" in text
    assert "has kernel=None, bias=*, rank" in text or "has kernel=None, bias=*. All" in text


@pytest.mark.parametrize("call", ["bcast", "pmean_tree", "gradient"])
def test_every_call_of_trees_compares_them(call: str, rank: int, size: int) -> None:
    if size == 1:
        pytest.skip("one rank has no peer")
    tree = OrderedDict((key, jnp.ones(2)) for key in ("ab" if rank == 0 else "ba"))
    if call == "gradient":
        optax = pytest.importorskip("optax")
        update = collectives.pmean_gradients().update
        function = jax.jit(lambda tree: update(tree, optax.EmptyState())[0])
    else:
        function = getattr(collectives, call)
    errors = (jax.errors.JaxRuntimeError, ValueError)
    with pytest.raises(errors, match="Mismatched tree structures"):
        jax.block_until_ready(function(tree))


def test_what_does_not_order_leaves_may_differ(program: Program, rank: int, size: int) -> None:
    """The order of insertion into a dict, data of nodes, the class of a default."""
    mine = {key: float(ord(key)) for key in ("ab" if rank == 0 else "ba")}
    trees = [
        mine,
        Named(("a",), (1.0,), step=rank),
        Ordered(("a",), (1.0,), step=rank),
        Ordered(("a", "b"), (1.0, 2.0), step=rank),
        Ordered((), (1.0, 2.0), step=(rank, 0.5)),
        Ordered((), (1.0, 2.0), step=(rank, rank)),
        Ordered((0, 1), (1.0, 2.0), step=[rank, 7, 8]),
        Ordered((), (1.0,), step=lambda: rank),
        defaultdict(int if rank == 0 else float, mine),
        {object(): 1.0},  # whose text has its address
    ]
    for number, tree in enumerate(trees):
        function = program(lambda tree, n=number: collectives.allreduce(tree, name=f"alike {n}"))
        found = function(tree)
        assert jax.tree.leaves(found) == [size * x for x in jax.tree.leaves(tree)]
        assert jax.tree.structure(found) == jax.tree.structure(tree)


def test_gradient_of_a_tree_keeps_its_names(rank: int, size: int) -> None:
    def loss(weights: Weights) -> Any:
        total = collectives.allreduce(weights)
        return total.kernel * 3.0 + total.bias * 5.0

    found = jax.grad(loss)(Weights(1.0, 2.0))
    assert found == Weights(3.0 * size, 5.0 * size)


def test_structure_of_a_tree_is_found_once(size: int) -> None:
    """Looking up a structure takes a small part of flattening its tree."""
    from gradred.jax.structures import structure_of

    tree = {f"layer {i}": Weights(float(i), None) for i in range(300)}
    definition = jax.tree.structure(tree)
    assert structure_of(tree, definition) is structure_of(tree, jax.tree.structure(tree))
    again = min(timeit.repeat(lambda: structure_of(tree, definition), number=10, repeat=10))
    first = min(timeit.repeat(lambda: jax.tree.flatten(tree), number=10, repeat=10))
    assert again < 2 * first
