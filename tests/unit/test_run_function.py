"""gradred.run: results by rank, the failing rank's traceback, and that nothing is left behind."""

import glob
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradred import launch
from gradred.errors import Error, TimeoutError, UsageError  # noqa: A004
from gradred.launch import processes
from gradred.launch.run_function import run

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]


def add_rank(offset, scale=1):
    from mpi4py import MPI

    return offset + scale * MPI.COMM_WORLD.rank


def total_of_ranks():
    from mpi4py import MPI

    return MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)


def fail_on_rank_one(pid_folder):
    from mpi4py import MPI

    with open(os.path.join(pid_folder, str(os.getpid())), "w"):
        pass
    if MPI.COMM_WORLD.rank == 1:
        raise KeyError("the reason")
    MPI.COMM_WORLD.Barrier()


def die_on_rank_one(how):
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        how()
    MPI.COMM_WORLD.Barrier()


def kill_myself():
    os.kill(os.getpid(), signal.SIGKILL)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def leave():
    sys.exit(7)


def leave_without_a_word():
    os._exit(200)


def wait_for_ever(pid_folder):
    with open(os.path.join(pid_folder, str(os.getpid())), "w"):
        pass
    time.sleep(600)


def say(words):
    print(words)
    print(words, file=sys.stderr)


def unpicklable():
    return (word for word in ())


def nested():
    return run(add_rank, (0,), np=1)


def alive(folder):
    """Processes that run; an ended one may stay in /proc until its parent waits for it."""
    found = [processes.tree(int(pid)) for pid in os.listdir(folder)]
    return [one[0].pid for one in found if one and one[0].alive()]


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path, monkeypatch):
    # A short path: an MPI may put sockets below it, and their names have a limited length.
    with tempfile.TemporaryDirectory(prefix="g") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        assert glob.glob(f"{folder}/gradred*") == []


@pytest.mark.parametrize("ranks", [1, 3])
def test_results_come_in_the_order_of_ranks(ranks):
    assert run(add_rank, (10,), kwargs={"scale": 2}, np=ranks) == [10, 12, 14][:ranks]


def test_ranks_are_of_this_host_in_an_allocation_of_several_and_see_it(monkeypatch):
    hosts = f"{os.uname().nodename},other-host"
    for name, value in (("JOBID", "7"), ("NODELIST", hosts), ("TASKS_PER_NODE", "1(x2)")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert run(os.getenv, ("SLURM_NODELIST",), np=2, timeout=20) == [hosts, hosts]


def test_ranks_share_one_world():
    assert run(total_of_ranks, np=3) == [3, 3, 3]


def test_exception_carries_the_ranks_traceback_and_ends_the_others(tmp_path):
    with pytest.raises(Error, match="rank 1 raised KeyError: 'the reason'") as caught:
        run(fail_on_rank_one, (str(tmp_path),), np=3)
    assert "in fail_on_rank_one" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    assert len(os.listdir(tmp_path)) == 3
    assert alive(tmp_path) == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (kill_myself, "rank 1 was killed by SIGKILL"),
        (crash, r"rank 1 was killed by SIGSEGV(.|\n)*in crash"),
        (leave, "rank 1 raised SystemExit: 7"),
        (leave_without_a_word, "rank 1 exited with status 200"),
    ],
)
def test_rank_that_ends_is_named_with_the_cause(how, message):
    with pytest.raises(Error, match=message):
        run(die_on_rank_one, (how,), np=2)


def test_timeout_tells_where_each_rank_is_and_ends_it(tmp_path, clock):
    """The limit is an hour, which passes as soon as both ranks wait."""

    def let_it_pass():
        while len(os.listdir(tmp_path)) < 2:
            time.sleep(0.02)
        clock.step(3600)

    with ThreadPoolExecutor(1) as beside:
        beside.submit(let_it_pass)
        with pytest.raises(TimeoutError, match="ranks: 0, 1") as caught:
            run(wait_for_ever, (str(tmp_path),), np=2, timeout=3600)
    assert str(caught.value).count("in wait_for_ever") == 2
    assert alive(tmp_path) == []


def test_output_of_ranks_appears_in_this_process(capsys):
    run(say, ("hello",), np=2)
    printed = capsys.readouterr()
    assert printed.out.split() == ["hello", "hello"]
    assert printed.err.count("hello") == 2


def test_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(Error, match=r"rank 0 raised TypeError.*pickle"):
        run(unpicklable, np=1)


def test_call_inside_a_rank_is_refused():
    with pytest.raises(Error, match="already belongs to a job") as caught:
        run(nested, np=1)
    assert isinstance(caught.value.__cause__, UsageError)


@pytest.mark.parametrize(
    ("fn", "options"),
    [(3, {}), (say, {"np": 0}), (say, {"np": 1.5}), (say, {"timeout": 0})],
)
def test_misuse_is_refused(fn, options):
    with pytest.raises(UsageError):
        run(fn, **options)


@pytest.mark.parametrize("args", [3, "ab", {"steps": 3}])
def test_one_argument_without_a_tuple_is_refused_with_the_remedy(args):
    with pytest.raises(UsageError, match=r"args has the type .*Pass a tuple of all arguments"):
        run(say, args, np=1)


def test_lambda_without_cloudpickle_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError, match="Install cloudpickle"):
        run(lambda: 1, np=1)


def test_lambda_is_sent_by_value():
    pytest.importorskip("cloudpickle")
    offset = 5
    assert run(lambda x: x + offset, (1,), np=2) == [6, 6]


SCRIPT = """
    import sys, time
    from gradred.launch.run_function import run
    class Mine:
        value = 4
    def work(folder):
        import os
        open(os.path.join(folder, str(os.getpid())), "w").close()
        if folder != sys.argv[2]:
            return Mine()
        time.sleep(600)
    print(sum(part.value for part in run(work, (sys.argv[1],), np=2)))
"""


def start_script(tmp_path, waits):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    folder = tmp_path / "pids"
    folder.mkdir()
    words = [sys.executable, str(script), str(folder), str(folder) if waits else ""]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    environment["TMPDIR"] = tempfile.gettempdir()
    return folder, subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_function_class_and_arguments_of_a_script_reach_the_ranks(tmp_path):
    pytest.importorskip("cloudpickle")
    _, process = start_script(tmp_path, waits=False)
    out, err = process.communicate(timeout=60)
    assert (out.split(), process.returncode) == (["8"], 0), err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_their_caller(tmp_path, sent):
    pytest.importorskip("cloudpickle")
    folder, process = start_script(tmp_path, waits=True)
    deadline = time.monotonic() + 40
    while len(os.listdir(folder)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    process.communicate(timeout=20)
    while alive(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(folder)) == 2
    assert alive(folder) == []
    if sent == signal.SIGKILL:  # no process was left to remove it
        for left in glob.glob(f"{tempfile.gettempdir()}/gradred-run-*"):
            subprocess.run(["rm", "-r", left], check=True)
