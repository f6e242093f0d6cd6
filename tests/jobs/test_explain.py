"""`gradred explain`: the selector's answer, times of the model and of a small job, and usage."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from bounds import within

from gradred import UsageError, _core, cli, config, launch, plans, schedules
from gradred._util import cpu
from gradred.bench import explanation
from gradred.bench.explanation import Question
from gradred.launch import mpi as launch_mpi
from gradred.launch import processes

pytestmark = pytest.mark.one_mpi

pytest.importorskip("mpi4py")

needs_no_job = pytest.mark.skipif(
    launch.inside_job() is not None, reason="ranks cannot start ranks"
)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove settings, and hide figures that this user's jobs have measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The command's output as JSON, without a measurement."""
    assert cli.main(["explain", *words, "--no-measure", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def status_of(*words: str) -> int:
    try:
        return cli.main(["explain", *words])
    except SystemExit as ended:  # argparse's own exit
        return int(ended.code or 0)


# ---- which plan, and why ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "plan", "schedule"),
    [
        ("--bytes 8 -np 1", "copy", None),
        ("--bytes 4k -np 2", "node", "recursive_multiplying"),
        ("--bytes 64m -np 2", "node", "direct"),
        ("--bytes 64m -np 5 --collective allgather", "node", "direct"),
        ("--bytes 64m -np 5 --collective bcast", "node", "from_root"),
        ("--bytes 1k -np 4 --hosts 2", "hierarchical", "hierarchical"),
        ("--bytes 64k -np 4 --hosts 2", "hierarchical", "hierarchical"),
        ("--bytes 64k -np 4 --hosts a:2,b:2", "hierarchical", "hierarchical"),
        ("--bytes 64k -np 64 --hosts 8", "rabenseifner", "rabenseifner"),
        ("--bytes 64k -np 3 --hosts 3", "direct", "direct"),
        ("--bytes 64m -np 5 --hosts 5", "ring", "ring"),
        ("--bytes 4m -np 4 --hosts 4 --collective bcast", "scatter_allgather", None),
    ],
)
def test_plan_is_the_selectors(
    words: str, plan: str, schedule: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, *words.split())
    assert found["schema"] == "gradred-explain/1"
    assert found["plan"] == plan
    assert found["reason"]
    if schedule is not None:
        assert found["schedule"] == schedule
        assert found["picture"].startswith(f"{schedule}: ")


@pytest.mark.parametrize("collective", explanation.COLLECTIVES)
@pytest.mark.parametrize("host_of", [[0, 1], [0, 0, 1, 1], [0, 0, 0, 1], [*range(5)]])
def test_plan_costs_least_of_all_that_can_serve(collective: str, host_of: list[int]) -> None:
    for nbytes in (8, 4 << 10, 100_000, 1 << 20, 64 << 20):
        found = _core.choose_plan(collective, nbytes, host_of)
        for name in plans.names(collective):
            try:
                other = _core.choose_plan(collective, nbytes, host_of, plan=name)
            except UsageError:
                continue  # the ranks share no memory, or their hosts differ
            assert found["seconds"] <= other["seconds"], name


@pytest.mark.parametrize("nbytes", ["8", "64k", "64m"])
@pytest.mark.parametrize(
    ("ranks", "hosts", "chosen"),
    [(3, "3", ("recursive_doubling", "rabenseifner")), (64, "8", ("hierarchical",))],
)
def test_sums_whose_bits_no_length_changes_have_plans_of_one_order(
    ranks: int, hosts: str, chosen: tuple[str, ...], nbytes: str,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("GRADRED_DETERMINISTIC", "size")
    found = report(capsys, "--bytes", nbytes, "-np", str(ranks), "--hosts", hosts)
    assert found["plan"] in chosen
    assert found["parameters"].get("across") in (None, "", "recursive_doubling", "rabenseifner")
    words = ["--bytes", nbytes, "-np", "3", "--hosts", "3", "--collective", "reduce_scatter"]
    assert report(capsys, *words)["plan"] == "recursive_halving"
    words[-1] = "allgather"
    assert report(capsys, *words)["plan"] != "recursive_halving"
    for collective in ("scan", "exscan"):  # also where the ranks of each host share memory
        words = ["--bytes", nbytes, "-np", "4", "--hosts", "2", "--collective", collective]
        assert report(capsys, *words)["plan"] in ("linear", "pipelined")


@pytest.mark.parametrize(
    ("collective", "reads"),
    [
        ("scan", "each rank reads what the rank before it has written"),
        ("gather", "the root reads what the others have"),
        ("scatter", "each rank reads its block of what the root has"),
    ],
)
def test_reason_of_a_plan_in_memory_says_who_reads_what(
    collective: str, reads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, "--bytes", "64k", "-np", "4", "--collective", collective)
    assert (found["plan"], found["schedule"]) == ("node", "linear")
    assert reads in found["reason"]


@pytest.mark.parametrize("collective", ["bcast", "scan", "gather"])
def test_short_calls_between_hosts_are_said_to_compare_as_they_move_data(
    collective: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-np", "4", "--hosts", "2", "--collective", collective, "--bytes"]
    said = "but so short a call is carried out so that each rank gets something from all"
    assert said in report(capsys, *words, "64")["reason"]
    assert said not in report(capsys, *words, "64k")["reason"]
    assert said not in report(capsys, "--bytes", "64", "-np", "4")["reason"]


def test_plan_of_the_ranks_hosts_follows_their_slots(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--bytes", "64k", "--hosts", "a:1,b:3")
    assert found["question"]["host_of"] == [0, 1, 1, 1]
    assert found["plan"] == "hierarchical"
    found = report(capsys, "--bytes", "16m", "-np", "5", "--hosts", "2")
    assert found["question"]["host_of"] == [0, 0, 0, 1, 1]


def test_knobs_of_this_process_are_heeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADRED_PLAN", "ring")
    monkeypatch.setenv("GRADRED_SLICES", "3")
    found = report(capsys, "--bytes", "4k", "-np", "2")
    assert (found["plan"], found["slices"], found["reason"]) == ("ring", 3, "as asked")
    assert report(capsys, "--bytes", "4k", "-np", "2", "--collective", "bcast")["plan"] == "node"
    monkeypatch.setenv("GRADRED_PLAN", "mpi")
    found = report(capsys, "--bytes", "4k", "-np", "2")
    assert (found["plan"], found["predicted_us"], found["rounds"]) == ("mpi", None, 0)
    monkeypatch.setenv("GRADRED_PLAN", "auto")
    monkeypatch.setenv("GRADRED_SHM", "0")
    assert report(capsys, "--bytes", "4k", "-np", "2")["plan"] == "recursive_doubling"


@pytest.mark.parametrize("collective", explanation.COLLECTIVES)
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("nbytes", [8, 8 << 20])
def test_schedule_that_is_shown_is_right(collective: str, hosts: int, nbytes: int) -> None:
    """This includes the schedule that describes the shared-memory collectives."""
    host_of = tuple(rank * hosts // 6 for rank in range(6))
    answer = explanation.answer(Question(collective, "sum", "float32", nbytes, host_of))
    assert schedules.verify(answer.schedules).ok
    assert {schedule.collective for schedule in answer.schedules} == {collective}


# ---- times -----------------------------------------------------------------------------------


def test_ranks_compare_all_that_shapes_a_plan() -> None:
    """The hash travels in announcements, so different plans of ranks are detected."""
    hashes: dict[tuple[Any, ...], set[int]] = {}
    for nbytes in (64, 1 << 10, 64 << 10, 256 << 10, 900 << 10, 64 << 20):
        for slices in (1, 2):
            found = _core.choose_plan(
                "allreduce", nbytes, [0, 0, 1, 1, 2, 2, 3, 3], plan="hierarchical", slices=slices
            )
            shape = (*found["parameters"].items(), found["slices"])
            hashes.setdefault(shape, set()).add(found["hash"])
    assert len({dict(shape[:-1])["across"] for shape in hashes}) > 1
    assert all(len(of_shape) == 1 for of_shape in hashes.values())
    assert len(set.union(*hashes.values())) == len(hashes)


def parameters(found: dict[str, Any]) -> dict[str, float]:
    """The parameters of the model for `schedules.cost`; the call itself was not measured."""
    assert found["model"]["call"] == 0
    return {name: value for name, value in found["model"].items() if name not in ("source", "call")}


def test_prediction_is_what_the_selector_compared() -> None:
    for nbytes in (8, 64 << 10, 64 << 20):
        for host_of in ((0, 0, 1, 1), (0, 0, 0, 1), (0, 1)):
            question = Question("allreduce", "sum", "float32", nbytes, host_of)
            answer = explanation.answer(question)
            found = explanation.predicted(question, answer, answer.model)
            assert found == pytest.approx(answer.seconds)


def test_prediction_is_the_cost_of_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--bytes", "1m", "-np", "4", "--hosts", "4", "-T", "float64")
    model = parameters(found)
    assert min(model.values()) > 0
    everyone = schedules.make_all(found["plan"], 4)
    seconds = schedules.cost(everyone, 1 << 20, host_of=[0, 1, 2, 3], **model)
    assert found["predicted_us"] == pytest.approx(seconds * 1e6)
    assert "not measured" in found["model"]["source"]
    assert (found["measured_us"], found["not_measured"]) == (None, "--no-measure")
    assert found["rounds"] == max(len(one.rounds) for one in everyone)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits_are_explained_like_others(
    dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, "--bytes", "1001", "-np", "4", "-T", dtype)
    assert (found["question"]["dtype"], found["question"]["nbytes"]) == (dtype, 1001)
    assert found["reduced"] > 0


def test_vector_of_an_allgather_is_all_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-np", "4", "--hosts", "4", "--collective", "allgather"]
    found = report(capsys, "--bytes", "1000", *words)
    assert found["sent"] == 3000
    everyone = schedules.make_all(found["schedule"], 4, collective="allgather")
    seconds = schedules.cost(everyone, 4000, host_of=[0, 1, 2, 3], **parameters(found))
    assert found["predicted_us"] == pytest.approx(seconds * 1e6)
    assert found["reduced"] == 0


@needs_no_job
@pytest.mark.parametrize("allocated", [False, True])
def test_small_job_on_this_host_measures_what_is_explained(
    allocated: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if allocated:
        hosts = f"{os.uname().nodename},other-host"
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        monkeypatch.setenv("SLURM_JOB_NODELIST", hosts)
        monkeypatch.setenv("SLURM_NODELIST", hosts)
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", "1(x2)")
    assert cli.main(["explain", "--bytes", "4k", "-np", "2", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["not_measured"] is None
    assert 0 < found["measured_p10_us"] <= found["measured_us"] <= found["measured_p90_us"]
    assert found["model"]["source"] == "measured beside the call"
    assert min(found["model"][name] for name in ("alpha", "beta", "gamma", "delta")) > 0
    assert (found["model"]["gap"] == 0) == (found["measured_plan"] == "node")
    assert found["measured_plan"] in ("node", "recursive_doubling")


@pytest.mark.each_mpi
@needs_no_job
@pytest.mark.parametrize("collective", ["reduce_scatter", "bcast", "scatter"])
def test_text_has_every_answer_once(collective: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--bytes", "64k", "-np", "2", "--collective", collective, "-T", "mpi_int"]
    assert cli.main(["explain", *words]) == 0
    answer, _, picture = capfd.readouterr().out.partition("\n\n")
    lines = dict(line.split(": ", 1) for line in answer.splitlines())
    assert list(lines) == [
        *(collective, "plan", "why", "schedule", "rounds", "cost", "predicted", "measured"),
    ]
    assert re.match(
        r"[\d.]+ us, [\d.]+ times the prediction, the median of 100 calls \(", lines["measured"]
    )
    assert re.search(r"\(the call itself [\d.]+ us, alpha ", lines["predicted"])
    assert "rank 1  " in picture


def _ranks_begin_with(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each rank of the small job begin with a statement."""
    asked = "'gradred.bench.probe' in sys.orig_argv and 'run' not in sys.orig_argv"
    text = f"import os, sys, time\nif {asked}: {statement}\n"
    (tmp_path / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))


@needs_no_job
def test_reason_of_a_job_that_fails_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _ranks_begin_with("os.kill(os.getpid(), 9)", tmp_path, monkeypatch)
    assert cli.main(["explain", "--bytes", "4k", "-np", "2"]) == 0
    assert "measured: not here: the job ended with status 137" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("groups", "shown"),
    [([], None), ([0] * 8, None), ([0, 0, 0, 1, 1, 0, 1, 1], "ranks 0-2, 5; ranks 3, 4, 6, 7")],
)
def test_ranks_that_share_a_cache_are_shown(
    groups: list[int],
    shown: str | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts = ("seconds", "p10", "p90", "alpha", "beta", "gamma", "gap", "delta", "call")
    found = {**dict.fromkeys(parts, 1e-6), "calls": 1, "plan": "node", "cache_groups": groups}
    monkeypatch.setattr(cli.explain, "measure", lambda question: (found, None))
    monkeypatch.setattr(cli.explain, "why_not_here", lambda *question: None)
    assert cli.main(["explain", "--bytes", "8", "-np", "8"]) == 0
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("caches: ")]
    assert lines == ([f"caches: {shown}, by the time that a flag takes between them"] * bool(shown))


def test_very_many_ranks_are_explained_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    found = report(capsys, "--bytes", "1g", "-np", "20000", "--hosts", "20000")
    assert time.monotonic() - begin < within(20)
    assert found["plan"] in schedules.names("allreduce")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-np 4 --hosts 2", "ranks on this host alone"),
        ("-np 2 --hosts far.away", "ranks on this host alone"),
        ("-np 1", "nothing to exchange"),
        (f"-np {8 * cpu.cores() + 1}", "too many for the"),
        ("-np 2 --bytes 1024g", "MiB, more than is free here"),
    ],
)
def test_what_cannot_be_measured_here_has_a_reason(
    words: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", "--bytes", "4k", *words.split()]) == 0
    (line,) = (x for x in capsys.readouterr().out.splitlines() if x.startswith("measured: "))
    assert line.startswith("measured: not here: ")
    assert reason in line


def test_rank_starts_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert cli.main(["explain", "--bytes", "4k", "-np", "2"]) == 0
    assert "this process is a rank" in capsys.readouterr().out


def test_explains_without_an_mpi(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_mpi, "_PROBE", "raise RuntimeError('cannot load MPI library')")
    monkeypatch.setattr(launch, "inside_job", lambda: None)
    launch.find_mpi.cache_clear()
    assert cli.main(["explain", "--bytes", "4k", "-np", "2"]) == 0
    assert "no MPI found" in capsys.readouterr().out


def test_command_does_not_start_mpi_in_its_own_process() -> None:
    program = (
        "import sys; from gradred import cli\n"
        "cli.main(['explain', '--bytes', '4k', '-np', '2', '--no-measure'])\n"
        "assert 'mpi4py.MPI' not in sys.modules and 'gradred._core' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_picture_of_many_ranks_is_cut_and_quick(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = time.monotonic()
    monkeypatch.setenv("GRADRED_PLAN", "ring")
    found = report(capsys, "--bytes", "64m", "-np", "512", "--hosts", "512")
    assert time.monotonic() - begin < within(10)
    assert found["rounds"] == 2 * 511
    *rows, last = found["picture"].splitlines()
    assert (len(rows), last) == (2 + 8, "... and 504 ranks and 1006 rounds more")


@pytest.mark.parametrize("columns", [None, 70])
def test_answer_is_as_wide_as_the_terminal_and_whole_in_a_pipe(columns: int | None) -> None:
    words = ["--bytes", "4m", "-np", "12", "--hosts", "3", "--no-measure"]
    command = [sys.executable, "-m", "gradred", "explain", *words]
    reads, writes = pty.openpty() if columns else os.pipe()
    if columns:
        fcntl.ioctl(writes, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    environment["GRADRED_PLAN"] = "hierarchical"
    process = subprocess.Popen(command, stdout=writes, env=environment)
    os.close(writes)
    text = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(reads, 1 << 16):
            text += part
    os.close(reads)
    assert process.wait(timeout=30) == 0
    lines = text.decode().splitlines()
    assert lines[0].startswith("allreduce: sum of 1048576 float32")
    if columns is None:
        assert max(map(len, lines)) > 150
        assert lines[-1] == "... and 4 ranks more"
    else:
        assert max(map(len, lines)) <= columns
        assert re.fullmatch(r"\.\.\. and 4 ranks and \d rounds more; a pipe shows more", lines[-1])
        assert any("round 1" in line for line in lines)


# ---- usage and interruption ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("", "--bytes"),
        ("--bytes many", "not a number of bytes"),
        ("--bytes 6", "no whole elements of 4 bytes"),
        ("--bytes 8 -np 0", "give 1 or more"),
        ("--bytes 8 -T quaternion", "invalid choice"),
        ("--bytes 8 -o band", "float32 has no 'band'"),
        ("--bytes 8 --collective alltoall", "invalid choice"),
        ("--bytes 8 --hosts 0", "neither a number of hosts"),
        ("--bytes 8 --hosts a:b", "neither a number of hosts"),
        ("--bytes 8 --hosts a:1,b:1 -np 3", "these hosts have 2 slots"),
    ],
)
def test_wrong_usage_says_what_to_do(
    words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(*words.split()) == 2
    captured = capsys.readouterr()
    assert error in captured.err
    assert not captured.out


def test_plan_that_these_ranks_cannot_have_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADRED_PLAN", "node")
    assert status_of("--bytes", "4k", "-np", "2", "--hosts", "2") == 2
    assert "it needs memory that all ranks share: the ranks are on 2" in capsys.readouterr().err


@needs_no_job
def test_interrupt_ends_the_small_job_with_status_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["explain", "--bytes", "4k", "-np", "2"]
    _ranks_begin_with("time.sleep(30)", tmp_path, monkeypatch)
    process = subprocess.Popen([sys.executable, "-m", "gradred", *words], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while len(_probes(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        members = processes.tree(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert len(members) > 3
        assert not [member for member in members if member.alive()]
    finally:
        processes.end_tree(process, grace=1.0)


@needs_no_job
@pytest.mark.one_mpi
@pytest.mark.parametrize("words", ["", "--json", "--collective allgather -T int32"])
def test_a_call_on_devices_is_measured(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library = str(Path(__file__).resolve().parents[1] / "libsimulated_cuda.so")
    for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL"):
        monkeypatch.setenv(f"GRADRED_{name}", library)
    monkeypatch.setenv("SIMULATED_CUDA_DEVICES", "2")
    assert cli.main(["explain", *f"--bytes 256k -np 2 -d cuda {words}".split()]) == 0
    said = capsys.readouterr().out
    if "--json" in words:
        found = json.loads(said)
        assert found["devices"] == ["Simulated GPU 0", "Simulated GPU 1"]
        assert found["measured_us"] > 0
        assert found["way"].startswith("devices: ")
        return
    assert "on: Simulated GPU 0, Simulated GPU 1\nway: devices: " in said
    assert re.search(r"measured: \S+ us, the median of \d+ calls", said)


@needs_no_job
@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("nbytes", "variables", "way"),
    [
        ("1k", {}, "host memory: calls so far were short"),
        ("256k", {"GRADRED_IPC_BYTES": "none"}, "host memory: GRADRED_IPC_BYTES is none"),
        ("256k", {"SIMULATED_CUDA_FAIL": "cuIpcOpenMemHandle:1"}, "host memory: rank 0: cuIpcOpen"),
    ],
)
def test_way_through_host_memory_has_its_reason(
    nbytes: str,
    variables: dict[str, str],
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library = str(Path(__file__).resolve().parents[1] / "libsimulated_cuda.so")
    given = {f"GRADRED_{name}": library for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL")}
    for name, value in (given | variables).items():
        monkeypatch.setenv(name, value)
    assert cli.main(["explain", "--bytes", nbytes, "-np", "2", "-d", "cuda"]) == 0
    assert f"way: {way}" in capsys.readouterr().out


def test_device_that_cannot_be_asked_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="nothing was measured: --no-measure"):
        cli.explain.main(_arguments("--bytes 1m -np 2 -d cuda --no-measure"))


def _arguments(words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.explain.configure(parser)
    return parser.parse_args(words.split())


def _probes(pid: int) -> list[int]:
    """The ranks below a process."""
    found = []
    for member in processes.tree(pid):
        try:
            with open(f"/proc/{member.pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except FileNotFoundError:
            continue  # it has just ended
        if b"gradred.bench.probe" in words and b"run" not in words:
            found.append(member.pid)
    return found
