"""The forms in which torch.distributed's collectives are written, from their own signatures.

A form is a choice of arguments by position and by keyword. Those of functions come from
`inspect.signature`, those of groups' methods from the overloads in their docstrings.
"""

from __future__ import annotations

import datetime
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytorch.groups import RANK, SIZE, dist, torch
from torch._C import _distributed_c10d as c10d

_NAMES_OF_ROOTS = {"src", "dst", "group_src", "group_dst", "root", "opts"}
_OF_ROOT = ("gather_list", "scatter_list", "object_gather_list", "scatter_object_input_list")
_RIGHT, _LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
_SOME_TIME = datetime.timedelta(seconds=20)

Values = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """Arguments of a call: names of those given by position, and of those given by keyword."""

    function: str
    by_position: tuple[str, ...]
    by_keyword: tuple[str, ...]
    nested: bool = False  # whether the first lists hold lists: an overload of a method
    op: str = "MAX"
    dtype: str = "float32"

    def __str__(self) -> str:
        named = [f"{name}=" for name in self.by_keyword]
        more = " of lists" if self.nested else ""
        if "op" in self.names:
            more += f", {self.op} of {self.dtype}"
        return f"{self.function}({', '.join([*self.by_position, *named])}){more}"

    @property
    def names(self) -> set[str]:
        return {*self.by_position, *self.by_keyword}

    @property
    def root(self) -> int:
        """The root: torch's default, or the last rank if the form names one."""
        return SIZE - 1 if self.names & _NAMES_OF_ROOTS else 0


def _x(count: int = 4) -> Any:
    return torch.arange(count) % 3 + RANK + 1.0


def _zeros(count: int = 4) -> Any:
    return torch.zeros(count)


def _each(make: Callable[[int], Any], count: int = 4) -> list[Any]:
    return [make(count) for _ in range(SIZE)]


# ---- functions ----------------------------------------------------------------------------------


def _root_only(form: Form, made: Any) -> Any:
    return made if form.root == RANK else None


_OUT_AND_IN = {"output": lambda _: _zeros(), "input": lambda _: _x(4 * SIZE)}
_INTO_ONE = {"output_tensor": lambda _: _zeros(4 * SIZE), "input_tensor": lambda _: _x()}
_SPLITS = [4] * SIZE

# Makes the tensors and objects of each function, by parameter.
FUNCTIONS: dict[str, dict[str, Callable[[Form], Any]]] = {
    "all_reduce": {"tensor": lambda _: _x()},
    "all_reduce_coalesced": {"tensors": lambda _: [_x(), _x(2)]},
    "broadcast": {"tensor": lambda _: _x()},
    "reduce": {"tensor": lambda _: _x()},
    "all_gather": {"tensor_list": lambda _: _each(_zeros), "tensor": lambda _: _x()},
    "all_gather_coalesced": {
        "output_tensor_lists": lambda _: [[_zeros(), _zeros(2)] for _ in range(SIZE)],
        "input_tensor_list": lambda _: [_x(), _x(2)],
    },
    "all_gather_single": _INTO_ONE,
    "all_gather_into_tensor": _INTO_ONE,
    "gather": {
        "tensor": lambda _: _x(),
        "gather_list": lambda form: _root_only(form, _each(_zeros)),
    },
    "scatter": {
        "tensor": lambda _: _zeros(),
        "scatter_list": lambda form: _root_only(form, _each(_x)),
    },
    "reduce_scatter": {"output": lambda _: _zeros(), "input_list": lambda _: _each(_x)},
    "reduce_scatter_single": _OUT_AND_IN,
    "reduce_scatter_tensor": _OUT_AND_IN,
    "all_to_all": {
        "output_tensor_list": lambda _: _each(_zeros),
        "input_tensor_list": lambda _: _each(_x),
    },
    "all_to_all_single": {
        "output": lambda _: _zeros(4 * SIZE),
        "input": lambda _: _x(4 * SIZE),
        "output_split_sizes": lambda _: _SPLITS,
        "input_split_sizes": lambda _: _SPLITS,
    },
    "barrier": {"device_ids": lambda _: None},
    "monitored_barrier": {"wait_all_ranks": lambda _: True},
    "all_gather_object": {"object_list": lambda _: [None] * SIZE, "obj": lambda _: {"rank": RANK}},
    "broadcast_object_list": {
        "object_list": lambda form: ["x", 5] if form.root == RANK else [None, None],
        "device": lambda _: torch.device("cpu"),
    },
    "gather_object": {
        "obj": lambda _: {"rank": RANK},
        "object_gather_list": lambda form: _root_only(form, [None] * SIZE),
    },
    "scatter_object_list": {
        "scatter_object_output_list": lambda _: [None],
        "scatter_object_input_list": lambda form: _root_only(form, list("abcdefgh"[:SIZE])),
    },
    "send": {"tensor": lambda _: _x()},
    "isend": {"tensor": lambda _: _x()},
    "recv": {"tensor": lambda _: _zeros()},
    "irecv": {"tensor": lambda _: _zeros()},
}

NO_FORMS = {
    **dict.fromkeys(
        ("get_backend", "get_backend_config", "get_rank", "get_world_size", "get_group_rank"),
        "asks torch's own records",
    ),
    **dict.fromkeys(("get_global_rank", "get_process_group_ranks"), "asks torch's own records"),
    **dict.fromkeys(
        ("send_object_list", "recv_object_list"), "consists of send and recv, which have forms"
    ),
    "destroy_process_group": "ends the group",
    **dict.fromkeys(
        ("gather_single", "gather_into_tensor"), "gloo does not serve it; of torch 2.14"
    ),
    "get_backend_impl": "asks torch's own records; of torch 2.14",
    "set_timeout": "changes a limit and moves nothing; of torch 2.14",
    "new_subgroups": "creates groups by new_group",
    "shrink_group": "gloo and gradred do not shrink; torch says so",
}
"""Functions with a parameter `group` that have no forms here, with the reason."""


def public_functions() -> Iterator[str]:
    """The functions of torch.distributed that take a group."""
    for name in dist.distributed_c10d.__all__:
        if name == "reduce_op":  # asking for it warns
            continue
        found = getattr(dist.distributed_c10d, name)
        if inspect.isfunction(found) and "group" in inspect.signature(found).parameters:
            yield name


def forms_of_function(name: str) -> list[Form]:
    """All forms of a function."""
    parameters = inspect.signature(getattr(dist, name)).parameters
    required = [one for one, found in parameters.items() if found.default is found.empty]
    return _forms(name, list(parameters), required)


def _forms(name: str, names: Sequence[str], required: Sequence[str], **more: Any) -> list[Form]:
    made = [
        Form(name, tuple(names[:count]), (), **more)
        for count in range(len(required), len(names) + 1)
    ]
    optional = [one for one in names if one not in required]
    made += [Form(name, tuple(required), (one,), **more) for one in optional]
    for left_out in ("", "src", "dst", "group_src", "group_dst"):
        if left_out in ("", *names):
            keywords = tuple(one for one in names if one != left_out)
            made.append(Form(name, (), keywords, **more))
    made.append(Form(name, (), tuple(required), **more))
    made.append(Form(name, tuple(required), ("nonsense",), **more))
    return list(dict.fromkeys(_with_list_of_root(form, names) for form in made))


def _with_list_of_root(form: Form, names: Sequence[str]) -> Form:
    """Without its list the root alone would raise an error, and the other ranks wait for it."""
    missing = [one for one in _OF_ROOT if one in names and one not in form.names]
    if not missing:
        return form
    return Form(form.function, form.by_position, (*form.by_keyword, *missing), form.nested)


def values_of(form: Form, group: Any) -> Values:
    """New values of a form's arguments, by name."""
    names = form.names
    neighbour = _RIGHT if form.function in ("send", "isend") else _LEFT
    is_message = form.function in ("send", "isend", "recv", "irecv")
    root = neighbour if is_message else form.root
    given: Values = {"nonsense": 1, "group": group, "async_op": True, "tag": 3}
    given["weights_only"] = False  # of objects that travel, since torch 2.14
    given |= {"op": getattr(dist.ReduceOp, form.op), "timeout": _SOME_TIME}
    # Of a pair, torch takes one.
    both = {"src", "group_src"} <= names or {"dst", "group_dst"} <= names
    given |= dict.fromkeys(("src", "dst"), None if both else root)
    given |= dict.fromkeys(("group_src", "group_dst"), root)
    own = FUNCTIONS[form.function]
    return {
        name: _as(form.dtype, own[name](form)) if name in own else given[name] for name in names
    }


def _as(dtype: str, made: Any) -> Any:
    if isinstance(made, list):
        return [_as(dtype, one) for one in made]
    return made.to(getattr(torch, dtype)) if isinstance(made, torch.Tensor) else made


OPERATIONS = [one for one in dist.ReduceOp.RedOpType.__members__ if one != "UNUSED"]


def forms_with_operations(name: str) -> list[Form]:
    """A reduction's forms for each operation and for several element types."""
    tensors, named = tuple(FUNCTIONS[name]), ("op", "dst") if name == "reduce" else ("op",)
    return [
        Form(name, tensors, named, op=operation, dtype=dtype)
        for operation in OPERATIONS
        if operation != "PREMUL_SUM"  # torch has it for NCCL only
        for dtype in ("float32", "int32", "bool", "complex64")
    ]


# ---- methods of groups --------------------------------------------------------------------------

_WORK = re.compile(r"^(?:\d+\. )?\w+\(self: [^,)]+(?:, (?P<rest>.*))?\) -> c10d::Work$")
_PARAMETER = re.compile(r"(\w+): (.+?)(?: = (.+))?$")


@dataclass(frozen=True)
class Overload:
    """The parameters of an overload: names, those without a default, whether lists hold lists."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    nested: bool


def overloads(name: str) -> list[Overload]:
    """The overloads of a method that return a work, from its docstring."""
    text = getattr(dist.ProcessGroup, name).__doc__ or ""
    found = filter(None, (_WORK.match(line.strip()) for line in text.splitlines()))
    return [_overload(one["rest"] or "") for one in found]


def _overload(text: str) -> Overload:
    parts = re.split(r", (?=\w+: )", text) if text else []
    parameters = [found.groups() for part in parts if (found := _PARAMETER.match(part))]
    sequence = "collections.abc.Sequence[collections.abc.Sequence["
    return Overload(
        tuple(name for name, _, _ in parameters),
        tuple(name for name, _, default in parameters if default is None),
        any(kind.startswith(sequence) for _, kind, _ in parameters),
    )


def methods() -> Iterator[str]:
    """The methods of groups that start an operation."""
    return (name for name in dir(dist.ProcessGroup) if overloads(name))


NO_FORMS_OF_METHODS = {
    "_end_coalescing": "torch's coalescing manager calls it, which has a test",
    "recv_anysource": "takes its arguments by position only, as dist.recv without src does",
}
for _name in ("gather_single", "gather_into_tensor"):
    if hasattr(dist.ProcessGroup, _name):
        NO_FORMS_OF_METHODS[_name] = "gloo does not serve it"
"""Methods that start an operation and have no forms here, with the reason."""


def forms_of_method(name: str) -> list[Form]:
    """All forms of all overloads of a method."""
    return [
        form
        for one in overloads(name)
        for form in _forms(name, one.names, one.required, nested=one.nested)
    ]


def _options(form: Form) -> Any:
    kinds = {
        "allreduce": c10d.AllreduceOptions,
        "allreduce_coalesced": c10d.AllreduceCoalescedOptions,
        "broadcast": c10d.BroadcastOptions,
        "reduce": c10d.ReduceOptions,
        "gather": c10d.GatherOptions,
        "scatter": c10d.ScatterOptions,
        "barrier": c10d.BarrierOptions,
    }
    kind = kinds.get(form.function)
    if kind is None:
        name = form.function.lower()
        if "reduce_scatter" in name:
            kind = c10d.ReduceScatterOptions
        else:
            kind = c10d.AllgatherOptions if "gather" in name else c10d.AllToAllOptions
    made = kind()
    if hasattr(made, "rootRank"):
        made.rootRank = form.root
    if hasattr(made, "reduceOp"):
        made.reduceOp = dist.ReduceOp.MAX
    return made


def values_of_method(form: Form) -> Values:
    """New values of a method's arguments, by name."""
    known: Values = {
        "nonsense": 1,
        "op": dist.ReduceOp.MAX,
        "timeout": _SOME_TIME,
        "root": form.root,
        "dstRank": _RIGHT,
        "srcRank": _LEFT,
        "tag": 3,
        "output_split_sizes": _SPLITS,
        "input_split_sizes": _SPLITS,
    }
    tensors = _tensors_of_method(form)
    made = {}
    for name in form.names:
        if name == "opts":
            made[name] = _options(form)
        else:
            made[name] = known[name] if name in known else tensors[name]
    return made


def _tensors_of_method(form: Form) -> Values:
    is_root, name = form.root == RANK, form.function
    whole = {"outputTensor": _zeros(), "inputTensor": _x(4 * SIZE)}
    whole |= {
        "output": _zeros(4 * SIZE),
        "input": _x(4 * SIZE if "all_to" in name or "alltoall" in name else 4),
    }
    lists = {"output_lists": [[_zeros()] for _ in range(SIZE)], "input_list": [_x()]}
    lists |= {"tensors": [_x()] if name != "recv" else [_zeros()], "tensor": _x()}
    if "reduce_scatter" in name:
        lists |= {"outputs": [_zeros(), _zeros(2)], "inputs": [_x(4 * SIZE), _x(2 * SIZE)]}
    else:
        lists |= {"outputs": [_zeros(4 * SIZE), _zeros(2 * SIZE)], "inputs": [_x(), _x(2)]}
    every_out, every_in = _each(_zeros), _each(_x)
    if name == "allgather":
        lists |= {"output_tensors": [every_out] if form.nested else every_out}
        lists |= {"input_tensors": [_x()], "input_tensor": _x()}
    elif name == "gather":
        lists["output_tensors"] = ([every_out] if form.nested else every_out) if is_root else []
        lists |= {"input_tensors": [_x()], "input_tensor": _x()}
    elif name == "scatter":
        lists["input_tensors"] = ([every_in] if form.nested else every_in) if is_root else []
        lists |= {"output_tensors": [_zeros()], "output_tensor": _zeros()}
    elif name == "reduce_scatter":
        lists |= {"output_tensors": [_zeros()], "input_tensors": [every_in]}
        whole |= {"output": _zeros(), "input": every_in}
    elif name == "alltoall":
        lists |= {"output_tensors": every_out, "input_tensors": every_in}
    return whole | lists
