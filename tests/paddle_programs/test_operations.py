"""Operations on PaddlePaddle's tensors."""

from __future__ import annotations

import numpy as np
import pytest
from paddle_programs.given import hvd, paddle

import gradred

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]


def ranks_sum() -> int:
    return hvd.size() * (hvd.size() + 1) // 2


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, "complex64", "complex128"])
def test_allreduce_of_every_type(dtype: str) -> None:
    x = paddle.to_tensor(np.full((3, 2), hvd.rank() + 1.0)).astype(dtype)
    found = hvd.allreduce(x, op=hvd.Sum)
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found.astype("complex128").numpy(), np.full((3, 2), ranks_sum()))
    assert hvd.allreduce_(x, op=hvd.Sum) is x
    np.testing.assert_array_equal(x.astype("complex128").numpy(), np.full((3, 2), ranks_sum()))


def test_truth_values() -> None:
    x = paddle.to_tensor([hvd.rank() == 0, False])
    assert hvd.allreduce(x, op=hvd.Max).tolist() == [True, False]


def test_average_is_the_default() -> None:
    found = hvd.allreduce(paddle.to_tensor([hvd.rank() + 1.0]))
    assert found.tolist() == [ranks_sum() / hvd.size()]


def test_tensors_in_flight_complete_in_any_order() -> None:
    tensors = [paddle.full([4], float(hvd.rank() + n)) for n in range(5)]
    order = range(5) if hvd.rank() % 2 else reversed(range(5))
    handles = {n: hvd.allreduce_async_(tensors[n], f"n{n}", hvd.Sum) for n in order}
    for n in range(5):
        assert hvd.synchronize(handles[n]) is tensors[n]
        assert tensors[n][0].item() == ranks_sum() - hvd.size() + n * hvd.size()


def test_group() -> None:
    xs = [paddle.full([n + 1], float(hvd.rank())) for n in range(3)]
    found = hvd.grouped_allreduce(xs, op=hvd.Sum)
    assert [one.tolist() for one in found] == [
        [ranks_sum() - hvd.size()] * (n + 1) for n in range(3)
    ]


@pytest.mark.parametrize("dtype", FLOATS)
def test_adasum_of_equal_tensors_is_that_tensor(dtype: str) -> None:
    if hvd.size() not in (1, 2, 4, 8):
        pytest.skip("Adasum takes a power of two of ranks")
    x = paddle.to_tensor([1.0, 2.0, -3.0]).astype(dtype)
    found = hvd.allreduce(x, op=hvd.Adasum).astype("float64")
    np.testing.assert_allclose(found.numpy(), [1, 2, -3], rtol=1e-2)


def test_allgather_of_other_numbers_of_rows() -> None:
    rows = hvd.rank() + 1
    found = hvd.allgather(paddle.full([rows, 2], rows, "bfloat16"))
    expected = np.repeat(np.arange(hvd.size()) + 1, np.arange(hvd.size()) + 1)
    np.testing.assert_array_equal(found.astype("float32").numpy(), np.stack([expected] * 2, 1))


def test_reducescatter() -> None:
    x = paddle.arange(2 * hvd.size(), dtype="float32").reshape([-1, 1])
    found = hvd.reducescatter(x, op=hvd.Sum)
    first = 2 * hvd.rank() * hvd.size()
    assert found.tolist() == [[first], [first + hvd.size()]]


def test_alltoall() -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = paddle.to_tensor(np.arange(size, dtype=np.int32) + 1)
    x = paddle.full([size * (size + 1) // 2], rank, "int64")
    found, rows = hvd.alltoall(x, splits)
    assert rows.tolist() == [rank + 1] * size
    assert found.tolist() == [other for other in range(size) for _ in range(rank + 1)]


def test_broadcast() -> None:
    root = hvd.size() - 1
    x = paddle.full([2], float(hvd.rank()))
    assert hvd.broadcast(x, root).tolist() == [root] * 2
    assert x.tolist() == [hvd.rank()] * 2
    assert hvd.broadcast_(x, root) is x
    assert x.tolist() == [root] * 2


def test_transposed_tensors_are_copied_first() -> None:
    x = paddle.to_tensor(np.arange(6.0).reshape(2, 3)).t()
    assert not x.is_contiguous()
    np.testing.assert_array_equal(hvd.allreduce(x).numpy(), x.numpy())


def test_tensors_that_require_gradients_are_refused() -> None:
    x = paddle.ones([2])
    x.stop_gradient = False
    with pytest.raises(gradred.UsageError, match=r"Pass tensor\.detach\(\)"):
        hvd.allreduce(x)
    assert hvd.allreduce(x.detach()).tolist() == [1, 1]
    with paddle.no_grad():
        assert hvd.allreduce(x).tolist() == [1, 1]


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Pass paddle\.to_tensor\(x\)"):
        hvd.allreduce(np.ones(3))
    with pytest.raises(ValueError, match="splits are"):
        hvd.alltoall(paddle.ones([hvd.size()]), paddle.ones([hvd.size()]))


def test_ranks_that_differ_get_an_error() -> None:
    if hvd.size() == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
        hvd.allreduce(paddle.ones([2 + hvd.rank()]), "differs")
    assert hvd.allreduce(paddle.ones([1]), op=hvd.Sum).item() == hvd.size()


def test_calls_of_gradred_itself_take_tensors_of_paddle() -> None:
    found = gradred.allreduce(paddle.full([3], hvd.rank() + 1.0))
    assert isinstance(found, paddle.Tensor)
    assert found.tolist() == [ranks_sum()] * 3
