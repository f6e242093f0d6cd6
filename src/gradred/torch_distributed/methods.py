"""The methods of torch's process groups, and the forms in which programs call them: one table.

torch's binding overloads most of these methods: lists of tensors with an options object, or single
tensors with a root, an operation and a time limit. Here every form becomes the first one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from torch._C import _distributed_c10d as c10d

from gradred.errors import UsageTypeError

# Parameters that stand for attributes of the options, and those that may be missing.
_ATTRIBUTES = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}
_OPTIONAL = {"opts", "op", "timeout"}


_RIGHT: dict[str, Callable[[Any], bool]] = {
    "root": lambda value: hasattr(value, "__index__") and not isinstance(value, bool),
    "op": lambda value: isinstance(value, (c10d.ReduceOp, c10d.ReduceOp.RedOpType)),
    "timeout": lambda value: value is None or isinstance(value, datetime.timedelta),
}


class Method:
    """A method of a group.

    Args:
        number: that of torch's `OpType`, which older PyTorch does not show.
        title: torch's name of the operation in profiles.
        options: torch's name of the options' class, and of other classes that serve.
        names: parameters of each form, separated by spaces. The last one of the first form is
            "opts". In other forms "root", "op" and "timeout" stand for attributes of the options.
        old: another name, which older PyTorch has for it.
    """

    def __init__(
        self, number: int, title: str, options: str = "", *names: str, old: str = ""
    ) -> None:
        self.number, self.title, self.old = number, title, old
        self._options = [getattr(c10d, f"{one}Options") for one in options.split()]
        self._forms = [one.split() for one in names]
        self._count = len(self._forms[0]) if names else 0
        self.inputs = int(self._count > 2)
        """The index of the argument with the tensors that are sent."""

    def first(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of the first form, by position. Options are never missing.

        Raises:
            gradred.UsageError: the arguments fit no form. It is a TypeError.
        """
        if not named and len(given) == self._count and type(given[-1]) in self._options:
            return given
        for names in self._forms:
            if (values := self._values(names, given, named)) is not None:
                return self._of_first(values)
        raise UsageTypeError("a method of the group", self._found(given, named), self._say())

    def _values(
        self, names: list[str], given: tuple[Any, ...], named: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """The arguments by name, if they fit this form."""
        values = dict(zip(names, given, strict=False))
        if len(given) > len(names) or values.keys() & named.keys() or named.keys() - set(names):
            return None
        values.update(named)
        if set(names) - values.keys() - _OPTIONAL:
            return None
        opts = values.get("opts")
        fits = opts is None or type(opts) in self._options
        fits = fits and all(_RIGHT[name](values[name]) for name in _RIGHT.keys() & values.keys())
        return {name: values[name] for name in names if name in values} if fits else None

    def _of_first(self, values: dict[str, Any]) -> tuple[Any, ...]:
        data = [values[name] for name in values if name != "opts" and name not in _ATTRIBUTES]
        opts = values.get("opts")
        if opts is None:
            opts = self._options[0]()
            for name in _ATTRIBUTES.keys() & values.keys():
                if values[name] is not None:
                    setattr(opts, _ATTRIBUTES[name], values[name])
        return (*data, opts)

    def _found(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> str:
        kinds = [type(one).__name__ for one in given]
        kinds += [f"{name}={type(one).__name__}" for name, one in named.items()]
        return f"the arguments ({', '.join(kinds)}) fit none of its forms"

    def _say(self) -> str:
        return "Pass " + " or ".join(f"({', '.join(names)})" for names in self._forms)


_LISTS = "output_tensors input_tensors"
_SPLITS = "output input output_split_sizes input_split_sizes"

METHODS = {
    "broadcast": Method(0, "broadcast", "Broadcast", "tensors opts", "tensor root timeout"),
    "allreduce": Method(
        *(1, "all_reduce", "Allreduce AllreduceCoalesced"),
        *("tensors opts", "tensors op timeout", "tensor op timeout"),
    ),
    "reduce": Method(3, "reduce", "Reduce", "tensors opts", "tensor root op timeout"),
    "allgather": Method(
        *(4, "all_gather", "Allgather"),
        *(f"{_LISTS} opts", "output_tensors input_tensor timeout"),
    ),
    "all_gather_single": Method(
        5, "all_gather", "Allgather", "output input opts", old="_allgather_base"
    ),
    "all_gather_single_coalesced": Method(
        20, "all_gather", "Allgather", "outputs inputs opts", old="allgather_into_tensor_coalesced"
    ),
    "allgather_coalesced": Method(6, "all_gather", "Allgather", "output_lists input_list opts"),
    "gather": Method(
        7, "gather", "Gather", f"{_LISTS} opts", "output_tensors input_tensor root timeout"
    ),
    "gather_single": Method(
        7, "gather_single", "Gather", "output input opts", old="gather_into_tensor"
    ),
    "scatter": Method(
        8, "scatter", "Scatter", f"{_LISTS} opts", "output_tensor input_tensors root timeout"
    ),
    "reduce_scatter": Method(
        9, "reduce_scatter", "ReduceScatter", f"{_LISTS} opts", "output input op timeout"
    ),
    "reduce_scatter_single": Method(
        *(16, "reduce_scatter", "ReduceScatter", "outputTensor inputTensor opts"),
        old="_reduce_scatter_base",
    ),
    "reduce_scatter_single_coalesced": Method(
        *(19, "reduce_scatter", "ReduceScatter", "outputs inputs opts"),
        old="reduce_scatter_tensor_coalesced",
    ),
    "all_to_all_single": Method(
        *(10, "all_to_all", "AllToAll", f"{_SPLITS} opts", f"{_SPLITS} timeout"),
        old="alltoall_base",
    ),
    "alltoall": Method(11, "all_to_all", "AllToAll", f"{_LISTS} opts"),
    "send": Method(12, "send"),
    "recv": Method(13, "recv"),
    "recv_anysource": Method(14, "recvAnySource"),
    "barrier": Method(15, "barrier", "Barrier", "opts", "timeout"),
}
"""By the names that this package gives them."""
