"""User-defined operations on GPUs: one function, for arrays on the host and on devices.

The simulated driver runs no code for GPUs. Instead of Numba's PTX the tests give it the address of
the same function, compiled for the host.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu.simulated import Driver
from gpu.test_device_arrays import RANK, SIZE, on_device
from gpu.test_other_plans import one_gpu_each
from gpu.test_workspaces import LAST, everyones, new_comm

import gradred
from gradred import user_ops

numba: Any = pytest.importorskip("numba")
__all__ = ["one_gpu_each"]  # a fixture

KERNELS = Path(__file__).parents[2] / "csrc" / "device" / "kernels"
COUNTS = (1, 1009, 300_001)
_kept: list[Any] = []  # keeps functions alive whose addresses the driver has
_numbers = itertools.count()


def for_the_host(function: Any, dtype: str) -> str:
    """What `user_ops._ptx` returns, in the form that the simulated driver reads."""
    number = getattr(numba.types, "float32" if dtype == "float16" else dtype)
    made = numba.cfunc(number(number, number))(function)
    _kept.append(made)
    return f"simulated function at {made.address:#x}"


def new_function() -> Callable[[Any, Any], Any]:
    """A new function that selects the greater magnitude, the same on all ranks."""
    number = next(_numbers)
    space: dict[str, Any] = {}
    exec(f"def farther{number}(a, b): return a if abs(a) > abs(b) else b", space)
    found: Callable[[Any, Any], Any] = space[f"farther{number}"]
    return found


def given(count: int, dtype: str, rank: int) -> np.ndarray[Any, Any]:
    """No two ranks' elements have the same magnitude."""
    numbers = (np.arange(count) + 3 * rank) % (2 * SIZE + 7) * SIZE + rank
    signs = 1 if dtype == "uint8" else 1 - 2 * ((np.arange(count) + rank) % 2)
    return (numbers % 128 * signs).astype(dtype)


def expected(count: int, dtype: str) -> np.ndarray[Any, Any]:
    all_of_them = np.stack([given(count, dtype, rank) for rank in range(SIZE)])
    farthest = np.abs(all_of_them.astype("float64")).argmax(0)
    return np.take_along_axis(all_of_them, farthest[None], 0)[0]


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
def test_devices_reduce(device: Driver, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(user_ops, "_ptx", for_the_host)
    op = gradred.user_op(new_function())
    with new_comm() as comm:
        for count in COUNTS:
            x = on_device(given(count, dtype, RANK))
            before = everyones(device.count("launches"))
            found = gradred.allreduce(x, op, comm=comm).get()
            np.testing.assert_array_equal(found, expected(count, dtype))
            launched = everyones(device.count("launches")) - before
            assert launched > 0 or count < COUNTS[-1]  # short arrays go through the host
        assert comm.device_path.startswith("devices: "), comm.device_path
        y = on_device(np.zeros(COUNTS[-1], dtype))
        comm.Allreduce(x, y, op=op)
        np.testing.assert_array_equal(y.get(), expected(COUNTS[-1], dtype))
        comm.Iallreduce(x, y, op=op).Wait()
        np.testing.assert_array_equal(y.get(), expected(COUNTS[-1], dtype))
        (found,) = gradred.allreduce_many([x], op, comm=comm)
        np.testing.assert_array_equal(found.get(), expected(COUNTS[-1], dtype))
        own = gradred.reduce_scatter_block(
            on_device(given(SIZE * 5000, dtype, RANK)), op, comm=comm
        )
        everything = expected(SIZE * 5000, dtype)
        np.testing.assert_array_equal(own.get(), everything[RANK * 5000 : (RANK + 1) * 5000])


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@pytest.mark.parametrize("plan", ["one_shot", "two_shot"])
def test_kernels_that_wait_for_each_other_take_them(
    one_gpu_each: Driver, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    monkeypatch.setattr(user_ops, "_ptx", for_the_host)
    op = gradred.user_op(new_function())
    with new_comm() as comm:
        for dtype in ("float16", "float32", "int64"):
            for count in COUNTS:
                x = on_device(given(count, dtype, RANK))
                found = gradred.allreduce(x, op, comm=comm, plan=plan).get()
                np.testing.assert_array_equal(found, expected(count, dtype))


@pytest.mark.skipif(SIZE == 1, reason="one rank has no peers")
@pytest.mark.parametrize("plan", ["one_shot", "nccl"])
def test_a_plan_that_cannot_take_them_says_so(
    one_gpu_each: Driver, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    def ptx(function: Any, dtype: str) -> str:
        if plan == "nccl" or not LAST:
            return for_the_host(function, dtype)
        raise RuntimeError("libNVVM cannot be found")

    monkeypatch.setattr(user_ops, "_ptx", ptx)
    op = gradred.user_op(new_function())
    why = "NCCL has no operation" if plan == "nccl" else "libNVVM cannot be found"
    with new_comm() as comm:
        for _ in range(2):
            x = on_device(given(1009, "float32", RANK))
            with pytest.raises(gradred.UsageError, match=why):
                gradred.allreduce(x, op, comm=comm, plan=plan)
            found = gradred.allreduce(x, op, comm=comm).get()
            np.testing.assert_array_equal(found, expected(1009, "float32"))


@pytest.mark.parametrize("what", ["Numba", "the linker"])
def test_one_rank_that_cannot_has_all_reduce_on_the_host(
    device: Driver, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def ptx(function: Any, dtype: str) -> str:
        if not LAST:
            return for_the_host(function, dtype)
        if what == "the linker":
            return "no code"
        raise RuntimeError("libNVVM cannot be found")

    monkeypatch.setattr(user_ops, "_ptx", ptx)
    op = gradred.user_op(new_function())
    with new_comm() as comm:
        for count in COUNTS:
            before = everyones(device.count("launches"))
            x = on_device(given(count, "float32", RANK))
            found = gradred.allreduce(x, op, comm=comm).get()
            np.testing.assert_array_equal(found, expected(count, "float32"))
            assert everyones(device.count("launches")) == before
        why = "libNVVM cannot be found" if what == "Numba" else "nvJitLinkAddData"
        if SIZE > 1 and LAST:
            assert why in comm.device_path, comm.device_path
        total = gradred.allreduce(on_device(np.ones(300_001, "float32")), comm=comm).get()
        np.testing.assert_array_equal(total, np.full(300_001, SIZE, "float32"))
        if SIZE == 1:
            return
        assert comm.device_path.startswith("devices: ")
        found = gradred.allreduce(x, op, comm=comm).get()
        np.testing.assert_array_equal(found, expected(COUNTS[-1], "float32"))
        assert (why in comm.device_path) == LAST, comm.device_path


def finds_nvvm() -> bool:
    """Whether Numba can compile for GPUs here."""
    try:
        from numba.cuda.cudadrv.nvvm import NVVM

        NVVM()
    except Exception:  # the exception's type differs among versions
        return False
    return True


@pytest.mark.skipif(not finds_nvvm(), reason="libNVVM is not installed")
def test_numba_compiles_what_the_kernels_call() -> None:
    """Real PTX, with the name and the parameters that csrc/device/kernels/reduce.cu declares."""
    for dtype, word in (("float32", ".b32"), ("float16", ".b32"), ("float64", ".b64")):
        code = user_ops._ptx(new_function(), dtype)
        assert f".visible .func  (.param {word} func_retval0) gradred_user_op(" in code
        assert code.count(f".param {word} gradred_user_op_param_") == 2


TOOLS = ("nvcc", "ptxas", "nvlink")


@pytest.mark.skipif(RANK > 0, reason="one rank is enough")
@pytest.mark.skipif(not finds_nvvm(), reason="libNVVM is not installed")
@pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")
@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_nvidias_linker_takes_both(tmp_path: Path, dtype: str) -> None:
    kernels, function, whole = (str(tmp_path / f"{name}.cubin") for name in "kfw")
    ptx = tmp_path / "function.ptx"
    ptx.write_text(user_ops._ptx(new_function(), dtype))
    options = ["-std=c++17", f"-DGRADRED_ELEMENT={dtype}", "-DGRADRED_USER_OP", "-rdc=true"]
    for command in (
        ["nvcc", *options, "-arch=sm_90", "-cubin", str(KERNELS / "reduce.cu"), "-o", kernels],
        ["ptxas", "-arch=sm_90", "-c", str(ptx), "-o", function],
        ["nvlink", "-arch=sm_90", kernels, function, "-o", whole],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 0, done.stderr
