"""One rank's launch proxy and supervisor; the test acts as mpiexec and as the launcher."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounds import within

from gradred import launch
from gradred.launch import authentication, processes, protocol, variables

pytestmark = [pytest.mark.one_mpi, pytest.mark.timeout(40)]
PATIENCE = within(15.0)


def let_in(connection, secret):
    """Authenticate like the rendezvous server; the caller's data follow on the connection."""
    connection.settimeout(PATIENCE)
    challenge = connection.recv(authentication.CHALLENGE, socket.MSG_WAITALL)
    words, expected = authentication.answer(secret.encode(), challenge)
    connection.sendall(words)
    proof = connection.recv(authentication.PROOF, socket.MSG_WAITALL)
    assert authentication.is_expected(proof, expected)


class Rank:
    """A proxy that was started as mpiexec starts it, and the launcher's end of its connection."""

    def __init__(self, folder, program, *, stdin=False, carried=(), descriptors=(), start=True):
        self.folder = folder
        self.output = {protocol.STDOUT: b"", protocol.STDERR: b""}
        self.seen = []
        self.survived = []
        self.end = None
        self.weight = 0  # bytes of the output
        self.takes = True  # whether output is acknowledged as it arrives
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(PATIENCE)
            job = f"secret 127.0.0.1:1 127.0.0.1:{server.getsockname()[1]}"
            self.proxy = subprocess.Popen(
                launch.proxy_command(),
                env={
                    "PMI_RANK": "3",
                    "PMI_SIZE": "4",
                    "PATH": os.environ["PATH"],
                    protocol.JOB: job,
                },
                pass_fds=descriptors,
                stderr=subprocess.PIPE,
            )
            connection = server.accept()[0]
            let_in(connection, "secret")
            self.channel = protocol.ControlChannel(connection)
        self.until(lambda: protocol.HELLO in self.seen)
        if start:
            self.order(program, stdin=stdin, carried=carried)

    def order(self, program, *, stdin=False, carried=(), folder=None):
        values = {"program": program, "folder": str(folder or self.folder), "stdin": stdin}
        values |= {"cores": 8, "ranks": 4, "bound": False}
        values |= {"environment": dict(carried), "set": {"SET": "1"}, "host": os.uname().nodename}
        self.channel.send(protocol.START, protocol.encode(values))

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (self.seen, self.output)
            for kind, payload in self.channel.receive():
                self.seen.append(kind)
                if kind in self.output:
                    self.output[kind] += payload
                    self.weight += protocol.weight(payload)
                    if self.takes:
                        self.channel.send(protocol.TAKEN, protocol.count(protocol.weight(payload)))
                elif kind == protocol.ENDED:
                    self.end = protocol.decode(payload)
                elif kind == protocol.SURVIVED:
                    self.survived.append(protocol.decode(payload))
                elif kind == protocol.HELLO:
                    self.hello = protocol.decode(payload)
            time.sleep(0.005)

    def finish(self):
        """Wait for the rank, and release the proxy. Returns what the rank wrote to stdout."""
        self.until(lambda: protocol.GONE in self.seen)
        assert self.proxy.poll() is None
        self.channel.send(protocol.RELEASE)
        assert self.proxy.wait(PATIENCE) == 0
        return self.output[protocol.STDOUT]

    def says(self, word):
        self.until(lambda: word in self.output[protocol.STDOUT])

    def supervisor(self):
        (supervisor,) = children(self.proxy.pid)
        return supervisor

    def close(self):
        self.channel.close()
        self.proxy.kill()
        self.proxy.communicate()


@pytest.fixture
def start(tmp_path):
    ranks = []

    def run(program, **options):
        words = ["sh", "-c", program] if isinstance(program, str) else program
        ranks.append(Rank(tmp_path, words, **options))
        return ranks[-1]

    yield run
    for rank in ranks:
        rank.close()


def children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def gone(pids, seconds=PATIENCE):
    """Whether processes end within some seconds."""
    deadline = time.monotonic() + within(seconds)
    while any(found[0].alive() for pid in pids if (found := processes.tree(pid))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_proxy_outlives_its_rank_and_keeps_mpiexecs_descriptors(start):
    reads, writes = os.pipe()
    rank = start(f"echo from the rank >/proc/self/fd/{writes}; exit 5", descriptors=[writes])
    os.close(writes)
    rank.until(lambda: protocol.GONE in rank.seen)
    assert rank.hello == {"rank": 3, "host": os.uname().nodename}
    assert (rank.end["status"], rank.end["signal"], rank.end["by"]) == (5, 0, None)
    assert os.read(reads, 100) == b"from the rank\n"
    os.set_blocking(reads, False)
    with pytest.raises(BlockingIOError):  # not the end of the pipe: other processes hold it
        os.read(reads, 1)
    rank.finish()
    assert os.read(reads, 1) == b""
    os.close(reads)


SPEAKS = """
import os, sys
from gradred.launch import rank_pipe
pipe = int(os.environ[rank_pipe.VARIABLE].split()[0])
os.write(pipe, b"gibberish\\nended one\\nended 1 ")  # a line may come in two pieces
os.write(pipe, b"2\\n")
os.write(pipe, b"ended 4\\nwithout 0 2\\nwithout x\\nwithout\\n")
"""


def test_supervisor_passes_on_that_its_rank_goes_on_without_others(start):
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    rank = start([sys.executable, "-c", SPEAKS], carried=paths)
    rank.finish()
    assert rank.end["status"] == 0
    assert rank.survived == [
        {"ended": [1, 2]},
        {"ended": [4]},
        {"left out": [0, 2]},
        {"left out": []},
    ]
    assert rank.seen.index(protocol.SURVIVED) < rank.seen.index(protocol.ENDED)


def test_rank_and_supervisor_have_sessions_of_their_own(start):
    rank = start('echo "$(cut -d" " -f6 /proc/self/stat) $$"; read line', stdin=True)
    rank.says(b"\n")
    session, pid = map(int, rank.output[protocol.STDOUT].split())
    assert session == pid
    assert os.getsid(rank.supervisor()) == rank.supervisor()


def test_last_words_come_before_the_end_and_none_is_lost(start):
    rank = start(["head", "-c", "3000000", "/dev/zero"])
    assert len(rank.finish()) == 3_000_000
    last = max(i for i, kind in enumerate(rank.seen) if kind == protocol.STDOUT)
    assert last < rank.seen.index(protocol.GONE)


def test_killed_rank_is_reported_with_the_signal(start):
    rank = start("kill -KILL $$")
    rank.finish()
    assert (rank.end["status"], rank.end["signal"]) == (137, 9)


STUBBORN = "trap '' TERM; (trap '' TERM; echo $$ $(sh -c 'echo $PPID'); sleep 300); sleep 300"


@pytest.mark.parametrize("lost", ["proxy", "connection"])
def test_rank_ends_with_all_below_it_when_proxy_or_launcher_is_lost(start, lost):
    rank = start(STUBBORN)
    rank.says(b"\n")
    pids = [*map(int, rank.output[protocol.STDOUT].split()), rank.supervisor()]
    if lost == "proxy":
        rank.proxy.kill()
        rank.until(lambda: rank.end is not None)
        assert (rank.end["status"], rank.end["by"]) == (137, "mpiexec")
    else:
        rank.channel.close()
    assert gone(pids, 5)


def test_rank_dies_with_its_supervisor(start):
    rank = start("trap '' TERM; echo $$; exec sleep 300")
    rank.says(b"\n")
    os.kill(rank.supervisor(), signal.SIGKILL)
    assert gone([int(rank.output[protocol.STDOUT])], 5)
    assert rank.proxy.wait(PATIENCE) == 137


def test_what_a_rank_leaves_behind_is_ended_a_second_later(start):
    rank = start("(trap '' TERM; setsid sleep 300 & echo $!); (sleep 0.3; echo late) & exit 0")
    began = time.monotonic()
    assert b"late" in rank.finish()
    assert 0.9 < time.monotonic() - began < within(5)
    assert rank.end["status"] == 0
    assert gone([int(rank.output[protocol.STDOUT].split()[0])], 1)


@pytest.mark.parametrize("through", ["proxy", "connection"])
def test_signals_reach_the_rank(start, through):
    rank = start("trap 'echo got it; exit 4' USR1; echo up; while :; do sleep 0.05; done")
    rank.says(b"up")
    if through == "proxy":
        rank.proxy.send_signal(signal.SIGUSR1)
    else:
        rank.channel.send(protocol.SIGNAL, bytes([signal.SIGUSR1]))
    assert rank.finish() == b"up\ngot it\n"
    assert rank.end["status"] == 4


def test_stopped_rank_can_be_killed(start):
    rank = start("echo up; kill -STOP $$; sleep 300")
    rank.says(b"up")
    rank.channel.send(protocol.SIGNAL, bytes([signal.SIGKILL]))
    rank.finish()
    assert rank.end["signal"] == 9


@pytest.mark.parametrize(("kind", "by"), [(protocol.SIGNAL, None), (protocol.END, "launcher")])
def test_only_an_order_to_end_makes_the_end_of_a_rank_the_launchers(start, kind, by):
    rank = start("trap 'exit 4' USR1; echo up; while :; do sleep 0.05; done")
    rank.says(b"up")
    rank.channel.send(kind, bytes([signal.SIGUSR1]))
    rank.finish()
    assert (rank.end["status"], rank.end["by"]) == (4, by)


@pytest.mark.parametrize("kind", [protocol.SIGNAL, protocol.END])
def test_lost_launcher_ends_a_rank_that_a_signal_did_not(start, kind):
    rank = start("trap '' USR1 TERM; echo $$; echo up; while :; do sleep 0.05; done")
    rank.says(b"up")
    rank.channel.send(kind, bytes([signal.SIGUSR1]))
    time.sleep(0.3)
    rank.channel.close()
    assert gone([int(rank.output[protocol.STDOUT].split()[0])], 5)


def test_output_waits_until_what_was_sent_is_taken(start):
    rank = start("sleep 0.2; exec yes")
    rank.takes = False
    for _ in range(3):
        rank.weight = 0
        rank.until(lambda: rank.weight >= protocol.WINDOW)
        time.sleep(0.2)  # time for more output, which must not come
        rank.until(lambda: True)
        most = 2 * protocol.WINDOW + protocol.weight(b"")
        assert rank.weight < most, "at most a piece more than there is room for"
        rank.channel.send(protocol.TAKEN, protocol.count(rank.weight))
    rank.channel.send(protocol.END, bytes([signal.SIGKILL]))
    rank.finish()


def test_input_is_passed_on_to_its_end(start):
    rank = start(["cat"], stdin=True)
    for piece in (b"one\n", b"x" * 30000 + b"\n"):
        rank.until(lambda: protocol.READY in rank.seen)
        rank.seen.remove(protocol.READY)
        rank.channel.send(protocol.STDIN, piece)
    rank.until(lambda: protocol.READY in rank.seen)
    rank.channel.send(protocol.STDIN)
    assert rank.finish() == b"one\n" + b"x" * 30000 + b"\n"


def test_rank_that_does_not_read_its_input_ends_all_the_same(start):
    rank = start("exec <&-; sleep 0.2; exit 6", stdin=True)
    rank.until(lambda: protocol.READY in rank.seen)
    time.sleep(0.1)
    rank.channel.send(protocol.STDIN, b"x" * 200_000)
    rank.finish()
    assert rank.end["status"] == 6
    assert protocol.CLOSED in rank.seen


def test_other_ranks_read_nothing(start):
    assert start(["cat"]).finish() == b""


@pytest.mark.parametrize(
    ("program", "folder", "status", "word"),
    [
        (["/no/such/program"], None, 127, b"/no/such/program: No such file"),
        (["/dev/null"], None, 126, b"Permission denied"),
        (["true"], "/no/such/folder", 127, b"/no/such/folder: No such file"),
    ],
)
def test_program_that_cannot_start_says_where_and_why(start, program, folder, status, word):
    rank = start(program, start=False)
    rank.order(program, folder=folder)
    rank.finish()
    assert rank.end["status"] == status
    assert word in rank.output[protocol.STDERR]
    assert os.uname().nodename.encode() in rank.output[protocol.STDERR]


def test_environment_is_the_launchers_and_what_mpiexec_set(start):
    strange = {"LINES": "a\nb", "BYTES": os.fsdecode(b"\xff"), "F%%": "() { :; }"}
    rank = start(["env", "-0"], carried={"PMI_RANK": "9", "HOME": "/h", **strange})
    words = rank.finish().split(b"\0")
    assert {b"PMI_RANK=3", b"HOME=/h", b"SET=1", b"LINES=a\nb", b"BYTES=\xff"} <= set(words)
    assert not any(word.startswith(protocol.JOB.encode()) for word in words)


def order(**values):
    found = {"environment": {}, "set": {}, "host": "elsewhere", "cores": 8, "ranks": 2}
    return found | {"bound": False} | values


def test_other_hosts_keep_what_is_their_own(tmp_path):
    here = {"HOSTNAME": "head", "TMPDIR": "/head", "SSH_TTY": "x", "A": "1", "PATH": "/head"}
    own = {"HOSTNAME": "h1", "TMPDIR": str(tmp_path), "PATH": "/h1"}
    found = variables.rank_environment(order(environment=here), own)
    assert found["HOSTNAME"] == "h1"
    assert found["TMPDIR"] == str(tmp_path)
    assert "SSH_TTY" not in found
    assert (found["A"], found["PATH"]) == ("1", "/head")
    found = variables.rank_environment(order(environment={"TMPDIR": "/only/on/head"}), {})
    assert "TMPDIR" not in found


@pytest.mark.parametrize(
    ("values", "own", "threads"),
    [
        ({"ranks": 2}, {}, "4"),
        ({"ranks": 3}, {}, "2"),
        ({"ranks": 16}, {}, "1"),
        ({"ranks": 16}, {"MPI_LOCALNRANKS": "4"}, "2"),
        ({"ranks": 2, "bound": True, "cores": 16}, {}, "8"),
        ({"ranks": 2, "bound": True}, {}, "4"),  # both are bound to one memory node
        ({"ranks": 2, "cores": 2}, {}, "1"),
        ({"ranks": 2, "cores": 2, "host": "elsewhere"}, {}, "4"),
    ],
)
def test_each_rank_gets_its_share_of_the_cores(monkeypatch, values, own, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    values = {"host": os.uname().nodename, "environment": {"MKL_NUM_THREADS": "7"}} | values
    found = variables.rank_environment(order(**values), own)
    assert found["OMP_NUM_THREADS"] == found["OPENBLAS_NUM_THREADS"] == threads
    assert found["MKL_NUM_THREADS"] == "7"


def test_unreachable_launcher_is_named():
    environment = {"PMI_RANK": "0", protocol.JOB: "secret 127.0.0.1:1"}
    command = launch.proxy_command()
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert answer.returncode == 1
    assert "cannot reach the launcher (127.0.0.1:1: Connection refused)" in answer.stderr


OTHERS = {
    "echo": lambda connection, received: connection.sendall(2 * received),
    "random bytes": lambda connection, received: connection.sendall(os.urandom(100)),
    "orders": lambda connection, received: connection.sendall(
        b"s" + (2).to_bytes(4, "big") + b"{}" * 50
    ),
    "another secret": lambda connection, received: connection.sendall(
        authentication.answer(b"another", received)[0]
    ),
    "end": lambda connection, received: connection.shutdown(socket.SHUT_WR),
    "silence": pytest.param(lambda connection, received: None, marks=pytest.mark.full),
}


@pytest.mark.parametrize("behave", OTHERS.values(), ids=OTHERS)
def test_supervisor_tells_others_nothing_and_goes_on_to_the_launcher(behave):
    secret = "a" * 32
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        ports = [one.getsockname()[1] for one in (other, server)]
        job = " ".join([secret, *(f"127.0.0.1:{port}" for port in ports)])
        environment = {"PMI_RANK": "3", "PMI_SIZE": "4", protocol.JOB: job}
        proxy = subprocess.Popen(launch.proxy_command(), env=environment, stderr=subprocess.PIPE)
        try:
            for one in (other, server):
                one.settimeout(PATIENCE)
            met, _ = other.accept()
            with met:
                met.settimeout(PATIENCE)
                received = met.recv(1000)
                behave(met, received)
                connection, _ = server.accept()
                with connection:
                    let_in(connection, secret)
                with contextlib.suppress(ConnectionResetError):
                    while more := met.recv(1000):
                        received += more
            assert len(received) == authentication.CHALLENGE
        finally:
            proxy.kill()
            proxy.communicate()


def test_supervisor_that_meets_no_launcher_says_so():
    with socket.create_server(("127.0.0.1", 0)) as other:
        environment = {
            "PMI_RANK": "0",
            protocol.JOB: f"secret 127.0.0.1:{other.getsockname()[1]}",
        }
        proxy = subprocess.Popen(
            launch.proxy_command(), env=environment, stderr=subprocess.PIPE, text=True
        )
        met, _ = other.accept()
        met.sendall(bytes(100))
        error = proxy.communicate(timeout=PATIENCE)[1]
        met.close()
    assert proxy.returncode == 1
    assert "it is not this job's launcher" in error


def test_what_a_supervisor_said_last_arrives_though_nothing_can_be_sent_to_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = protocol.ControlChannel(socket.create_connection(server.getsockname()))
        channel = protocol.ControlChannel(server.accept()[0])
    sender.send(protocol.ENDED, b"{}")
    sender.send(protocol.GONE)
    sender.close()
    for _ in range(3):  # a reset answers the first, and the others fail
        channel.send(protocol.TAKEN, protocol.count(1))
        time.sleep(0.05)
    assert channel.lost is None, "there is something to hear"
    assert [kind for kind, _ in channel.receive()] == [protocol.ENDED, protocol.GONE]
    channel.receive()
    assert channel.lost is not None
