"""Memory of tensors to which the MPI may write after a failure."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kernel_table import DONE, SUBMIT, VERSION, Result, Table
from tf.given import hvd, tf

from gradred import _core
from gradred.tensorflow import kernels

pytestmark = pytest.mark.usefixtures("initialised")

LOST = 4  # KernelEnd::kLost
SIZES = [3, 1 << 10, 1 << 20]


class FailingCore:
    """Stands for the core: every call fails, and its arrays are written to later."""

    def __init__(self) -> None:
        self.arrays: list[tuple[int, int]] = []  # address, elements
        self.held = SUBMIT(self.submit)
        self.table = Table(VERSION, self.held)

    def submit(self, call: Any, _waits: bool, done: Any, context: Any) -> None:
        what = call.contents
        for one in what.arrays[: what.count]:
            count = int(np.prod([one.shape[axis] for axis in range(one.axes)]))
            self.arrays += [(address, count) for address in (one.input, one.out) if address]
        failed = Result(end=LOST, text=b"a rank has ended", holds_memory=True)
        DONE(ctypes.cast(done, ctypes.c_void_p).value)(context, ctypes.pointer(failed))

    def write_late(self) -> None:
        for address, count in self.arrays:
            np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))[
                :
            ] = 7.0


@pytest.fixture
def core() -> Iterator[FailingCore]:
    made = FailingCore()
    library = kernels._load()[1]
    assert library.gradred_tensorflow_use(ctypes.byref(made.table))
    yield made
    assert library.gradred_tensorflow_use(_core.kernel_calls())


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_late_writes_meet_no_other_tensor(core: FailingCore, traced: bool, size: int) -> None:
    def operations(x: Any) -> Any:
        return hvd.allreduce(x + 1.0, name="a"), hvd.allgather(x + 2.0, name="b")

    called = tf.function(operations) if traced else operations
    for _ in range(5):
        with pytest.raises(tf.errors.AbortedError, match="a rank has ended"):
            called(tf.zeros([size]))
    others = [tf.zeros([size]) + 1.0 for _ in range(30)]
    assert core.arrays
    core.write_late()
    for one in others:
        np.testing.assert_array_equal(one, np.ones(size, np.float32))
