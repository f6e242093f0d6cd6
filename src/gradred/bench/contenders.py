"""What is measured: gradred with a plan, and its peers, all called on one pair of buffers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

import gradred
from gradred import _core, config
from gradred.bench.collectives import COLLECTIVES
from gradred.bench.inputs import FUNCTIONS, Array
from gradred.bench.machine import mpi_name
from gradred.bench.options import Options
from gradred.bench.vectors import Device, DeviceVector, Vector
from gradred.errors import UsageError, explain

MPI_OPS = {name: getattr(MPI, name.upper()) for name in gradred.OPS if hasattr(MPI, name.upper())}


def title_of(name: str) -> str:
    """A contender as a picture names it: peers with their versions, plans by gradred."""
    titles: dict[str, Callable[[], str]] = {
        "mpi": mpi_name,
        "mpi4py": lambda: f"mpi4py {version('mpi4py')}, pickled",
        "gloo": lambda: f"gloo of PyTorch {version('torch')}",
    }
    if name in titles:
        return titles[name]()
    own = f"gradred {gradred.__version__}"
    return own if name == "gradred" else f"{own}, {name}"


def nothing() -> None:
    """Does nothing: what most contenders need before and after."""


class Started(Protocol):
    """A request: MPI's, gradred's or one that looks alike."""

    def Wait(self) -> Any: ...  # noqa: D102, N802
    def Test(self) -> Any: ...  # noqa: D102, N802


class Calls(NamedTuple):
    """One contender, bound to vectors of one length."""

    run: Callable[[], object]
    """A whole operation."""
    start: Callable[[], Started] | None
    """Of non-blocking ones: begin one."""
    output: Callable[[], Vector]
    """Where the last one left its result."""
    load: Callable[[], object] = nothing
    """Puts the input where a check needs it; `unload` puts there what can be timed for ever."""
    unload: Callable[[], object] = nothing
    free: Callable[[], object] = nothing


class Contender(NamedTuple):
    """Something that is measured."""

    name: str
    bind: Callable[[Any, Any], Calls]
    """Of vectors of one kind."""


def gather(options: Options, world: MPI.Intracomm, device: Device | None) -> list[Contender]:
    """Gradred first, then other plans, then the peers; collective on `world`.

    Args:
        options: what was asked for.
        world: all ranks.
        device: where vectors lie; None: in host memory.

    Raises:
        UsageError: the plan that was asked for cannot serve these ranks.
    """
    chosen = gradred.Comm(world.Dup())
    _serves(chosen)  # what non-blocking calls take depends on a blocking call before them
    plain = _contender("gradred", chosen, options)
    if not options.plan:
        found = [plain]
    elif options.plan == "all":
        rows = _core.plan_families()
        own = [row for row in rows if row["medium"] != "mpi" or device]  # else a peer is that
        names = [name for row in own for name in row["plans"]["allreduce"]]
        comms = {name: _with_plan(name, world, device) for name in names}
        served = {name: comm for name, comm in comms.items() if _serves(comm, device)}
        found = [plain, *(_contender(name, comm, options) for name, comm in served.items())]
    else:
        comm = _with_plan(options.plan, world, device)
        if not _serves(comm, device):
            reason = f"it does not serve {world.size} ranks here"
            raise UsageError(explain(f"--plan {options.plan}", reason, "Take another plan, or all"))
        found = [_contender(options.plan, comm, options)]
    return found + [_PEERS[peer](options, world) for peer in options.peers]


def _contender(name: str, comm: MPI.Intracomm, options: Options) -> Contender:
    op = MPI_OPS.get(options.op, options.op)  # the MPI's own objects cost a call least
    return Contender(name, partial(_bind, comm, op, options))


def _serves(comm: gradred.Comm, device: Device | None = None) -> bool:
    """Whether the ranks can carry out this communicator's plan; collective."""
    values = np.zeros(comm.size, "float32")
    try:
        comm.Allreduce(MPI.IN_PLACE, device.vector(values) if device else values)
    except UsageError:
        return False  # on every rank alike: a plan depends on what all of them know
    return True


def _with_plan(plan: str, world: MPI.Intracomm, device: Device | None) -> gradred.Comm:
    """A communicator of its own, all of whose calls on such vectors take this plan."""
    knob = "device_plan" if device else "plan"
    config.set(knob, plan)
    try:
        comm = gradred.Comm(world.Dup())
        _core.comm_info(comm)  # the extension reads the knobs when it meets a communicator
    finally:
        config.reset(knob)
    return comm


def _bind(comm: MPI.Intracomm, op: Any, asked: Options, send: Any, receive: Any) -> Calls:
    """The calls of a communicator, gradred's or the MPI's own."""
    done, mode = partial(_same, receive), asked.mode
    if mode == "blocking":
        arguments: list[Any] = [send, receive]
        load: Callable[[], object] = nothing
        if asked.collective == "bcast":  # which has one buffer, the root's with the input in it
            arguments, load = [receive], partial(_copy_at_root, comm, send, receive)
        if COLLECTIVES[asked.collective].reduces:
            arguments.append(op)
        call = getattr(comm, COLLECTIVES[asked.collective].method)
        return Calls(partial(call, *arguments), None, done, load)
    if mode == "persistent":
        request = comm.Allreduce_init(send, receive, op)
        run = request if callable(request) else partial(_start_and_wait, request)
        return Calls(run, None, done, free=request.Free)
    start = partial(comm.Iallreduce, send, receive, op)
    return Calls(partial(_begin_and_wait, start), start, done)


def _bind_by_hand(
    comm: MPI.Intracomm, op: Any, asked: Options, send: DeviceVector, receive: DeviceVector
) -> Calls:
    """What a program does with device vectors and any MPI: copy, the MPI's call, copy back."""
    here, result = send.get(), receive.get()
    calls = _bind(comm, op, asked, here, result)

    def run() -> None:
        send.get(here)
        calls.run()
        receive[:] = result

    def broadcast() -> None:  # one buffer, of which the root's goes out and the others' come in
        if comm.rank == 0:
            receive.get(result)
        calls.run()
        if comm.rank != 0:
            receive[:] = result

    if asked.collective == "bcast":
        load = partial(_copy_at_root, comm, send, receive)
        return Calls(broadcast, None, partial(_same, receive), load)
    return Calls(run, None, partial(_same, receive))


def _copy_at_root(comm: MPI.Intracomm, send: Any, receive: Any) -> None:
    if comm.rank == 0:
        receive[:] = send


def _same(vector: Vector) -> Vector:
    return vector


def _start_and_wait(request: MPI.Prequest) -> None:
    request.Start()
    request.Wait()


def _begin_and_wait(start: Callable[[], Started]) -> None:
    start().Wait()


def _mpi(options: Options, world: MPI.Intracomm) -> Contender:
    bind: Callable[..., Calls] = _bind if options.accelerator == "cpu" else _bind_by_hand
    return Contender("mpi", partial(bind, world.Dup(), MPI_OPS[options.op], options))


def _mpi4py(options: Options, world: MPI.Intracomm) -> Contender:
    """Lower-case allreduce: an array is an object, and its operators the reduction."""
    comm, op = world.Dup(), _object_op(options.op)

    def bind(send: Any, receive: Any) -> Calls:
        kept: list[Array] = [receive]

        def run() -> None:
            kept[0] = comm.allreduce(send, op)

        return Calls(run, None, lambda: kept[0])

    return Contender("mpi4py", bind)


def _object_op(op: str) -> Any:
    """What a program passes for arrays: MPI's op where that means an operator, else a function."""
    return {"sum": MPI.SUM, "prod": MPI.PROD}.get(op, FUNCTIONS[op])


def _gloo(options: Options, world: MPI.Intracomm) -> Contender:
    from gradred.bench import gloo

    return Contender("gloo", gloo.binder(options.op, options.mode, world))


_PEERS: dict[str, Callable[[Options, MPI.Intracomm], Contender]] = {
    "mpi": _mpi,
    "mpi4py": _mpi4py,
    "gloo": _gloo,
}
