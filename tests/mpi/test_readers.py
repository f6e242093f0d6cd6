"""The two readers of arrays, the core's and Python's, held against one table.

The core reads plain arrays by itself. Python reads all others, and words what is wrong with them.
For each row the table has what Python finds, and whether the core reads the arrays too. If it does,
both readers must make the same call of them.
"""

from __future__ import annotations

import array
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from lenders import Derived, Interface, Lender
from mpi4py import MPI

import gradred
from gradred import UsageError, _core
from gradred import comm as comm_module
from gradred.buffers import arrays, messages
from gradred.buffers.messages import Message
from gradred.calls import one
from gradred.calls.one import Asked
from gradred.element_types import ITEMSIZES, numpy_dtype

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
ALONE = gradred.Comm(MPI.COMM_SELF)

BY_MPI = "by the MPI"


class Row(NamedTuple):
    """Two arrays of one kind, and what becomes of them.

    A text is a part of the error that refuses them. Empty: gradred makes a call of them.
    """

    make: Callable[[], tuple[Any, Any]]
    core: str = ""
    """What the core reads by itself: "both" forms, "buffers" or nothing."""
    buffers: str = ""
    """Of `comm.Allreduce(x, out)`."""
    array: str = ""
    """Of `gradred.allreduce(x, out=out)`."""


def two(make: Callable[[], Any]) -> Callable[[], tuple[Any, Any]]:
    return lambda: (make(), make())


def read_only(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    x.flags.writeable = False
    return x


def unaligned() -> npt.NDArray[Any]:
    return np.zeros(33, "uint8")[1:].view("float64")


def halves() -> tuple[Any, Any]:
    x = np.zeros(20)
    return x[:10], x[5:15]


NUMPY = {
    "in C order": Row(two(lambda: np.ones((2, 3))), "both"),
    "without axes": Row(two(lambda: np.ones(())), "both"),
    "without elements": Row(two(lambda: np.ones((2, 0))), "both"),
    "with axes of length 1": Row(two(lambda: np.ones((1, 5, 1)).T), "both"),
    "in Fortran order": Row(two(lambda: np.ones((2, 3)).T), "buffers"),
    "in another order": Row(two(lambda: np.ones((2, 3, 4)).transpose(1, 0, 2))),
    "in place": Row(lambda: (x := np.ones(3), x), "both"),
    "with gaps": Row(two(lambda: np.ones(8)[::2]), "", "not dense", "not dense"),
    "backwards": Row(two(lambda: np.ones(8)[::-1]), "", "not dense", "not dense"),
    "one row many times": Row(
        two(lambda: np.broadcast_to(np.ones(3), (2, 3))), "", "not dense", "not dense"
    ),
    "unaligned": Row(two(unaligned)),
    "of half floats": Row(two(lambda: np.ones(3, "float16")), "both"),
    "of bfloat16": Row(two(lambda: np.ones(3, ml_dtypes.bfloat16))),
    "of the other byte order": Row(
        two(lambda: np.ones(3, ">f8")), "", "another order of bytes", "the other byte order"
    ),
    "of long doubles": Row(
        two(lambda: np.ones(3, "longdouble")), "", BY_MPI, "gradred has no reductions for"
    ),
    "of objects": Row(
        two(lambda: np.ones(3, object)), "", "holds Python objects", "no reductions for"
    ),
    "of times": Row(
        two(lambda: np.zeros(3, "datetime64[s]")), "", "no MPI type", "no reductions for"
    ),
    "derived": Row(two(lambda: np.ones(3).view(Derived)), "buffers"),
    "with a mask": Row(two(lambda: np.ma.ones(3)), "", "has a mask", "has a mask"),
    "with a result that is read-only": Row(
        lambda: (np.ones(3), read_only(np.ones(3))), "", "is read-only", "out is read-only"
    ),
    "with an input that is read-only": Row(lambda: (read_only(np.ones(3)), np.ones(3)), "both"),
    "of two types": Row(
        lambda: (np.ones(3, "int32"), np.ones(3, "float32")), "", "int32, recvbuf", "out is float32"
    ),
    "of two lengths": Row(
        lambda: (np.ones(3), np.ones(4)), "", "3 elements, recvbuf 4", "out is float64 of shape"
    ),
    "of two shapes": Row(
        lambda: (np.ones((2, 3)), np.ones((3, 2))), "buffers", "", "out is float64 of shape"
    ),
    "of two orders": Row(
        lambda: (np.ones((2, 3)), np.ones((2, 3), order="F")), "buffers", "", "axes in the order"
    ),
    "that overlap": Row(halves, "", "overlap", "would overwrite a part"),
}

OTHERS = {
    "a scalar": Row(lambda: (np.float64(1), np.ones(())), "buffers"),
    "a bytearray": Row(two(lambda: bytearray(3)), "buffers"),
    "bytes": Row(two(lambda: bytes(3)), "", "is read-only", "out is read-only"),
    "an array.array": Row(two(lambda: array.array("f", [1, 2])), "buffers"),
    "a memoryview": Row(two(lambda: memoryview(np.ones(3))), "buffers"),
    "a memoryview with gaps": Row(
        two(lambda: memoryview(bytearray(8))[::2]), "", "not dense", "not dense"
    ),
    "by DLPack": Row(two(lambda: Lender(np.ones((2, 3)))), "buffers"),
    "by DLPack, with gaps": Row(two(lambda: Lender(np.ones(8)[::2])), "", "not dense", "not dense"),
    "by the interface of GPUs": Row(two(lambda: Interface(np.ones((2, 3)))), "both"),
    "a number": Row(two(lambda: 3.0), "", "a float is not a buffer", "a float is not an array"),
}


def torch_rows(torch: Any) -> dict[str, Row]:
    arrays.describe(torch.ones(1), "")  # from now on the core knows tensors
    both = "both" if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else ""
    graded = "the tensor requires grad"
    view = "conjugated or negated view"
    return {
        "in C order": Row(two(lambda: torch.ones(2, 3)), both),
        "of bfloat16": Row(two(lambda: torch.ones(3, dtype=torch.bfloat16)), both),
        "without elements": Row(two(lambda: torch.ones(2, 0))),
        "transposed": Row(two(lambda: torch.ones(2, 3).T)),
        "channels last": Row(
            two(lambda: torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last))
        ),
        "with axes of length 1": Row(two(lambda: torch.ones(1, 5, 1).transpose(0, 2)), both),
        "with gaps": Row(two(lambda: torch.ones(8)[::2]), "", "not dense", "not dense"),
        "of complex numbers": Row(two(lambda: torch.ones(3, dtype=torch.complex64))),
        "conjugated": Row(two(lambda: torch.ones(3, dtype=torch.complex64).conj()), "", view, view),
        "negated": Row(
            two(lambda: torch.ones(3, dtype=torch.complex64).conj().imag), "", view, view
        ),
        "that require grad": Row(
            two(lambda: torch.ones(3, requires_grad=True)), "", graded, graded
        ),
        "sparse": Row(two(lambda: torch.ones(2, 2).to_sparse()), "", "is sparse", "is sparse"),
        "meta": Row(two(lambda: torch.ones(3, device="meta")), "", "meta tensor", "meta tensor"),
        "with freed storage": Row(two(lambda: freed(torch)), "", "no memory", "no memory"),
    }


def freed(torch: Any) -> Any:
    made = torch.ones(4)
    made.untyped_storage().resize_(0)
    return made


@pytest.fixture
def python_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core reads nothing."""
    for name in ("plain_reduction", "plain_array"):
        monkeypatch.setattr(_core, name, lambda *_: None)


def by_core(form: str, x: Any, out: Any, op: Any = "sum") -> str | None:
    """Return the call that the core makes of the arrays; None: it leaves them to Python."""
    if form == "buffers":
        plain = _core.plain_reduction("allreduce", 1, x, out, op)
        return None if plain is None else repr(plain[0])
    found = _core.allreduce_call(ALONE, x, op, out)
    return None if found is NotImplemented else repr(found[0])


def by_python(form: str, x: Any, out: Any, op: Any = "sum") -> str:
    """Return the call that Python makes of the arrays, BY_MPI, or the text of its error."""
    try:
        if form == "buffers":
            read = messages.reduction("Allreduce", ALONE, x, out, op)
            return BY_MPI if isinstance(read, Message) else repr(read.call)
        call = one.one(Asked("allreduce", ALONE, None, None, op), x, out).call
        return BY_MPI if call is None else repr(call)
    except UsageError as error:
        return str(error)


def check(row: Row, form: str, request: pytest.FixtureRequest) -> None:
    x, out = row.make()
    for each in (x, out):
        with contextlib.suppress(UsageError):  # from now on the core knows its type
            arrays.read(each, "")
    core = by_core(form, x, out)
    request.getfixturevalue("python_alone")
    python = by_python(form, x, out)
    wanted = row.buffers if form == "buffers" else row.array
    assert python.startswith("Call(") if wanted == "" else wanted in python, python
    assert core == (python if row.core in ("both", form) else None)


FORMS = ("buffers", "array")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", NUMPY)
def test_readers_find_the_same_in_numpy_arrays(
    kind: str, form: str, request: pytest.FixtureRequest
) -> None:
    check(NUMPY[kind], form, request)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", OTHERS)
def test_readers_find_the_same_in_other_objects(
    kind: str, form: str, request: pytest.FixtureRequest
) -> None:
    check(OTHERS[kind], form, request)


@pytest.mark.parametrize("form", FORMS)
def test_readers_find_the_same_in_tensors(form: str, request: pytest.FixtureRequest) -> None:
    for kind, row in torch_rows(pytest.importorskip("torch")).items():
        try:
            check(row, form, request)
        finally:
            request.getfixturevalue("monkeypatch").undo()
        assert kind


KINDS = ("reduce_scatter_block", "allgather", "bcast", "scan", "gather", "scatter")


@pytest.mark.parametrize("kind", KINDS)
def test_readers_make_the_same_call_of_every_kind(
    kind: str, request: pytest.FixtureRequest
) -> None:
    made = {name: row.make() for name, row in (NUMPY | OTHERS).items()}
    describe = getattr(_core, f"{kind}_call")
    asked = Asked(kind, ALONE, None, None)
    what = asked.op if kind in ("reduce_scatter_block", "scan") else 0
    core = {name: describe(ALONE, x, what, out) for name, (x, out) in made.items()}
    request.getfixturevalue("python_alone")
    for name, (x, out) in made.items():
        if core[name] is not NotImplemented:
            call, result = core[name]
            assert result is out, name
            assert repr(call) == repr(one.one(asked, x, out).call), name
    assert core["in C order"] is not NotImplemented


OPERATIONS: dict[str, Any] = {
    **{name: name for name in gradred.OPS},
    **{f"MPI.{name}": getattr(MPI, name) for name in ("SUM", "MAX", "LAND", "BXOR", "MINLOC")},
    "NumPy's text": np.str_("sum"),
    "premul": gradred.premul(0.5),
    "no name": "mean",
    "a number": 3,
}
FOR_PYTHON = (gradred.premul(0.5),)
"""Operations that gradred has, and that Python alone reads."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ITEMSIZES)
def test_readers_agree_on_every_operation_of_every_type(
    dtype: str, form: str, request: pytest.FixtureRequest
) -> None:
    x, out = np.ones(3, numpy_dtype(dtype)), np.ones(3, numpy_dtype(dtype))
    core = {name: by_core(form, x, out, op) for name, op in OPERATIONS.items()}
    request.getfixturevalue("python_alone")
    for name, op in OPERATIONS.items():
        python = by_python(form, x, out, op)
        if core[name] is not None:
            assert core[name] == python, name
        elif any(core.values()) and op not in FOR_PYTHON:
            assert not python.startswith("Call("), name


def closer_look(name: str) -> Callable[..., Any]:
    return comm_module._CLOSER_LOOKS[name]


CALLS: dict[str, Callable[[Callable[..., Any], gradred.Comm], Any]] = {
    "Allreduce": lambda call, comm: call(comm, np.ones((2, 3)), np.zeros((2, 3)), "max"),
    "Reduce_scatter_block": lambda call, comm: call(comm, np.ones(2 * SIZE), np.zeros(2), MPI.SUM),
    "Ireduce_scatter_block": lambda call, comm: call(
        comm, np.ones(2 * SIZE), np.zeros(2), MPI.SUM
    ).Wait(),
    "Scan": lambda call, comm: call(comm, np.ones(2), np.zeros(2)),
    "Iexscan": lambda call, comm: call(comm, np.ones(2), np.zeros(2), "min").Wait(),
    "Allgather": lambda call, comm: call(comm, np.ones(2), np.zeros(2 * SIZE)),
    "Bcast": lambda call, comm: call(comm, np.ones(3), SIZE - 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_ranks_whose_arrays_different_readers_read_agree(
    name: str, comm: gradred.Comm, python_alone: None
) -> None:
    CALLS[name](closer_look(name) if RANK % 2 else getattr(gradred.Comm, name), comm)
