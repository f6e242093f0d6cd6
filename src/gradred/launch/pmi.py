"""Start the MPI of ranks that no mpiexec has started: torchrun's, or those of another launcher.

Rank 0 starts a PMI server (pmi_server.py). All ranks learn its address and the job's secret by the
allgather of whoever started them, connect to it, and initialise MPI, which finds the other ranks
through that connection. MPICH and its family can do so; Open MPI needs its own mpiexec.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gradred import _core, config
from gradred._util import clock
from gradred.errors import PeerLost, TimeoutError, TransportError, UsageError, explain  # noqa: A004
from gradred.launch import authentication, failure_board, protocol, rank_pipe, rendezvous

Allgather = Callable[[bytes], Sequence[bytes]]

_LIMIT = 60.0  # seconds until all ranks have begun, where GRADRED_TIMEOUT is not set
_CONNECT = 20.0  # seconds to reach the server
_VARIABLES = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
_HAVE_PMI_1 = ("MPICH", "Intel MPI", "MVAPICH", "MVAPICH2")


def begin_mpi(
    rank: int, size: int, allgather: Allgather, why: str, initialise: Callable[[], None]
) -> None:
    """Initialise MPI, whose MPI_COMM_WORLD then has these ranks. Blocking and collective.

    Args:
        rank: of this process.
        size: the number of ranks.
        allgather: takes this rank's bytes and returns those of all ranks, by rank.
        why: for errors: why the ranks need MPI.
        initialise: calls MPI_Init_thread, and releases the GIL meanwhile.

    Raises:
        gradred.UsageError: the MPI of a rank cannot be started so; on all ranks.
        gradred.PeerLost: a rank has ended before all had begun.
        gradred.TimeoutError: a rank has not begun in time.
        gradred.TransportError: this rank cannot reach rank 0's host.
    """
    asked = f"connecting {size} ranks"
    offers = [json.loads(offer) for offer in allgather(json.dumps(_offer()).encode())]
    _require_alike(offers, asked, why)
    limit = config.get("timeout") or _LIMIT
    key = ""
    if rank == 0:
        key = _start_server(size, offers, limit)
    secret, *addresses = allgather(key.encode())[0].decode().split(" ")
    host = socket.gethostname()
    control = _connect(secret.encode(), addresses, f"control {rank} {host}", asked)
    try:
        pmi = _connect(secret.encode(), addresses, f"pmi {rank}", asked)
        own = (str(pmi.detach()), str(rank), str(size))  # the MPI keeps it until MPI_Finalize
        os.environ.update(zip(_VARIABLES, own, strict=True))
        _initialise(control, initialise, limit, asked)
    except BaseException:
        control.close()
        raise
    _watch(control)


def _offer() -> dict[str, Any]:
    """What the other ranks have to know of this one."""
    from mpi4py import MPI

    vendor = MPI.get_vendor()[0]
    offer = {"host": _core.host_id(), "name": socket.gethostname(), "mpi": vendor, "not": None}
    if MPI.Is_initialized():
        found = f"MPI was initialised here before, with {MPI.COMM_WORLD.Get_size()} ranks"
        remedy = (
            "Set MPI4PY_RC_INITIALIZE=0, or import mpi4py.MPI after the ranks are connected; or "
            "start them with gradred run"
        )
        return offer | {"not": [found, remedy]}
    if vendor not in _HAVE_PMI_1:
        found = f"{vendor} connects only ranks that its own mpiexec has started"
        remedy = (
            "Start the ranks with gradred run or mpiexec; or use MPICH, which needs none: "
            'pip install "mpich>=5", and MPI4PY_MPIABI=mpich where both are installed'
        )
        return offer | {"not": [found, remedy]}
    return offer


def _require_alike(offers: Sequence[dict[str, Any]], asked: str, why: str) -> None:
    for rank, offer in enumerate(offers):
        if offer["not"] is not None:
            found, remedy = offer["not"]
            found = f"{why}, and rank {rank} on {offer['name']} cannot start MPI: {found}"
            raise UsageError(explain(asked, found, remedy))
    found_all = {offer["mpi"]: rank for rank, offer in enumerate(offers)}
    if len(found_all) > 1:
        found = ", ".join(f"{name} (rank {rank})" for name, rank in found_all.items())
        remedy = "Install one MPI on all hosts"
        raise UsageError(explain(asked, f"the ranks have different MPIs: {found}", remedy))


def _start_server(size: int, offers: Sequence[dict[str, Any]], limit: float) -> str:
    """Start the server; the secret and its addresses, separated by spaces."""
    own = offers[0]
    remote = dict.fromkeys(one["name"] for one in offers if one["host"] != own["host"])
    listener, addresses = rendezvous.listen(list(remote), 2 * size)
    secret = secrets.token_hex(16)
    package = os.path.dirname(os.path.dirname(protocol.__file__))
    command = [sys.executable, "-I", "-S", "-c", protocol.bootstrap("pmi_server"), package]
    asked = {
        "descriptor": listener.fileno(),
        "secret": secret,
        "size": size,
        "mapping": _mapping([one["host"] for one in offers]),
        "limit": limit,
    }
    with listener:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # signals to the ranks' process group are for the ranks
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.close()
    threading.Thread(target=process.wait, name="gradred PMI server", daemon=True).start()
    return " ".join([secret, *addresses])


def _mapping(hosts: Sequence[str]) -> str:
    """Which ranks share a host, as PMI_process_mapping says it: (host, hosts, ranks each) in turn.

    Args:
        hosts: of each rank.
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    runs: list[list[int]] = []
    for host in hosts:
        if runs and runs[-1][0] == numbers[host]:
            runs[-1][1] += 1
        else:
            runs.append([numbers[host], 1])
    return f"(vector,{','.join(f'({host},1,{ranks})' for host, ranks in runs)})"


def _connect(secret: bytes, addresses: Sequence[str], line: str, asked: str) -> socket.socket:
    """A connection to the server for what the line says."""
    deadline = clock.now() + _CONNECT
    reasons = []
    for address in addresses:
        try:
            made = authentication.connect(secret, address, deadline)
        except (OSError, authentication.AuthenticationError) as error:
            reasons.append(f"{address}: {error}")
            continue
        made.setblocking(True)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.sendall(line.encode() + b"\n")
        return made
    found = f"{socket.gethostname()} cannot reach rank 0's host ({', '.join(reasons)})"
    remedy = "See that hosts of the job may connect to any port of each other"
    raise TransportError(explain(asked, found, remedy))


def _initialise(
    control: socket.socket, initialise: Callable[[], None], limit: float, asked: str
) -> None:
    """Initialise MPI in a thread of its own, while this one hears of ranks that end.

    MPI_Init waits for all ranks, and nothing can end it. If a rank is lost, that thread stays in it
    until this process ends, without what the MPI would do at exit.
    """
    news, own_end = socket.socketpair()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            initialise()
        except BaseException as error:
            failure.append(error)
        own_end.sendall(b"done\n")

    thread = threading.Thread(target=run, name="gradred begins MPI", daemon=True)
    thread.start()
    try:
        _wait_for(news, control, limit, asked)
        thread.join()
        if failure:
            raise failure[0]
        control.sendall(b"begun\n")
        _wait_for(None, control, limit, asked)
    except BaseException:
        _core.exit_at_once()
        raise
    finally:
        for name in _VARIABLES:  # what this process starts is no rank
            os.environ.pop(name, None)


def _watch(control: socket.socket) -> None:
    """Pass on what the server says of other ranks, and to it what this process says of itself.

    As a supervisor of `gradred run` does for its rank: the failure board of this process gets the
    ranks that have failed, and the core writes its reports to a pipe.
    """
    board = failure_board.FailureBoard()
    reports, own_end = os.pipe()
    _core.use_launcher(f"{own_end} {os.fstat(own_end).st_ino}", board.where)
    threading.Thread(
        target=_pass_on, args=(control, reports, board), name="gradred watches ranks", daemon=True
    ).start()


def _pass_on(control: socket.socket, reports: int, board: failure_board.FailureBoard) -> None:
    received = {control.fileno(): b"", reports: b""}
    while True:
        for descriptor in select.select(list(received), [], [])[0]:
            data = os.read(descriptor, 4096)
            *lines, received[descriptor] = (received[descriptor] + data).split(b"\n")
            for line in lines:
                if descriptor == reports:
                    _report(control, line)
                else:
                    _note_failed(board, line.decode(errors="replace"))
            if not data:
                return  # the server has ended, and with it rank 0's host


def _report(control: socket.socket, line: bytes) -> None:
    """Tell the server what the core has written."""
    news = ""
    if rank_pipe.finalize_word(line) == b"enters":
        news = "leaving"
    elif (left := rank_pipe.leaving(line)) and left[2]:
        news = f"report {left[2]}"
    if news:
        with contextlib.suppress(OSError):
            control.sendall(news.encode() + b"\n")


def _note_failed(board: failure_board.FailureBoard, line: str) -> None:
    word, *rest = line.split(" ", 3)
    if word == "failed" and len(rest) == 3:
        rank, host, report = rest
        board.add(
            int(rank), f"on {host} has ended" if not report else f"on {host} has failed", report
        )


def _wait_for(news: socket.socket | None, control: socket.socket, limit: float, asked: str) -> None:
    """Wait for news of the thread; None: until the server says that all ranks have begun.

    Raises:
        gradred.PeerLost: a rank has ended, or the server.
        gradred.TimeoutError: ranks have not begun in time.
    """
    sources = [control] if news is None else [control, news]
    until = clock.now() + limit + 10.0  # the server's own limit comes first
    while True:
        ready = select.select(sources, [], [], clock.nap(0.5))[0]
        if news in ready:
            return
        if control in ready:
            word, _, ranks = _line_of(control).partition(" ")
            if word == "all":
                return
            if word == "late":
                found = f"not come within {limit:g} s: rank {ranks.replace(',', ', ')}"
                remedy = "See what these ranks do, or set GRADRED_TIMEOUT to more seconds"
                raise TimeoutError(explain(asked, found, remedy))
            found = f"rank {ranks} has ended before all ranks had begun"
            if word != "lost":
                found = "rank 0 has ended, or its host cannot be reached"
            raise PeerLost(explain(asked, found, "See what it has printed"))
        if clock.now() > until:
            raise TimeoutError(
                explain(asked, f"no answer within {limit:g} s", "See what rank 0 does")
            )


def _line_of(control: socket.socket) -> str:
    """Read one line, and nothing behind it; empty if the connection has ended."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            byte = control.recv(1)
        except OSError:
            byte = b""
        if not byte:
            return ""
        line += byte
    return line.decode(errors="replace").rstrip("\n")
