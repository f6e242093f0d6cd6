"""Adasum: sums the parts of the ranks' vectors that are orthogonal, and averages parallel parts.

For two vectors a and b, the result is (1 - ab / 2aa) a + (1 - ab / 2bb) b, where ab is their dot
product. More vectors are combined in pairs, then in pairs of pairs (S. Maleki et al., Scaling
Distributed Training with Adaptive Summation, MLSys 2021). The result of such a tree is a weighted
sum of all inputs. The weights depend only on the inputs' dot products, which are computed once, in
float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gradred import config
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES
from gradred.errors import explain
from gradred.horovod.front_end import FrontEnd, cast
from gradred.horovod.operations import engine_of, submit
from gradred.horovod.process_sets import ProcessSet, global_process_set
from gradred.tensors import described, write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gradred.named import Described, NamedRequest

TensorT = TypeVar("TensorT")

_COLUMNS = 1 << 16  # columns converted to float64 at a time


def check(process_set: ProcessSet) -> None:
    """Raise NotImplementedError if Adasum does not support the process set."""
    asked = "op=Adasum"
    if process_set is not global_process_set:
        found = "it takes all ranks"
        raise NotImplementedError(explain(asked, found, "Leave process_set out"))
    ranks = process_set.size() or 1
    if ranks > 1 and config.get("deterministic") == "ranks":
        found = "GRADRED_DETERMINISTIC is ranks, and its result depends on their number"
        raise NotImplementedError(explain(asked, found, "Use op=Average"))
    if ranks & (ranks - 1):
        found = f"{ranks} ranks are no power of two"
        raise NotImplementedError(explain(asked, found, "Use 2, 4, 8, ... ranks, or op=Average"))


def weights_of(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weight of each input in the result.

    Args:
        products: the inputs' dot products with each other, shape (ranks, ranks). The number of
            ranks is a power of two.
    """
    combined = list(np.eye(len(products)))
    while len(combined) > 1:
        combined = [
            _pair(a, b, products) for a, b in zip(combined[::2], combined[1::2], strict=True)
        ]
    return np.asarray(combined[0])


def _pair(
    a: NDArray[np.float64], b: NDArray[np.float64], products: NDArray[np.float64]
) -> NDArray[np.float64]:
    ab, aa, bb = a @ products @ b, a @ products @ a, b @ products @ b
    of_a = 1.0 if aa <= 0 else 1.0 - ab / (2.0 * aa)
    of_b = 1.0 if bb <= 0 else 1.0 - ab / (2.0 * bb)
    return of_a * a + of_b * b


def combine(
    front_end: FrontEnd[Any],
    inputs: NDArray[np.uint8],
    dtype: str,
    factor: float = 1.0,
) -> NDArray[np.uint8]:
    """The Adasum of the rows of a matrix of floats. The number of rows is a power of two.

    `inputs` has the bytes of each rank, shape (ranks, bytes). `factor` is applied to the result in
    float64. A factor applied to all inputs would have the same effect.
    """
    step = _COLUMNS * ITEMSIZES[dtype]
    parts = [slice(begin, begin + step) for begin in range(0, inputs.shape[1], step)]

    def exact(part: slice) -> NDArray[np.float64]:
        elements = np.ascontiguousarray(inputs[:, part]).reshape(-1)
        values = cast(front_end, elements, dtype, "float64").view(np.float64)
        return values.reshape(len(inputs), -1)

    products = np.zeros((len(inputs), len(inputs)))
    for part in parts:
        found = exact(part)
        products += found @ found.T
    weights = weights_of(products) * factor
    result = np.empty(inputs.shape[1], np.uint8)
    for part in parts:
        result[part] = cast(front_end, (weights @ exact(part)).view(np.uint8), "float64", dtype)
    return result


def start(
    front_end: FrontEnd[TensorT],
    tensors: Sequence[TensorT],
    outputs: Sequence[TensorT],
    name: str | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    result: Any,
) -> int:
    """Start an Adasum, and return its handle. Each rank gathers and combines all ranks' tensors."""
    check(process_set)
    arrays = []
    for tensor, output in zip(tensors, outputs, strict=True):
        array = described(front_end, tensor, output, "allreduce")
        if ELEMENT_TYPES[array[2]].kind != "real":
            remedy = "Convert it, or use op=Sum"
            raise ValueError(explain("op=Adasum", f"{array[2]} is not supported", remedy))
        arrays.append(_as_a_row(array))
    ranks = process_set.size() or 1

    def finish(request: NamedRequest) -> Any:
        for array, output, found in zip(arrays, outputs, request.outputs, strict=True):
            if found.nbytes == 0:
                continue
            inputs, factor = found.reshape(ranks, -1), prescale * postscale
            made = combine(front_end, inputs, array[2], factor)
            write(front_end, output, made, "op=Adasum")
        return result

    held = (tensors, outputs)
    engine = engine_of(process_set)
    # Named as an allreduce: a rank that calls another operation gets an error.
    return submit(
        engine,
        "allgather",
        name,
        arrays,
        finish,
        held,
        prescale=prescale,
        postscale=postscale,
        prefix="allreduce",
    )


def _as_a_row(array: Described) -> Described:
    """The array with an additional first axis for the ranks. The engine allocates the result."""
    address, _, dtype, shape = array[:4]
    row = (address, 0, dtype, (1, *shape))
    if len(array) == 7:
        return (*row, 0, array[5], (0, *(axis + 1 for axis in array[6])))
    return row if len(array) < 6 else (*row, 0, array[5])
