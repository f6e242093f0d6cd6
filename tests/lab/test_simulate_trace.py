"""Traces of a training program: reading, merging, and predictions from them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from gradred import cli
from gradred._util import cpu
from gradred.errors import UsageError
from gradred.launch.variables import THREAD_VARIABLES
from gradred.simulate.plans import Layout
from gradred_lab.cli import simulated_record
from gradred_lab.simulate import bench_times, messages, trace, what_if
from gradred_lab.simulate.exchange import Exchange
from gradred_lab.simulate.trace import Gradient, Trace

FREE = Exchange.measured({0: 0.0, 1 << 30: 0.0})


def example(*copies: tuple[float, ...]) -> Trace:
    """Three tensors; hooks made an iteration of 90 ms out of one of 60."""
    return Trace(
        program="train.py",
        device="cpu",
        batch="32x10",
        gradients=tuple(Gradient(name, 1000, 4, 0.01, 0.015) for name in "cba"),
        load_s=0.005,
        update_s=0.01,
        iterations_s=copies or ((0.06, 0.06, 0.06),),
    )


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    example().write(tmp_path / "new" / "trace.json")
    assert trace.read(tmp_path / "new" / "trace.json") == example()


def test_work_of_a_trace_takes_as_long_as_its_iterations_without_hooks() -> None:
    alone = example().work()
    assert alone.seconds == pytest.approx(0.06)
    assert alone.fetch == pytest.approx(0.005 * 60 / 90)
    for name in messages.SCHEMES:
        found = messages.iterate(name, alone, FREE)
        assert found.iteration == pytest.approx(0.06), name
        assert found.limit(alone.seconds, alone.fetch) == "the device"


def test_gradients_that_share_a_message_are_copied_at_the_recorded_speed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    dataclasses.replace(example(), copy_s_per_byte=1e-9).write(path)
    alone = trace.read(path).work()
    assert messages.iterate("bsp", alone, FREE).packing == pytest.approx(2 * 12000 * 1e-9)
    assert messages.iterate("contiguous", alone, FREE).packing == 0


def test_copies_of_a_program_that_packs_are_not_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    dataclasses.replace(example(), copy_s_per_byte=1e-9, packs=True).write(path)
    assert messages.iterate("buckets", trace.read(path).work(), FREE).packing == 0


def test_processes_that_wait_for_each_other_take_as_long_as_the_last_one() -> None:
    found = example((0.06, 0.08, 0.06), (0.08, 0.06, 0.08))
    assert found.copies == 2
    assert found.iteration_s == pytest.approx(0.07)
    assert found.late_s == pytest.approx(0.01)
    phases = messages.iterate("bsp", found.work(), FREE)
    assert phases.iteration == pytest.approx(0.08)
    assert phases.limit(found.work().seconds) == "late devices"


def test_traces_of_processes_are_merged_by_medians() -> None:
    slow = dataclasses.replace(example((0.09,)), load_s=0.015)
    found = trace.merge([example((0.06,)), slow, example((0.06,))])
    assert (found.copies, found.load_s) == (3, 0.005)
    assert found.iterations_s == ((0.06,), (0.09,), (0.06,))
    other = dataclasses.replace(example(), gradients=example().gradients[::-1])
    with pytest.raises(UsageError, match="its processes made other gradients"):
        trace.merge([example(), other])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it cannot be read (No such file or directory)"),
        ('{"schema":\n nonsense}', "line 2, column 2: Expecting value"),
        ("[1]", "it lacks what a trace has"),
        ('{"schema": "gradred-bench/1"}', "its schema is another one"),
        ('{"schema": "gradred-simulate-trace/1"}', "it lacks what a trace has (KeyError"),
    ],
)
def test_bad_traces_are_refused(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_text(text)
    assert cli.main(f"simulate training --trace {path} --net 10GbE".split()) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("changed", [{"gradients": []}, {"iterations_s": [[]]}, {"load_s": "x"}])
def test_traces_without_what_is_needed_are_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    example().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(UsageError, match="it lacks what a trace has"):
        trace.read(path)


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"elements": "many"}, "gradients[1].elements is 'many', no number of at least 1"),
        ({"itemsize": 0}, "gradients[1].itemsize is 0, no number of at least 1"),
        ({"forward_s": -1.0}, "gradients[1].forward_s is -1.0, no number of at least 0"),
        ({"backward_s": float("nan")}, "gradients[1].backward_s is nan"),
    ],
)
def test_numbers_of_a_trace_are_named_that_cannot_be(
    changed: dict[str, Any], where: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    example().write(path)
    record = json.loads(path.read_text())
    record["gradients"][1] |= changed
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError) as caught:
        trace.read(path)
    assert where in str(caught.value)


# ---- measured messages --------------------------------------------------------------------------


def bench(ranks_on_hosts: list[int], name: str = "gradred") -> dict[str, Any]:
    rows = [
        {"bytes": nbytes, "results": {name: {"avg_us": 1e9, "p50_us": us}, "mpi": {"avg_us": 1}}}
        for nbytes, us in ((8, 10.0), (1 << 20, 1000.0))
    ]
    return {
        "schema": "gradred-bench/1",
        "arguments": {"collective": "allreduce", "mode": "blocking"},
        "ranks_on_hosts": ranks_on_hosts,
        "rows": rows,
    }


def test_messages_cost_what_was_measured_on_the_same_ranks(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench([2, 2])))
    layout, exchange = bench_times.read(path)
    assert layout == Layout.even(4, 2)
    assert exchange(8) == pytest.approx(10e-6)
    assert exchange(1 << 20) == pytest.approx(1e-3)
    assert exchange(1 << 21) == pytest.approx(2e-3, rel=0.02)
    path.write_text(json.dumps(bench([2, 2], "ring")))
    with pytest.raises(UsageError, match="it has 0 lengths at which gradred was measured"):
        bench_times.read(path)
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"--messages .*bench\.json: it lacks what such"):
        bench_times.read(path)


def test_the_command_predicts_from_a_trace_and_measured_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example((0.06, 0.06), (0.06, 0.06)).write(tmp_path / "trace.json")
    (tmp_path / "bench.json").write_text(json.dumps(bench([1, 1])))
    words = f"simulate training --trace {tmp_path}/trace.json --scheme bsp,wfbp --json -"
    assert cli.main(f"{words} --messages {tmp_path}/bench.json".split()) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert f"# error of simulated iterations: {what_if.TRACE_ERROR}" in captured.err
    where = f"{tmp_path}/bench.json, 8 B to 1 MiB; those of longer messages by a straight line"
    assert f"# cost of messages: measured, {where}" in captured.err
    assert (record["ranks"], record["hosts"], record["batch"]) == (2, 2, 32)
    exchange = bench_times.read(tmp_path / "bench.json")[1]
    (bsp, _) = record["rows"]
    assert bsp["exposed_ms"] == pytest.approx(1e3 * exchange(12000))
    assert bsp["iteration_ms"] == pytest.approx(60 + bsp["exposed_ms"])
    assert cli.main(f"{words} --net 10GbE --gpus 4 --messages {tmp_path}/bench.json".split()) == 2
    assert "2 ranks on 2 hosts were measured" in capsys.readouterr().err
    assert cli.main(f"{words} --net 10GbE --messages {tmp_path}/bench.json".split()) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == 2
    assert cli.main(f"{words} --model resnet50 --net 10GbE".split()) == 2
    assert "both say what is trained" in capsys.readouterr().err


def test_a_study_of_a_trace_says_that_its_device_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example().write(tmp_path / "trace.json")
    words = f"simulate study --trace {tmp_path}/trace.json --net 10GbE --hosts 1,2 --scheme bsp"
    assert cli.main(f"{words} --out {tmp_path}/study".split()) == 0
    item = capsys.readouterr().out.split("\n## 6. One device\n")[1].split("\n## ")[0]
    assert "Measured: the trace of item 1." in item
    assert "simulated" not in item


def test_measured_allreduces_say_nothing_of_parameter_servers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example().write(tmp_path / "trace.json")
    (tmp_path / "bench.json").write_text(json.dumps(bench([1, 1])))
    words = f"simulate training --trace {tmp_path}/trace.json --messages {tmp_path}/bench.json"
    assert cli.main(f"{words} --json -".split()) == 0
    captured = capsys.readouterr()
    found = [row["scheme"] for row in json.loads(captured.out)["rows"]]
    assert found == [name for name in messages.SCHEMES if not name.startswith("ps")]
    assert "# the ranks of a measurement of messages; source:" in captured.err
    assert "Ethernet" not in captured.err, "a network that nobody named"
    assert cli.main(f"{words} --scheme bsp,ps".split()) == 2
    assert "--scheme ps and --messages: the record has allreduces alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--trace TRACE --net 10GbE --batch 64", "--batch and --trace: the trace says what trains"),
        ("--trace TRACE --net 10GbE --device P40", "--device and --trace: the trace says what"),
        ("--trace TRACE --net 10GbE --samples-per-s 9", "--samples-per-s and --trace: the trace"),
        ("--trace TRACE --messages BENCH --algorithm ring", "--algorithm and --messages: the"),
        ("--trace TRACE --messages BENCH --gpus 64", "2 ranks on 2 hosts were measured"),
        ("--trace TRACE --messages BENCH --net 10GbE --hosts 4", "2 ranks on 2 hosts were"),
        ("--model resnet50 --messages BENCH", "--model resnet50: no network is named, whose"),
    ],
)
def test_options_that_would_change_nothing_are_refused(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example().write(tmp_path / "TRACE")
    (tmp_path / "BENCH").write_text(json.dumps(bench([1, 1])))
    for name in ("TRACE", "BENCH"):
        words = words.replace(name, str(tmp_path / name))
    assert cli.main(f"simulate training {words}".split()) == 2
    assert message in capsys.readouterr().err


# ---- recording ----------------------------------------------------------------------------------


def test_copies_share_the_cores_as_ranks_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cpu, "cores", lambda: 8)
    assert {simulated_record.variables(4)[name] for name in THREAD_VARIABLES} == {"2"}
    assert simulated_record.variables(1)["OMP_NUM_THREADS"] == "8"
    assert simulated_record.variables(16)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert simulated_record.variables(4)["OMP_NUM_THREADS"] == "3"


def test_a_copy_is_a_world_of_one_rank_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("MASTER_PORT", "29500")
    found = simulated_record.variables(4)
    assert (found["RANK"], found["WORLD_SIZE"], found["MASTER_PORT"]) == ("0", "1", "0")


def test_the_recorder_stands_between_interpreter_and_program() -> None:
    recorder = ["-m", "gradred_lab.simulate.recorder", "{}", "20"]
    for program, expected in (
        ("python train.py -a b", ["python", *recorder, "train.py", "-a", "b"]),
        ("/usr/bin/python3 -u -m pkg x", ["/usr/bin/python3", "-u", *recorder, "-m", "pkg", "x"]),
    ):
        assert simulated_record.recording(["--", *program.split()], 20) == expected


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("", "does not start with a Python interpreter"),
        ("bash train.sh", "does not start with a Python interpreter"),
        ("python", "names no Python file or module"),
        ("python -c pass", "names no Python file or module"),
    ],
)
def test_other_programs_are_refused(program: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        simulated_record.recording(["--", *program.split()], 20)
