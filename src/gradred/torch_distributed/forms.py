"""The forms in which programs call methods of torch's process groups.

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


class Forms:
    """The forms of one method.

    Args:
        options: class of the options object, and other classes that serve.
        names: parameters of each form, separated by spaces. The last one of the first form is
            "opts". In other forms "root", "op" and "timeout" stand for attributes of the options.
    """

    def __init__(self, options: tuple[type, ...], *names: str) -> None:
        self._options, self._forms = options, [one.split() for one in names]
        self._count = len(self._forms[0])

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


_SPLITS = "output input output_split_sizes input_split_sizes"
_ALL_TO_ALL = Forms((c10d.AllToAllOptions,), f"{_SPLITS} opts", f"{_SPLITS} timeout")
_ALL_GATHER = Forms((c10d.AllgatherOptions,), "output input opts")
_REDUCE_SCATTER = Forms((c10d.ReduceScatterOptions,), "outputTensor inputTensor opts")
_LISTS = "output_tensors input_tensors"

FORMS: dict[str, Forms] = {
    "allreduce": Forms(
        (c10d.AllreduceOptions, c10d.AllreduceCoalescedOptions),
        "tensors opts",
        "tensors op timeout",
        "tensor op timeout",
    ),
    "broadcast": Forms((c10d.BroadcastOptions,), "tensors opts", "tensor root timeout"),
    "allgather": Forms(
        (c10d.AllgatherOptions,), f"{_LISTS} opts", "output_tensors input_tensor timeout"
    ),
    "all_gather_single": _ALL_GATHER,
    "all_gather_single_coalesced": Forms((c10d.AllgatherOptions,), "outputs inputs opts"),
    "allgather_coalesced": Forms((c10d.AllgatherOptions,), "output_lists input_list opts"),
    "reduce_scatter": Forms(
        (c10d.ReduceScatterOptions,), f"{_LISTS} opts", "output input op timeout"
    ),
    "reduce_scatter_single": _REDUCE_SCATTER,
    "reduce_scatter_single_coalesced": Forms((c10d.ReduceScatterOptions,), "outputs inputs opts"),
    "reduce": Forms((c10d.ReduceOptions,), "tensors opts", "tensor root op timeout"),
    "gather": Forms(
        (c10d.GatherOptions,), f"{_LISTS} opts", "output_tensors input_tensor root timeout"
    ),
    "gather_single": Forms((c10d.GatherOptions,), "output input opts"),
    "scatter": Forms(
        (c10d.ScatterOptions,), f"{_LISTS} opts", "output_tensor input_tensors root timeout"
    ),
    "all_to_all_single": _ALL_TO_ALL,
    "alltoall": Forms((c10d.AllToAllOptions,), f"{_LISTS} opts"),
    "barrier": Forms((c10d.BarrierOptions,), "opts", "timeout"),
}
"""The forms of a group's methods, by the names that this package gives them."""
