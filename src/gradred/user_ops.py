"""Operations made from a program's own functions, which Numba compiles.

From one function of two elements this module compiles the two functions by which the core reduces
(csrc/reduce/reduce.h): one for pairs and one for many inputs. They are machine code that needs
neither Python nor the GIL. So every plan can use them, also on gradred's own threads.
"""

from __future__ import annotations

import ctypes
import dataclasses
import dis
import functools
import hashlib
import inspect
import types
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from gradred import _core
from gradred.element_types import ELEMENT_TYPES, ElementType
from gradred.errors import UsageError, UsageTypeError

BLOCK: Final = 512
"""The elements of a result that are reduced over all inputs before the next block of elements:
they fit into the first-level cache."""


@dataclasses.dataclass(frozen=True, eq=False)
class UserOp:
    """A reduction operation made from a function; made by `gradred.user_op`."""

    name: str
    """The function's name and a hash of its code, which the ranks compare."""
    function: Callable[[Any, Any], Any]

    def __repr__(self) -> str:
        return f"UserOp({self.name})"


def user_op(function: Callable[[Any, Any], Any]) -> UserOp:
    """Make a reduction operation from a function of two elements, which Numba compiles.

    Every reduction of gradred that takes an operation accepts it, except named operations. The
    function is compiled for an element type when a call first has arrays of the type. That takes
    some 0.3 seconds. It later runs without the GIL. For arrays in GPUs' memory it is compiled
    again, for GPUs. If Numba cannot do that (it needs NVIDIA's libNVVM), or the driver does not
    link it to gradred's kernels, such arrays are staged through host memory and reduced there.

    The function must be commutative and associative. The order and grouping of the ranks' elements
    depend on the plan and the number of ranks, as in MPI with `commute=True`. If `f(a, b)` and
    `f(b, a)` differ in a bit, the ranks' results may differ too. Floats of 16 and 8 bits are
    computed in float32 and rounded. A division by zero gives NumPy's result.

    All ranks must give the same function. They compare a hash of its bytecode, its constants, the
    numbers that it uses from enclosing scopes, and the functions that it calls. So they must run
    the same version of Python.

    Args:
        function: takes two elements and returns one. It is a Python function, or one that
            `numba.njit`, `numba.vectorize` or `numba.cuda.jit` has decorated. It is taken as it
            is at this call.

    Raises:
        gradred.UsageError: the function does not take two arguments, or contains a `raise`; Numba
            is not installed. On first use with an element type: Numba cannot compile it for the
            type, or it is not commutative.

    Example::

        either = gradred.user_op(lambda a, b: a + b - a * b)
        x = gradred.allreduce(x, either)
    """
    plain = _plain(function)
    asked = f"user_op({getattr(plain, '__name__', plain)!s})"
    _require_numba(asked)
    parameters = inspect.signature(plain).parameters.values()
    if len([one for one in parameters if one.default is one.empty]) != 2 or len(parameters) != 2:
        found = f"it takes the arguments {inspect.signature(plain)}"
        raise UsageError(asked, found, "Give a function of two elements")
    if any(step.opname == "RAISE_VARARGS" for step in dis.get_instructions(plain)):
        found = "it raises an exception, which nobody could catch where it runs"
        raise UsageError(asked, found, "Return a value, such as NaN, instead")
    digest = hashlib.sha256()
    _describe(plain, digest.update, set())
    number = int.from_bytes(digest.digest()[:8], "little")
    name = f"{plain.__name__}-{number:016x}"
    _core.make_operation(name, number)
    return _made.setdefault(name, UserOp(name, function))


_made: dict[str, UserOp] = {}
_kept: list[Any] = []  # keeps compiled functions alive to the end: the core has their addresses


@functools.cache
def compiled(op: str, dtype: str) -> bool:
    """Return whether `op` was made by `user_op`; compiles its functions for the type.

    Raises:
        gradred.UsageError: Numba cannot compile it for the type, or it is not commutative.
    """
    made = _made.get(op)
    if made is None:
        return False
    asked = f"{op} of {dtype}"
    import numba

    try:
        pair, many = _compile(made.function, dtype)
    except numba.core.errors.NumbaError as error:
        found = f"Numba cannot compile it for this type: {_reason(str(error))}"
        remedy = "Mend the function; numba.njit(function)(x, y) shows all that Numba says of it"
        raise UsageError(asked, found, remedy) from error
    _require_commutative(pair.address, dtype, asked)
    _kept.append((pair, many))
    _core.add_reduction(op, dtype, pair.address, many.address)
    return True


def _reason(text: str) -> str:
    """Return the first sentence of a Numba error, with the signature if it announces one."""
    lines = [line.strip() for line in text.splitlines() if not line.startswith("Failed in")]
    lines = [line for line in lines if line]
    first, *rest = lines or ["it does not say why"]
    call = next((line.removeprefix(">>>").strip() for line in rest if line.startswith(">>>")), "")
    return f"{first} {call}" if first.endswith("signature:") and call else first


@functools.cache
def compile_for_devices(op: str, dtype: str) -> None:
    """Compile an operation of `user_op` for GPUs; give the core the code, or why there is none.

    Does nothing for other operations. The ranks agree in each call on whether they reduce on GPUs:
    if one rank has no function, all ranks reduce on the host.
    """
    made = _made.get(op)
    if made is None or not _core.has_device_type(dtype):
        return
    code, why_not = "", ""
    try:
        code = _ptx(made.function, dtype)
    except Exception as error:  # Numba's own kinds differ with its version
        first = str(error).strip().splitlines()[:1]
        why_not = f"Numba cannot compile it for GPUs ({type(error).__name__}: {' '.join(first)})"
    _core.add_device_reduction(op, dtype, code, why_not)


_OLDEST_CAPABILITY: Final = (7, 5)  # all later devices accept its PTX


def _ptx(function: Any, dtype: str) -> str:
    """Compile to PTX `T gradred_user_op(T, T)` with C's ABI; 16- and 8-bit floats are float32."""
    import numba
    from numba import cuda

    row = ELEMENT_TYPES[dtype]
    number = getattr(numba.types, dtype if _format(row) is None else "float32")
    # A set of fastmath flags, which is not True, has no counterpart here.
    fast = getattr(function, "targetoptions", {}).get("fastmath") is True
    code, _ = cuda.compile(
        _plain(function),
        number(number, number),
        device=True,
        fastmath=fast,
        cc=_OLDEST_CAPABILITY,
        abi="c",
        abi_info={"abi_name": "gradred_user_op"},
        output="ptx",
    )
    return str(code)


def _plain(function: Any) -> types.FunctionType:
    found = function
    if not isinstance(function, types.FunctionType):  # Numba's; vectorize's have __wrapped__
        found = getattr(function, "py_func", getattr(function, "__wrapped__", function))
    if not isinstance(found, types.FunctionType):
        raise UsageTypeError(
            f"user_op({function!r})",
            f"it is of the type {type(function).__name__}, and no Python function",
            "Give a function of two elements",
        )
    return found


def _require_numba(asked: str) -> None:
    try:
        import numba  # noqa: F401
    except ImportError:
        found = "Numba, which compiles it, is not installed"
        raise UsageError(asked, found, "pip install numba") from None


# ---- what ranks compare --------------------------------------------------------------------------


def _describe(
    function: types.FunctionType, feed: Callable[[bytes], object], seen: set[int]
) -> None:
    """Call `feed` with the bytes of everything that the result of a function depends on."""
    if id(function) in seen:
        return
    seen.add(id(function))
    _describe_code(function.__code__, feed)
    around = inspect.getclosurevars(function)
    for name, value in sorted({**around.globals, **around.nonlocals}.items()):
        feed(name.encode())
        inner = getattr(value, "py_func", value)  # of a function that Numba has decorated
        if isinstance(inner, types.FunctionType):
            _describe(inner, feed, seen)
        elif isinstance(value, (bool, int, float, complex, str, tuple, np.generic)):
            feed(repr(value).encode())
        elif isinstance(value, np.ndarray):
            feed(value.tobytes())


def _describe_code(code: types.CodeType, feed: Callable[[bytes], object]) -> None:
    feed(code.co_code)
    feed(repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _describe_code(constant, feed)
        else:
            feed(repr(constant).encode())


# ---- compiling -----------------------------------------------------------------------------------


def _compile(function: Any, dtype: str) -> tuple[Any, Any]:
    """Compile the functions of pairs and of many inputs, for elements of this type."""
    import numba
    from numba import types as t

    options = getattr(function, "targetoptions", {})
    fast = {"fastmath": options["fastmath"]} if "fastmath" in options else {}
    compiler = functools.partial(numba.njit, error_model="numpy", inline="never", **fast)
    combine = compiler(_plain(function))
    stored, widen, narrow = _conversions(dtype, numba.njit(inline="always"))
    element = getattr(t, stored)
    carray = numba.carray

    # Three loops: in each of them the compiler knows which array is both read and written, so that
    # it can vectorize all three.
    def pair(target, a, b, count):  # type: ignore[no-untyped-def]
        if count == 0:
            return
        out, left, right = carray(target, count), carray(a, count), carray(b, count)
        if out.ctypes.data == left.ctypes.data:
            for i in range(count):
                left[i] = narrow(combine(widen(left[i]), widen(right[i])))
        elif out.ctypes.data == right.ctypes.data:
            for i in range(count):
                right[i] = narrow(combine(widen(left[i]), widen(right[i])))
        else:
            for i in range(count):
                out[i] = narrow(combine(widen(left[i]), widen(right[i])))

    # The target may be one of the inputs, so a block of all inputs is read before it is written.
    def many(target, inputs, k, count):  # type: ignore[no-untyped-def]
        if count == 0:
            return
        out, first, addresses = carray(target, count), carray(inputs[0], count), carray(inputs, k)
        if k == 1:
            for i in range(count):
                out[i] = first[i]
            return
        block = np.empty(BLOCK, out.dtype) if exact else np.empty(BLOCK, np.float32)
        begin = 0
        while begin < count:
            end = min(begin + BLOCK, count)
            folded, result, given = block[: end - begin], out[begin:end], first[begin:end]
            for i in range(folded.size):
                folded[i] = widen(given[i])
            for j in range(1, k):
                other = carray(addresses[j], count)[begin:end]
                for i in range(folded.size):
                    folded[i] = combine(folded[i], widen(other[i]))
            for i in range(folded.size):
                result[i] = narrow(folded[i])
            begin = end

    exact = _format(ELEMENT_TYPES[dtype]) is None
    pointer = t.CPointer(element)
    as_c = functools.partial(numba.cfunc, error_model="numpy")
    return (
        as_c(t.void(pointer, pointer, pointer, t.uintp))(pair),
        as_c(t.void(pointer, t.CPointer(pointer), t.uintp, t.uintp))(many),
    )


@dataclasses.dataclass(frozen=True)
class _Format:
    """A float of 16 or 8 bits, as in csrc/reduce/kernels/elements.h."""

    stored: str
    mantissa: int
    bias: int
    infinity: int  # the bits of the greatest value that is not a NaN
    nan: int
    too_large: int  # the bits of the smallest float32 that becomes `instead`
    instead: int


def _format(row: ElementType) -> _Format | None:
    """Return the format of a float type that is computed in float32; None for other types."""
    bits, mantissa = 8 * row.itemsize, row.digits - 1
    if row.kind != "real" or bits > 16:
        return None
    stored, bias = f"uint{bits}", (1 << (bits - mantissa - 2)) - 1
    if row.name.endswith("fn"):  # has no infinities; a tie rounds to the greatest number
        nan = (1 << (bits - 1)) - 1
        tie = ((128 + bias) << 23) + (((2 << mantissa) - 3) << (22 - mantissa))
        return _Format(stored, mantissa, bias, nan - 1, nan, tie + 1, nan)
    infinity = (1 << (bits - 1)) - (1 << mantissa)
    tie = ((127 + bias) << 23) + (((2 << mantissa) - 1) << (22 - mantissa))
    return _Format(stored, mantissa, bias, infinity, infinity | 1 << (mantissa - 1), tie, infinity)


def _conversions(dtype: str, inlined: Any) -> tuple[str, Any, Any]:
    """Return the type in memory, and the functions to and from the type of the computation."""
    row = ELEMENT_TYPES[dtype]
    form = _format(row)
    if row.kind == "bool":
        return "uint8", inlined(lambda x: x != 0), inlined(lambda x: np.uint8(x != 0))
    if form is None:
        return dtype, inlined(lambda x: x), inlined(lambda x: x)
    mantissa, infinity, nan, instead = form.mantissa, form.infinity, form.nan, form.instead
    too_large = np.uint32(form.too_large)
    bits = 8 * row.itemsize
    top = np.uint32(1 << (bits - 1))
    shift = np.uint32(23 - mantissa)
    rebias = np.uint32((127 - form.bias) << 23)
    least_normal = np.uint32((128 - form.bias) << 23)
    smallest = np.float32(2.0 ** (1 - form.bias - mantissa))
    special = infinity if instead == infinity else nan
    half = np.uint32((1 << (23 - mantissa - 1)) - 1)
    one, sign_shift, magnitudes = np.uint32(1), np.uint32(32 - bits), np.uint32(0x7FFFFFFF)
    not_a_number, infinite = np.uint32(0x7FC00000), np.uint32(0x7F800000)

    def widen(stored):  # type: ignore[no-untyped-def]
        word = np.uint32(stored)
        magnitude = word & np.uint32(top - one)
        sign = np.uint32((word & top) << sign_shift)
        if magnitude >= special:
            whole = not_a_number if magnitude > infinity else infinite | sign
            return np.uint32(whole).view(np.float32)
        if magnitude >> np.uint32(mantissa) != 0:
            return np.uint32((np.uint32(magnitude << shift) + rebias) | sign).view(np.float32)
        small = np.float32(magnitude) * smallest
        return np.uint32(np.float32(small).view(np.uint32) | sign).view(np.float32)

    def narrow(wide):  # type: ignore[no-untyped-def]
        word = np.float32(wide).view(np.uint32)
        magnitude = np.uint32(word & magnitudes)
        sign = np.uint32(np.uint32(word >> sign_shift) & top)
        if magnitude >= too_large:
            value = np.uint32(nan if magnitude > infinite else instead)
        elif magnitude < least_normal:
            value = np.uint32(np.rint(np.float64(magnitude.view(np.float32)) / smallest))
        else:
            even = np.uint32(np.uint32(magnitude >> shift) & one)
            value = np.uint32(np.uint32(magnitude - rebias + half + even) >> shift)
        return value if value > infinity else np.uint32(value | sign)

    return form.stored, inlined(widen), inlined(narrow)


# ---- refusing functions that are not commutative -------------------------------------------------


def _require_commutative(pair: int, dtype: str, asked: str) -> None:
    row = ELEMENT_TYPES[dtype]
    ones, others = (0, 1, 1, 0, 1), (1, 0, 1, 0, 1)
    if row.kind != "bool":
        ones, others = (1, 2, 5, 3, 6), (2, 1, 3, 7, 4)
    left, right = _bytes_of(ones, dtype), _bytes_of(others, dtype)
    function = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
    )(pair)
    results = []
    for a, b in ((left, right), (right, left)):
        target = ctypes.create_string_buffer(len(left))
        function(target, ctypes.create_string_buffer(a), ctypes.create_string_buffer(b), len(ones))
        results.append(target.raw)
    size = row.itemsize
    for i, (one, other) in enumerate(zip(ones, others, strict=True)):
        if results[0][i * size : (i + 1) * size] != results[1][i * size : (i + 1) * size]:
            found = f"of {one} and {other} it makes something else than of {other} and {one}"
            remedy = "Give a function that does not depend on the order of its arguments"
            raise UsageError(asked, found, remedy)


def _bytes_of(values: tuple[int, ...], dtype: str) -> bytes:
    """Return small whole numbers as elements of a type, in bytes."""
    import numba

    form = _format(ELEMENT_TYPES[dtype])
    if form is None:
        return np.array(values, dtype).tobytes()
    narrow = _conversions(dtype, numba.njit)[2]
    return np.array([narrow(np.float32(value)) for value in values], form.stored).tobytes()
