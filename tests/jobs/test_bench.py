"""`gradred bench`: OSU's options and output, the record, refused options, and interruptions."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bounds import within

from gradred import __version__, _core, cli, config, launch
from gradred._util.text import size_text
from gradred.bench import options, overlap, plot, table
from gradred.bench.collectives import COLLECTIVES
from gradred.bench.contenders import Calls
from gradred.bench.inputs import FUNCTIONS, PERIOD, TYPES, Inputs
from gradred.bench.options import Options
from gradred.element_types import numpy_dtype
from gradred.launch import processes

pytestmark = pytest.mark.one_mpi

MPI = pytest.importorskip("mpi4py.MPI")

PATHS = os.pathsep.join(filter(None, sys.path))
needs_no_job = pytest.mark.skipif(
    launch.inside_job() is not None, reason="ranks cannot start ranks"
)

# The lines above the rows of osu_allreduce 7 and osu_iallreduce 7, with -f and without it.
OSU_HEADERS = {
    ("blocking", False): "# Size       Avg Latency(us)",
    ("blocking", True): (
        "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
    ),
    ("nonblocking", False): (
        "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)"
    ),
    ("nonblocking", True): (
        "# Size           Overall(us)       Compute(us)    Coll. Init(us)      MPI_Test(us)"
        "      MPI_Wait(us)    Pure Comm.(us)     Min Comm.(us)     Max Comm.(us)        Overlap(%)"
    ),
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PATHS)


def bench(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gradred", "bench", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, **options)


def osu_rows(output: str) -> list[list[str]]:
    """The rows as scripts around OSU's benchmarks parse them."""
    lines = [line for line in output.splitlines() if line and not line.startswith("#")]
    assert all(re.match(r"^\d+\s+\d+\.\d\d\b", line) for line in lines)
    return [line.split() for line in lines]


def read(*words: str) -> Options:
    parser = argparse.ArgumentParser()
    options.configure(parser)
    return options.read(parser.parse_args(words))


# ---- output and options of osu_allreduce -----------------------------------------------------


@pytest.mark.parametrize(("mode", "full"), OSU_HEADERS)
def test_columns_are_those_of_the_osu_benchmarks(mode: Any, full: bool) -> None:
    columns = table.columns(Options(mode=mode, full=full), ["gradred"])
    assert table.header(columns) == OSU_HEADERS[mode, full]


def test_more_columns_stand_behind_those_of_osu_and_leave_them_in_place() -> None:
    asked = Options(full=True, validation=True, tails=(50, 99), bandwidth=True)
    header = table.header(table.columns(asked, ["gradred", "mpi", "recursive_multiplying"]))
    osu = OSU_HEADERS["blocking", True]
    assert header.startswith(osu)
    assert re.split(r"\s{2,}", header[len(osu) :].strip()) == [
        *("Validation", "P50 Tail Lat(us)", "P99 Tail Lat(us)", "algbw(GB/s)", "busbw(GB/s)"),
        *("mpi(us)", "mpi/gradred"),
        *("recursive_multiplying(us)", "recursive_multiplying/gradred"),
    ]


def test_row_has_the_widths_and_digits_of_osu() -> None:
    result = {"avg_us": 1.234, "min_us": 0.5, "max_us": 123.456}
    row = {"bytes": 8, "iterations": 1000, "results": {"gradred": result}}
    found = table.line(table.columns(Options(full=True), ["gradred"]), row)
    assert found == "8                       1.23              0.50            123.46        1000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8:1024", (8, 1024)),
        ("64:", (64, 1 << 20)),
        (":256", (1, 256)),
        ("4096", (1, 4096)),
        ("4k:1M", (4096, 1 << 20)),
    ],
)
def test_message_sizes_are_written_as_for_osu(text: str, expected: tuple[int, int]) -> None:
    found = read("-m", text)
    assert (found.smallest, found.largest) == expected


def test_sizes_double_from_the_first_whole_element() -> None:
    assert Options(smallest=1, largest=40).sizes("float32") == [4, 8, 16, 32]
    assert Options(smallest=10, largest=100).sizes("float64") == [16, 32, 64]


def test_types_have_the_names_of_osu_too() -> None:
    assert read("-T", "mpi_char,MPI_INT", "-T", "float64").types == ("int8", "int32", "float64")
    assert read("-T", "all").types == ("int8", "int32", "float32")
    assert read().types == ("float32",)


def test_long_options_of_osu_are_understood() -> None:
    words = ["--type", "mpi_int", "--message-size", "8:64", "--iterations", "7", "--warmup", "0"]
    words += ["--full", "--validation", "--accelerator", "cpu", "--tail-lat"]
    found = read(*words)
    assert (found.types, found.iterations, found.warmup) == (("int32",), 7, 0)
    assert (found.full, found.validation, found.tails) == (True, True, (50, 90, 99))


def test_numbers_of_calls_are_those_of_osu_unless_given() -> None:
    assert Options().calls(8192) == (1000, 100)
    assert Options().calls(8193) == (100, 10)
    assert Options(iterations=3, warmup=0).calls(1 << 30) == (3, 0)


def test_overlap_is_what_of_the_operation_the_computation_hid() -> None:
    assert overlap.overlap(pure=10, overall=12, compute=10) == pytest.approx(80)
    assert overlap.overlap(pure=10, overall=10, compute=10) == 100
    assert overlap.overlap(pure=10, overall=25, compute=10) == 0  # never below zero


def test_work_is_counted_that_an_operation_kept_from_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Clock:
        """Goes on by one with each reading: a step of the computation. By two in an operation."""

        now, step = 0, 1

        def __call__(self) -> float:
            self.now += self.step
            return float(self.now)

    class Request:
        def __init__(self) -> None:
            clock.step = 2

        def Wait(self, status: Any = None) -> None:  # noqa: N802 (mpi4py's name)
            clock.step = 1

        def Test(self, status: Any = None) -> bool:  # noqa: N802
            return False

    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    empty = np.empty(0)
    calls = Calls(run=Request, start=Request, output=lambda: empty)
    (found,) = overlap.measure([calls], np.full((1, 1), 1000.0), 0, 3, MPI.COMM_SELF)
    assert found.compute == pytest.approx(1000, rel=0.02)
    assert found.worked == pytest.approx(500, rel=0.02)


def test_options_reach_the_ranks_as_they_were_read() -> None:
    asked = read("-T", "mpi_int,float64", "-z", "10,50", "--peers", "mpi", "--nonblocking")
    assert Options.from_text(asked.text()) == asked


@needs_no_job
@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("inside", [False, True])
def test_file_that_cannot_be_written_is_refused_before_measuring(
    option: str, inside: bool, tmp_path: Path
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    words = ["-m", "8:8", option, str(tmp_path / "file" / "new" / "out.svg")]
    command = [sys.executable, "-m", "gradred", "bench"]
    if inside:
        command = [sys.executable, "-m", "gradred", "run", "-np", "2", *command, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    else:
        done = bench("-np", "2", *words)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert f"{option} {words[-1]}: it cannot be written (Not a directory)" in done.stderr
    assert osu_rows(done.stdout) == []
    assert done.stderr.count("cannot be written") == 1


def test_file_that_can_be_written_is_not_there_before_it_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "new" / "out.json"
    options.require_writable(str(path))
    assert path.parent.is_dir()
    assert not path.exists()
    path.write_text("kept")
    options.require_writable(str(path))
    assert path.read_text() == "kept"


# ---- inputs ----------------------------------------------------------------------------------


MEASURED = ("int8", "uint16", "int64", "float16", "float32", "complex64")
REDUCTIONS = [(t, op) for t in MEASURED for op in FUNCTIONS if _core.has_reduction(op, t)]


def holds_result(inputs: Inputs, vector: Any) -> bool:
    return np.array_equal(vector, inputs.result("allreduce", len(vector), 0))


@pytest.mark.parametrize(("dtype", "op"), REDUCTIONS)
def test_inputs_have_one_result_in_every_order(dtype: str, op: str) -> None:
    size, count = 7, PERIOD + 5
    inputs = Inputs(dtype, op, size)
    vectors = np.empty((size, count), dtype)
    for rank, vector in enumerate(vectors):
        inputs.fill(vector, rank)
    assert len({vector.tobytes() for vector in vectors}) > 1
    for order in (list(range(size)), [6, 0, 3, 1, 5, 2, 4]):
        result = vectors[order[0]]
        for rank in order[1:]:
            result = FUNCTIONS[op](result, vectors[rank]).astype(dtype)
        exact = (result.real / size).astype(dtype) if op == "avg" else result
        assert holds_result(inputs, exact)
        assert op != "avg" or np.array_equal(exact * np.dtype(dtype).type(size), result)
    for place in (0, PERIOD, count - 1):
        wrong = exact.copy()
        wrong[place] += 1
        assert not holds_result(inputs, wrong)


@pytest.mark.parametrize("dtype", TYPES)
def test_partial_sums_stay_within_the_type(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    size, total = 5, np.zeros(PERIOD)
    inputs = Inputs(dtype, "sum", size)
    for rank in range(size):
        vector = np.zeros(PERIOD, numpy_dtype(dtype))
        inputs.fill(vector, rank)
        total += vector.astype("complex128").real
    assert holds_result(inputs, total.astype(numpy_dtype(dtype)))
    assert np.abs(total).max() > 0


LARGEST = {
    "float8_e5m2": 8,
    "int8": 127,
    "uint8": 255,
    "bfloat16": 256,
    "float16": 2048,
    "int32": 2**31 - 1,
}


@pytest.mark.parametrize("size", [2, 64, 127, 128, 256, 1024])
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_inputs_of_many_ranks_are_exact_and_show_a_rank_that_is_missing(
    op: str, dtype: str, size: int
) -> None:
    pytest.importorskip("ml_dtypes")
    kind = numpy_dtype(dtype)
    inputs = Inputs(dtype, op, size)
    vectors = np.empty((size, PERIOD), kind)
    for rank, vector in enumerate(vectors):
        inputs.fill(vector, rank)
    whole = vectors.astype("int64")
    assert (whole != 0).any(axis=1).all()
    assert (whole != 0).any(axis=0).mean() > 0.9
    # so no partial sum exceeds it either
    assert np.clip(whole, 0, None).sum(axis=0).max() <= LARGEST[dtype]
    assert np.clip(whole, None, 0).sum(axis=0).min() >= -LARGEST[dtype]

    def reduced(total: Any) -> Any:
        return (total / size if op == "avg" else total).astype(kind)

    total = whole.sum(axis=0)
    assert holds_result(inputs, reduced(total))
    if op == "avg" and np.issubdtype(kind, np.integer) and size > LARGEST[dtype]:
        return  # the average is 0 whichever rank is missing
    assert not any(holds_result(inputs, reduced(total - row)) for row in whole[:: size // 2])


@pytest.mark.parametrize("op", ["min", "max", "band", "bor", "bxor"])
def test_operations_that_do_not_add_have_inputs_of_any_number_of_ranks(op: str) -> None:
    inputs = Inputs("int8", op, 300)
    vector = np.zeros(PERIOD, "int8")
    inputs.fill(vector, 299)
    assert len(set(vector.tolist())) > 100


# ---- refused options -------------------------------------------------------------------------


def status_of(*words: str) -> int:
    try:
        return cli.main(["bench", *words])
    except SystemExit as ended:  # argparse's own exit
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-d cuda -T bfloat16", "the CUDA Array Interface has no name for bfloat16"),
        ("-d cuda --peers gloo", "only the MPI's blocking calls are compared there"),
        ("-d managed --nonblocking --peers mpi", "only the MPI's blocking calls are compared"),
        ("-T quaternion", "no type 'quaternion'"),
        ("-m 64:8", "is not a range"),
        ("-m 2m:", "MAX is 1m if it is not given; write 2m:MAX"),
        ("-m :", "is not a range"),
        ("-m 1:2 -T float64", "no float64 fits"),
        ("-i 0", "too few"),
        ("-x many", "not a whole number"),
        ("-z 0", "no percentiles"),
        ("-o median", "invalid choice"),
        ("-o band -T float32", "float32 has no 'band'"),
        ("-t 3", "nothing to test"),
        ("--nonblocking --persistent", "not allowed with"),
        ("--plan rnig", "Did you mean 'ring'"),
        ("--peers nccl", "no peer 'nccl'"),
        ("--peers mpi -o avg", "it has no avg of float32"),
        ("--peers mpi -T float16", "it has no sum of float16"),
        ("--peers mpi -T float8_e5m2", "it has no sum of float8_e5m2"),
        ("--peers mpi4py --nonblocking", "no nonblocking allreduce"),
        ("--peers gloo --persistent", "no persistent allreduce"),
        ("--plot figure.txt", "End its name in .svg"),
        ("-np 0", "give 1 or more"),
    ],
)
def test_wrong_usage_says_what_to_do_and_starts_nothing(
    words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("-np", "2", *words.split()) == 2
    captured = capsys.readouterr()
    assert error in captured.err
    assert "gradred bench: gradred bench" not in captured.err
    assert not captured.out


@pytest.mark.parametrize(
    ("words", "package", "command"),
    [
        (["--plot", "a.svg"], "matplotlib", "pip install matplotlib"),
        (["--peers", "gloo"], "torch", "pip install torch"),
    ],
)
def test_missing_package_is_named_with_the_command_that_installs_it(
    words: list[str],
    package: str,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == package else there(n))
    assert status_of("-np", "2", *words) == 2
    assert command in capsys.readouterr().err


def test_one_process_alone_gets_the_command_that_starts_more() -> None:
    if launch.inside_job() is not None:
        pytest.skip("this is a rank")
    answer = bench("-m", "4:8")
    assert answer.returncode == 2
    assert "gradred bench -np 2" in answer.stderr
    assert answer.stderr.startswith("gradred bench: one rank: ")


# ---- jobs ------------------------------------------------------------------------------------


def record_of(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    assert record["schema"] == "gradred-bench/1"
    return record


@needs_no_job
def test_a_busy_machine_is_reported_before_the_times() -> None:
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop) for _ in range(os.cpu_count() or 1)]
    try:
        answer = bench("-np", "2", "-m", "8:8", "-i", "5")
    finally:
        for one in loops:
            one.kill()
            one.wait()
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"other programs? and 2 ranks run on .*the times mean little", answer.stderr)


@pytest.mark.each_mpi
@needs_no_job
def test_two_ranks_print_one_table_and_write_the_record(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    words = ["-m", "4:64", "-i", "5", "-x", "1", "-f", "-c", "-z", "50", "--peers", "mpi,mpi4py"]
    answer = bench("-np", "2", *words, "--json", str(path))
    assert answer.returncode == 0, answer.stderr
    rows = osu_rows(answer.stdout)
    assert [row[0] for row in rows] == ["4", "8", "16", "32", "64"]
    assert all(row[4:6] == ["5", "Pass"] for row in rows)
    assert all(float(row[2]) <= float(row[1]) <= float(row[3]) for row in rows)
    assert "# Datatype: MPI_FLOAT." in answer.stdout.splitlines()
    record = record_of(path)
    assert record["complete"] is True
    assert (record["ranks"], record["arguments"]["op"]) == (2, "sum")
    assert [row["bytes"] for row in record["rows"]] == [4, 8, 16, 32, 64]
    for row in record["rows"]:
        assert list(row["results"]) == ["gradred", "mpi", "mpi4py"]
        for result in row["results"].values():
            assert result["checked"] is True
            assert 0 < result["p50_us"] <= result["p99_us"]
            assert result["algbw_gbs"] == pytest.approx(row["bytes"] / result["avg_us"] / 1000)
            # the factor 2(p-1)/p is 1
            assert result["busbw_gbs"] == pytest.approx(result["algbw_gbs"])
        assert row["results"]["gradred"]["ratio"] == 1


@needs_no_job
def test_record_on_stdout_is_alone_there(tmp_path: Path) -> None:
    answer = bench("-np", "2", "-m", "8:16", "-i", "5", "--json", "-", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["rows"]) == len(osu_rows(answer.stderr)) == 2
    assert list(tmp_path.iterdir()) == []


@needs_no_job
def test_interrupted_job_leaves_what_it_had_measured(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = ["bench", "-np", "2", "-m", "8:64m", "-i", "2000", "--json", str(path)]
    command = [sys.executable, "-m", "gradred", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 40
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 130
    assert path.exists(), "no size was measured in time"
    record = record_of(path)
    assert record["complete"] is False
    assert record["rows"][0]["bytes"] == 8
    assert list(tmp_path.iterdir()) == [path]


@needs_no_job
def test_record_that_goes_into_a_pipe_is_written_once_and_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reader:
        answer = bench("-np", "2", "-m", "8:16", "-i", "5", "--json", str(pipe))
        assert answer.returncode == 0, answer.stderr
        assert json.loads(reader.read())["complete"] is True
    assert pipe.is_fifo()


@pytest.mark.each_mpi
@needs_no_job
def test_nonblocking_job_measures_the_overlap_and_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = ["--nonblocking", "-t", "2", "-m", "1k:4k", "-i", "5", "-f", "--peers", "mpi"]
    answer = bench("-np", "2", *words, "-T", "mpi_int,float64", "--json", str(path))
    assert answer.returncode == 0, answer.stderr
    assert len(osu_rows(answer.stdout)) == 6
    record = record_of(path)
    assert [row["type"] for row in record["rows"]] == ["int32"] * 3 + ["float64"] * 3
    for row in record["rows"]:
        for result in row["results"].values():
            parts = sum(result[f"{part}_us"] for part in ("init", "compute", "test", "wait"))
            assert parts == pytest.approx(result["overall_us"], rel=0.01)
            assert 0 <= result["overlap_percent"] <= 100


@needs_no_job
def test_floats_of_8_bits_are_measured_and_their_sums_right(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    types = ["float8_e4m3fn", "float8_e5m2"]
    words = ["-m", "1k:1k", "-i", "3", "-c", "-T", ",".join(types), "--json", str(path)]
    answer = bench("-np", "2", *words)
    assert answer.returncode == 0, answer.stderr
    assert [row["type"] for row in record_of(path)["rows"]] == types


@needs_no_job
@needs_no_job
@pytest.mark.parametrize(
    "words",
    [
        "-d cuda --peers mpi -m 4:1m",
        "-d cuda -T float64,uint8 -o max --nonblocking",
        "-d cuda --persistent -o avg",
        "-d managed -m 256k:512k",
        "-d cuda --plan nccl",
        "-d cuda --plan two_shot -m 4:8m",
        "-d cuda --plan all -m 64k:128k",
        *(f"-d cuda -m 64k:1m --peers mpi --collective {name}" for name in COLLECTIVES),
    ],
)
def test_vectors_on_a_device_are_measured_and_checked(words: str, tmp_path: Path) -> None:
    """On the simulated driver, so the test checks no times."""
    file = tmp_path / "out.json"
    library = str(Path(__file__).resolve().parents[1] / "libsimulated_cuda.so")
    environment = os.environ | {"SIMULATED_CUDA_DEVICES": "2"}
    environment |= {f"GRADRED_{name}": library for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL")}
    few = ["-np", "2", "-i", "2", "-x", "1", "--json", str(file)]
    done = bench(*few, *words.split(), env=environment)
    assert done.returncode == 0, done.stderr
    assert "MPI-CUDA" in done.stdout
    assert "# vectors on Simulated GPU 0" in done.stdout
    record = record_of(file)
    assert record["devices"] == ["Simulated GPU 0", "Simulated GPU 1"]
    assert all(result["checked"] for row in record["rows"] for result in row["results"].values())


@needs_no_job
def test_device_without_a_driver_is_an_error_that_says_so(tmp_path: Path) -> None:
    environment = os.environ | {"GRADRED_LIBCUDA": "libnone.so.1"}
    done = bench("-np", "2", "-d", "cuda", env=environment)
    assert done.returncode != 0
    assert done.stderr.count("there is no CUDA driver (libnone.so.1") == 1, done.stderr


def test_persistent_job_takes_the_plan_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = ["--persistent", "--plan", "ring", "-m", "1k:2k", "-i", "3", "-o", "max"]
    answer = bench("-np", "3", *words, "--bind", "none", "--peers", "mpi", "--json", str(path))
    assert answer.returncode == 0, answer.stderr
    for row in record_of(path)["rows"]:
        assert list(row["results"]) == ["ring", "mpi"]
        ring = row["results"]["ring"]
        assert ring["busbw_gbs"] == pytest.approx(ring["algbw_gbs"] * 4 / 3)


@pytest.mark.each_mpi
@needs_no_job
def test_all_plans_that_serve_these_ranks_are_compared() -> None:
    answer = bench("-np", "2", "--plan", "all", "-m", "64:64", "-i", "3", "-x", "0", "-o", "avg")
    assert answer.returncode == 0, answer.stderr
    (header,) = (line for line in answer.stdout.splitlines() if line.startswith("# Size"))
    for plan in ("node", "ring", "recursive_doubling", "circulant", "swing"):
        assert f" {plan}(us) " in header
    assert len(osu_rows(answer.stdout)) == 1


@needs_no_job
def test_wrong_result_is_shown_and_ends_with_status_1(tmp_path: Path) -> None:
    words = ["--plan", "ring", "-m", "256:1k", "-i", "2", "-x", "0", "-c"]
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if '--as-rank' in sys.orig_argv:\n"
        "    from gradred.bench import job\n"
        "    job.in_host_memory = lambda vector: vector + 1\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PATHS}"}
    answer = bench("-np", "2", *words, env=environment)
    assert answer.returncode == 1
    assert [row[0] for row in osu_rows(answer.stdout)] == ["256"]
    assert osu_rows(answer.stdout)[0][-1] == "Fail"
    assert answer.stderr.count("DATA VALIDATION ERROR at 256 bytes: ring") == 1


@needs_no_job
def test_ranks_of_a_job_measure_themselves_and_complain_once() -> None:
    job = [sys.executable, "-m", "gradred", "run", "-np", "2", sys.executable, "-m", "gradred"]
    good = subprocess.run(
        [*job, "bench", "-m", "4:8", "-i", "3"], capture_output=True, text=True, timeout=50
    )
    assert good.returncode == 0, good.stderr
    assert [row[0] for row in osu_rows(good.stdout)] == ["4", "8"]
    for wrong in ("-d cuda", "-i none"):
        bad = subprocess.run(
            [*job, "bench", *wrong.split()], capture_output=True, text=True, timeout=50
        )
        assert bad.returncode == 2
        assert bad.stderr.count("gradred bench: ") == 1
        assert not bad.stdout


@pytest.mark.each_mpi
@needs_no_job
def test_interrupt_ends_the_ranks_with_status_130() -> None:
    command = [sys.executable, "-m", "gradred", "bench", "-np", "2", "-i", "1000000000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        assert any(line.startswith(b"# Size") for line in process.stdout)  # the job measures now
        members = processes.tree(process.pid)
        assert len(members) >= 3
        process.send_signal(signal.SIGINT)
        # The ranks end by themselves: after 5 s they would be killed.
        assert process.wait(timeout=within(4.5)) == 130
        deadline = time.monotonic() + within(5)
        while any(member.alive() for member in members) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not [member for member in members if member.alive()]
    finally:
        processes.end_tree(process, grace=1.0)
        process.stdout.close()


# ---- pictures --------------------------------------------------------------------------------


def test_plot_has_a_line_for_each_peer(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from gradred.bench import job

    result = {"p10_us": 1.0, "p50_us": 2.0, "p90_us": 3.0, "ratio": 1.5}
    rows = [
        {"type": "float32", "bytes": size, "results": {"gradred": result, "mpi": result}}
        for size in (8, 16)
    ]
    what = {"mode": "blocking", "types": ["float32"], "op": "sum", "plan": ""}
    what["collective"] = "allreduce"
    path = tmp_path / "new" / "figure.svg"
    job.draw({"rows": rows, "ranks": 2, "arguments": what}, path)
    text = path.read_text()
    assert f"<!-- gradred {__version__} -->" in text
    assert re.search(r"<!-- (MPICH|Open MPI|Intel MPI) [\d.]+ -->", text)
    for said in ("line: median of the calls", "band: 10-90 % of the calls"):
        assert f"<!-- {said} -->" in text or said in text
    assert "<!-- 8 B -->" in text
    assert "<!-- 16 B -->" in text


def test_plot_draws_medians_in_their_bands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gradred.bench import job

    drawn: list[Any] = []
    monkeypatch.setattr(plot, "draw", lambda *given: drawn.append(given))
    result = {"avg_us": 2.5, "p10_us": 1.0, "p50_us": 2.0, "p90_us": 3.0, "ratio": 1.5}
    rows = [{"type": "float32", "bytes": 8, "results": {"gradred": result}}]
    what = {"mode": "blocking", "types": ["float32"], "op": "sum", "plan": ""}
    what["collective"] = "allreduce"
    job.draw({"rows": rows, "ranks": 2, "arguments": what}, tmp_path / "figure.svg")
    (line,) = drawn[0][2]
    assert (line.low, line.times, line.high) == ([1.0], [2.0], [3.0])


@pytest.mark.parametrize(
    ("smallest", "largest", "marks"),
    [
        (4, 64, ["4 B", "8 B", "16 B", "32 B", "64 B"]),
        (8, 64 << 20, ["8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB", "16 MiB"]),
        (12, 12, ["12 B"]),
        (12, 17, ["16 B"]),
        (1, 1, ["1 B"]),
    ],
)
def test_sizes_in_a_plot_are_marked_by_powers_of_two(
    smallest: int, largest: int, marks: list[str]
) -> None:
    assert [size_text(size) for size in plot.size_marks(smallest, largest)] == marks


def test_plot_as_png_has_150_dots_per_inch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = plot.Line("one", [8, 16], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
    plot.draw(tmp_path / "a.png", plot.Legend("title", "line", "band", "below"), [line])
    width, height = struct.unpack(">II", (tmp_path / "a.png").read_bytes()[16:24])
    assert (width, height) == (8 * 150, 7 * 150)


@needs_no_job
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("mode", [[], ["--nonblocking"]])
def test_gloo_reduces_on_the_same_ranks(mode: list[str], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = [*mode, "--bind", "none", "--peers", "gloo", "-m", "64:128", "-i", "3", "-x", "1"]
    answer = bench("-np", "2", *words, "-o", "max", "--json", str(path))
    assert answer.returncode == 0, answer.stderr
    for row in record_of(path)["rows"]:
        assert row["results"]["gloo"]["checked"]


@pytest.mark.parametrize(("ranks", "hosts", "said"), [(4, 1, True), (4, 2, False), (3, 2, False)])
def test_table_says_where_ranks_share_cores(ranks: int, hosts: int, said: bool) -> None:
    job = importlib.import_module("gradred.bench.job")  # this import loads the MPI
    flag = {"us": 0.1, "what": "a flag"}
    record = {"ranks": ranks, "hosts": hosts, "clock_us": 0.05, "flag": flag}
    comments = job._comments(record | {"machine": {"cores": 2}}, ["gradred"])
    assert any("share 2 cores" in line for line in comments) == said


# ---- other collectives -----------------------------------------------------------------------


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_collective_has_the_result_of_mpi_and_shows_a_wrong_rank(name: str, size: int) -> None:
    count = 4 * size
    inputs = Inputs("int32", "sum", size)
    rows = np.zeros((size, count), "int32")
    for rank, row in enumerate(rows):
        inputs.fill(row, rank)
    whole = {
        "allreduce": [rows.sum(axis=0)] * size,
        "reduce_scatter_block": np.split(rows.sum(axis=0), size),
        "allgather": [rows.ravel()] * size,
        "bcast": [rows[0]] * size,
    }[name]
    for rank in range(size):
        np.testing.assert_array_equal(inputs.result(name, count, rank), whole[rank])
        assert len(whole[rank]) == COLLECTIVES[name].lengths(count, size)[1]


def test_vectors_that_are_split_have_an_element_for_each_rank() -> None:
    asked = Options(collective="reduce_scatter_block", smallest=1, largest=100)
    assert asked.sizes("float32", 2) == [8, 16, 32, 64]
    assert asked.sizes("float32", 3) == [12, 24, 48, 96]


@pytest.mark.each_mpi
@needs_no_job
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "allreduce"])
def test_other_collectives_are_measured_checked_and_compared(name: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    words = ["--collective", name, "-m", "8:16", "-i", "3", "-x", "1", "-b", "--peers", "mpi"]
    answer = bench("-np", "2", "--bind", "none", *words, "--json", str(path))
    assert answer.returncode == 0, answer.stderr
    assert f"MPI {COLLECTIVES[name].title} Latency Test" in answer.stdout
    assert [row[0] for row in osu_rows(answer.stdout)] == ["8", "16"]
    record = record_of(path)
    assert record["arguments"]["collective"] == name
    for row in record["rows"]:
        assert all(row["results"][who]["checked"] for who in ("gradred", "mpi"))
        ours = row["results"]["gradred"]
        assert ours["busbw_gbs"] == pytest.approx(
            ours["algbw_gbs"] * COLLECTIVES[name].busy(2), rel=1e-9
        )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--collective alltoall", "invalid choice"),
        ("--collective bcast --nonblocking", "no nonblocking one of its own"),
        ("--collective allgather -o max", "it reduces nothing"),
        ("--collective bcast --plan ring", "plans can be chosen for allreduce alone"),
        ("--collective bcast --peers gloo", "gloo has none"),
    ],
)
def test_collectives_refuse_what_they_have_not(
    words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of("-np", "2", *words.split()) == 2
    assert error in capsys.readouterr().err


# ---- several hosts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["-H", "a:2,b:2"], ["-H", "a:2,b:2"]),
        (["-np", "3", "--hosts", "a:2,b:2"], ["-np", "3", "-H", "a:2,b:2"]),
        (["--hostfile", "list"], ["--hostfile", "list"]),
    ],
)
def test_ranks_start_on_the_hosts_that_are_named(
    words: list[str], place: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(cli.bench, "start", lambda given, _: started.append(list(given)) or 0)
    assert status_of(*words) == 0
    assert started == [[*place, "--bind", "core"]]
