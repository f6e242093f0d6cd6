"""Every form of a buffer in every call that reads one, held against mpi4py on the same input."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import time
import timeit
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from forms import (
    FORMS,
    NAMES,
    NOT_WRITABLE,
    WHOLE_NUMBERS,
    WRONG,
    Buffer,
    Numbers,
    mpi_type,
)
from mpi4py import MPI

import gradred
from gradred import _core
from gradred.buffers import messages
from gradred.buffers.messages import KINDS, Reduction

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
COUNT = 4
LETTERS = "?bBhHiIlLqQfdFD"


OPS = {"?": MPI.LOR, "F": MPI.SUM, "D": MPI.SUM}
"""By the letter of a type: an operation that it has, where that is not the maximum."""


class Call(NamedTuple):
    """A method of a communicator: how to run it on an input, a result and an operation.

    `given` and `got` are the numbers of blocks in its input and in its result.
    """

    run: Callable[[Any, Any, Any, MPI.Op], object]
    given: int = 1
    got: int = 1


def blocking(method: str) -> Callable[[Any, Any, Any, MPI.Op], object]:
    return lambda comm, send, recv, op: getattr(comm, method)(send, recv, op)


def waited(method: str) -> Callable[[Any, Any, Any, MPI.Op], object]:
    return lambda comm, send, recv, op: getattr(comm, method)(send, recv, op).Wait()


def persistent(comm: Any, send: Any, recv: Any, op: MPI.Op) -> None:
    request = comm.Allreduce_init(send, recv, op)
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()


REDUCTIONS: dict[str, Call] = {
    "Allreduce": Call(blocking("Allreduce")),
    "Iallreduce": Call(waited("Iallreduce")),
    "Allreduce_init": Call(persistent),
    "Reduce_scatter_block": Call(blocking("Reduce_scatter_block"), given=SIZE),
    "Ireduce_scatter_block": Call(waited("Ireduce_scatter_block"), given=SIZE),
    "Scan": Call(blocking("Scan")),
    "Iscan": Call(waited("Iscan")),
    "Exscan": Call(blocking("Exscan")),
    "Iexscan": Call(waited("Iexscan")),
}
MOVES = {
    "Allgather": Call(lambda comm, send, recv, op: comm.Allgather(send, recv), got=SIZE),
    "Bcast": Call(lambda comm, send, recv, op: comm.Bcast(send if RANK == 0 else recv)),
}
OF_MPI = {
    "Iallgather": Call(lambda comm, send, recv, op: comm.Iallgather(send, recv).Wait(), got=SIZE),
    "Ibcast": Call(lambda comm, send, recv, op: comm.Ibcast(send if RANK == 0 else recv).Wait()),
}
"""They are mpi4py's own methods."""


@pytest.fixture(scope="module")
def comm() -> Iterator[gradred.Comm]:
    made = gradred.Comm(MPI.COMM_WORLD.Dup())
    made.Allreduce(MPI.IN_PLACE, np.zeros(1))
    yield made
    made.Free()


def numbers(letter: str, count: int, first: int) -> npt.NDArray[Any]:
    found = np.arange(count) + first
    return (found % 2 if letter == "?" else found).astype(letter)


def inputs(call: Call, form: str, letter: str, in_place: bool) -> tuple[Buffer, Buffer] | None:
    """Input and result of one call, both in this form if that can be; None if neither can."""
    of = FORMS[form]
    count = 1 if of.single else COUNT
    blocks = max(call.given, call.got) if in_place else call.got
    x, y = numbers(letter, count * call.given, RANK), numbers(letter, count * blocks, RANK + 7)
    if not of.takes(x) or (in_place and not of.writable):
        return None
    return of.make(x, call.given), (of if of.writable else FORMS["x"]).make(y, blocks)


def result(call: Call, comm: Any, buffers: tuple[Buffer, Buffer], op: Any, in_place: bool) -> bytes:
    """Make a call; return the bytes of its result."""
    send, recv = buffers
    call.run(comm, MPI.IN_PLACE if in_place else send.spec, recv.spec, op)
    return recv.elements.tobytes()


@contextlib.contextmanager
def reads_counted() -> Iterator[list[tuple[object, ...]]]:
    """The arguments of each call that Python code reads."""
    reads: list[tuple[object, ...]] = []
    read = messages.read

    def counted(*given: Any, **named: Any) -> Any:
        reads.append(given)
        return read(*given, **named)

    with mock.patch.object(messages, "read", new=counted):
        yield reads


@pytest.mark.parametrize("form", FORMS)
def test_form_means_what_it_means_to_mpi4py(form: str, comm: gradred.Comm) -> None:
    for name, call in (REDUCTIONS | MOVES | OF_MPI).items():
        for letter in LETTERS if name == "Allreduce" else "d":
            for in_place in (False, True) if not name.endswith("cast") else (False,):
                ours, theirs = (inputs(call, form, letter, in_place) for _ in range(2))
                if ours is None or theirs is None:
                    continue
                op = OPS.get(letter, MPI.MAX)
                found = result(call, comm, ours, op, in_place)
                wanted = result(call, MPI.COMM_WORLD, theirs, op, in_place)
                assert found == wanted, (name, letter, in_place)


@pytest.mark.parametrize("form", FORMS)
def test_core_reads_all_forms_that_it_has_seen(form: str, comm: gradred.Comm) -> None:
    for name, call in (REDUCTIONS | MOVES).items():
        buffers = inputs(call, form, "d", False)
        if buffers is None:
            continue
        result(call, comm, buffers, MPI.MAX, False)  # now Python code has seen such objects
        with reads_counted() as reads:
            result(call, comm, buffers, MPI.MAX, False)
        assert not reads, name


@pytest.mark.parametrize("form", FORMS)
def test_both_readers_find_the_same_call(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = gradred.Comm(MPI.COMM_SELF)
    for (name, call), letter in itertools.product(REDUCTIONS.items(), LETTERS):
        buffers = inputs(call, form, letter, False)
        if buffers is None:
            continue
        send, recv = (each.spec for each in buffers)
        kind, op = KINDS[name], OPS.get(letter, MPI.MAX)
        messages.read(send, "a look", writable=False, blocks=call.given)
        found = _core.plain_reduction(kind, call.given, send, recv, op)
        assert found is not None, (name, letter)
        with monkeypatch.context() as patched:
            patched.setattr(_core, "plain_reduction", lambda *_: None)
            patched.setattr(messages, "blocks_of", lambda *_, blocks=call.given: blocks)
            read = messages.reduction(name, alone, send, recv, op)
        assert isinstance(read, Reduction)
        assert repr(read.call) == repr(found[0]), (name, letter)


# ---- arguments by name ------------------------------------------------------------------------


def arguments(method: str, x: Numbers, y: Numbers) -> dict[str, Any]:
    """One value for each name: an input and a result, or an input alone."""
    values = (x, 0) if method.endswith("cast") else (x, y, MPI.MAX)
    return dict(zip(NAMES[method], values, strict=False))


def ways(given: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """All ways to pass these arguments: some by position, the others by name in every order."""
    names = list(given)
    for by_place in range(len(names) + 1):
        for order in itertools.permutations(names[by_place:]):
            yield [given[name] for name in names[:by_place]], {name: given[name] for name in order}


def completed(method: str, comm: Any, places: list[Any], names: dict[str, Any]) -> None:
    made = getattr(comm, method)(*places, **names)
    if isinstance(made, MPI.Prequest):
        made.Start()
    if made is not None:
        made.Wait()
    if isinstance(made, MPI.Prequest):
        made.Free()


@pytest.mark.parametrize("method", NAMES)
def test_arguments_by_name_mean_what_they_mean_to_mpi4py(method: str, comm: gradred.Comm) -> None:
    call = (REDUCTIONS | MOVES | OF_MPI)[method]
    in_core = method not in OF_MPI and not method.endswith("init")

    def buffers() -> tuple[Numbers, Numbers]:
        return numbers("d", COUNT * call.given, RANK), numbers("d", COUNT * call.got, RANK + 7)

    for places, names in ways(arguments(method, *buffers())):
        found = []
        for of in (comm, MPI.COMM_WORLD):
            own = arguments(method, *buffers())
            renewed = {name: own[name] for name in names}
            with reads_counted() as reads:
                completed(method, of, list(own.values())[: len(places)], renewed)
            assert not (in_core and reads), (places, names)
            found.append([own[name].tobytes() for name in own if "buf" in name])
        assert found[0] == found[1], (places, names)


@pytest.mark.parametrize("method", NAMES)
def test_wrong_names_are_the_errors_of_mpi4py(method: str) -> None:
    alone = gradred.Comm(MPI.COMM_SELF)
    given = arguments(method, np.ones(1), np.zeros(1))
    values = list(given.values())
    first, *others = given
    for places, names in [
        ([], {}),
        ([], {name: given[name] for name in others}),
        (values, {first: values[0]}),
        (values[:1], {first: values[0]}),
        (values, {"of": 3}),
        (values[:1], {"of": 3}),
        ([*values, 3, 4, 5], {}),
    ]:
        for of in (alone, MPI.COMM_SELF):
            with pytest.raises(TypeError):
                getattr(of, method)(*places, **names)


@pytest.mark.parametrize("kind", WHOLE_NUMBERS)
def test_core_takes_roots_of_any_class_of_whole_numbers(kind: Any, comm: gradred.Comm) -> None:
    root = min(1, SIZE - 1)
    with reads_counted() as reads:
        for make in (lambda x: comm.Bcast(x, kind(root)), lambda x: comm.Bcast(x, root=kind(root))):
            x = np.full(2, RANK + 1.0)
            make(x)
            assert x.tolist() == [root + 1.0] * 2
        whole = gradred.bcast(np.full(2, RANK + 1.0), kind(root), comm=comm)
    assert whole.tolist() == [root + 1.0] * 2
    assert not reads


def test_ctrl_c_inside_a_number_is_not_lost(comm: gradred.Comm) -> None:
    class Interrupting:
        def __index__(self) -> int:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        comm.Bcast(np.ones(1), Interrupting())  # type: ignore[arg-type]


def test_core_moves_nothing_of_any_type(comm: gradred.Comm) -> None:
    letter = "dfi"[RANK % 3]  # ranks may differ in the type of no elements
    with reads_counted() as reads:
        comm.Bcast(np.empty(0, letter))
        comm.Bcast([np.ones(3, letter), 0, mpi_type(np.ones(1, letter))])
        comm.Allgather(np.empty(0, letter), np.empty(0, letter))
        comm.Allgather(MPI.IN_PLACE, np.empty(0, letter))
    assert not reads
    if RANK == 0:  # a rank whose arguments Python code reads
        comm.Bcast([np.ones(3), 0, MPI.DOUBLE_INT])
    else:
        comm.Bcast(np.empty(0, letter))


# ---- types that only the MPI has ------------------------------------------------------------


@pytest.mark.parametrize("letter", "gG")
@pytest.mark.parametrize("method", [*REDUCTIONS, *MOVES])
def test_python_code_looks_once_at_calls_of_long_doubles(
    method: str, letter: str, comm: gradred.Comm
) -> None:
    call = (REDUCTIONS | MOVES)[method]
    if method.endswith("init"):
        pytest.skip("a request is made once")
    for op, in_place, count in itertools.product((MPI.SUM, MPI.PROD), (False, True), (3, 5)):
        if in_place and method == "Bcast":
            continue
        blocks = max(call.given, call.got) if in_place else call.got
        for turn in range(3):
            found = []
            for of in (comm, MPI.COMM_WORLD):
                x = numbers(letter, count * call.given, RANK + turn + 1) / 3
                y = numbers(letter, count * blocks, RANK + 7) / 3
                with reads_counted() as reads:
                    call.run(of, MPI.IN_PLACE if in_place else x, y, op)
                assert turn == 0 or not reads, (op, in_place, count)
                found.append((x.tolist(), y.tolist()))
            assert found[0] == found[1], (op, in_place, count)


@pytest.mark.skipif(SIZE == 1, reason="nobody to differ from")
def test_known_calls_of_long_doubles_are_compared(comm: gradred.Comm) -> None:
    def both(count: int) -> None:
        comm.Bcast(np.ones(count, "g"))
        comm.Allreduce(MPI.IN_PLACE, np.ones(count, "g"))

    for count in (2, 3):
        both(count)
    x = np.ones(2 + RANK % 2, "g")
    with pytest.raises(gradred.UsageError, match="the ranks disagree"):
        comm.Bcast(x)
    with pytest.raises(gradred.UsageError, match=f"asked for allreduce of {x.nbytes} bytes"):
        comm.Allreduce(MPI.IN_PLACE, x)
    assert x.tolist() == [1] * len(x)
    both(2)


def test_errors_of_long_doubles_stay_those_of_python_code(comm: gradred.Comm) -> None:
    x, y = np.ones(4, "g"), np.ones(4, "g")
    for _ in range(2):
        comm.Allreduce(x, y)
        comm.Bcast(y)
        for send, recv in [(x[:2], y), (x.astype("d"), y), (x, x.astype("G"))]:
            with pytest.raises(gradred.UsageError):
                comm.Allreduce(send, recv)
        y.flags.writeable = False
        with pytest.raises(BufferError):
            comm.Allreduce(x, y)
        y.flags.writeable = True
        with pytest.raises(MPI.Exception):
            comm.Allreduce(x, y, MPI.BAND)
        for call in (comm.Allreduce, comm.Iallreduce):
            with pytest.raises(gradred.UsageError):
                call(x, y, "avg")


# ---- what a call holds -----------------------------------------------------------------------


def test_lent_memory_is_given_back_when_the_call_has_ended(comm: gradred.Comm) -> None:
    send, recv = bytearray(16), bytearray(16)
    for _ in range(2):  # read in Python, then in the core
        comm.Allreduce([send, MPI.DOUBLE], [recv, MPI.DOUBLE])
        comm.Iallreduce([send, MPI.DOUBLE], [recv, MPI.DOUBLE]).Wait()
        with pytest.raises(gradred.UsageError):
            comm.Allreduce([send, MPI.DOUBLE], [recv, MPI.DOUBLE], "band")
    send.clear()
    recv.clear()


def in_flight(comm: gradred.Comm, start: Callable[[], Any], look: Callable[[], None]) -> None:
    """Start an operation that the last rank joins only after `look` has returned on the others."""
    if RANK < SIZE - 1:
        request = start()
        look()
    MPI.COMM_WORLD.Barrier()
    if RANK == SIZE - 1:
        request = start()
    request.Wait()


@pytest.mark.skipif(SIZE == 1, reason="nobody is late")
def test_lent_memory_stays_in_place_while_an_operation_is_in_flight(comm: gradred.Comm) -> None:
    send, recv = bytearray(np.ones(2)), bytearray(16)
    comm.Allreduce([send, MPI.DOUBLE], [recv, MPI.DOUBLE])

    def cannot_grow() -> None:
        for each in (send, recv):
            with pytest.raises(BufferError):
                each.append(0)

    start = functools.partial(comm.Iallreduce, [send, MPI.DOUBLE], [recv, MPI.DOUBLE])
    in_flight(comm, start, cannot_grow)
    assert np.frombuffer(recv).tolist() == [SIZE] * 2


@pytest.mark.skipif(SIZE == 1, reason="nobody is late")
def test_array_lives_while_in_flight_if_its_list_is_emptied(comm: gradred.Comm) -> None:
    x = np.ones(2)
    alive, spec = weakref.ref(x), [x, MPI.DOUBLE]
    del x

    def start() -> Any:
        request = comm.Iallreduce(MPI.IN_PLACE, spec)
        spec.clear()
        return request

    in_flight(comm, start, lambda: None if alive() is not None else pytest.fail("it is gone"))
    gc.collect()
    assert alive() is None


def test_views_of_memory_a_power_of_two_apart_cost_no_more_than_others() -> None:
    """Whether the host may read a page is asked once, not in each call for two pages in turn."""
    alone, memory = gradred.Comm(MPI.COMM_SELF), np.zeros(4 << 20, np.uint8)

    def view(page: int) -> memoryview:
        return memoryview(memory[page * 4096 :][:8].view("d"))

    def cost(page: int) -> float:
        call = functools.partial(alone.Allreduce, view(0), view(page))
        return min(timeit.repeat(call, timer=time.process_time, repeat=9, number=2000))

    assert cost(256) < 2.5 * cost(257)


def test_list_that_changes_while_it_is_read_does_no_harm(comm: gradred.Comm) -> None:
    class Emptying:
        def __index__(self) -> int:
            spec.clear()
            return 2

    for _ in range(3):
        x = np.ones(2)
        spec: list[Any] = [x, Emptying(), MPI.DOUBLE]
        comm.Allreduce(MPI.IN_PLACE, spec)
        assert x.tolist() == [SIZE] * 2
        assert not spec


# ---- errors ----------------------------------------------------------------------------------


def raised(run: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as error:  # noqa: PT011 (the caller compares its class)
        run()
    return error.value


@pytest.mark.parametrize("where", ["given", "got"])
@pytest.mark.parametrize("wrong", WRONG | NOT_WRITABLE)
def test_handlers_for_the_errors_of_mpi4py_match(wrong: str, where: str) -> None:
    if where == "given" and (wrong in NOT_WRITABLE or wrong == "None"):
        pytest.skip("as input it is right")
    alone = gradred.Comm(MPI.COMM_SELF)
    make = (WRONG | NOT_WRITABLE)[wrong]
    for name, call in (REDUCTIONS | MOVES).items():
        if name == "Bcast" and where == "got":
            continue  # the only rank is the root, which gives
        send, recv = (make(), np.zeros(4)) if where == "given" else (np.zeros(4), make())
        if name == "Bcast" and RANK != 0:
            send, recv = recv, send
        runs = [
            functools.partial(call.run, of, send, recv, MPI.SUM) for of in (alone, MPI.COMM_SELF)
        ]
        ours, theirs = map(raised, runs)
        assert not isinstance(theirs, MPI.Exception)
        assert isinstance(ours, gradred.Error)
        assert isinstance(ours, type(theirs)), (name, ours, theirs)
