"""The command line: statuses, `gradred info`, and jobs started by `gradred run`."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import pytest

from gradred import cli, config, launch
from gradred.launch import foreground
from gradred.launch import mpi as launch_mpi

PATHS = os.pathsep.join(filter(None, sys.path))
needs_no_job = pytest.mark.skipif(
    launch.inside_job() is not None, reason="ranks cannot start ranks"
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PATHS)


def gradred(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "gradred", *words],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def status_of(words):
    try:
        return cli.main(words)
    except SystemExit as ended:  # argparse's own exit
        return ended.code


def test_torch_is_refused_where_pytorch_would_not_load_gradred(monkeypatch, capsys):
    words = ["run", "--torch", "--dry-run", "-np", "2", "true"]
    assert status_of(words) == 0
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    capsys.readouterr()
    assert status_of(words) == 2
    error = capsys.readouterr().err
    assert "--torch: TORCH_DEVICE_BACKEND_AUTOLOAD is '0'" in error
    assert "Unset this variable" in error
    assert status_of([*words[:2], "-x", "TORCH_DEVICE_BACKEND_AUTOLOAD=1", *words[2:]]) == 0


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["run", "--help"], 0),
        (["info", "cpu"], 0),
        ([], 2),
        (["fly"], 2),
        (["info", "colour"], 2),
        (["run", "python"], 2),
        (["run", "-np", "0", "python"], 2),
        (["run", "-np", "two", "python"], 2),
        (["run", "-np", "2"], 2),
        (["run", "-np", "2", "no-such-program"], 2),
        (["run", "-np", "2", "-H", "h1:1", "true"], 2),
        (["run", "-np", "2", "-H", "h1", "--hostfile", "h", "true"], 2),
        (["run", "--hostfile", "/no/such/file", "true"], 2),
        (["run", "-np", "2", "-x", "NO_SUCH_VARIABLE", "true"], 2),
        (["run", "-np", "2", "--timeout", "0", "true"], 2),
        (["run", "-np", "2", "--grace", "soon", "true"], 2),
    ],
)
def test_exit_status(words, status, capsys):
    assert status_of(words) == status
    assert bool(capsys.readouterr().err) == (status == 2)


def test_misspelt_knob_is_a_usage_error(monkeypatch, capsys):
    monkeypatch.setenv("GRADRED_TIMEOT", "3")
    assert cli.main(["info"]) == 2
    assert "GRADRED_TIMEOUT" in capsys.readouterr().err


@needs_no_job
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("GRADRED_TIMEOT=3", "The nearest one is GRADRED_TIMEOUT"),
        ("GRADRED_TIMEOUT=soon", "Write a duration"),
    ],
)
def test_knob_given_by_x_that_is_none_ends_before_a_rank_starts(given, said, tmp_path):
    answer = gradred("run", "-np", "2", "-x", given, "touch", str(tmp_path / "started"))
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 1
    assert given.partition("=")[0] in answer.stderr
    assert said in answer.stderr
    assert not (tmp_path / "started").exists()


def test_interrupt_has_its_status(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(config, "snapshot", interrupt)
    assert cli.main(["info"]) == 130


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure_in_one_line(unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "gradred", "info", "version"]
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert answer.returncode == 1
    assert "No space left on device" in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_closed_stdout_is_no_error():
    command = [sys.executable, "-m", "gradred", "info", "version"]
    closed = ["sh", "-c", f"exec {shlex.join(command)} >&-"]
    answer = subprocess.run(closed, capture_output=True, text=True, timeout=60)
    assert (answer.stdout, answer.stderr, answer.returncode) == ("", "", 0)


def test_info_prints_every_fact_and_setting_once(monkeypatch, capsys):
    monkeypatch.setenv("GRADRED_TIMEOUT", "2min")
    assert cli.main(["info"]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    facts = [
        "version",
        "mpi",
        "launcher",
        "preload",
        "horovod_path",
        "cuda",
        "nccl",
        "cpu",
        "topology",
    ]
    assert list(lines)[: len(facts)] == facts
    assert lines["GRADRED_TIMEOUT"] == "120s (environment)"
    assert lines["GRADRED_SHM"] == "1 (default)"
    assert lines["launcher"] == str(launch.find_mpi().launcher)


def test_info_key_prints_one_value(capsys):
    assert cli.main(["info", "launcher"]) == 0
    assert capsys.readouterr().out == f"{launch.find_mpi().launcher}\n"
    assert cli.main(["info", "GRADRED_WARN_AFTER"]) == 0
    assert capsys.readouterr().out == "60s\n"


def test_info_json_has_a_schema_and_sources(capsys):
    assert cli.main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "gradred-info/1"
    assert found["mpi"] == str(launch.find_mpi())
    assert found["config"]["timeout"] == {"value": "none", "source": "default"}


def test_info_says_which_driver_there_is_or_what_is_missing(monkeypatch):
    monkeypatch.setenv("GRADRED_LIBCUDA", "libnone.so.1")
    assert gradred("info", "cuda").stdout.startswith("not available: ")
    simulated = pathlib.Path(__file__).parent.parent / "libsimulated_cuda.so"
    if simulated.exists():  # this file exists in an installation for tests
        monkeypatch.setenv("GRADRED_LIBCUDA", str(simulated))
        assert gradred("info", "cuda").stdout.startswith("driver ")


def test_info_says_why_there_is_no_mpi(monkeypatch, capsys):
    monkeypatch.setattr(launch_mpi, "_PROBE", "raise RuntimeError('cannot load MPI library')")
    launch.find_mpi.cache_clear()
    assert cli.main(["info", "mpi"]) == 0
    assert "not available: no MPI found: mpi4py cannot load one" in capsys.readouterr().out
    assert cli.main(["run", "-np", "2", "true"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@needs_no_job
def test_dry_run_prints_the_command_and_starts_nothing(tmp_path, capsys):
    marker = tmp_path / "started"
    assert cli.main(["run", "-n", "3", "--dry-run", "touch", str(marker), "-n", "9"]) == 0
    launcher, rank = capsys.readouterr().out.splitlines()
    assert shlex.split(launcher)[:3] == [str(launch.find_mpi().launcher), "-n", "3"]
    assert shlex.split(rank) == ["each", "rank:", "touch", str(marker), "-n", "9"]
    assert not marker.exists()


@needs_no_job
def test_verbose_and_dry_run_show_what_is_run(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(foreground, "run", lambda order, look: started.append(order) or 0)
    for more in ("--dry-run", "-v"):
        assert cli.main(["run", "-np", "2", "-H", "far1,far2", more, "echo", "a b"]) == 0
    shown, verbose = capsys.readouterr()
    (order,) = started
    assert shown.splitlines() == [shlex.join(order.launcher), "each rank: echo 'a b'"]
    assert [line.removeprefix("gradred run: ") for line in verbose.splitlines()] == [
        f"{launch.find_mpi()}, 2 ranks on -H far1,far2",
        *shown.splitlines(),
    ]


@needs_no_job
def test_hosts_and_slots_come_from_the_allocation_unless_named(monkeypatch, capsys):
    monkeypatch.setenv("LSB_JOBID", "1")
    monkeypatch.setenv("LSB_MCPU_HOSTS", "far1 2 far2 1")
    assert cli.main(["run", "--dry-run", "true"]) == 0
    words = capsys.readouterr().out
    assert "-n 3" in words
    assert "far1:2,far2:1" in words
    assert cli.main(["run", "-H", "localhost:2", "--dry-run", "true"]) == 0
    words = capsys.readouterr().out
    assert "-n 2" in words
    assert "host" not in words
    assert cli.main(["run", "-np", "1", "--mpi-option=-host x", "--dry-run", "true"]) == 0
    assert "far1" not in capsys.readouterr().out


@needs_no_job
@pytest.mark.parametrize(
    "words",
    [
        *("-H far1:2,far2:1", "--hosts far1:2,far2:1", "--host far1:2,far2:1"),
        *("-host far1:2,far2:1", "-hosts far1:2,far2:1", "-hosts=far1:2,far2:1"),
        *("--hostfile h", "-hostfile h", "-hostfile=h", "--machinefile h", "-machinefile h"),
    ],
)
def test_hosts_are_taken_in_the_words_of_either_mpiexec(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h").write_text("far1:2\nfar2 slots=1\n")
    assert cli.main(["run", *words.split(), "--dry-run", "true"]) == 0
    assert "far1:2,far2:1" in capsys.readouterr().out


@needs_no_job
def test_run_starts_ranks_of_one_world_with_this_python(tmp_path):
    program = tmp_path / "a program.py"
    program.write_text(
        "import sys; from mpi4py import MPI; w = MPI.COMM_WORLD\n"
        "line = f'{w.allreduce(w.rank)} {w.size} {sys.argv[1:]} {sys.executable}'\n"
        "sys.stdout.write(line + '\\n')  # in one piece: ranks write at the same time\n"
    )
    answer = gradred("run", "-np", "3", str(program), "--flag", "-n")
    line = f"3 3 ['--flag', '-n'] {sys.executable}"
    assert answer.stdout.splitlines() == [line] * 3, answer.stderr
    assert answer.returncode == 0


@needs_no_job
def test_status_is_that_of_the_first_rank_that_failed(tmp_path):
    """The other ranks end once the first has ended."""
    program = f"""
        rank=${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}
        if [ $rank = 1 ]; then
            echo $$ >'{tmp_path}'/first
        else
            until [ -s '{tmp_path}'/first ]; do sleep 0.02; done
            while kill -0 $(cat '{tmp_path}'/first) 2>/dev/null; do sleep 0.02; done
            sleep 0.1
        fi
        exit $((rank + 5))
    """
    assert gradred("run", "-np", "3", "sh", "-c", program).returncode == 6


@needs_no_job
def test_status_of_a_killed_rank_is_128_and_the_signal(tmp_path, clock):
    """The other rank has a grace period, which passes here at once."""
    program = f"""
        echo $$ >'{tmp_path}'/${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}}
        until [ -s '{tmp_path}'/0 ] && [ -s '{tmp_path}'/1 ]; do sleep 0.02; done
        [ $$ = $(cat '{tmp_path}'/1) ] && kill -9 $$
        exec sleep 300
    """
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", "sh", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        files = [tmp_path / "0", tmp_path / "1"]
        await_all(lambda: all(file.exists() and file.read_text() for file in files))
        survivor, killed = (file.read_text().strip() for file in files)
        await_all(lambda: not running(killed))
        clock.pass_while(lambda: running(survivor))
        assert job.wait() == 137


def await_all(done):
    deadline = time.monotonic() + 40
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert done()


@needs_no_job
def test_rank_zero_reads_stdin_to_its_end():
    answer = gradred("run", "-np", "2", "cat", input="hello\n")
    assert (answer.stdout, answer.returncode) == ("hello\n", 0)


@needs_no_job
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_at_the_launcher_ends_all_ranks(tmp_path, sent, status):
    program = f"echo $$ >'{tmp_path}'/$$; exec sleep 300"
    command = [sys.executable, "-m", "gradred", "run", "-np", "2", "sh", "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(sent)
    assert process.wait(timeout=20) == status
    assert len(os.listdir(tmp_path)) == 2
    for pid in os.listdir(tmp_path):
        assert not running(pid)


def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@needs_no_job
def test_run_inside_a_rank_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert cli.main(["run", "-np", "2", "true"]) == 2
    assert "rank 1 of 4" in capsys.readouterr().err


def test_command_line_loads_neither_numpy_nor_mpi(monkeypatch):
    program = (
        "import sys; from gradred import cli; cli.main(['run', '-np', '2', '--dry-run', 'true'])"
    )
    program += "; print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    modules = answer.stdout.split()
    assert "gradred.cli.run" in modules
    assert not {"mpi4py.MPI", "numpy"} & set(modules)
