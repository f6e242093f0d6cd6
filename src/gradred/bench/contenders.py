"""The contenders of a benchmark: gradred with a plan, and its peers, on one pair of buffers."""

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
from gradred.errors import UsageError

MPI_OPS = {name: getattr(MPI, name.upper()) for name in gradred.OPS if hasattr(MPI, name.upper())}


def title_of(name: str) -> str:
    """Return a contender's name for a picture: a peer with its version, or a plan of gradred."""
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
    """Do nothing; most contenders need nothing before and after a call."""


class Started(Protocol):
    """A request: of MPI, of gradred, or a similar object."""

    def Wait(self) -> Any: ...  # noqa: D102, N802
    def Test(self) -> Any: ...  # noqa: D102, N802


class Calls(NamedTuple):
    """One contender, bound to vectors of one length."""

    run: Callable[[], object]
    """Carries out a whole operation."""
    start: Callable[[], Started] | None
    """Starts a non-blocking operation; None for other modes."""
    output: Callable[[], Vector]
    """Returns the result of the last operation."""
    load: Callable[[], object] = nothing
    """Writes the input for a check; `unload` writes values that can be reduced repeatedly."""
    unload: Callable[[], object] = nothing
    free: Callable[[], object] = nothing


class Contender(NamedTuple):
    """An implementation that is measured."""

    name: str
    bind: Callable[[Any, Any], Calls]
    """Makes the calls for an input and an output vector."""


def gather(options: Options, world: MPI.Intracomm, device: Device | None) -> list[Contender]:
    """Return gradred first, then other plans, then the peers; collective on `world`, all ranks.

    `device` has the vectors; None: they are in host memory.

    Raises:
        UsageError: these ranks cannot use the requested plan.
    """
    chosen = gradred.Comm(world.Dup())
    _serves(chosen)  # before the first blocking call the MPI carries out others
    plain = _contender("gradred", chosen, options)
    if not options.plan:
        found = [plain]
    elif options.plan == "all":
        rows = _core.plan_families()
        own = [row for row in rows if row["medium"] != "mpi" or device]  # a peer measures the MPI
        names = [name for row in own for name in row["plans"]["allreduce"]]
        comms = {name: _with_plan(name, world, device) for name in names}
        served = {name: comm for name, comm in comms.items() if _serves(comm, device)}
        found = [plain, *(_contender(name, comm, options) for name, comm in served.items())]
    else:
        comm = _with_plan(options.plan, world, device)
        if not _serves(comm, device):
            reason = f"it does not serve {world.size} ranks here"
            raise UsageError(f"--plan {options.plan}", reason, "Take another plan, or all")
        found = [_contender(options.plan, comm, options)]
    return found + [_PEERS[peer](options, world) for peer in options.peers]


def _contender(name: str, comm: MPI.Intracomm, options: Options) -> Contender:
    op = MPI_OPS.get(options.op, options.op)  # a call with the MPI's own object costs least
    return Contender(name, partial(_bind, comm, op, options))


def _serves(comm: gradred.Comm, device: Device | None = None) -> bool:
    """Return whether the ranks can use this communicator's plan; collective."""
    values = np.zeros(comm.size, "float32")
    try:
        comm.Allreduce(MPI.IN_PLACE, device.vector(values) if device else values)
    except UsageError:
        return False  # the same on every rank, since all plan decisions use agreed values
    return True


def _with_plan(plan: str, world: MPI.Intracomm, device: Device | None) -> gradred.Comm:
    """Make a communicator whose calls on such vectors all use this plan."""
    knob = "device_plan" if device else "plan"
    config.set(knob, plan)
    try:
        comm = gradred.Comm(world.Dup())
        _core.comm_info(comm)  # the extension reads the settings on the communicator's first use
    finally:
        config.reset(knob)
    return comm


def _bind(comm: MPI.Intracomm, op: Any, asked: Options, send: Any, receive: Any) -> Calls:
    """Bind the calls of a communicator, gradred's or the MPI's own."""
    done, mode = lambda: receive, asked.mode
    if mode == "blocking":
        arguments: list[Any] = [send, receive]
        load: Callable[[], object] = nothing
        if asked.collective == "bcast":  # one buffer, which contains the input on the root
            arguments, load = [receive], partial(_copy_at_root, comm, send, receive)
        if COLLECTIVES[asked.collective].reduces:
            arguments.append(op)
        call = getattr(comm, asked.collective.capitalize())
        return Calls(partial(call, *arguments), None, done, load)
    if mode == "persistent":
        request = comm.Allreduce_init(send, receive, op)
        run = request if callable(request) else partial(_start_and_wait, request)
        return Calls(run, None, done, free=request.Free)
    start = partial(comm.Iallreduce, send, receive, op)
    return Calls(lambda: start().Wait(), start, done)


def _bind_by_hand(
    comm: MPI.Intracomm, op: Any, asked: Options, send: DeviceVector, receive: DeviceVector
) -> Calls:
    """Bind the calls of a program with any MPI: copy to the host, call the MPI, copy back."""
    here, result = send.get(), receive.get()
    calls = _bind(comm, op, asked, here, result)

    def run() -> None:
        send.get(here)
        calls.run()
        receive[:] = result

    def broadcast() -> None:  # the root sends from the buffer, the other ranks receive into it
        if comm.rank == 0:
            receive.get(result)
        calls.run()
        if comm.rank != 0:
            receive[:] = result

    if asked.collective == "bcast":
        load = partial(_copy_at_root, comm, send, receive)
        return Calls(broadcast, None, lambda: receive, load)
    return Calls(run, None, lambda: receive)


def _copy_at_root(comm: MPI.Intracomm, send: Any, receive: Any) -> None:
    if comm.rank == 0:
        receive[:] = send


def _start_and_wait(request: MPI.Prequest) -> None:
    request.Start()
    request.Wait()


def _mpi(options: Options, world: MPI.Intracomm) -> Contender:
    bind: Callable[..., Calls] = _bind if options.accelerator == "cpu" else _bind_by_hand
    return Contender("mpi", partial(bind, world.Dup(), MPI_OPS[options.op], options))


def _mpi4py(options: Options, world: MPI.Intracomm) -> Contender:
    """Bind lower-case allreduce, which reduces the array as an object, by its operators."""
    comm = world.Dup()
    # MPI's operations on objects are operators; for others it takes a function.
    op: Any = {"sum": MPI.SUM, "prod": MPI.PROD}.get(options.op, FUNCTIONS[options.op])

    def bind(send: Any, receive: Any) -> Calls:
        kept: list[Array] = [receive]

        def run() -> None:
            kept[0] = comm.allreduce(send, op)

        return Calls(run, None, lambda: kept[0])

    return Contender("mpi4py", bind)


def _gloo(options: Options, world: MPI.Intracomm) -> Contender:
    from gradred.bench import gloo

    return Contender("gloo", gloo.binder(options.op, options.mode, world))


_PEERS: dict[str, Callable[[Options, MPI.Intracomm], Contender]] = {
    "mpi": _mpi,
    "mpi4py": _mpi4py,
    "gloo": _gloo,
}
