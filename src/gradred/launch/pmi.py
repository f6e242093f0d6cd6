"""Start the MPI of ranks that no mpiexec has started: torchrun's, or those of another launcher.

Rank 0 starts a PMI server (pmi_server.py). All ranks learn its address and the job's secret by the
allgather of whoever started them, connect to it, and initialise MPI, which finds the other ranks
through that connection. MPICH and its family can do so; Open MPI needs its own mpiexec.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import secrets
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gradred import _core, config
from gradred._util import clock
from gradred.errors import PeerLost, TimeoutError, TransportError, UsageError  # noqa: A004
from gradred.launch import (
    authentication,
    failure_board,
    mpi_segments,
    protocol,
    rank_pipe,
    rendezvous,
)

Allgather = Callable[[bytes], Sequence[bytes]]

job = ""
"""Which MPI job of ours this process belongs to; empty: none, or one that mpiexec has started."""

_LIMIT = 60.0  # seconds until all ranks have begun, where GRADRED_TIMEOUT is not set
_CONNECT = 20.0  # seconds to reach the server
_LONGEST_VALUE = 1000  # bytes
_SIOCGIFADDR = 0x8915
_VARIABLES = ("PMI_FD", "PMI_RANK", "PMI_SIZE")
_NO_SERVER = "!"  # in place of the secret and the addresses, before the reason
_EACH = 3.0  # seconds for an answer from one address
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
    global job
    asked = f"connecting {size} ranks"
    since = time.time()  # no rank can start MPI before all ranks have come here
    offers = [json.loads(offer) for offer in allgather(json.dumps(_offer()).encode())]
    _require_alike(offers, asked, why)
    limit = config.get("timeout") or _LIMIT
    key = ""
    if rank == 0:
        try:
            key = _start_server(size, offers, limit)
        except OSError as error:
            key = f"{_NO_SERVER}{error}"
    key = allgather(key.encode())[0].decode()
    if key.startswith(_NO_SERVER):
        found = f"rank 0 cannot start the server by which they find each other ({key[1:]})"
        raise TransportError(asked, found, "See to its memory and its open files")
    secret, *addresses = key.split(" ")
    host = socket.gethostname()
    control = _connect(secret.encode(), addresses, f"control {rank} {host}", asked)
    try:
        pmi = _connect(secret.encode(), addresses, f"pmi {rank}", asked)
        descriptor = pmi.detach()  # the MPI keeps it until MPI_Finalize
        own = (str(descriptor), str(rank), str(size))
        os.environ.update(zip(_VARIABLES, own, strict=True))
        here = sum(offer["host"] == offers[rank]["host"] for offer in offers)
        os.environ["MPI_LOCALNRANKS"] = str(here)  # as mpiexec sets it
        _initialise(control, initialise, limit, asked)
    except BaseException:
        control.close()
        _remove_segments(since)
        atexit.register(_remove_segments, since)  # the MPI's thread may make them later
        raise
    job = hashlib.sha256(secret.encode()).hexdigest()[:16]
    _watch(control, descriptor)


def _offer() -> dict[str, Any]:
    """What the other ranks have to know of this one."""
    from mpi4py import MPI

    vendor = MPI.get_vendor()[0]
    offer = {"host": _core.host_id(), "name": socket.gethostname(), "mpi": vendor, "not": None}
    if not _core.release_gil_in_init(sys.modules["mpi4py.MPI"].__file__ or ""):
        found = "no way was found to run other threads during MPI_Init of this mpi4py"
        return offer | {"not": [found, "Start the ranks with gradred run"]}
    if job:
        found = "this process is a rank of other ranks that gradred has connected before"
        return offer | {"not": [found, "Connect other ranks in new processes"]}
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
            raise UsageError(asked, found, remedy)
    found_all = {offer["mpi"]: rank for rank, offer in enumerate(offers)}
    if len(found_all) > 1:
        found = ", ".join(f"{name} (rank {rank})" for name, rank in found_all.items())
        remedy = "Install one MPI on all hosts"
        raise UsageError(asked, f"the ranks have different MPIs: {found}", remedy)


def _start_server(size: int, offers: Sequence[dict[str, Any]], limit: float) -> str:
    """Start the server; the secret and its addresses, separated by spaces."""
    own = offers[0]
    remote = dict.fromkeys(one["name"] for one in offers if one["host"] != own["host"])
    listener, addresses = rendezvous.listen(list(remote), 2 * size)
    if remote:
        addresses = _with_more(addresses)
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


def _with_more(addresses: Sequence[str]) -> list[str]:
    """Add MASTER_ADDR and the addresses of all interfaces: names of hosts may not resolve."""
    port = addresses[0].rpartition(":")[2]
    names = [os.environ.get("MASTER_ADDR", "")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without such an address
                request = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                names.append(socket.inet_ntoa(found[20:24]))
    more = [f"{name}:{port}" for name in names if name and not name.startswith("127.")]
    return list(dict.fromkeys([*addresses, *more]))


def _mapping(hosts: Sequence[str]) -> str:
    """Return which ranks share a host, as PMI_process_mapping says it.

    Each block is (its first host, the number of hosts, the ranks on each), for ranks in their
    order; empty if the text is longer than a value may be: MPI then finds out by itself.
    """
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    blocks: list[list[int]] = []
    for host, ranks in itertools.groupby(hosts):
        number, count = numbers[host], len(list(ranks))
        if blocks and blocks[-1][0] + blocks[-1][1] == number and blocks[-1][2] == count:
            blocks[-1][1] += 1
        else:
            blocks.append([number, 1, count])
    text = f"(vector,{','.join(f'({first},{count},{ranks})' for first, count, ranks in blocks)})"
    return text if len(text) < _LONGEST_VALUE else ""


def _connect(secret: bytes, addresses: Sequence[str], line: str, asked: str) -> socket.socket:
    """Connect to the server for what the line says."""
    deadline = clock.now() + _CONNECT
    try:
        made = authentication.connect_to_any(secret, addresses, deadline, _EACH, OSError)
    except ConnectionError as error:
        found = f"{socket.gethostname()} cannot reach rank 0's host ({error})"
        remedy = "See that hosts of the job may connect to any port of each other"
        raise TransportError(asked, found, remedy) from None
    made.setblocking(True)
    authentication.keep_alive(made)
    made.sendall(line.encode() + b"\n")
    return made


def _initialise(
    control: socket.socket, initialise: Callable[[], None], limit: float, asked: str
) -> None:
    """Initialise MPI in a thread of its own, while this one receives which ranks have ended.

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
        for name in _VARIABLES:  # what this process starts is not a rank
            os.environ.pop(name, None)


def _remove_segments(since: float) -> None:
    """Remove the MPI's segments on this host after a failed start: no rank will attach to them.

    Args:
        since: the time of the start, in seconds since the epoch.
    """
    mine = mpi_segments.mapped_by([os.getpid()])
    mpi_segments.remove(mine | mpi_segments.abandoned(since))


class _Watch:
    """Passes on what the server says of other ranks, and to it what this process says of itself.

    As a supervisor of `gradred run` does for its rank: the failure board of this process gets the
    ranks that have failed, and the core writes its reports to a pipe.
    """

    def __init__(self, control: socket.socket, reports: int) -> None:
        self._control, self._reports = control, reports
        self.board = failure_board.FailureBoard()
        self._leaves = False  # this rank is in MPI_Finalize

    def run(self) -> None:
        """Pass everything on until the server ends."""
        received = {self._control.fileno(): b"", self._reports: b""}
        while True:
            for descriptor in select.select(list(received), [], [])[0]:
                try:
                    data = os.read(descriptor, 4096)
                except OSError:
                    data = b""
                *lines, received[descriptor] = (received[descriptor] + data).split(b"\n")
                for line in lines:
                    if descriptor == self._reports:
                        self._pass_report_on(line)
                    else:
                        self._note_failed(line.decode(errors="replace"))
                if not data:
                    if not self._leaves:
                        self.board.add(0, "has ended, or its host cannot be reached", "")
                    return

    def _pass_report_on(self, line: bytes) -> None:
        news = ""
        if rank_pipe.finalize_word(line) == b"enters":
            self._leaves, news = True, "leaving"
        elif (left := rank_pipe.leaving(line)) and left[2]:
            news = f"report {left[2]}"
        if news:
            with contextlib.suppress(OSError):
                self._control.sendall(news.encode() + b"\n")

    def _note_failed(self, line: str) -> None:
        word, *rest = line.split(" ", 3)
        if word != "failed" or len(rest) < 3:
            return
        rank, host, report = rest
        self.board.add(int(rank), f"on {host} has {'failed' if report else 'ended'}", report)
        if self._leaves:  # MPI_Finalize waits for that rank, and nothing else can end it
            found = f"rank {rank} on {host} has ended without MPI_Finalize"
            print(f"gradred: {found}: this rank does not wait for it", file=sys.stderr, flush=True)
            os._exit(1)


def _watch(control: socket.socket, descriptor: int) -> None:
    """Start to watch the other ranks, in a thread of its own."""
    reports, own_end = os.pipe()
    watch = _Watch(control, reports)

    def close_in_child() -> None:
        """A forked child keeps no connection open: the server would not see this rank end."""
        control.close()
        for one in (descriptor, reports, own_end):
            with contextlib.suppress(OSError):
                os.close(one)

    os.register_at_fork(after_in_child=close_in_child)
    _core.use_launcher(f"{own_end} {os.fstat(own_end).st_ino}", watch.board.where)
    threading.Thread(target=watch.run, name="gradred watches ranks", daemon=True).start()


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
                raise TimeoutError(asked, found, remedy)
            found = f"rank {ranks.partition(' ')[0]} has ended before all ranks had begun"
            if word not in ("lost", "failed"):
                found = "rank 0 has ended, or its host cannot be reached"
            raise PeerLost(asked, found, "See what it has printed")
        if clock.now() > until:
            raise TimeoutError(asked, f"no answer within {limit:g} s", "See what rank 0 does")


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
