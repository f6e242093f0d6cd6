"""Reduce-scatter, allgather and broadcast as methods of Comm."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

import gradred
import gradred.comm
from gradred import UsageError

COMM = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = COMM.rank, COMM.size
TOTAL = SIZE * (SIZE + 1) // 2


@pytest.mark.parametrize("starts", [False, True])
def test_reduce_scatter_block(starts: bool) -> None:
    def call(send: Any, recv: Any) -> None:
        if starts:
            COMM.Ireduce_scatter_block(send, recv).Wait()
        else:
            COMM.Reduce_scatter_block(send, recv)

    x, y = np.arange(2.0 * SIZE) + RANK, np.zeros(2)
    expected = [SIZE * (2 * RANK + i) + TOTAL - SIZE for i in range(2)]
    call(x, y)
    assert y.tolist() == expected
    call(MPI.IN_PLACE, x)
    assert x[:2].tolist() == expected
    if SIZE > 1:
        with pytest.raises(UsageError, match="overlap"):
            call(x, x[1:3])
        with pytest.raises(UsageError, match=f"do not make {SIZE} equal blocks"):
            call(np.zeros(2 * SIZE + 1), y)


def test_allgather() -> None:
    y = np.zeros((SIZE, 2))
    COMM.Allgather(np.full(2, float(RANK)), y)
    assert y.tolist() == [[rank] * 2 for rank in range(SIZE)]
    y[:] = -1
    y[RANK] = RANK
    COMM.Allgather(MPI.IN_PLACE, y)
    assert y.tolist() == [[rank] * 2 for rank in range(SIZE)]
    with pytest.raises(UsageError, match="sendbuf has 3 float64, a block of recvbuf 2 float64"):
        COMM.Allgather(np.zeros(3), y)
    with pytest.raises(UsageError, match="overlap"):
        COMM.Allgather(y[0], y)


def test_allgather_of_columns() -> None:
    """A derived type on one side, plain elements on the other."""
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    x = np.full((3, 4), -1.0)
    x[:, 1] = [RANK, RANK + 1, RANK + 2]
    y = np.zeros((SIZE, 3))
    COMM.Allgather([x.reshape(-1)[1:], 1, column], y)
    assert y.tolist() == [[rank, rank + 1, rank + 2] for rank in range(SIZE)]
    column.Free()


def test_allgather_into_columns() -> None:
    column = MPI.DOUBLE.Create_vector(2, 1, SIZE).Create_resized(0, 8).Commit()
    y = np.full((2, SIZE), -1.0)
    COMM.Allgather(np.array([RANK, 10.0 * RANK]), [y, 1, column])
    assert y.tolist() == [[float(rank) for rank in range(SIZE)], [10.0 * r for r in range(SIZE)]]
    column.Free()


@pytest.mark.parametrize("root", range(SIZE))
def test_bcast(root: int) -> None:
    x = np.arange(4) + RANK
    COMM.Bcast(x, root)
    assert x.tolist() == [root, root + 1, root + 2, root + 3]
    y = np.full(3, RANK, "longdouble")
    COMM.Bcast([y, 2, MPI.LONG_DOUBLE], root=root)
    assert y.tolist() == [root, root, RANK]
    z = np.full(2, RANK, ml_dtypes.bfloat16)
    COMM.Bcast(z, root)
    assert z.astype(int).tolist() == [root, root]


@pytest.mark.parametrize("root", range(SIZE))
def test_bcast_of_a_column_to_rows(root: int) -> None:
    column = MPI.INT.Create_vector(3, 1, 3).Commit()
    x = np.arange(9, dtype="i4").reshape(3, 3) * (1 if root == RANK else -1)
    if root == RANK:
        COMM.Bcast([x, 1, column], root)
    else:
        COMM.Bcast([x, 3, MPI.INT], root)
        assert x.reshape(-1).tolist() == [0, 3, 6, -3, -4, -5, -6, -7, -8]
    y = x.copy()
    COMM.Bcast([y.reshape(-1)[1:], 1, column] if root != RANK else y[0], root)
    assert y[:, 1].tolist() == (x[:, 1].tolist() if root == RANK else [0, 1, 2])
    column.Free()


def test_bcast_from_absolute_addresses() -> None:
    x = np.full(3, RANK, "i4")
    there = MPI.INT.Create_hindexed([3], [MPI.Get_address(x)]).Commit()
    COMM.Bcast([MPI.BOTTOM, 1, there])
    assert x.tolist() == [0, 0, 0]
    there.Free()


def test_bcast_root_must_be_a_rank() -> None:
    with pytest.raises(UsageError, match=f"root={SIZE}: the communicator has {SIZE} ranks"):
        COMM.Bcast(np.zeros(1), SIZE)
