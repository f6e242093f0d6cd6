"""The PMI server: what ranks ask, what strangers get, and how it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

import pytest

from gradred._util import clock
from gradred.launch import authentication, pmi, pmi_server

SECRET = b"the job's"


class Job:
    """A server of so many ranks, in a thread."""

    def __init__(self, size: int, limit: float = 20.0) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        server = pmi_server.Server(listener, SECRET, size, "(vector,(0,1,2))", limit)
        self.thread = threading.Thread(target=server.run, daemon=True)
        self.thread.start()

    def connect(self, line: str, secret: bytes = SECRET) -> socket.socket:
        made = authentication.connect(secret, self.address, clock.now() + 10)
        made.settimeout(10)
        made.sendall(line.encode() + b"\n")
        return made

    def ends(self) -> bool:
        self.thread.join(10)
        return not self.thread.is_alive()


Start = Callable[..., Job]


@pytest.fixture
def start() -> Start:
    jobs: list[Job] = []

    def begin(size: int, limit: float = 20.0) -> Job:
        jobs.append(Job(size, limit))
        return jobs[-1]

    return begin


def ask(connection: socket.socket, line: str) -> str:
    connection.sendall(line.encode() + b"\n")
    return read(connection)


def read(connection: socket.socket) -> str:
    return connection.recv(4096).decode().rstrip("\n")


def test_ranks_exchange_values_and_meet(start: Start) -> None:
    job = start(2)
    ranks = [job.connect(f"pmi {rank}") for rank in range(2)]
    controls = [job.connect(f"control {rank} h1") for rank in range(2)]
    assert "rc=0" in ask(ranks[0], "cmd=init pmi_version=1 pmi_subversion=1")
    assert "kvsname_max=" in ask(ranks[0], "cmd=get_maxes")
    names = {ask(rank, "cmd=get_my_kvsname") for rank in ranks}
    assert len(names) == 1
    value = "a=b#c"
    assert "rc=0" in ask(ranks[0], f"cmd=put kvsname=k key=of0 value={value}")
    ranks[0].sendall(b"cmd=barrier_in\n")
    assert ask(ranks[1], "cmd=barrier_in").startswith("cmd=barrier_out")
    assert read(ranks[0]).startswith("cmd=barrier_out")
    assert ask(ranks[1], "cmd=get kvsname=k key=of0").endswith(f"value={value}")
    assert "rc=-1" in ask(ranks[1], "cmd=get kvsname=k key=of1")
    assert ask(ranks[1], "cmd=get kvsname=k key=PMI_process_mapping").endswith("(vector,(0,1,2))")
    assert "rc=-1" in ask(ranks[1], "mcmd=spawn")
    for control in controls:
        control.sendall(b"begun\n")
    assert [read(control) for control in controls] == ["all", "all"]
    for rank in ranks:
        assert "finalize_ack" in ask(rank, "cmd=finalize")
    for one in (*ranks, *controls):
        one.close()
    assert job.ends()


def test_names_of_two_jobs_differ(start: Start) -> None:
    names = {ask(start(1).connect("pmi 0"), "cmd=get_my_kvsname") for _ in range(2)}
    assert len(names) == 2


@pytest.mark.parametrize(
    "data",
    [b"cmd=init pmi_version=1\n" * 4, b"control 0 h1\n" * 4, bytes(64), os.urandom(4096)],
    ids=["pmi", "control", "zeros", "noise"],
)
def test_a_stranger_is_turned_away_and_the_job_goes_on(start: Start, data: bytes) -> None:
    job = start(1)
    host, port = job.address.split(":")
    with socket.create_connection((host, int(port))) as stranger:
        stranger.settimeout(20)
        stranger.sendall(data)
        answer = stranger.recv(4096)
        assert len(answer) == authentication.CHALLENGE + authentication.PROOF
        with contextlib.suppress(ConnectionError):
            stranger.sendall(bytes(authentication.PROOF))
            assert stranger.recv(4096) == b""
    with pytest.raises(authentication.AuthenticationError):
        job.connect("control 0 h1", b"another")
    control = job.connect("control 0 h1")
    assert ask(control, "begun") == "all"


@pytest.mark.parametrize("line", ["control 1 h1", "pmi -1", "pmi", "other 0", ""])
def test_a_line_that_names_no_rank_ends_the_connection(start: Start, line: str) -> None:
    assert read(start(1).connect(line)) == ""


def test_a_rank_that_ends_before_all_have_begun_is_lost(start: Start) -> None:
    job = start(3)
    controls = [job.connect(f"control {rank} h1") for rank in range(3)]
    controls[1].sendall(b"begun\n")
    controls[2].close()
    assert [read(control) for control in controls[:2]] == ["lost 2", "lost 2"]
    assert read(job.connect("control 2 h1")) == "lost 2"  # another rank that comes late


def test_a_rank_whose_mpi_aborts_is_lost(start: Start) -> None:
    job = start(2)
    control = job.connect("control 0 h1")
    job.connect("pmi 1").sendall(b"cmd=abort exitcode=1\n")
    assert read(control) == "lost 1"


def test_ranks_that_do_not_come_in_time_are_named(start: Start) -> None:
    job = start(4, 0.3)
    came = [job.connect(f"pmi {rank}") for rank in (0, 2)]
    control = job.connect("control 0 h1")
    for one in came:
        ask(one, "cmd=init pmi_version=1 pmi_subversion=1")
    assert read(control) == "late 1,3"


def test_a_rank_that_ends_later_has_failed_unless_it_is_leaving(start: Start) -> None:
    job = start(3)
    controls = [job.connect(f"control {rank} h{rank}") for rank in range(3)]
    for control in controls:
        control.sendall(b"begun\n")
    assert [read(control) for control in controls] == ["all"] * 3
    controls[1].sendall(b"leaving\n")
    controls[1].close()
    controls[2].sendall(b"report rank 1 has ended\n")
    assert read(controls[0]) == "failed 2 h2 rank 1 has ended"
    controls[2].close()  # has been sent already
    controls[0].settimeout(0.3)
    with pytest.raises(TimeoutError):
        controls[0].recv(100)
    controls[0].close()
    assert job.ends()


def test_an_end_without_a_word_is_a_failure(start: Start) -> None:
    job = start(2)
    controls = [job.connect(f"control {rank} h{rank}") for rank in range(2)]
    for control in controls:
        control.sendall(b"begun\n")
    assert [read(control) for control in controls] == ["all"] * 2
    controls[1].close()
    assert read(controls[0]) == "failed 1 h1 "


@pytest.mark.parametrize(
    ("hosts", "mapping"),
    [
        (["a", "a"], "(vector,(0,1,2))"),
        (["a", "a", "b", "b"], "(vector,(0,2,2))"),
        (["a", "a", "b"], "(vector,(0,1,2),(1,1,1))"),
        (["b", "a", "b"], "(vector,(0,2,1),(0,1,1))"),
        ([str(host) for host in range(4096)], "(vector,(0,4096,1))"),
        ([str(rank % 7 * (rank % 3)) for rank in range(4096)], ""),  # longer than a value may be
    ],
)
def test_the_mapping_says_which_ranks_share_a_host(hosts: list[str], mapping: str) -> None:
    assert pmi._mapping(hosts) == mapping
