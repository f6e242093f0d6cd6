"""Arrays of libraries whose interfaces say less than NumPy's: JAX, MLX, pyarrow."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest
from dlpack_tensor import tensor_in
from mpi4py import MPI

import gradred
from gradred import UsageError

COMM = gradred.Comm(MPI.COMM_SELF)
READ_ONLY = "read-only"


class Capsules(mmap.mmap):
    """Memory whose DLPack capsules have no version, and so no flag for read-only memory."""

    def __dlpack__(self, **_: Any) -> Any:
        elements = np.frombuffer(bytearray(len(self)), np.uint8)
        capsule = elements.__dlpack__()
        tensor_in(capsule).data = np.frombuffer(self, np.uint8).ctypes.data
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def capsules(access: int) -> Capsules:
    return Capsules(-1, 4096, access=access)


def test_memory_that_cannot_be_written_is_refused_whatever_its_capsule_says() -> None:
    """Writing there would end the process."""
    x, fixed = np.ones(4096, np.uint8), capsules(mmap.ACCESS_READ)
    assert (gradred.allreduce(np.asarray(memoryview(fixed)), comm=COMM) == 0).all()
    with pytest.raises(UsageError, match=READ_ONLY):
        gradred.allreduce(x, out=fixed, comm=COMM)
    with pytest.raises(UsageError, match=READ_ONLY):
        gradred.allreduce(fixed, out=fixed, comm=COMM)
    for call in (
        lambda: COMM.Allreduce(x, fixed),
        lambda: COMM.Allreduce(MPI.IN_PLACE, fixed),
        lambda: COMM.Allreduce(x, [fixed, MPI.UINT8_T]),
    ):
        with pytest.raises((UsageError, BufferError), match=r"read-only|writable"):
            call()
    open_ = capsules(mmap.ACCESS_WRITE)
    gradred.allreduce(x, out=open_, comm=COMM)
    assert open_[:3] == bytes([1, 1, 1])


def test_arrays_of_jax_are_read_and_never_written() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "bfloat16"):
        x, y = jnp.ones(3, dtype), jnp.zeros(3, dtype)
        alias = y.reshape(3)
        found = gradred.allreduce(x, comm=COMM)
        assert found.dtype == x.dtype
        assert found.tolist() == [1, 1, 1]
        for call in (
            lambda x=x, y=y: gradred.allreduce(x, out=y, comm=COMM),
            lambda x=x, y=y: gradred.allreduce_many([x], out=[y], comm=COMM),
            lambda y=y: COMM.Allreduce(MPI.IN_PLACE, y),
        ):
            with pytest.raises((UsageError, BufferError), match=r"read-only|writable"):
                call()
        assert y.tolist() == alias.tolist() == [0, 0, 0]


def test_jax_shares_the_memory_of_own_arrays() -> None:
    jax = pytest.importorskip("jax")
    x = gradred.empty(70_000, "float32")
    x[:] = 1
    y = jax.device_put(x)
    assert y.unsafe_buffer_pointer() == x.ctypes.data
    x[0] = 7
    assert float(y[0]) == 7


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
def test_arrays_of_mlx(dtype: str) -> None:
    mx = pytest.importorskip("mlx.core")
    kind = getattr(mx, dtype)
    x = mx.array([1.0, -2.0, 3.0]).astype(kind)
    mx.eval(x)
    found = gradred.allreduce(x, comm=COMM)
    assert type(found) is type(x)
    assert (found.dtype, found.tolist()) == (kind, [1, -2, 3])
    y = mx.zeros(3, dtype=kind)
    mx.eval(y)
    assert gradred.allreduce(x, out=y, comm=COMM) is y
    assert y.tolist() == [1, -2, 3]
    z = np.zeros(3 * found.itemsize, np.uint8)
    if dtype == "bfloat16":  # the format of its buffer, which NumPy does not know
        assert memoryview(x).format == "bfloat16"
        with pytest.raises(UsageError, match="cannot make a new memoryview of bfloat16"):
            gradred.allreduce(memoryview(x), comm=COMM)
        gradred.allreduce(memoryview(x), out=y, comm=COMM)
        assert y.tolist() == [1, -2, 3]
        z = z.view(pytest.importorskip("ml_dtypes").bfloat16)
    COMM.Allreduce(x, z if dtype == "bfloat16" else z.view(dtype))
    assert z.view(z.dtype if dtype == "bfloat16" else dtype).tolist() == [1, -2, 3]


def test_arrays_of_pyarrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    x, out = pyarrow.array([1.0, 2.0]), np.zeros(2)
    with pytest.raises(UsageError, match="cannot make a new DoubleArray"):
        gradred.allreduce(x, comm=COMM)
    assert gradred.allreduce(x, out=out, comm=COMM).tolist() == [1, 2]
    with pytest.raises(UsageError, match="no nulls"):
        gradred.allreduce(pyarrow.array([1.0, None]), out=out, comm=COMM)
    with pytest.raises(UsageError, match=READ_ONLY):
        gradred.allreduce(out, out=x, comm=COMM)


class LendsCopies:
    """An array whose library lends a copy, and says so."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**{**how, "copy": True})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()  # type: ignore[no-any-return]


def test_result_is_not_lost_in_a_copy() -> None:
    x = LendsCopies(np.zeros(3))
    for _ in range(2):  # read in Python, then in the core
        gradred.Comm(MPI.COMM_WORLD).Allreduce(x, y := np.ones(3))
        assert not y.any()
        with pytest.raises(BufferError):
            gradred.Comm(MPI.COMM_WORLD).Allreduce(y, x)
