"""Jobs with arrays on a device, in which something fails, on the simulated driver."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from bounds import within

TESTS = pathlib.Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.one_mpi
LOSS = 5.0  # seconds until the others detect a killed rank
IMPORTS = """
    import os, pathlib, signal, sys, time
    import numpy as np
    from mpi4py import MPI
    from gpu.simulated import DeviceArray, the_driver
    import gradred

    comm = gradred.Comm(MPI.COMM_WORLD)
    device = the_driver()
    x = DeviceArray(device, np.full(300_000, comm.rank + 1, "float32"))

    def come():  # this rank has ended, or given to its stream, what stands above
        pathlib.Path(f"there-{comm.rank}").touch()

    def await_all():  # until they have come
        while len(list(pathlib.Path().glob("there-*"))) < comm.size:
            time.sleep(0.005)

    def die():  # of a collective call a rank knows its own end alone
        await_all()
        pathlib.Path("died").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    def lost():  # all processes of a host have one monotonic clock
        print("lost", time.monotonic() - float(pathlib.Path("died").read_text()), flush=True)
"""
BESIDE = (None, "nccl", "one_shot")  # plans of calls in another stream
BEGIN = (
    IMPORTS
    + """
    comm.Allreduce(MPI.IN_PLACE, x)
"""
)


def job(
    tmp_path: pathlib.Path, program: str, ranks: int = 3, begin: str = BEGIN, **knobs: str
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(begin) + textwrap.dedent(program))
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    library = str(TESTS / "libsimulated_cuda.so")
    environment |= {f"GRADRED_{name}": library for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL")}
    environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment |= knobs
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), sys.executable, str(file)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path
    )


def expect_lost(done: subprocess.CompletedProcess[str], seconds: float = LOSS) -> None:
    """Both surviving ranks have printed the time from the kill to the error."""
    waited = [float(one) for one in re.findall(r"lost ([\d.]+)", done.stdout)]
    assert len(waited) == 2, (done.stdout, done.stderr)
    assert max(waited) < within(seconds), done.stdout


IN_A_THREAD = """
    import threading

    def reduced():
        comm.Allreduce(MPI.IN_PLACE, x)

    for _ in range(2):  # the first call opens the workspaces
        thread = threading.Thread(target=reduced)
        thread.start()
        thread.join()
    print(device.count("launches") > 0, comm.device_path)
"""


def test_a_thread_without_a_context_loads_kernels(tmp_path: pathlib.Path) -> None:
    """Like gradred's own thread, which makes the first call if nobody waits for it, as in DDP."""
    done = job(tmp_path, IN_A_THREAD, 2, IMPORTS, SIMULATED_CUDA_MPS="1")
    lines = sorted(done.stdout.splitlines())
    assert [line[:35] for line in lines] == [
        "False devices: all ranks' arrays ar",
        "True devices: all ranks' arrays are",
    ], (done.stdout, done.stderr)
    assert done.stderr == ""


def test_what_makes_calls_slow_is_reported_once(tmp_path: pathlib.Path) -> None:
    knobs = {"GRADRED_LIBNVRTC": "/nowhere/libnvrtc.so", "SIMULATED_CUDA_MPS": "1"}
    done = job(tmp_path, IN_A_THREAD, 2, IMPORTS, **knobs)
    reports = [line for line in done.stderr.splitlines() if "go through host memory" in line]
    assert len(reports) == 2, (done.stdout, done.stderr)  # by each rank
    assert all("there is no NVRTC to compile kernels" in line for line in reports)


@pytest.mark.parametrize("shm", ["1", "0"])
@pytest.mark.parametrize(
    "call", ["comm.Allreduce(MPI.IN_PLACE, x)", "comm.Iallreduce(x, y).Wait()"]
)
def test_rank_that_is_killed_is_lost_to_the_others(
    tmp_path: pathlib.Path, call: str, shm: str
) -> None:
    done = job(
        tmp_path,
        f"""
        y = DeviceArray(device, np.zeros(300_000, "float32"))
        come()
        if comm.rank == 1:
            die()
        try:
            while True:
                {call}
        except gradred.PeerLost as error:
            lost()
        """,
        GRADRED_SHM=shm,
    )
    expect_lost(done)


@pytest.mark.each_mpi
@pytest.mark.parametrize("after", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("way", ["nccl", "one_shot", "two_shot", "own arrays"])
def test_rank_that_is_killed_in_the_middle_is_lost_to_the_others(
    tmp_path: pathlib.Path, way: str, after: float
) -> None:
    """Each rank has its own GPU, and the devices of the others wait for that of the killed rank."""
    calls = {
        "plan": f"""
    x = DeviceArray(device, np.full(300_000, comm.rank + 1, "float32"))
    call = lambda: gradred.allreduce(x, comm=comm, plan="{way}")
""",
        "own arrays": """
    x = gradred.empty(300_000, device="cuda")
    call = lambda: comm.Allreduce(MPI.IN_PLACE, x)
""",
    }
    done = job(
        tmp_path,
        """
        import threading
        call()
        come()
        if comm.rank == 1:
            threading.Timer(AFTER, die).start()
        try:
            while True:
                call()
        except gradred.PeerLost as error:
            lost()
        """.replace("AFTER", str(after)),
        begin=IMPORTS
        + "    device.use_in_this_thread(comm.rank)\n"
        + calls.get(way, calls["plan"]),
        SIMULATED_CUDA_DEVICES="3",
    )
    expect_lost(done)


@pytest.mark.each_mpi
@pytest.mark.parametrize(
    ("plan", "beside", "shm"),
    [
        *((plan, beside, "1") for plan in ("nccl", "one_shot", "two_shot") for beside in BESIDE),
        *(("nccl", beside, "0") for beside in (None, "nccl")),
    ],
)
def test_stream_goes_on_where_a_rank_is_killed_whose_device_it_waits_for(
    tmp_path: pathlib.Path, plan: str, beside: str | None, shm: str
) -> None:
    """All ranks have agreed on the call and given it to their streams; one device is late."""
    done = job(
        tmp_path,
        f"""
        import ctypes
        stream, other = device.stream(), device.stream()
        x, y = (DeviceArray(device, np.full(30_000, comm.rank + 1, "float32")) for _ in range(2))
        plans = [("{plan}", stream)] + [(one, other) for one in ["{beside}"] if one != "None"]
        for plan, where in plans:
            gradred.allreduce(x, out=y, comm=comm, plan=plan, stream=where)
            device.must("cuStreamSynchronize", ctypes.c_void_p(where))
        comm.Barrier()
        if comm.rank == 1:
            device.set("least_delay", 60_000_000_000)
        for plan, where in plans:
            gradred.allreduce(x, out=y, comm=comm, plan=plan, stream=where)
        come()
        if comm.rank == 1:
            die()
        for _, where in plans:
            device.must("cuStreamSynchronize", ctypes.c_void_p(where))
        try:
            gradred.allreduce(x, comm=comm)
        except gradred.PeerLost as error:
            lost()
        """,
        begin=IMPORTS.replace("    x =", "    device.use_in_this_thread(comm.rank)\n    x ="),
        SIMULATED_CUDA_DEVICES="3",
        GRADRED_SHM=shm,
    )
    expect_lost(done, 8.0)


@pytest.mark.parametrize("function", ["ncclCommInitRank", "ncclCommGetAsyncError"])
@pytest.mark.parametrize("shm", ["1", "0"])
def test_nccl_that_fails_on_one_rank_fails_the_call_of_all(
    tmp_path: pathlib.Path, function: str, shm: str
) -> None:
    done = job(
        tmp_path,
        f"""
        if comm.rank == 1:
            device.fail("{function}", 1)
        try:
            gradred.allreduce(x, comm=comm, plan="nccl")
        except gradred.Error as error:
            print(f"{{comm.rank}} {{type(error).__name__}}: {{error}}", flush=True)
        come()
        await_all()
        os._exit(0)
        """,
        begin=IMPORTS.replace("    x =", "    device.use_in_this_thread(comm.rank)\n    x ="),
        GRADRED_SHM=shm,
        SIMULATED_CUDA_DEVICES="3",
    )
    assert "1 DeviceError: NCCL 2.27.7: " in done.stdout, (done.stdout, done.stderr)
    for rank in (0, 2):  # the error comes from rank 1 or from NCCL
        (words,) = (line for line in done.stdout.splitlines() if line.startswith(f"{rank} "))
        assert words.startswith((f"{rank} Tr", f"{rank} Dev")), (done.stdout, done.stderr)
        assert "simulated failure" in words, done.stdout


@pytest.mark.parametrize("sharing", [(), (0,), (0, 1)], ids=["none", "one", "both"])
@pytest.mark.parametrize("fails", [False, True])
def test_nccl_takes_ranks_on_one_gpu_where_all_have_its_variable(
    tmp_path: pathlib.Path, sharing: tuple[int, ...], fails: bool
) -> None:
    """NCCL allows this from 2.30 on. If it does not start, the communicator works without it."""
    done = job(
        tmp_path,
        f"""
        if {fails} and comm.rank == 1:
            device.fail("ncclCommGetAsyncError", 1)
        for _ in range(2):
            try:
                y = gradred.allreduce(x, comm=comm, plan="nccl")
                print("right", (y.get() == 3).all(), flush=True)
            except gradred.UsageError as error:
                print("refused", error, flush=True)
        comm.Allreduce(MPI.IN_PLACE, x)
        print("goes on", (x.get() == 3).all(), flush=True)
        """,
        ranks=2,
        begin=IMPORTS.replace(
            "    device =",
            f"    if comm.rank in {sharing}: os.environ['NCCL_MULTI_RANK_GPU_ENABLE'] = '1'\n"
            "    device =",
        ),
        SIMULATED_NCCL_VERSION="23000",
    )
    assert done.stdout.count("goes on True") == 2, (done.stdout, done.stderr)
    works = len(sharing) == 2 and not fails
    assert done.stdout.count("right True" if works else "refused") == 4, done.stdout
    named = "2.30.0 takes one rank on each, but where all of them have NCCL_MULTI_RANK_GPU_ENABLE=1"
    assert (named in done.stdout) == (len(sharing) < 2), done.stdout


def test_nccl_that_is_not_there_or_too_old_is_named(tmp_path: pathlib.Path) -> None:
    program = """
    try:
        gradred.allreduce(x, comm=comm, plan="nccl")
    except gradred.UsageError as error:
        print(f"{comm.rank}: {error}")
    comm.Allreduce(MPI.IN_PLACE, x)
    """
    old = job(tmp_path, program, ranks=2, SIMULATED_NCCL_VERSION="21304")
    assert old.stdout.count("is NCCL 2.13.4: gradred needs 2.14.0 or later") == 2, old.stdout
    missing = job(tmp_path, program, ranks=2, GRADRED_LIBNCCL="libnone.so")
    assert missing.stdout.count("NCCL is not there: libnone.so") == 2, missing.stdout
    assert "GRADRED_LIBNCCL" in missing.stdout


def test_lost_device_is_an_error_that_names_it_and_the_peers_hear_of_it(
    tmp_path: pathlib.Path,
) -> None:
    done = job(
        tmp_path,
        """
        if comm.rank == 1:
            device.set("lost", 700)
        try:
            comm.Allreduce(MPI.IN_PLACE, x)
        except gradred.Error as error:
            print(f"{comm.rank} {type(error).__name__}: {error}")
        y = np.ones(3)
        comm.Allreduce(MPI.IN_PLACE, y)
        assert (y == comm.size).all()
        print(f"{comm.rank} goes on")
        os._exit(0)
        """,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "1 DeviceError: " in done.stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.stdout
    assert "0 UsageError: rank 1 refused its arguments: " in done.stdout, done.stdout
    assert done.stdout.count("goes on") == 3


@pytest.mark.each_mpi
def test_device_that_fails_in_a_call_fails_it_on_every_rank(tmp_path: pathlib.Path) -> None:
    """Between devices no rank can refuse any more once data move."""
    done = job(
        tmp_path,
        """
        if comm.rank == 1:
            device.fail("cuMemcpyAsync", 700, 1)  # the second copy
        for _ in range(2):
            try:
                comm.Allreduce(MPI.IN_PLACE, x)
            except gradred.Error as error:
                print(f"{comm.rank} {type(error).__name__}: {error}")
        """,
    )
    said = [line for line in done.stdout.splitlines() if "cuMemcpy" in line]  # copies by rows, too
    assert len(said) == 6, (done.stdout, done.stderr)
    assert sum("1 DeviceError" in line for line in said) == 1, done.stdout
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in done.stdout


def test_array_that_the_host_would_read_stops_the_process(tmp_path: pathlib.Path) -> None:
    """The other tests depend on this: access by the host is detected."""
    done = job(
        tmp_path,
        """
        import ctypes
        ctypes.memset(x.address, 0, 8)
        """,
        ranks=1,
    )
    assert done.returncode == 128 + 11, (done.returncode, done.stderr)


def test_rank_that_comes_late_is_reported_with_its_call(tmp_path: pathlib.Path) -> None:
    done = job(
        tmp_path,
        """
        if comm.rank == 1:
            time.sleep(1.5)
        comm.Iallreduce(MPI.IN_PLACE, x).Wait()
        print("right", (x.get() == 18).all())
        """,
        GRADRED_WARN_AFTER="0.5",
    )
    assert done.stdout.count("right True") == 3, (done.stdout, done.stderr)
    assert "allreduce of 300000 float32" in done.stderr


STREAM = """
    import ctypes
    stream = device.stream()
    def finish():
        device.must("cuStreamSynchronize", ctypes.c_void_p(stream))
    gradred.allreduce(x, comm=comm, stream=stream)
    finish()
"""


@pytest.mark.each_mpi
@pytest.mark.parametrize("shm", ["1", "0"])
def test_stream_waits_no_longer_for_a_rank_that_is_killed(tmp_path: pathlib.Path, shm: str) -> None:
    done = job(
        tmp_path,
        STREAM
        + """
    come()
    if comm.rank == 1:
        die()
    try:
        while True:
            gradred.allreduce(x, comm=comm, stream=stream)
            finish()
    except gradred.PeerLost as error:
        lost()
""",
        GRADRED_SHM=shm,
    )
    expect_lost(done)


@pytest.mark.each_mpi
@pytest.mark.parametrize("ipc_bytes", ["1000000", "none"])
def test_call_in_a_stream_while_one_without_is_in_flight(
    tmp_path: pathlib.Path, ipc_bytes: str
) -> None:
    """The earlier call's later work could queue behind the stream's wait."""
    done = job(
        tmp_path,
        STREAM
        + """
    signal.alarm(30)
    y = DeviceArray(device, np.ones(10, "float32"))
    for turn in range(10):
        request = gradred.iallreduce(x, "max", out=x, comm=comm)
        gradred.allreduce(y, out=y, comm=comm, stream=stream)
        finish()
        request.wait()
    print("right", (x.get() == 3).all() and (y.get() == 2**10).all())
""",
        ranks=2,
        CUDA_DEVICE_MAX_CONNECTIONS="1",
        GRADRED_IPC_BYTES=ipc_bytes,
    )
    assert done.stdout.count("right True") == 2, (done.stdout, done.stderr)


def test_long_call_in_the_order_of_a_stream_fits_what_a_stream_takes(
    tmp_path: pathlib.Path,
) -> None:
    """Its copies wait for this rank's operation, which is made after them."""
    done = job(
        tmp_path,
        STREAM
        + """
    signal.alarm(40)
    long = DeviceArray(device, np.full(12 << 20, comm.rank + 1, "float32"))
    for _ in range(3):
        gradred.allreduce(long, out=long, comm=comm, stream=stream)
    finish()
    print("right", (long.get() == 3 * 4).all())
""",
        ranks=2,
        SIMULATED_CUDA_QUEUE="70",
    )
    assert done.stdout.count("right True") == 2, (done.stdout, done.stderr)


def test_device_lost_while_a_stream_waits_is_found_by_who_waits(tmp_path: pathlib.Path) -> None:
    done = job(
        tmp_path,
        STREAM
        + """
    if comm.rank == 0:
        time.sleep(1)  # so that nothing has come when the device is lost
    try:
        request = gradred.iallreduce(x, comm=comm, stream=stream)
        if comm.rank == 1:
            request.wait_stream(stream)
            device.set("lost", 700)
        request.wait()
        gradred.allreduce(np.ones(1), comm=comm)
    except gradred.Error as error:
        print("error", comm.rank, type(error).__name__, "ILLEGAL_ADDRESS" in str(error))
""",
    )
    said = sorted(line for line in done.stdout.splitlines() if "error" in line)
    assert len(said) == 3, (done.stdout, done.stderr)
    assert "error 1 DeviceError True" in said[1], said


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"SIMULATED_CUDA_NO_STREAM_VALUES": "1"}, "cuStreamWriteValue32"),
        ({"SIMULATED_CUDA_VERSION": "11040"}, "the CUDA driver has no cuStreamWaitValue32"),
        ({"GRADRED_PROGRESS_THREAD": "0"}, "GRADRED_PROGRESS_THREAD is off"),
    ],
)
def test_host_waits_where_streams_cannot_and_says_so_once(
    tmp_path: pathlib.Path, knobs: dict[str, str], why: str
) -> None:
    done = job(
        tmp_path,
        STREAM
        + """
    for _ in range(3):
        y = gradred.allreduce(x, out=x, comm=comm, stream=stream)
    print("right", (y.get() == 3 * 2**3).all())
""",
        ranks=2,
        **knobs,
    )
    assert done.stdout.count("right True") == 2, (done.stdout, done.stderr)
    assert done.stderr.count("RuntimeWarning: stream=: the host waits") == 2, done.stderr
    assert why in done.stderr


def test_driver_that_is_too_old_is_named_and_host_arrays_are_served(
    tmp_path: pathlib.Path,
) -> None:
    done = job(
        tmp_path,
        """
        try:
            gradred.allreduce(x)
        except gradred.DeviceError as error:
            print("refused", "for CUDA 10.2" in str(error), "11.4 or later" in str(error))
        print("right", (gradred.allreduce(np.ones(3)) == 2).all())
        """,
        ranks=2,
        begin=IMPORTS,
        SIMULATED_CUDA_VERSION="10020",
    )
    assert done.stdout.count("refused True True") == 2, (done.stdout, done.stderr)
    assert done.stdout.count("right True") == 2, (done.stdout, done.stderr)


def script_for_a_real_gpu(
    tmp_path: pathlib.Path, *words: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The output of the script, and its record."""
    script = TESTS.parent / "benchmarks" / "h200.py"
    given = ["--short", "--library", "simulated", *words, "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, str(script), *given],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    (file,) = tmp_path.glob("h200-*.json")
    return done, json.loads(file.read_text())


SECTIONS = [
    ("machine", "handover"),
    ("kernels", "allreduce", "staging"),
    ("arrays",),
    ("order",),
    ("nccl", "death", "crowd"),
    ("host",),
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("sections", SECTIONS, ids=" ".join)
def test_script_for_a_real_gpu_runs_on_the_simulated_driver(
    tmp_path: pathlib.Path, sections: tuple[str, ...]
) -> None:
    """Check that the script runs and what it checks; no times."""
    # in place of another MPI's Python
    more = ["--python", sys.executable] if "host" in sections else []
    done, record = script_for_a_real_gpu(tmp_path, "--only", *sections, *more)
    assert done.returncode == 0, (done.stdout, done.stderr, record)
    assert done.stdout.count(" ok\n") == len(sections), done.stdout
    found = record["sections"]
    assert list(found) == list(sections)
    if "machine" in sections:
        assert found["machine"]["jobs"]["2 ranks"]["stream_memory_operations"] == "ok"
    if "kernels" in sections:
        types = {row["type"] for row in found["kernels"]["jobs"]["rank 0"]["rows"]}
        assert types >= {"float32", "bfloat16", "float8_e4m3fn"}
    if "host" in sections:
        assert len(found["host"]["jobs"]) == 2
    if "nccl" in sections:
        assert found["nccl"]["jobs"]["2 ranks"]["graph"]["launches"] == 3
        assert "PeerLost" in found["death"]["jobs"]["2 ranks"]["met"]


@pytest.mark.parametrize("end", ["time.sleep(60)", "sys.exit(3)"])
def test_script_for_a_real_gpu_keeps_the_rows_of_a_job_that_is_ended(end: str) -> None:
    script = importlib.util.spec_from_file_location("h200", TESTS.parent / "benchmarks" / "h200.py")
    assert script is not None
    assert script.loader is not None
    h200 = importlib.util.module_from_spec(script)
    script.loader.exec_module(h200)
    rows = "print(json.dumps({'rows': [1, 2]}), flush=True); print('{half', flush=True)"
    program = f"import json, sys, time; {rows}; {end}"
    printed = h200.record_of([sys.executable, "-c", program], 0.1, {})
    assert printed["rows"] == [1, 2]
    assert "timed out" in printed["error"] or printed["error"] == "exit status 3"


def test_script_for_a_real_gpu_leaves_out_what_no_longer_fits_its_time(
    tmp_path: pathlib.Path,
) -> None:
    done, record = script_for_a_real_gpu(tmp_path, "--only", "host", "--minutes", "0.2")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "in part" in done.stdout
    assert "were left" in record["sections"]["host"]["jobs"]["2 ranks"]["skipped"]
