"""GRADRED_AUDIT_POINTERS: cached facts about addresses, compared with the driver's answers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from gpu.simulated import POOL, DeviceArray, Driver
from gpu.test_device_arrays import on_device, total, values

import gradred
from gradred import _core, config
from gradred.buffers import cuda_interface


@pytest.fixture
def audit(device: Driver) -> Iterator[Driver]:
    config.set("audit_pointers", True)
    yield device
    config.reset("audit_pointers")


def test_calls_on_arrays_that_come_and_go_are_looked_at_and_nothing_is_found(
    audit: Driver,
) -> None:
    looks, mismatches = _core.pointer_audit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (1000, 2000, 1000, 70_000):
            x = on_device(values(count))
            for _ in range(3):
                np.testing.assert_array_equal(gradred.allreduce(x).get(), total(count))
            pooled = DeviceArray(audit, values(count), how=POOL)
            gradred.allreduce(pooled, out=pooled)
            np.testing.assert_array_equal(pooled.get(), total(count))
    now, found = _core.pointer_audit()
    assert now - looks >= 8
    assert found == mismatches


def test_an_answer_that_is_wrong_is_told_and_the_driver_is_believed(audit: Driver) -> None:
    gc.collect()  # garbage of other tests then leaves no hole between small arrays
    audit.set("one_id", 1)  # the id is the only sign that memory at an address is new
    try:
        small = DeviceArray(audit, np.zeros(100, "uint8"))
        address = small.address
        for _ in range(2):
            assert cuda_interface.place(address, 100, None, "a test") is not None
        del small
        large = DeviceArray(audit, np.zeros(100_000, "uint8"))
        assert large.address == address
        with pytest.warns(RuntimeWarning, match="GRADRED_AUDIT_POINTERS: of .* report it"):
            assert cuda_interface.place(address, 100_000, None, "a test") is not None
    finally:
        audit.set("one_id", 0)


def test_without_it_nothing_is_looked_at(device: Driver) -> None:
    before = _core.pointer_audit()
    x = on_device(values(1000))
    gradred.allreduce(x, out=x)
    gradred.allreduce(x, out=x)
    assert _core.pointer_audit() == before
