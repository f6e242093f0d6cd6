"""Arrays that are more than their numbers are refused by name, with advice what to pass instead.

`describe` and `read` see every array of every call. The first serves gradred.allreduce and its
like. The second serves the methods of gradred.Comm and the contents of mpi4py's specifications.
test_misuse.py tests every call, and the errors of the peers of a rank with such an array.
"""

from __future__ import annotations

import importlib
import re
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from mpi import sizes
from mpi4py import MPI

import gradred
from gradred import UsageError
from gradred.buffers.arrays import describe
from gradred.buffers.messages import read
from gradred.errors import UsageTypeError

ASKED = "allreduce of x"
NUMBERS = [1.0, 2.0, 4.0]
MASK = [False, True, False]
COMM = gradred.Comm(MPI.COMM_SELF)

pytestmark = sizes.up_to_three_ranks


def numbers() -> Any:
    return np.array(NUMBERS)


class Refused(NamedTuple):
    """An array that is more than its numbers."""

    library: str
    make: Callable[[Any], Any]
    """Makes it, with the library's module."""
    says: str
    remedy: str
    plain: Callable[[Any], Any]
    """Does what the remedy advises."""
    result: list[float] = NUMBERS
    shares: bool = False


class Decibels(np.ndarray):
    """A program's own class, in which two sounds of 60 dB add up to one of 63."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class Added(np.ndarray):
    """The same, by overriding only the operator."""

    def __add__(self, other: Any) -> Any:
        raise NotImplementedError


def of_one_unit(unit: str) -> dict[str, Any]:
    return {"says": "has a unit", "remedy": f"Pass x.{unit}, in one unit on all ranks"}


FILLED: dict[str, Any] = {
    "says": "has a mask",
    "remedy": "Pass x.filled(value)",
    "plain": lambda x: x.filled(0),
    "result": [1.0, 0.0, 4.0],
}
MISSING: dict[str, Any] = {
    "says": "may miss elements",
    "remedy": "x.to_numpy(",
    "plain": lambda x: x.to_numpy("float64", na_value=0),
    "result": [1.0, 0.0, 4.0],
}
SPARSE: dict[str, Any] = {"says": "does not hold its zeros"}
OWN: dict[str, Any] = {"remedy": "Pass numpy.asarray(x)", "plain": np.asarray, "shares": True}

REFUSED = {
    "numpy.ma": Refused("numpy", lambda np: np.ma.masked_array(numbers(), MASK), **FILLED),
    "numpy.ma without masked elements": Refused(
        "numpy", lambda np: np.ma.masked_array(numbers()), **{**FILLED, "result": NUMBERS}
    ),
    "arithmetic of its own": Refused(
        "numpy", lambda _: numbers().view(Decibels), "in its own way (__array_ufunc__)", **OWN
    ),
    "a sum of its own": Refused(
        "numpy", lambda _: numbers().view(Added), "in its own way (__add__)", **OWN
    ),
    "astropy Masked": Refused(
        "astropy.utils.masked", lambda m: m.Masked(numbers(), mask=MASK), **FILLED
    ),
    "astropy Masked with a unit": Refused(
        "astropy.units",
        lambda u: masked_by_astropy(numbers() * u.m),
        **{**FILLED, "plain": lambda x: x.filled(0 * x.unit).value},
    ),
    "astropy Quantity": Refused(
        "astropy.units",
        lambda u: numbers() * u.m,
        plain=lambda x: x.value,
        shares=True,
        **of_one_unit("value"),
    ),
    "astropy Column": Refused(
        "astropy.table",
        lambda t: t.Column(numbers(), unit="m"),
        "may have a unit",
        "Pass numpy.asarray(x), in one unit",
        np.asarray,
        shares=True,
    ),
    "astropy MaskedColumn": Refused(
        "astropy.table",
        lambda t: t.MaskedColumn(numbers(), mask=MASK),
        **{**FILLED, "plain": lambda x: np.asarray(x.filled(0))},
    ),
    "unyt": Refused(
        "unyt",
        lambda unyt: unyt.unyt_array(numbers(), "m"),
        plain=lambda x: x.ndview,
        shares=True,
        **of_one_unit("ndview"),
    ),
    "pint": Refused(
        "pint",
        lambda pint: pint.UnitRegistry().Quantity(numbers(), "m"),
        plain=lambda x: x.magnitude,
        shares=True,
        **of_one_unit("magnitude"),
    ),
    "quantities": Refused(
        "quantities",
        lambda quantities: numbers() * quantities.m,
        plain=lambda x: x.magnitude,
        shares=True,
        **of_one_unit("magnitude"),
    ),
    "pandas Series": Refused(
        "pandas",
        lambda pandas: pandas.Series(numbers()),
        "has labels",
        "Pass x.to_numpy('float64')",
        lambda x: x.to_numpy("float64"),
    ),
    "pandas DataFrame": Refused(
        "pandas",
        lambda pandas: pandas.DataFrame({"a": numbers()}),
        "has labels",
        "Pass x.to_numpy('float64')",
        lambda x: x.to_numpy("float64"),
    ),
    "pandas Series with NA": Refused(
        "pandas", lambda pandas: pandas.Series([1, None, 4], dtype="Int64"), **MISSING
    )._replace(says="has labels"),
    "pandas Int64": Refused(
        "pandas", lambda pandas: pandas.array([1, None, 4], dtype="Int64"), **MISSING
    ),
    "pandas boolean": Refused(
        "pandas",
        lambda pandas: pandas.array([True, None], dtype="boolean"),
        **{**MISSING, "result": [1.0, 0.0]},
    ),
    "polars": Refused(
        "polars",
        lambda polars: polars.Series([1.0, None, 4.0]),
        "may miss elements",
        "Pass x.to_numpy(), after x.fill_null(value)",
        lambda x: x.fill_null(0).to_numpy(),
        [1.0, 0.0, 4.0],
    ),
    "xarray DataArray": Refused(
        "xarray",
        lambda xarray: xarray.DataArray(numbers()),
        "has labels",
        "Pass x.to_numpy()",
        lambda x: x.to_numpy(),
    ),
    "xarray Dataset": Refused(
        "xarray",
        lambda xarray: xarray.Dataset({"a": ("i", numbers())}),
        "has labels",
        "Pass x[name].to_numpy()",
        lambda x: x["a"].to_numpy(),
    ),
    "awkward": Refused(
        "awkward",
        lambda awkward: awkward.Array(numbers()),
        "rows of several lengths",
        "Pass awkward.to_numpy(x)",
        lambda x: importlib.import_module("awkward").to_numpy(x),
    ),
    "dask": Refused(
        "dask.array",
        lambda array: array.from_array(numbers()),
        "yet to be computed",
        "Pass x.compute()",
        lambda x: x.compute(),
    ),
    "scipy.sparse": Refused(
        "scipy.sparse",
        lambda sparse: sparse.csr_array(numbers()[None]),
        remedy="Pass x.toarray()",
        plain=lambda x: x.toarray(),
        **SPARSE,
    ),
    "torch.masked": Refused(
        "torch.masked",
        lambda masked: masked_by_torch(masked),
        "has a mask",
        "Pass x.to_tensor(value)",
        lambda x: x.to_tensor(0),
        [1.0, 0.0, 4.0],
    ),
    "tensorflow Variable": Refused(
        "tensorflow",
        lambda tf: tf.Variable(NUMBERS),
        "is changed by TensorFlow alone",
        "Pass x.numpy(), and call x.assign(result)",
        lambda x: x.numpy(),
    ),
    "tensorflow IndexedSlices": Refused(
        "tensorflow",
        lambda tf: tf.IndexedSlices(tf.constant(NUMBERS), tf.constant([0, 1, 2]), tf.constant([3])),
        remedy="Pass tf.convert_to_tensor(x).numpy()",
        plain=lambda x: importlib.import_module("tensorflow").convert_to_tensor(x).numpy(),
        **SPARSE,
    ),
    "tensorflow SparseTensor": Refused(
        "tensorflow",
        lambda tf: tf.sparse.from_dense([NUMBERS]),
        remedy="Pass tf.sparse.to_dense(x).numpy()",
        plain=lambda x: importlib.import_module("tensorflow").sparse.to_dense(x).numpy(),
        **SPARSE,
    ),
    "tensorflow RaggedTensor": Refused(
        "tensorflow",
        lambda tf: tf.ragged.constant([[1.0], [2.0, 4.0]]),
        "has rows of several lengths",
        "Pass x.flat_values.numpy()",
        lambda x: x.flat_values.numpy(),
    ),
}


def masked_by_astropy(x: Any) -> Any:
    return importlib.import_module("astropy.utils.masked").Masked(x, mask=MASK)


def masked_by_torch(masked: Any) -> Any:
    torch = importlib.import_module("torch")
    with warnings.catch_warnings():  # a prototype of PyTorch, which warns
        warnings.simplefilter("ignore")
        return masked.masked_tensor(torch.tensor(NUMBERS), ~torch.tensor(MASK))


def made(row: Refused) -> Any:
    """The array; skips if its library is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip(row.library, reason=f"needs {row.library.partition('.')[0]}")
    return row.make(module)


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_array_is_refused_as_input_with_what_to_pass(row: Refused) -> None:
    x = made(row)
    message = f"{type(x).__name__} .*{re.escape(row.says)}.*{re.escape(row.remedy)}"
    for look in (
        lambda: describe(x, ASKED),
        lambda: read(x, ASKED, writable=False),
        lambda: read([x, 1, MPI.DOUBLE], ASKED, writable=False),
        lambda: read([x, MPI.DOUBLE], ASKED, writable=False),
        lambda: gradred.allreduce_many([numbers(), x], comm=COMM),
    ):
        with pytest.raises(UsageTypeError, match=message):
            look()


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_array_is_refused_as_result_with_what_to_pass(row: Refused) -> None:
    x = made(row)
    remedy = re.escape(row.remedy) if row.shares else "Pass a plain array in its place"
    message = f"{type(x).__name__} .*{re.escape(row.says)}.*{remedy}"
    for look in (
        lambda: describe(x, ASKED, is_result=True),
        lambda: read(x, ASKED, writable=True),
        lambda: read([x, 1, MPI.DOUBLE], ASKED, writable=True),
        lambda: gradred.allreduce(numbers(), out=x, comm=COMM),
        lambda: COMM.Allreduce(MPI.IN_PLACE, x),
    ):
        with pytest.raises(UsageTypeError, match=message):
            look()


@pytest.mark.parametrize("row", REFUSED.values(), ids=REFUSED)
def test_remedy_gives_the_numbers(row: Refused) -> None:
    x = made(row)
    y = gradred.allreduce(row.plain(x), comm=COMM)
    assert np.asarray(y).ravel().tolist() == row.result
    if row.shares:
        gradred.allreduce(numbers() * 2, out=row.plain(x), comm=COMM)
        assert np.asarray(row.plain(x)).tolist() == [2 * number for number in NUMBERS]


class Noted(np.ndarray):
    """Numbers with an attached note."""

    note = "of the second run"


def in_a_file() -> Any:
    with tempfile.TemporaryFile() as file:
        x = np.memmap(file, "float64", shape=(3,))
    x[:] = NUMBERS
    return x


PLAIN: dict[str, Callable[[], Any]] = {
    "memmap": in_a_file,
    "matrix": lambda: numbers()[None].view(np.matrix),
    "recarray": lambda: numbers().view(np.recarray),
    "with a note": lambda: numbers().view(Noted),
}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_subclass_that_is_its_numbers_is_served(make: Callable[[], Any]) -> None:
    x, y = make(), make()
    y[...] = 0
    assert np.asarray(gradred.allreduce(x, comm=COMM)).ravel().tolist() == NUMBERS
    assert gradred.allreduce(x, out=y, comm=COMM) is y
    assert np.asarray(y).ravel().tolist() == NUMBERS
    COMM.Allreduce([x, MPI.DOUBLE], y)
    assert np.asarray(y).ravel().tolist() == NUMBERS


def test_records_are_refused() -> None:
    with pytest.raises(UsageError, match="no reductions for"):
        describe(np.rec.array([(1, 2.0)], dtype="i4,f8"), ASKED)


def traced_by_jax(look: Callable[[Any], Any]) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones(3)
    jax.jit(look)(x)
    jax.vmap(look)(x)
    jax.grad(lambda x: look(x).sum())(x)


def traced_by_tensorflow(look: Callable[[Any], Any]) -> None:
    tf = pytest.importorskip("tensorflow")
    tf.function(look, autograph=False)(tf.ones(3))


@pytest.mark.parametrize(
    ("traced", "remedy"),
    [
        (traced_by_jax, "outside of jax.jit, grad and vmap, or .*io_callback"),
        (traced_by_tensorflow, "outside of tf.function, or .*tf.numpy_function"),
    ],
)
def test_tracers_are_refused_with_a_callback_to_use(
    traced: Callable[[Callable[[Any], Any]], None], remedy: str
) -> None:
    def look(x: Any) -> Any:
        with pytest.raises(UsageTypeError, match=f"has no elements, since .* traces.*{remedy}"):
            describe(x, ASKED)
        with pytest.raises(UsageTypeError, match=f"has no elements, since .* traces.*{remedy}"):
            COMM.Allreduce(x, numbers())
        return x

    traced(look)


def of_jax() -> Any:
    return pytest.importorskip("jax.numpy").arange(3.0)


def of_tensorflow() -> Any:
    return pytest.importorskip("tensorflow").range(3.0)


@pytest.mark.parametrize("make", [of_jax, of_tensorflow])
def test_array_that_never_changes_takes_no_result(make: Callable[[], Any]) -> None:
    x, y = make(), np.zeros(3, "float32")
    for call in (
        lambda: gradred.allreduce(y, out=x, comm=COMM),
        lambda: COMM.Allreduce(MPI.IN_PLACE, x),
        lambda: COMM.Allreduce(y, [x, 3, MPI.FLOAT]),
        lambda: COMM.Iallreduce(y, x),
        lambda: COMM.Allreduce_init(y, x),
        lambda: COMM.Allgather(y, x),
    ):
        with pytest.raises(UsageError, match=f"read-only .{type(x).__name__}.*Pass a writable"):
            call()
    COMM.Allreduce(x, y)
    COMM.Bcast(x)  # rank 0 sends it
    assert y.tolist() == np.asarray(x).tolist() == [0, 1, 2]
