"""Operations of `gradred.tensorflow`, eagerly and in graphs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tf.given import FLOATS, INTEGERS, hvd, tf, total

from gradred.errors import UsageError
from gradred.tensorflow import kernels

ON_HOSTS = "TEST_HOSTS" in os.environ
pytestmark = pytest.mark.usefixtures("initialised")


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@pytest.fixture(params=["eager", "graph"])
def way(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """How a test calls a function of tensors: as it is, or as a `tf.function`."""
    return as_it_is if request.param == "eager" else tf.function


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 40, 50)])
def test_sum_and_average(way: Any, dtype: str, shape: tuple[int, ...]) -> None:
    x = tf.cast(tf.fill(shape, hvd.rank() + 1), dtype)
    summed = way(lambda x: hvd.allreduce(x, op=hvd.Sum))(x)
    assert summed.dtype == x.dtype
    assert summed.shape == x.shape
    np.testing.assert_array_equal(tf.cast(summed, tf.float64), np.full(shape, total()))
    average = tf.cast(way(hvd.allreduce)(x), tf.float64).numpy()
    exact = total() / hvd.size()
    expected = exact if x.dtype.is_floating else int(exact)
    np.testing.assert_allclose(average, np.full(shape, expected), rtol=1e-2)


def test_other_operations_and_factors(way: Any) -> None:
    x = tf.fill([5], float(hvd.rank() + 1))
    factorial = float(np.prod(np.arange(1, hvd.size() + 1)))
    assert way(lambda x: hvd.allreduce(x, op=hvd.Product))(x).numpy().tolist() == [factorial] * 5
    assert way(lambda x: hvd.allreduce(x, op=hvd.Min))(x).numpy().tolist() == [1.0] * 5
    assert way(lambda x: hvd.allreduce(x, op=hvd.Max))(x).numpy().tolist() == [hvd.size()] * 5
    scaled = way(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0))(
        x
    )
    assert scaled.numpy().tolist() == [1.5 * total()] * 5


def test_factors_have_the_digits_of_float64() -> None:
    x = tf.constant([1.0], tf.float64)
    made = hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.1)
    assert made.numpy()[0] == hvd.size() * 0.1


def test_contradicting_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="both are given"):
        hvd.allreduce(tf.ones(3), average=True, op=hvd.Sum)
    with pytest.raises(ValueError, match="no such operation"):
        hvd.allreduce(tf.ones(3), op=77)


def test_groups_of_many_tensors_and_types(way: Any) -> None:
    tensors = [tf.ones([n], tf.float32 if n % 5 else tf.int64) for n in range(40)]
    made = way(lambda *given: hvd.grouped_allreduce(given, op=hvd.Sum))(*tensors)
    for given, result in zip(tensors, made, strict=True):
        np.testing.assert_array_equal(result, given * hvd.size())
    assert hvd.grouped_allreduce([]) == []


def test_allgather_of_different_lengths(way: Any) -> None:
    x = tf.fill([hvd.rank() + 1, 2], hvd.rank())
    gathered = way(hvd.allgather)(x)
    expected = [[rank] * 2 for rank in range(hvd.size()) for _ in range(rank + 1)]
    assert gathered.numpy().tolist() == expected
    first, second = way(lambda x: hvd.grouped_allgather([x, x[:0]]))(x)
    assert first.numpy().tolist() == expected
    assert second.shape == (0, 2)


def test_broadcast_of_each_rank(way: Any) -> None:
    x = tf.constant([[hvd.rank(), 7]], tf.int64)
    for root in range(hvd.size()):
        assert way(lambda x, root=root: hvd.broadcast(x, root))(x).numpy().tolist() == [[root, 7]]
    assert x.numpy().tolist() == [[hvd.rank(), 7]]


def test_alltoall_with_and_without_splits(way: Any) -> None:
    ranks, me = hvd.size(), hvd.rank()
    x = tf.range(ranks * 2) + 100 * me
    expected = [100 * rank + 2 * me + i for rank in range(ranks) for i in range(2)]
    assert way(hvd.alltoall)(x).numpy().tolist() == expected
    splits = tf.range(ranks)  # rank r gets r rows of each rank
    rows = tf.fill([ranks * (ranks - 1) // 2, 3], float(me))
    made, received = way(hvd.alltoall)(rows, splits)
    assert received.dtype == tf.int32
    assert received.numpy().tolist() == [me] * ranks
    assert made.numpy().tolist() == [[float(rank)] * 3 for rank in range(ranks) for _ in range(me)]


def test_reducescatter_gives_first_ranks_a_row_more(way: Any) -> None:
    ranks, me = hvd.size(), hvd.rank()
    x = tf.tile(tf.range(float(ranks + 1))[:, None], [1, 4])
    made = way(lambda x: hvd.reducescatter(x, op=hvd.Sum))(x).numpy()
    mine = [0, 1] if me == 0 else [me + 1]
    assert made.tolist() == [[float(row * ranks)] * 4 for row in mine]
    first, second = way(lambda x: hvd.grouped_reducescatter([x, x[:1]]))(x)
    assert first.numpy().tolist() == [[float(row)] * 4 for row in mine]
    assert len(second) == (1 if me == 0 else 0)


def test_shapes_in_a_graph_are_known_as_far_as_they_are_fixed() -> None:
    seen = {}

    @tf.function(input_signature=[tf.TensorSpec([None, 5], tf.float32)])
    def traced(x: Any) -> Any:
        results = {"allreduce": hvd.allreduce(x), "allgather": hvd.allgather(x)}
        seen.update({key: one.shape.as_list() for key, one in results.items()})
        return results

    traced(tf.ones([2, 5]))
    assert seen == {"allreduce": [None, 5], "allgather": [None, 5]}


@pytest.mark.parametrize("tensors", [1, 3])
def test_operations_of_a_graph_meet_by_name_in_any_order(tensors: int) -> None:
    """Ranks build the same function in opposite orders, with more operations than threads.

    The kernel of several tensors waits itself for a moment, and must then return.
    """
    numbers = range(60) if hvd.rank() % 2 else reversed(range(60))
    order = list(numbers)

    def start(i: int, x: Any) -> Any:
        name = f"order.{tensors}.{i}"
        if tensors == 1:
            return [hvd.allreduce(x + float(i), op=hvd.Sum, name=name)]
        return hvd.grouped_allreduce([x + float(i)] * tensors, op=hvd.Sum, name=name)

    @tf.function
    def many(x: Any) -> Any:
        made = {i: start(i, x) for i in order}
        return [made[i] for i in range(60)]

    for _ in range(3):
        found = many(tf.fill([300], float(hvd.rank())))
        for i, group in enumerate(found):
            expected = float(sum(rank + i for rank in range(hvd.size())))
            for one in group:
                np.testing.assert_array_equal(one, np.full(300, expected))
    assert not kernels.kernels_wait()


def test_ten_thousand_asynchronous_operations() -> None:
    """Each holds a copy of TensorFlow's completion function after its kernel has returned."""

    @tf.function
    def many(x: Any) -> Any:
        return tf.add_n([hvd.allreduce(x, op=hvd.Sum) for _ in range(100)])

    x = tf.ones([17])
    for _ in range(100):
        assert float(many(x)[3]) == 100 * hvd.size()


def test_sparse_tensors_are_gathered(way: Any) -> None:
    values = tf.fill([hvd.rank() + 1, 3], float(hvd.rank() + 1))
    slices = tf.IndexedSlices(values, tf.range(hvd.rank() + 1), tf.constant([5, 3]))
    summed = way(lambda x: tf.convert_to_tensor(hvd.allreduce(x, op=hvd.Sum)))(slices)
    rows = [sum(rank + 1 for rank in range(hvd.size()) if rank >= row) for row in range(5)]
    np.testing.assert_allclose(summed, np.tile(np.array(rows, float)[:, None], [1, 3]))
    average = tf.convert_to_tensor(hvd.allreduce(slices))
    np.testing.assert_allclose(average, summed / hvd.size(), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="averaged or summed"):
        hvd.allreduce(slices, op=hvd.Max)
    with pytest.raises(NotImplementedError, match="cannot be scaled"):
        hvd.allreduce(slices, prescale_factor=2.0)


def test_compression_keeps_the_type() -> None:
    x = tf.constant([1.0, 2.0, 4.0]) * (hvd.rank() + 1)
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        made = hvd.allreduce(x, op=hvd.Sum, compression=compression)
        assert made.dtype == tf.float32
        np.testing.assert_array_equal(made, np.array([1.0, 2.0, 4.0]) * total())
    numbers = tf.range(3)
    made = hvd.allreduce(numbers, op=hvd.Sum, compression=hvd.Compression.fp16)
    assert made.dtype == tf.int32


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average])
def test_a_compressed_wire_has_the_same_bits_on_all_ranks(way: Any, op: int) -> None:
    x = tf.random.stateless_normal([5000], [hvd.rank(), 7])
    plain = hvd.allreduce(x, op=op)
    for form in ("bf16", "int8"):
        wire = hvd.Compression.wire(form)
        got = way(lambda x: hvd.allreduce(x, op=op, compression=wire))(x)  # noqa: B023
        (grouped,) = way(lambda x: hvd.grouped_allreduce([x], op=op, compression=wire))(x)  # noqa: B023
        assert (got.numpy().tobytes() == plain.numpy().tobytes()) == (not ON_HOSTS)
        np.testing.assert_allclose(got, plain, atol=0.02 * hvd.size())
        for one in (got, grouped):
            everyone = hvd.allgather_object(one.numpy().tobytes())
            assert set(everyone) == {one.numpy().tobytes()}
        numbers = tf.range(9)  # travel as they are
        got = hvd.allreduce(numbers, op=hvd.Sum, compression=wire)
        np.testing.assert_array_equal(got, hvd.size() * numbers)
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = hvd.allreduce(x, op=op, compression=wire)
    factor = hvd.size() if op == hvd.Sum else 1
    np.testing.assert_allclose(tape.gradient(made, x), np.full(5000, factor), rtol=0.02)


def test_ranks_with_other_wires_get_an_error() -> None:
    if hvd.size() == 1:
        pytest.skip("needs several ranks")
    wire = hvd.Compression.wire("int8" if hvd.rank() else "bf16")
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched compressed wires"):
        hvd.allreduce(tf.ones(3), name="other wires", compression=wire)
    with pytest.raises(UsageError, match="int3"):
        hvd.Compression.wire("int3")


def test_variables_and_arrays_are_taken() -> None:
    variable = tf.Variable([float(hvd.rank())])
    assert hvd.allreduce(variable, op=hvd.Max).numpy().tolist() == [hvd.size() - 1]
    assert hvd.allreduce(np.ones(2), op=hvd.Sum).numpy().tolist() == [hvd.size()] * 2


def test_adasum_adds_what_is_orthogonal_and_averages_what_is_parallel(way: Any) -> None:
    if hvd.size() & (hvd.size() - 1):
        with pytest.raises(NotImplementedError, match="power of two"):
            hvd.allreduce(tf.ones(4), op=hvd.Adasum)
        return
    own = tf.one_hot(hvd.rank(), 8)
    made = way(lambda x: hvd.allreduce(x, op=hvd.Adasum))(own)
    assert made.numpy().tolist() == [1.0] * hvd.size() + [0.0] * (8 - hvd.size())
    same = way(lambda x: hvd.allreduce(x, op=hvd.Adasum))(tf.fill([8], 3.0))
    np.testing.assert_allclose(same, np.full(8, 3.0), rtol=1e-6)


def test_adasum_is_that_of_the_ranks_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that was traced before an elastic job got more ranks."""
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum takes powers of two")
    traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Adasum))
    with monkeypatch.context() as alone:
        alone.setattr(type(hvd.global_process_set), "size", lambda _: 1)
        made = traced.get_concrete_function(tf.TensorSpec([8]))
    assert made(tf.one_hot(hvd.rank(), 8)).numpy().sum() == hvd.size()


# ---- process sets, joins, questions -------------------------------------------------------------


def test_process_sets(way: Any) -> None:
    first = hvd.add_process_set([0])
    rest = hvd.add_process_set(range(1, hvd.size()))
    mine = first if hvd.rank() == 0 else rest
    x = tf.fill([4], float(hvd.rank()))
    summed = way(lambda x: hvd.allreduce(x, op=hvd.Sum, process_set=mine))(x)
    expected = 0.0 if hvd.rank() == 0 else float(sum(range(1, hvd.size())))
    assert summed.numpy().tolist() == [expected] * 4
    gathered = hvd.allgather(x[:1], process_set=mine)
    assert len(gathered) == mine.size()
    assert int(hvd.size_op(mine.process_set_id)) == mine.size()
    assert int(hvd.process_set_included_op(first.process_set_id)) == (hvd.rank() == 0)
    other = rest if hvd.rank() == 0 else first
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not part of it"):
        hvd.allreduce(x, process_set=other)
    assert hvd.remove_process_set(first)
    assert hvd.remove_process_set(rest)
    with pytest.raises(ValueError, match="not been registered"):
        hvd.allreduce(x, process_set=mine)


def test_ranks_that_have_joined_give_zeros() -> None:
    for _ in range(hvd.rank()):
        made = hvd.allreduce(tf.ones(3), op=hvd.Sum, name="joined")
    last = int(hvd.join())
    assert last == hvd.size() - 1
    if hvd.rank() == hvd.size() - 1:
        assert made.numpy().tolist() == [1.0] * 3  # the only rank of the last round
    many = hvd.rank() * [[tf.ones(n + 1) for n in range(20)]]
    for tensors in many:
        hvd.grouped_allreduce(tensors, name="joined.group")
    assert int(hvd.join()) == hvd.size() - 1


def test_questions_in_a_graph() -> None:
    @tf.function
    def asked() -> Any:
        return hvd.rank_op(), hvd.size_op(), hvd.local_rank_op(), hvd.local_size_op()

    found = [int(one) for one in asked()]
    assert found == [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]


# ---- errors -------------------------------------------------------------------------------------


def test_ranks_that_differ_get_an_error_and_go_on(way: Any) -> None:
    if hvd.size() == 1:
        pytest.skip("one rank alone")
    x = tf.ones([2 + hvd.rank()])
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"(?s)Mismatched.*shape"):
        way(lambda x: hvd.allreduce(x, name="different"))(x)
    with pytest.raises(tf.errors.FailedPreconditionError, match="Mismatched"):
        way(lambda x: hvd.allgather(x, name="kinds"))(
            tf.ones(3, tf.float32 if hvd.rank() else tf.float64)
        )
    made = way(lambda x: hvd.allreduce(x, op=hvd.Sum, name="different"))(tf.ones(3))
    assert made.numpy().tolist() == [hvd.size()] * 3


def test_arguments_that_no_rank_could_carry_out(way: Any) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="splits give out"):
        way(lambda x: hvd.alltoall(x, [3] * hvd.size()))(tf.ones(2))
    with pytest.raises(tf.errors.InvalidArgumentError, match="no axis"):
        way(hvd.allgather)(tf.constant(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="rows do not divide"):
        way(hvd.alltoall)(tf.ones(hvd.size() * 2 + 1) if hvd.size() > 1 else tf.constant(1.0))
    with pytest.raises(ValueError, match="is not part of it"):
        hvd.broadcast(tf.ones(2), root_rank=hvd.size())
    with pytest.raises(hvd.HorovodInternalError, match="averages or sums"):
        hvd.reducescatter(tf.ones(2), op=hvd.Max)


def test_arguments_that_one_rank_refuses_are_an_error_on_all(way: Any) -> None:
    if hvd.size() == 1:
        pytest.skip("one rank alone")
    rows = hvd.size() + (hvd.rank() == 0)  # rank 0 cannot divide them
    refused: Any = (tf.errors.OpError, ValueError)
    with pytest.raises(refused, match="rows do not divide") as found:
        way(lambda x: hvd.alltoall(x, name="refused"))(tf.ones([rows]))
    if hvd.rank() > 0:
        assert "rank 0 has refused its arguments" in str(found.value)
    made = way(lambda x: hvd.allreduce(x, op=hvd.Sum))(tf.ones(1))
    assert made.numpy().tolist() == [hvd.size()]


def test_a_name_twice_in_flight_is_refused_and_the_first_ends() -> None:
    @tf.function
    def twice(x: Any) -> Any:
        one = hvd.allreduce(x, name="twice", ignore_name_scope=True)
        return one, hvd.allreduce(x + 1, name="twice", ignore_name_scope=True)

    hvd.barrier()
    if hvd.rank() == hvd.size() - 1:  # it comes when the others have submitted both
        time.sleep(2)
        hvd.allreduce(tf.ones(1 << 16), name="twice", ignore_name_scope=True)
    else:
        refused = "has been submitted and has not ended"
        with pytest.raises(tf.errors.InvalidArgumentError, match=refused):
            twice(tf.ones(1 << 16))
    hvd.barrier()


def test_names_in_a_graph_are_made_unique() -> None:
    @tf.function
    def many(x: Any) -> Any:
        with tf.name_scope("scope"):
            return [hvd.allreduce(x, name="same", op=hvd.Sum) for _ in range(5)]

    assert [float(one) for one in many(tf.constant(1.0))] == [hvd.size()] * 5


def test_xla_gets_an_error_that_says_what_to_set() -> None:
    @tf.function(jit_compile=True)
    def compiled(x: Any) -> Any:
        return hvd.allreduce(x)

    with pytest.raises(ValueError, match="jit_compile=False"):
        compiled(tf.ones(3))


def test_without_init_there_is_an_error() -> None:
    hvd.shutdown()
    with pytest.raises(hvd.HorovodInternalError, match="has not been initialized"):
        hvd.allreduce(tf.ones(1))
    hvd.init(process_sets="dynamic")


def test_a_traced_function_survives_shutdown_and_init() -> None:
    @tf.function
    def traced(x: Any) -> Any:
        return hvd.allreduce(x, op=hvd.Sum)

    assert float(traced(tf.constant(1.0))) == hvd.size()
    hvd.barrier()
    hvd.shutdown()
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
        traced(tf.constant(1.0))
    hvd.init(process_sets="dynamic")
    assert float(traced(tf.constant(2.0))) == 2 * hvd.size()
