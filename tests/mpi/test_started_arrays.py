"""gradred.iallreduce and iallreduce_many: any array in, a request for the same kind out."""

from __future__ import annotations

import array
import gc
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from mpi.knobs import use
from mpi.sizes import up_to_three_ranks
from mpi4py import MPI
from stepped import SteppedClock

import gradred
from gradred import UsageError, _core
from gradred.element_types import ELEMENT_TYPES, ITEMSIZES, numpy_dtype

WORLD = gradred.Comm(MPI.COMM_WORLD)
RANK, SIZE = WORLD.rank, WORLD.size
TOTAL = SIZE * (SIZE + 1) // 2

pytestmark = pytest.mark.timeout(120)

PATHS = ["shared memory", "messages", "the MPI"]


@pytest.fixture(params=PATHS, name="comm")
def communicator(request: pytest.FixtureRequest) -> Any:
    """A plain communicator whose operations use this transport."""
    use(shm=request.param != "messages")
    comm = MPI.COMM_WORLD.Dup()
    if request.param != "the MPI":  # the MPI carries calls out until a blocking call
        gradred.allreduce(np.zeros(1), comm=comm)
    use()
    yield comm
    comm.Free()


def waited(request: gradred.ArrayRequest[Any]) -> Any:
    return request.wait()


def polled(request: gradred.ArrayRequest[Any]) -> Any:
    while not request.done():
        os.sched_yield()
    assert request.test()
    return request.result()


def called(request: gradred.ArrayRequest[Any]) -> Any:
    got: list[Any] = []
    event = threading.Event()
    request.add_done_callback(lambda it: (got.append(it.result()), event.set()))
    while not event.is_set():
        request.done()
        os.sched_yield()  # lets a rank run that has no core of its own
    assert len(got) == 1
    assert request.wait() is got[0]
    return got[0]


ENDS = [waited, polled, called]


@up_to_three_ranks
@pytest.mark.parametrize("end", ENDS)
def test_numpy_arrays_of_every_type(comm: MPI.Intracomm, end: Callable[[Any], Any]) -> None:
    for name in ITEMSIZES:
        op = "lor" if name == "bool" else "sum"
        few_digits = ELEMENT_TYPES[name].digits < 6
        mine, total = (1, SIZE) if few_digits else (RANK + 1, TOTAL)
        total = 1 if name == "bool" else total
        for shape in [(), (2, 3), (0,), (3, 50_000)]:
            x = np.full(shape, mine, numpy_dtype(name))
            y = end(gradred.iallreduce(x, op, comm=comm))
            assert (type(y), y.dtype, y.shape) == (type(x), x.dtype, x.shape)
            assert (y == np.full(shape, total, numpy_dtype(name))).all()
            assert (x == np.full(shape, mine, numpy_dtype(name))).all()
            assert gradred.iallreduce(x, op, out=x, comm=comm).wait() is x
            assert (x == y).all()


@pytest.mark.parametrize("op", ["prod", "min", "max", "avg", gradred.premul(2.0), MPI.MAX])
def test_operations_are_those_of_allreduce(comm: MPI.Intracomm, op: Any) -> None:
    for dtype in ("float32", "int16"):
        x = np.arange(1, 1001, dtype=dtype) % 3 + RANK
        y = gradred.iallreduce(x, op, comm=comm).wait()
        np.testing.assert_array_equal(y, gradred.allreduce(x, op, comm=comm))


@pytest.mark.parametrize("end", ENDS)
def test_other_kinds_come_back_as_they_are(end: Callable[[Any], Any]) -> None:
    given: list[Any] = [
        array.array("f", [1, 2]),
        bytearray(b"\x01\x02"),
        memoryview(np.ones(2)),
        b"\x01\x02",
        np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0),
    ]
    for x in given:
        y = end(gradred.iallreduce(x))
        assert type(y) is type(x)
        assert np.asarray(memoryview(y)).tolist() == (np.asarray(memoryview(x)) * SIZE).tolist()
    assert y.strides == x.strides
    scalar = end(gradred.iallreduce(np.float32(RANK + 1)))
    assert (type(scalar), scalar) == (np.float32, TOTAL)


@pytest.mark.parametrize("end", ENDS)
def test_jax_arrays(comm: MPI.Intracomm, end: Callable[[Any], Any]) -> None:
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "bfloat16"):
        x = jnp.full((2, 3), RANK + 1, dtype)
        y = end(gradred.iallreduce(x, comm=comm))
        assert isinstance(y, type(x))
        assert y.dtype == x.dtype
        assert (y == TOTAL).all()
        with pytest.raises(UsageError, match="out is read-only"):
            gradred.iallreduce(x, out=x, comm=comm)
    many = end(gradred.iallreduce_many([x, jnp.ones(2, "bfloat16")], comm=comm))
    assert isinstance(many[1], type(x))
    assert (many[0] == TOTAL).all()


@pytest.mark.parametrize("end", ENDS)
def test_torch_tensors(comm: MPI.Intracomm, end: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.full((2, 3, 4, 5), RANK + 1.0, dtype=dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        y = end(gradred.iallreduce(x, comm=comm))
        assert (y.dtype, y.stride()) == (x.dtype, x.stride())
        assert (y == TOTAL).all()
        assert end(gradred.iallreduce(x, out=x, comm=comm)) is x
        assert (x == TOTAL).all()


@pytest.mark.parametrize("end", ENDS)
def test_many_arrays_of_mixed_types_and_sizes(
    comm: MPI.Intracomm, end: Callable[[Any], Any]
) -> None:
    given: list[Any] = [
        np.full((2, 3), RANK + 1, "float32"),
        np.full(4, RANK, "int64"),
        np.zeros(0, "float32"),
        np.array(float(RANK)),
        np.full((3, 2), 1, ml_dtypes.bfloat16).T,
        array.array("f", [1, RANK]),
        np.full(100_000, RANK, "int64"),
    ]
    expected = [np.asarray(gradred.allreduce(x, comm=comm)) for x in given]
    results = end(gradred.iallreduce_many(given, comm=comm))
    for x, y, z in zip(given, results, expected, strict=True):
        assert type(y) is type(x)
        np.testing.assert_array_equal(np.asarray(y), z)
    assert results[4].strides == given[4].strides
    assert end(gradred.iallreduce_many([], comm=comm)) == []


@pytest.mark.parametrize("end", [*ENDS, lambda request: list(iter(request.done, True))])
def test_results_are_in_out_when_the_request_says_that_it_is_done(
    comm: MPI.Intracomm, end: Callable[[Any], Any]
) -> None:
    a, b, c = np.full(2, 1.0), np.full(3, 2.0), np.zeros(2)
    end(gradred.iallreduce_many([a, b], out=[c, b], comm=comm))
    assert (a.tolist(), b.tolist(), c.tolist()) == ([1, 1], [2 * SIZE] * 3, [SIZE] * 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gradred.iallreduce(x, out=np.zeros(3)), "out is float64 of shape"),
        (lambda x: gradred.iallreduce(x, "nothing"), "no such operation"),
        (lambda x: gradred.iallreduce(x.astype(bool)), "bool has no 'sum'"),
        (lambda x: gradred.iallreduce(np.zeros((4, 4))[:, ::2]), "not dense"),
        (lambda x: gradred.iallreduce_many([x, x], out=[x]), "2 arrays, but 1 in out="),
        (
            lambda x: gradred.iallreduce_many({"x": x}),
            r"a dict is not a list.*list\(x\.values\(\)\)",
        ),
        (lambda x: gradred.iallreduce(x, stream=0), "Pass 1 for the legacy"),
        (lambda x: gradred.iallreduce(x, MPI.Op.Create(lambda *_: None)), "the MPI alone"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_start(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(np.zeros(4))
    assert gradred.iallreduce(np.ones(1)).wait()[0] == SIZE


@pytest.mark.skipif(SIZE == 1, reason="one rank agrees with itself")
@pytest.mark.parametrize("path", ["shared memory", "messages"])
def test_ranks_that_disagree_all_get_the_error_each_time_they_ask(path: str) -> None:
    use(shm=path != "messages")
    comm = MPI.COMM_WORLD.Dup()
    gradred.allreduce(np.zeros(1), comm=comm)
    use()
    odd = RANK == SIZE - 1
    for request in [
        gradred.iallreduce(np.zeros((2, 3) if odd else (3, 2)), comm=comm),
        gradred.iallreduce_many([np.ones(2), np.ones(3 if odd else 2, "i4")], comm=comm),
    ]:
        failed = threading.Event()
        request.add_done_callback(lambda _, failed=failed: failed.set())  # type: ignore[misc]
        for _ in range(2):
            with pytest.raises(UsageError):
                request.wait()
        assert request.done()
        while not failed.wait(0.01):
            request.done()
    assert gradred.allreduce(np.ones(1), comm=comm)[0] == SIZE
    comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="one rank waits for nobody")
def test_wait_gives_up_after_its_time_and_the_operation_goes_on(
    comm: MPI.Intracomm, clock: SteppedClock
) -> None:
    x = np.full(5, RANK + 1.0)
    if RANK == 0:
        request = gradred.iallreduce(x, comm=comm)
        for limit in (0, 30):
            begin = _core.now_ns()
            with clock.passing(), pytest.raises(TimeoutError, match="Wait again") as caught:
                request.wait(limit)
            assert not isinstance(caught.value, gradred.Error)
            assert limit * 1e9 <= _core.now_ns() - begin
        assert not request.done()
        with pytest.raises(UsageError, match="NaN is not a time"):
            request.wait(float("nan"))
        MPI.COMM_WORLD.Barrier()
    else:
        MPI.COMM_WORLD.Barrier()
        request = gradred.iallreduce(x, comm=comm)
    assert (request.wait(60) == TOTAL).all()


def test_many_in_flight_end_in_any_order_on_several_communicators() -> None:
    comms = [WORLD.Dup() for _ in range(3)]
    gradred.allreduce(np.zeros(1), comm=comms[0])
    sizes = [1, 700, 50_000, 3]
    requests = [
        (gradred.iallreduce if turn % 4 else gradred.iallreduce_many)(
            np.full(sizes[turn % 4], RANK + turn)
            if turn % 4
            else [np.full(3, RANK + turn), np.full(2, RANK, "i2"), np.full(9, RANK + turn)],
            comm=comms[turn % 3],
        )
        for turn in range(48)
    ]
    for turn in np.random.default_rng(RANK).permutation(48):  # another order on each rank
        y = requests[turn].wait()
        total = turn * SIZE + SIZE * (SIZE - 1) // 2
        assert (np.asarray(y[0] if turn % 4 == 0 else y) == total).all()
    for comm in comms:
        comm.Free()


@pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="the MPI is below THREAD_MULTIPLE"
)
def test_threads_on_communicators_of_their_own_and_several_that_wait_for_one() -> None:
    comms = [WORLD.Dup() for _ in range(3)]
    for comm in comms:
        gradred.allreduce(np.zeros(1), comm=comm)
    errors: list[BaseException] = []

    def work(comm: gradred.Comm) -> None:
        try:
            for turn in range(30):
                one = gradred.iallreduce(np.full(1 + 977 * turn, RANK), comm=comm)
                two = gradred.iallreduce_many([np.full(3, RANK), np.ones(2)] * 2, comm=comm)
                got: list[Any] = []

                def wait(two: Any = two, got: list[Any] = got) -> None:
                    got.append(two.wait())

                other = threading.Thread(target=wait)
                other.start()
                assert (one.wait() == TOTAL - SIZE).all()
                mine = two.wait()
                other.join()
                assert got[0] is mine
                assert (mine[2] == TOTAL - SIZE).all()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for comm in comms:
        comm.Free()


@pytest.mark.skipif(SIZE == 1, reason="operations of one rank end at once")
def test_memory_lives_until_the_end_and_not_longer(comm: MPI.Intracomm) -> None:
    class Owned(np.ndarray[Any, Any]):
        """An array that supports weak references."""

    x = np.full(200_000, RANK + 1.0).view(Owned)
    alive = weakref.ref(x)
    if RANK == 0:
        gradred.iallreduce(x, out=x, comm=comm)  # the program drops the request
        del x
        gc.collect()
        assert alive() is not None
        MPI.COMM_WORLD.Barrier()
    else:
        MPI.COMM_WORLD.Barrier()
        gradred.iallreduce(x, out=x, comm=comm).wait()
        del x
    deadline = time.monotonic() + 30
    while alive() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
        # releases operations that have ended
        gradred.iallreduce(np.zeros(1), comm=MPI.COMM_SELF).wait()
        gc.collect()
    assert alive() is None


@pytest.mark.parametrize("op", ["sum", gradred.premul(2.0)], ids=["core", "Python"])
def test_warning_of_calls_left_to_the_mpi_names_the_line_of_the_program(op: Any) -> None:
    comm = MPI.COMM_WORLD.Dup()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(40):
            gradred.iallreduce(np.ones(2), op=op, comm=comm).wait()
    comm.Free()
    assert [warning.filename for warning in seen] == [__file__] * (RANK == 0 and SIZE > 1)


def test_warning_names_code_without_a_module() -> None:
    """Such as code that `exec` runs with names of its own."""
    comm = MPI.COMM_WORLD.Dup()
    names = {"gradred": gradred, "x": np.ones(2), "comm": comm, "op": gradred.premul(2.0)}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        exec("for _ in range(40): gradred.iallreduce(x, op=op, comm=comm).wait()", names)
    comm.Free()
    assert [warning.filename for warning in seen] == ["<string>"] * (RANK == 0 and SIZE > 1)
