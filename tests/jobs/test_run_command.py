"""`gradred run` with real ranks: how jobs end, what they print, and that nothing is left behind."""

import contextlib
import os
import pty
import re
import select
import selectors
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bounds import within
from faults import seeing

from gradred import config, launch
from gradred.launch import job as jobs
from gradred.launch import processes, protocol
from gradred.launch.job import TERM_TO_KILL, Job, Order, Program

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
PATHS = os.pathsep.join(filter(None, sys.path))
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
HOST = os.uname().nodename


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith((config.PREFIX, "SLURM_", "PBS_", "LSB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PATHS)


def command(*words):
    return [sys.executable, "-m", "gradred", "run", *words]


def run(*words, **options):
    """A job that has ended: its stdout, its stderr and its status."""
    answer = subprocess.run(command(*words), capture_output=True, text=True, timeout=50, **options)
    return answer.stdout.splitlines(), answer.stderr.splitlines(), answer.returncode


def script(text):
    return ["sh", "-c", text]


def on_rank(number, text):
    return f'if [ "{RANK}" = {number} ]; then {text}; fi; '


MPI_PROGRAM = """
import os, signal, sys, time
from mpi4py import MPI
w = MPI.COMM_WORLD
w.Barrier()
if w.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(1)
maps = open("/proc/self/maps").read().split()
for name in {name for name in maps if name.startswith("/dev/shm/mpich")}:
    print(name)
print(w.rank, "lives", flush=True)
os._exit(3)
"""


def test_ranks_inside_mpi_live_to_report_after_one_was_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(MPI_PROGRAM)
    out, err, status = run("-np", "3", str(program))
    assert status == 137
    segments = [line for line in out if line.startswith("/")]
    assert sorted(set(out) - set(segments)) == ["0 lives", "2 lives"]
    assert bool(segments) == (launch.find_mpi().family == "MPICH")
    assert not any(map(os.path.exists, segments))
    assert err == [
        f"gradred run: ranks 0, 2 on {HOST} exited with status 3",
        f"gradred run: rank 1 on {HOST} was killed by SIGKILL",
    ]


SILENT_PROGRAM = """
import os, signal, sys, time
from mpi4py import MPI
w = MPI.COMM_WORLD
names = {name for name in open("/proc/self/maps").read().split() if "/dev/shm/mpich" in name}
with open(f"{sys.argv[1]}/{w.rank}", "w") as file:
    file.write(" ".join(names))
w.Barrier()
if w.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
os._exit(3)
"""


def test_shared_memory_of_ranks_that_end_without_a_word_is_removed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(SILENT_PROGRAM)
    (tmp_path / "names").mkdir()
    _, _, status = run("-np", "3", str(program), str(tmp_path / "names"))
    assert status == 137
    names = " ".join(path.read_text() for path in (tmp_path / "names").iterdir()).split()
    assert bool(names) == (launch.find_mpi().family == "MPICH")
    assert not any(map(os.path.exists, names))


def test_survivors_are_ended_when_the_grace_is_over():
    began = time.monotonic()
    text = on_rank(1, "exit 4") + "trap 'echo ended; exit 9' TERM; while :; do sleep 0.05; done"
    out, err, status = run("-np", "3", "--grace", "0.5", *script(text))
    assert time.monotonic() - began < within(6)
    assert (out, status) == (["ended", "ended"], 4)
    assert err[-2:] == [  # a shell may also report that its `sleep` was ended
        "gradred run: ranks 0, 2 did not end within 0.5 s: ended",
        f"gradred run: rank 1 on {HOST} exited with status 4",
    ]


def test_survivors_that_ignore_sigterm_are_killed(tmp_path):
    text = on_rank(0, f"while [ ! -e '{tmp_path}/1' ]; do sleep 0.05; done; exit 4")
    text += f"trap '' TERM; : >'{tmp_path}/1'; while :; do sleep 0.05; done"
    began = time.monotonic()
    _, _, status = run("-np", "2", "--grace", "0", *script(text))
    assert status == 4
    assert TERM_TO_KILL < time.monotonic() - began < within(10)


@pytest.mark.parametrize("later", ["", "os._exit(3)", "os.kill(os.getpid(), 11)"])
def test_abort_of_a_rank_ends_the_job_at_once_with_its_status(tmp_path, later):
    """MPI_Abort of the MPICH family returns, and the rank may end before mpiexec ends it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, time; from mpi4py import MPI; w = MPI.COMM_WORLD; w.Barrier()\n"
        f"w.Abort(7) if w.rank == 1 else time.sleep(60)\n{later}"
    )
    began = time.monotonic()
    _, err, status = run("-np", "3", str(program))
    assert status == 7
    assert time.monotonic() - began < within(15)
    assert any("abort" in line.lower() for line in err)


def test_job_that_takes_too_long_is_ended():
    began = time.monotonic()
    out, err, status = run("-np", "2", "--timeout", "1.5", *script("echo up; sleep 60"))
    assert (out, status) == (["up", "up"], 124)
    assert err == ["gradred run: the job did not end within 1.5 s (--timeout): ended"]
    assert time.monotonic() - began < within(10)


def test_prefix_on_request_and_whole_lines_under_load():
    text = f"i=0; while [ $i -lt 3000 ]; do echo line-{RANK}-$i-end; i=$((i + 1)); done"
    out, err, status = run("-np", "3", "--prefix", *script(text))
    assert status == 0, err
    for rank in range(3):
        mine = [line for line in out if line.startswith(f"[{rank}] ")]
        assert mine == [f"[{rank}] line-{rank}-{i}-end" for i in range(3000)]
    assert len(out) == 9000


def test_output_of_both_streams_stays_apart():
    out, err, status = run("-np", "2", "--prefix", *script("echo out; echo err >&2"))
    assert (sorted(out), sorted(err), status) == (["[0] out", "[1] out"], ["[0] err", "[1] err"], 0)


@pytest.mark.one_mpi
def test_output_filename_keeps_a_file_per_rank(tmp_path):
    folder = tmp_path / "logs"
    out, _, status = run(
        "-np", "2", "--output-filename", str(folder), *script(f"echo {RANK}; echo e{RANK} >&2")
    )
    assert (sorted(out), status) == (["0", "1"], 0)
    for rank in "01":
        assert sorted((folder / f"rank.{rank}.txt").read_text().split()) == [rank, f"e{rank}"]


@pytest.mark.one_mpi
@pytest.mark.parametrize("place", ["file", "file/below"])
def test_output_folder_that_cannot_be_made_is_a_usage_error(tmp_path, place):
    (tmp_path / "file").touch()
    folder = str(tmp_path / place)
    out, err, status = run("-np", "2", "--output-filename", folder, *script("echo started"))
    assert (out, status) == ([], 2)
    assert len(err) == 1
    assert f"--output-filename {folder}: {folder} cannot be written" in err[0]


@pytest.mark.one_mpi
def test_files_of_ranks_are_no_matter_of_the_limit_of_open_files(tmp_path):
    # The limit is sufficient for gradred, which raises it. It is too low for mpiexec, which may
    # hang then, or for some rank. The timeout is longer than gradred needs to report missing ranks.
    words = command("-np", "40", "--timeout", "32", "--output-filename", str(tmp_path), "--")
    text = "ulimit -Sn 30; exec " + shlex.join([*words, *script("echo hi")])
    answer = subprocess.run(["sh", "-c", text], capture_output=True, text=True, timeout=50)
    assert answer.returncode != 0
    assert "Traceback" not in answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("gradred run: ")
    if answer.returncode == 124:
        assert re.search(r"ranks? [\d, -]+ not started", answer.stderr), answer.stderr
    else:
        assert re.search(f"with status {answer.returncode}$|killed by SIG|was lost", last), last
    assert len(list(tmp_path.iterdir())) == 40


# Leaves as many free descriptors as requested. mpiexec does not inherit those taken here.
WITH_FEW_DESCRIPTORS = """
import os, resource, sys
limit, left = 64, int(sys.argv[1])
for _ in range(limit - 3 - left):
    os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("left", "line"),
    [
        (12, "starting 8 ranks: the connection of a rank cannot be accepted (Too many open files)"),
        (7, "a file or connection: it cannot be opened (Too many open files)"),
    ],
)
def test_too_few_descriptors_end_the_job_with_one_line_that_says_so(left, line):
    job = command("-np", "8", "--timeout", "20", *script("sleep 30"))
    words = [sys.executable, "-c", WITH_FEW_DESCRIPTORS, str(left), *job]
    answer = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert answer.returncode == 1
    # Each shell whose child is killed after the grace period prints this; each rank runs one.
    said = re.sub(r"\A(Killed\n)+", "", answer.stderr)
    assert said == f"gradred run: {line}. Allow more open files (ulimit -n).\n"


@pytest.mark.one_mpi
@pytest.mark.parametrize("text", ["echo hi", "echo hi; sleep 45"])
def test_output_on_a_full_disk_ends_the_job_with_one_line_that_says_so(text):
    began = time.monotonic()
    with open("/dev/full", "w") as full:
        answer = subprocess.run(
            command("-np", "2", *script(text)),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=50,
        )
    assert time.monotonic() - began < within(15)
    assert answer.returncode == 1
    assert answer.stderr == "gradred run: stdout cannot be written: No space left on device\n"


@pytest.mark.one_mpi
def test_file_of_a_rank_on_a_full_disk_ends_the_job_with_one_line_that_says_so(tmp_path):
    os.symlink("/dev/full", tmp_path / "rank.1.txt")
    words = ["-np", "2", "--output-filename", str(tmp_path), *script("echo hi; sleep 0.2")]
    _, err, status = run(*words)
    said = f"gradred run: {tmp_path}/rank.1.txt cannot be written: No space left on device"
    assert (err, status) == ([said], 1)


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("closed", "out", "err"), [(">&-", "", "err\n"), ("2>&-", "out\n", ""), (">&- 2>&-", "", "")]
)
def test_closed_stream_takes_nothing_and_the_job_runs(closed, out, err):
    words = command("-np", "1", *script("echo out; echo err >&2"))
    answer = subprocess.run(
        ["sh", "-c", f"exec {shlex.join(words)} {closed}"],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (answer.stdout, answer.stderr, answer.returncode) == (out, err, 0)


def on_terminal(*words, environment, keys=b""):
    """The output of a job on a terminal with typed input, and its status."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command(*words), environment)
    shown, typed = b"", False
    with contextlib.suppress(OSError):  # the other side of the terminal is closed
        while select.select([terminal], [], [], 30)[0]:
            shown += os.read(terminal, 65536)
            if keys and not typed and b"?" in shown:
                os.write(terminal, keys)
                typed = True
    return shown, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.one_mpi
@pytest.mark.parametrize("colour", [True, False])
def test_terminal_shows_ranks_before_lines_and_colours_unless_set(colour):
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "" if colour else "1"}
    shown, status = on_terminal("-np", "2", *script("echo hello"), environment=environment)
    assert status == 0
    assert (b"\x1b[" in shown) == colour
    plain = re.sub(rb"\x1b\[[\d;]*m", b"", shown)
    assert sorted(plain.split(b"\r\n")[:2]) == [b"[0] hello", b"[1] hello"]


@pytest.mark.one_mpi
def test_terminal_shows_a_prompt_and_rank_zero_reads_the_answer():
    text = on_rank(0, 'printf "name? "; read name; echo "hello $name"')
    environment = {**os.environ, "NO_COLOR": "1"}
    shown, status = on_terminal("-np", "2", *script(text), environment=environment, keys=b"you\n")
    assert status == 0
    assert shown.startswith(b"[0] name? ")
    assert b"hello you" in shown


def test_control_c_at_the_terminal_reaches_every_rank_once(tmp_path):
    text = f"trap 'echo caught {RANK}; exit 0' INT; : >'{tmp_path}'/{RANK}; "
    text += on_rank(0, f"while [ ! -e '{tmp_path}/1' ]; do sleep 0.05; done; echo ready?")
    words = script(text + "while :; do sleep 0.05; done")
    environment = {**os.environ, "NO_COLOR": "1"}
    began = time.monotonic()
    shown, status = on_terminal("-np", "2", *words, environment=environment, keys=b"\x03")
    assert status == 130
    assert shown.count(b"caught 0") == shown.count(b"caught 1") == 1
    seen = seeing.Seen(status, time.monotonic() - began, {}, shown.decode().splitlines()[-1])
    saw = "each rank gets it once"
    seeing.record("Ctrl-C at the terminal", "any", "one host", seen, part="launcher", saw=saw)


def test_file_as_input_reaches_rank_zero_whole(tmp_path):
    (tmp_path / "in").write_bytes(b"x" * 300_000)
    with (tmp_path / "in").open() as file:
        out, _, status = run("-np", "2", *script("wc -c"), stdin=file)
    assert (sorted(out), status) == (["0", "300000"], 0)


@pytest.mark.one_mpi
def test_environment_of_the_shell_and_x_reach_the_ranks(monkeypatch):
    monkeypatch.setenv("A_WORD", "of the shell\nand more")
    text = 'echo "$A_WORD,$NEW,$A_NUMBER"'
    monkeypatch.setenv("A_NUMBER", "3")
    out, err, status = run("-np", "1", "-x", "NEW=x=y", "-x", "A_NUMBER", *script(text))
    assert (out, status) == (["of the shell", "and more,x=y,3"], 0), err


def allocation(batch, folder):
    """The environment of a batch job that has a task on this host and one on another."""
    nodes = folder / "nodes"
    nodes.write_text(f"{HOST}\nother-host\n")
    return {
        "Slurm": {
            "SLURM_JOB_ID": "7",
            "SLURM_JOBID": "7",
            "SLURM_JOB_NODELIST": f"{HOST},other-host",
            "SLURM_NODELIST": f"{HOST},other-host",
            "SLURM_TASKS_PER_NODE": "1(x2)",
        },
        "PBS": {
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_JOBID": "7.server",
            "PBS_NODEFILE": str(nodes),
        },
    }[batch]


@pytest.mark.one_mpi
@pytest.mark.parametrize("batch", ["Slurm", "PBS"])
@pytest.mark.parametrize("more", [[], ["--no-env"]])
def test_ranks_asked_for_on_this_host_stay_here_in_an_allocation_and_see_it(batch, more, tmp_path):
    variables = allocation(batch, tmp_path)
    words = ["-H", "localhost:2", "--timeout", "20", *more, *script("env; hostname")]
    out, err, status = run(*words, env={**os.environ, **variables})
    assert (status, out.count(HOST)) == (0, 2), err
    for name, value in variables.items():
        assert out.count(f"{name}={value}") == 2


@pytest.mark.one_mpi
def test_script_without_an_interpreter_runs_as_in_a_shell(tmp_path, monkeypatch):
    (tmp_path / "no-interpreter").write_text('echo "$# $2"; exit 7\n')
    (tmp_path / "no-interpreter").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    out, err, status = run("-np", "1", "no-interpreter", "a", "two words")
    assert (out, status) == (["2 two words"], 7), err


@pytest.mark.one_mpi
def test_program_of_another_machine_cannot_be_executed(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF" + bytes(100))
    program.chmod(0o755)
    _, err, status = run("-np", "1", str(program))
    assert err[0] == f"gradred run: cannot start on {HOST}: {program}: Exec format error"
    assert status == 126


def test_reader_that_leaves_ends_the_job():
    process = subprocess.Popen(
        command("-np", "2", *script("while :; do echo y; done")),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert process.wait(20) == 141


@pytest.mark.one_mpi
def test_reader_of_one_stream_that_leaves_takes_nothing_of_the_other():
    ends = "trap 'echo last; echo end >&2; exit 1' TERM; "
    process = subprocess.Popen(
        command("-np", "1", *script(ends + "while :; do echo y; sleep 0.01; done")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"y\n"
    process.stdout.close()
    assert b"end\n" in process.stderr.read()
    assert process.wait(20) == 141


def test_reader_that_leaves_late_hides_no_failure():
    text = "head -c 300000 /dev/zero; printf words >&2; exit 5"
    process = subprocess.Popen(
        command("-np", "1", *script(text)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert select.select([process.stdout], [], [], 20)[0]
    time.sleep(1.5)
    process.stdout.close()
    said = f"words\ngradred run: rank 0 on {HOST} exited with status 5\n"
    assert process.stderr.read().decode() == said
    assert process.wait(20) == 5


@pytest.mark.one_mpi
def test_terminal_of_no_shell_is_read(tmp_path):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("-np", "1", *script("read word; echo got $word")),
        stdin=theirs,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a new session, so the terminal is not its controlling terminal
    )
    os.write(ours, b"it\n")
    assert process.communicate(timeout=20)[0] == b"got it\n"
    assert process.returncode == 0
    os.close(ours)
    os.close(theirs)


def test_paused_reader_neither_loses_output_nor_blocks_signals(tmp_path):
    process = subprocess.Popen(
        command("-np", "2", *script("while :; do echo 0123456789; done")), stdout=subprocess.PIPE
    )
    assert select.select([process.stdout], [], [], 20)[0], "nothing was printed"
    time.sleep(1)  # until all buffers are full
    process.send_signal(signal.SIGTERM)
    members = processes.tree(process.pid)
    time.sleep(2)
    assert not any(title(one).startswith(b"sh\0") for one in members if one.alive())
    assert set(process.communicate(timeout=20)[0].split(b"\n")[:-1]) == {b"0123456789"}
    assert process.returncode == 143


def title(process):
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        ([], "SIGINT"),
        ([], "SIGTERM"),
        ([], "SIGHUP"),
        ([], "SIGKILL"),
        (["SIGUSR1"], "SIGKILL"),
        (["SIGTSTP", "SIGCONT"], "SIGKILL"),
        (["SIGINT"], "SIGKILL"),
    ],
)
def test_nothing_is_left_when_the_launcher_is_ended(tmp_path, before, sent):
    text = f"(trap '' TERM HUP INT; sleep 300) & trap '' INT TERM USR1; : >'{tmp_path}/'$$"
    text += "; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        command("-np", "2", "--grace", "1", *script(text)), stderr=subprocess.DEVNULL
    )
    members = wait_for_ranks(process.pid, tmp_path)
    for name in before:
        process.send_signal(getattr(signal, name))
        time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(getattr(signal, sent))
    expected = -9 if sent == "SIGKILL" else 128 + getattr(signal, sent)
    assert process.wait(within(20)) == expected
    assert_all_end(members, began, f"{sent} at the launcher", process.returncode)


@pytest.mark.one_mpi
def test_closed_terminal_ends_the_job(tmp_path):
    text = f": >'{tmp_path}/'$$; while :; do sleep 0.05; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, command("-np", "2", "--grace", "1", *script(text)), os.environ)
    members = wait_for_ranks(pid, tmp_path)
    began = time.monotonic()
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 128 + signal.SIGHUP
    assert_all_end(members, began, "the launcher's terminal is closed", status)


def assert_all_end(members, began, fault, status):
    """Check that no process is left after a short time, and record the outcome."""
    while any(member.alive() for member in members) and time.monotonic() - began < within(10):
        time.sleep(0.05)
    assert [title(member) for member in members if member.alive()] == []
    seen = seeing.Seen(status, time.monotonic() - began, {}, "")
    seeing.record(fault, "any", "one host", seen, part="launcher", saw="nothing is left")


def wait_for_ranks(launcher, folder):
    """All processes of a job with two ranks that have written a file each."""
    deadline = time.monotonic() + 20
    while len(os.listdir(folder)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    members = processes.tree(launcher)
    return members + [found for pid in os.listdir(folder) for found in processes.tree(int(pid))]


def test_second_interrupt_does_not_wait(tmp_path):
    text = f"trap '' INT; : >'{tmp_path}/'$$; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        command("-np", "2", "--grace", "90", *script(text)), stderr=subprocess.DEVNULL
    )
    wait_for_ranks(process.pid, tmp_path)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(within(15)) == 130


@pytest.mark.one_mpi
def test_user_signals_are_passed_on(tmp_path):
    text = f"trap 'echo got it; exit 0' USR1; : >'{tmp_path}/'$$; while :; do sleep 0.05; done"
    process = subprocess.Popen(command("-np", "2", *script(text)), stdout=subprocess.PIPE)
    wait_for_ranks(process.pid, tmp_path)
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == (b"got it\ngot it\n", 0)


# A launcher that starts ranks as mpiexec does, and then runs the code of each test.
MPIEXEC = """
import os, subprocess, sys, time
ranks, then = int(sys.argv[1]), sys.argv[2]
variables = [{**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(ranks)} for rank in range(ranks)]
started = [subprocess.Popen(sys.argv[3:], env=one) for one in variables]
exec(then)
"""


def job(then, program, ranks=2, started=2, grace=1.0, until=lambda output: False, congested=False):
    """Run a job from start to end under a launcher that misbehaves.

    The job is asked to end as soon as `until` holds for its output.
    """
    output = []
    with selectors.PollSelector() as selector:
        order = Order(
            launcher=[sys.executable, "-c", MPIEXEC, str(started), then, *launch.proxy_command()],
            programs=[Program(script(program), ranks)],
            environment=os.environ,
            carried=os.environ,
            cores=2,
            grace=grace,
        )
        found = Job(
            order,
            lambda rank, stream, data: output.append((rank, data)),
            selector,
            lambda: congested,
        )
        deadline = time.monotonic() + 30
        while not found.over and time.monotonic() < deadline:
            found.turn()
            if until(output) and not found.ending:
                found.end(signal.SIGTERM, 2.0)
        assert found.over
        found.close()
    return found, output


def test_launcher_that_hangs_after_its_ranks_is_ended(monkeypatch):
    monkeypatch.setattr(jobs, "_LINGER", 0.3)
    found, output = job("time.sleep(600)", "echo hi")
    assert found.left_hanging
    assert found.status == 0
    assert sorted(output) == [(0, b"hi\n"), (1, b"hi\n")]


@pytest.mark.one_mpi
def test_launcher_that_reports_success_is_not_believed():
    found, _ = job("[one.wait() for one in started]; sys.exit(0)", f"exit {RANK}")
    assert (found.status, found.failures[0].rank) == (1, 1)


def test_ends_of_ranks_are_noticed_while_their_output_waits_for_a_reader():
    text = f"[ {RANK} = 0 ] && exec yes; sleep 0.5; exit 5"
    found, output = job("[one.wait() for one in started]", text, congested=True)
    assert [(one.rank, one.status) for one in found.failures] == [(1, 5)]
    assert 0 < sum(len(data) for _, data in output) < 10 * protocol.WINDOW


def test_launcher_that_kills_the_others_does_not_hide_the_cause():
    found, _ = job(
        "time.sleep(1.5); [one.kill() for one in started]; sys.exit(9)",
        on_rank(1, "exit 5") + "sleep 60",
        grace=20,
    )
    assert found.status == 5
    assert found.ended_by_mpiexec == [0]


def test_launcher_that_dies_takes_its_ranks_along():
    found, _ = job("time.sleep(1); [one.kill() for one in started]; os._exit(0)", "sleep 60")
    assert found.status == 1
    assert sorted(found.ended_by_mpiexec) == [0, 1]


def test_launcher_that_leaves_its_ranks_alone_ends_the_job(monkeypatch):
    monkeypatch.setattr(jobs, "_LAST_WORDS", 0.3)
    found, _ = job("time.sleep(1); os._exit(0)", "sleep 60")
    assert found.status == 1


def test_rank_that_comes_when_the_job_is_ending_is_no_failure_to_the_launcher(tmp_path):
    ending = tmp_path / "ending"

    def until(output):
        if output:
            ending.touch()  # later connections are accepted after the job was asked to end
        return output

    late = "{**os.environ, 'PMI_RANK': '1', 'PMI_SIZE': '2'}"
    then = f"while not os.path.exists({str(ending)!r}): time.sleep(0.01)\n"
    then += f"started += [subprocess.Popen(sys.argv[3:], env={late})]\n"
    then += "sys.exit(str([one.wait() for one in started]))"
    found, output = job(then, "echo hi; sleep 60", started=1, until=until)
    assert output == [(0, b"hi\n")]
    assert b"".join(data for _, data in found.withheld) == b"[0, 0]\n"


@pytest.mark.one_mpi
def test_launcher_that_starts_nothing_gives_its_own_status():
    found, output = job("sys.exit('no such option')", "sleep 60", started=0)
    assert (found.status, found.missing) == (1, [0, 1])
    assert b"".join(data for _, data in output) == b"no such option\n"


def test_launcher_that_starts_too_few_is_ended_with_the_ranks_it_started():
    found, _ = job("time.sleep(0.5); sys.exit(6)", "sleep 60", started=1)
    assert (found.status, found.missing) == (6, [1])


def test_lost_supervisor_counts_as_a_killed_rank():
    kill = (
        "time.sleep(1); "
        "pid = open(f'/proc/{started[1].pid}/task/{started[1].pid}/children').read().split()[0]; "
        "os.kill(int(pid), 9); [one.wait() for one in started]"
    )
    found, _ = job(kill, "sleep 2")
    assert found.status == 137
    assert (found.failures[0].rank, "lost" in str(found.failures[0].cause)) == (1, True)


# What foreign processes, with and without the secret, do while one rank is still missing.
OTHERS = """
import random, socket, threading
from gradred.launch import authentication, protocol
secret, address = os.environ[protocol.JOB].split()
def connect():
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)
def known():
    connection = connect()
    authentication.convince(connection, secret.encode(), time.monotonic() + 20)
    return connection
chance, held = random.Random(3), []
def say(connection, words, hold=True):
    try:
        connection.sendall(words)
    except OSError:
        pass
    held.append(connection) if hold else connection.close()
deep = (100_000).to_bytes(4, "big") + b"[" * 100_000
while not os.path.exists({there!r}):
    time.sleep(0.01)
for _ in range({crowd}):
    held.append(connect())
for words in (b"", b"GET / HTTP/1.0", b"h\\0\\0\\0\\2{{}}", b"h" + bytes(4), b"h" + deep):
    say(connect(), words, hold=False)
    say(connect(), words)
    say(known(), words, hold=False)
    say(known(), words)
for _ in range(50):
    say(connect(), chance.randbytes(chance.randrange(200)), hold=chance.random() < 0.5)
hello = lambda rank: protocol.encode({{"rank": rank, "host": "elsewhere"}})
for payload in (hello(0), hello(0), hello(7), hello("1"), b"[" * 4000):
    say(known(), b"h" + len(payload).to_bytes(4, "big") + payload)
slow = connect()
threading.Thread(target=lambda: [(slow.send(b"s"), time.sleep(0.2)) for _ in range(9)]).start()
started += [subprocess.Popen(sys.argv[3:], env={{**os.environ, "PMI_RANK": "1", "PMI_SIZE": "2"}})]
[one.wait() for one in started]
"""


@pytest.mark.one_mpi
def test_whatever_callers_do_at_the_jobs_door_the_job_goes_on(tmp_path, full):
    there = tmp_path / "there"
    others = OTHERS.format(there=str(there), crowd=900 if full else 100)
    found, output = job(others, f"echo hi; touch {there}; sleep 0.5; exit $PMI_RANK", started=1)
    assert [(one.rank, one.status) for one in found.failures] == [(1, 1)]
    assert found.status == 1
    assert sorted(line for line in output if line[0] is not None) == [(0, b"hi\n"), (1, b"hi\n")]


LEAVES = """
import gradred, numpy
from mpi4py import MPI

comm = gradred.Comm(MPI.COMM_WORLD)
everyone = numpy.random.default_rng(1).standard_normal((8, 500)).astype("float32")
mine = everyone[list(gradred.leaves_of_job(comm))]
total = gradred.allreduce(mine, leaves="job", comm=comm)
refused = False
try:
    if comm.size == 8:
        total = gradred.allreduce(mine[0], comm=comm)
        refused = True
    else:
        gradred.allreduce(mine[0], comm=comm)
except gradred.UsageError as error:
    refused = comm.size != 8 and "GRADRED_DETERMINISTIC is ranks" in str(error)
if comm.rank == 0:
    print(refused, gradred.result_hash(total))
"""


def test_job_of_leaves_has_the_same_bits_on_any_number_of_ranks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LEAVES)
    found = [run("-np", str(ranks), "--leaves", "8", str(program)) for ranks in (1, 2, 3, 4, 8)]
    assert [status for _, _, status in found] == [0] * 5, found
    assert len({tuple(out) for out, _, _ in found}) == 1
    assert found[0][0][0].startswith("True ")
