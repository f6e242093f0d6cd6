"""`GRADRED_PROFILE` and `GRADRED_TRACE` of whole jobs: lateness, overlap, operations."""

from __future__ import annotations

import collections
import functools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gradred import config, launch

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.one_mpi,
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
PATHS = os.pathsep.join(filter(None, sys.path))
HEAD = """
import json, sys, time
import numpy as np
from mpi4py import MPI
import gradred
from gradred import _core, config
world = MPI.COMM_WORLD
comm = gradred.Comm(world)
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(config.PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", PATHS)


def run(
    folder: Path, body: str, ranks: int = 2, status: int = 0, **knobs: str
) -> subprocess.CompletedProcess[str]:
    """Run a job of `body`, which must end with `status`."""
    program = folder / "program.py"
    program.write_text(HEAD + textwrap.dedent(body))
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks)]
    command += [sys.executable, str(program)]
    environment = os.environ | {config.variable(name): value for name, value in knobs.items()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def profile(folder: Path, body: str, ranks: int = 2, **knobs: str) -> list[dict[str, Any]]:
    """The records of the ranks."""
    run(folder, body, ranks, profile=str(folder / "p.json"), **knobs)
    return [json.loads((folder / f"p.{rank}.json").read_text()) for rank in range(ranks)]


def only(record: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    """The only row with these fields."""
    rows = record["rows"]
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("path", ["out/new/p.json", "out/{rank}/p.json"])
@pytest.mark.parametrize("knob", ["profile", "trace"])
def test_folder_of_a_file_that_a_knob_names_is_made(tmp_path: Path, knob: str, path: str) -> None:
    run(tmp_path, "comm.Allreduce(MPI.IN_PLACE, np.zeros(1))", **{knob: str(tmp_path / path)})
    written = sorted(file.parent.name + "/" + file.name for file in tmp_path.glob("out/**/*.json"))
    assert written == (
        ["0/p.json", "1/p.json"] if "{" in path else ["new/p.0.json", "new/p.1.json"]
    )


@pytest.mark.parametrize("knob", ["profile", "trace"])
def test_file_lies_where_the_program_began_wherever_it_ends(
    tmp_path: Path, knob: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    body = """
    import os
    os.chdir("elsewhere")
    world = gradred.Comm(world)
    world.Allreduce(MPI.IN_PLACE, np.zeros(1))
    """
    run(tmp_path, body, **{knob: "out/p.json"})
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json"))
    assert written == ["out/p.0.json", "out/p.1.json"]


@pytest.mark.parametrize("knob", ["profile", "trace"])
def test_file_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path, knob: str) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "p.json")
    done = run(tmp_path, "print('begun')", status=1, **{knob: path})
    assert f"UsageError: {config.variable(knob)}={path}: " in done.stderr
    assert "begun" not in done.stdout


def test_trace_that_is_lost_at_the_end_takes_no_profile_along(tmp_path: Path) -> None:
    body = """
    import shutil
    comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
    comm.Barrier()
    shutil.rmtree(sys.argv[0].replace("program.py", "gone"), ignore_errors=True)
    """
    trace, counted = tmp_path / "gone" / "t.json", tmp_path / "p.json"
    done = run(tmp_path, body, trace=str(trace), profile=str(counted))
    assert "gone/t.0.json' cannot be written" in done.stderr
    assert "gradred profile of rank 0 of 2" in done.stderr
    assert all((tmp_path / f"p.{rank}.json").exists() for rank in range(2))


SLEEPS = """
comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
for count in (1, 100_000):
    x = np.zeros(count, "float32")
    for _ in range(5):
        if world.rank == 1:
            time.sleep(0.03)
        comm.Allreduce(MPI.IN_PLACE, x)
"""


def test_sleeping_rank_is_the_slowest_and_its_sleep_the_skew(tmp_path: Path) -> None:
    times: dict[int, list[float]] = {}  # of both ranks
    for record in profile(tmp_path, SLEEPS):
        for max_bytes, size in ((4, 4), (1 << 19, 400_000)):
            row = only(record, dtype="float32", max_bytes=max_bytes)
            assert (row["kind"], row["op"], row["mode"]) == ("allreduce", "sum", "blocking")
            assert (row["calls"], row["bytes"]) == (5, 5 * size)
            skew = row["skew"]
            assert skew["samples"] == 5
            assert skew["slowest_rank"] == 1
            assert skew["mean_s"] > 0.025
            assert [each["last"] for each in skew["ranks"]] == [0, 5]
            # The other rank has waited that long, and nothing of these calls is hidden.
            assert row["exposed_s"] == row["time_s"]
            times.setdefault(max_bytes, []).append(row["time_s"])
    for waits, sleeps in times.values():
        assert waits > 0.12
        assert waits > sleeps


def test_sleeping_rank_of_a_part_has_its_number_in_the_world(tmp_path: Path) -> None:
    body = """
        part = gradred.Comm(world.Split(world.rank > 0))
        x = np.zeros(100_000, "float32")
        for _ in range(4):
            if world.rank == 2:
                time.sleep(0.03)
            part.Allreduce(MPI.IN_PLACE, x)
        """
    records = profile(tmp_path, body, ranks=3)
    assert [only(each)["skew"]["slowest_rank"] for each in records[1:]] == [2, 2]
    assert only(records[0])["skew"] is None  # rank 0 is alone in its communicator
    assert only(records[0])["calls"] == 4


STARTED = """
comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
def overlapped(start):
    time.sleep(0.05 * world.rank)
    request = start()
    time.sleep(0.1 - 0.05 * world.rank)
    request.Wait()
for count in (8, 300_000):
    x, y = np.ones(count, "float32"), np.zeros(count, "float32")
    persistent = comm.Allreduce_init(x, y)
    for turn in range(4):
        overlapped(lambda: comm.Iallreduce(x, y))
        overlapped(lambda: persistent.Start() or persistent)
    persistent()
    assert y[-1] == 2
"""


def test_time_hidden_behind_computing_is_not_exposed(tmp_path: Path) -> None:
    records = profile(tmp_path, STARTED)
    for max_bytes in (32, 1 << 21):
        for mode, calls in (("started", 4), ("persistent", 5)):
            rows = [only(record, mode=mode, max_bytes=max_bytes) for record in records]
            assert [row["calls"] for row in rows] == [calls, calls]
            assert rows[0]["time_s"] > 0.15  # rank 1 is 50 ms late in four of them
            assert rows[0]["exposed_s"] < rows[0]["time_s"] / 2
            assert all(row["skew"]["mean_s"] > 0.02 for row in rows)
            assert all(row["skew"]["slowest_rank"] == 1 for row in rows)


@pytest.mark.each_mpi
def test_way_of_calls_is_shown(tmp_path: Path) -> None:
    body = """
    def call(count):
        comm.Allreduce(MPI.IN_PLACE, np.zeros(count, np.float32))

    for count in (1, 1_000, 3_000_000):
        call(count)
        comm.Iallreduce(MPI.IN_PLACE, np.zeros(count, np.float32)).Wait()
    world.Barrier()
    """
    for record in profile(tmp_path, body):
        for mode in ("blocking", "started"):
            found = [only(record, mode=mode, max_bytes=size)["ways"] for size in (4, 4096, 1 << 24)]
            assert found[:2] == [{"in line": 1}, {"slots": 1}]
            assert sum(found[2].values()) == 1
            assert set(found[2]) <= {"chunks", "peers' memory"}
        assert record["sleeps"]["lost"] == 0


def test_started_call_stands_for_the_peer_that_is_late(tmp_path: Path) -> None:
    body = """
    comm.Allreduce(MPI.IN_PLACE, np.zeros(5))
    if comm.rank == 1:
        time.sleep(0.2)
    comm.Iallreduce(MPI.IN_PLACE, np.zeros(5)).Wait()
    """
    early, late = profile(tmp_path, body)
    row = only(early, mode="started", kind="allreduce")
    assert row["waits"]["peers"] > 0.1
    assert sum(row["waits"].values()) == pytest.approx(row["time_s"], rel=0.1)
    assert only(late, mode="started", kind="allreduce")["waits"]["peers"] < 0.1


ON_A_DEVICE = """
from gpu.simulated import DeviceArray, the_driver
driver = the_driver()
x = DeviceArray(driver, np.ones(300_000, "float32"))
comm.Allreduce(MPI.IN_PLACE, x)
for _ in range(3):
    comm.Iallreduce(MPI.IN_PLACE, x).Wait()
"""


@pytest.fixture
def simulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver in which each query of a stream takes 2 ms."""
    tests = Path(__file__).resolve().parents[1]
    for name in ("LIBCUDA", "LIBNVRTC", "LIBNCCL"):
        monkeypatch.setenv(f"GRADRED_{name}", str(tests / "libsimulated_cuda.so"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([PATHS, str(tests)]))
    monkeypatch.setenv("SIMULATED_CUDA_SLOW", "cuStreamQuery:2000")
    monkeypatch.setenv("SIMULATED_CUDA_MPS", "1")


def test_slow_calls_of_the_driver_are_named(tmp_path: Path, simulated_device: None) -> None:
    for record in profile(tmp_path, ON_A_DEVICE):
        calls = {one["name"]: one for one in record["driver_calls"]}
        query, most = calls["cuStreamQuery"], calls["cuCtxGetCurrent"]
        assert query["slow_calls"] == query["calls"] > 0
        assert query["longest_s"] >= 0.002
        assert query["slow_s"] == pytest.approx(query["seconds"])
        assert most["slow_calls"] < most["calls"]
        ways = only(record, mode="started", kind="allreduce")["ways"]
        assert set(ways) <= {"devices", "devices, copied"}


def test_slow_calls_of_the_driver_are_in_the_trace(tmp_path: Path, simulated_device: None) -> None:
    run(tmp_path, ON_A_DEVICE, trace=str(tmp_path / "t.json"))
    for rank in range(2):
        events = json.loads((tmp_path / f"t.{rank}.json").read_text())["traceEvents"]
        slow = [event for event in events if event["name"] == "cuStreamQuery"]
        assert slow
        assert all(event["dur"] >= 2000 for event in slow)
        lines = {event["tid"] for event in events if event["name"] == "thread_name"}
        assert {event["tid"] for event in slow} <= lines


def test_waiting_in_waitall_is_exposed(tmp_path: Path) -> None:
    body = f"""
        comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        if world.rank == 1:
            time.sleep(0.2)
        x = np.ones(8, "float32")
        begin = time.monotonic()
        gradred.Request.Waitall([comm.Iallreduce(x, np.zeros_like(x)) for _ in range(3)])
        with open(f"{tmp_path}/waited.{{world.rank}}", "w") as file:
            file.write(str(time.monotonic() - begin))
        """
    row = only(profile(tmp_path, body)[0], mode="started")
    waited = float((tmp_path / "waited.0").read_text())
    assert 0.15 < row["exposed_s"] < waited + 0.01, "once, not for each of the three"
    assert row["skew"]["slowest_rank"] == 1


REPEATED = """
for kind, count in (("allreduce", 2), ("allreduce", 20_000), ("bcast", 4), ("allgather", 4)):
    x, y = np.full(count, world.rank + 1, "int32"), np.empty(count * world.size, "int32")
    for turn in range(400 if count < 10 else 40):
        if kind == "allreduce":
            y = np.zeros(count, "int32")
            comm.Allreduce(x, y)
            assert (y == world.size * (world.size + 1) // 2).all()
        elif kind == "bcast":
            y = x + turn
            comm.Bcast(y, root=1)
            assert (y == turn + 2).all()
        else:
            comm.Allgather(x, y)
            assert (y.reshape(world.size, -1) == 1 + np.arange(world.size)[:, None]).all()
    world.Allreduce(x, np.zeros_like(x))  # the program's own calls still match
for name, op in (("bfloat16", "sum"), ("float32", "avg")):
    z = np.full(4, 2, "float32")
    for _ in range(20):
        gradred.allreduce(z, op, comm=comm)
"""


@pytest.mark.each_mpi
@pytest.mark.parametrize("knobs", [{}, {"shm": "0"}, {"plan": "ring"}], ids=str)
def test_results_stay_right_and_all_calls_are_counted(
    tmp_path: Path, knobs: dict[str, str]
) -> None:
    for record in profile(tmp_path, REPEATED, **knobs):
        assert only(record, kind="allreduce", dtype="int32", max_bytes=8)["calls"] == 400
        assert only(record, kind="allreduce", dtype="int32", max_bytes=1 << 17)["calls"] == 40
        assert only(record, kind="bcast")["calls"] == only(record, kind="allgather")["calls"] == 400


def test_threads_count_on_their_own_communicators(tmp_path: Path) -> None:
    body = """
        import threading
        comms = [comm, *(gradred.Comm(world.Dup()) for _ in range(2))]
        failures = []
        def work(comm):
            try:
                x, y = np.full(3, comm.rank + 1), np.zeros(3, int)
                for _ in range(3200):
                    comm.Allreduce(x, y)
                    assert (y == 3).all()
            except BaseException as error:
                failures.append(error)
        for each in comms:
            each.Allreduce(MPI.IN_PLACE, np.zeros(1))
        threads = [threading.Thread(target=work, args=(each,)) for each in comms]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not failures, failures
        """
    for record in profile(tmp_path, body):
        row = only(record, dtype="int64")
        assert row["calls"] == 9600
        assert record["set_up"]["communicators"] == 3


@pytest.mark.each_mpi
def test_table_is_printed_once_by_rank_0_with_the_share_last(tmp_path: Path) -> None:
    done = run(tmp_path, SLEEPS, profile="1")
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]
    lines = [line.removeprefix("[0] ") for line in done.stderr.splitlines()]
    assert lines[0].startswith("gradred profile of rank 0 of 2, ")
    assert "went into gradred, not hidden" in lines[-1]
    assert max(map(len, lines)) <= 100
    row, way = [
        line for line in lines if line.startswith("allreduce sum float32  ") and "4 B" in line
    ]
    assert "1 100%" in row
    assert "in line" in way
    assert not any(line.startswith("[1]") for line in done.stderr.splitlines())


def test_rank_0_decides_for_all(tmp_path: Path) -> None:
    body = """
        for wanted in (0, 1):
            config.set("profile", "1" if world.rank == wanted else "0")
            other = gradred.Comm(world.Dup())
            for _ in range(300):
                other.Allreduce(MPI.IN_PLACE, np.zeros((2 - wanted) << 13, "float32"))
        (row,) = json.loads(_core.profile_json())["rows"]
        assert (row["max_bytes"], row["calls"]) == (1 << 16, 300), row
        assert row["skew"]["samples"] == 300, row
        """
    done = run(tmp_path, body)
    assert "gradred profile of rank 0 of 2" in done.stderr


def test_nothing_is_counted_written_or_printed_when_off(tmp_path: Path) -> None:
    body = """
        for _ in range(300):
            comm.Allreduce(MPI.IN_PLACE, np.zeros(1))
        comm.Iallreduce(np.zeros(1), np.zeros(1)).Wait()
        found = json.loads(_core.profile_json())
        assert found["rows"] == [] and found["wall_s"] == 0, found
        assert found["set_up"] == {"communicators": 0, "seconds": 0}, found
        """
    done = run(tmp_path, body)
    assert done.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.each_mpi
def test_survivor_of_a_lost_peer_still_writes_its_profile(tmp_path: Path) -> None:
    body = """
        import os, signal
        x = np.zeros(1)
        for turn in range(20):
            if turn == 10 and world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.Allreduce(MPI.IN_PLACE, x)
        """
    done = run(tmp_path, body, status=137, profile=str(tmp_path / "p.json"))
    assert "PeerLost" in done.stderr
    record = json.loads((tmp_path / "p.0.json").read_text())
    assert only(record)["calls"] == 10
    assert not (tmp_path / "p.1.json").exists()


def test_single_rank_is_profiled_too(tmp_path: Path) -> None:
    (record,) = profile(tmp_path, "comm.Allreduce(np.ones(5), np.zeros(5))", ranks=1)
    row = only(record)
    assert (row["calls"], row["bytes"], row["skew"]) == (1, 40, None)


# ---- the trace --------------------------------------------------------------------------------


def events(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


@pytest.mark.parametrize("knobs", [{}, {"profile": "1"}], ids=["alone", "with a profile"])
def test_operations_through_shared_memory_are_in_the_trace(
    tmp_path: Path, knobs: dict[str, str]
) -> None:
    body = """
        x, y = np.ones(1000, "float32"), np.zeros(1000, "float32")
        if world.rank == 1:
            time.sleep(0.05)
        comm.Allreduce(x, y)
        comm.Allreduce(x, y)
        comm.Bcast(x)
        persistent = comm.Allreduce_init(x, y)
        comm.Iallreduce(x, y).Wait()
        persistent.Start()
        persistent.Wait()
        persistent()
        try:
            comm.Allreduce(x[world.rank:], y[world.rank:])
        except gradred.UsageError:
            pass
        gradred.allreduce(x, plan="ring", comm=comm)
        gradred.allreduce(x, plan="mpi", comm=comm)
        """
    run(tmp_path, body, trace=str(tmp_path / "t.json"), **knobs)
    for rank in range(2):
        found = events(tmp_path / f"t.{rank}.json")
        reduced = "allreduce of 1000 float32 with sum"
        shared = [event for event in found if event["args"].get("path") == "shared memory"]
        assert [(event["name"], event["args"]["mode"]) for event in shared[:6]] == [
            (reduced, "blocking"),
            (reduced, "blocking"),
            ("bcast of 1000 float32", "blocking"),
            (reduced, "started"),
            (reduced, "persistent"),
            (reduced, "persistent"),
        ]
        assert [event["args"]["abandoned"] for event in shared] == [False] * 6 + [True]
        assert [event["args"]["bytes"] for event in shared] == [4000] * 6 + [4000 - 4 * rank]
        assert all(event["pid"] == rank and event["dur"] > 0 for event in shared)
        starts = [event["ts"] for event in shared]
        assert starts == sorted(starts)
        by_messages = [event for event in found if event["args"].get("path") == "messages"]
        assert [event["name"] for event in by_messages] == [reduced]
        (by_mpi,) = [event for event in found if event["args"].get("path") == "the MPI"]
        assert by_mpi["name"] == reduced


CHAKRA = """
    x, y = np.ones(1000), np.empty(1000)
    comm.Allreduce(x, y)
    time.sleep(0.02)
    started = [comm.Iallreduce(x, np.empty(1000)) for _ in range(2)]
    for one in started:
        one.Wait()
    comm.Scan(x, y)
    comm.Allgather(x[:10], np.empty(20))
"""


def messages(data: bytes) -> list[dict[int, list[Any]]]:
    """Messages of Protocol Buffers behind their lengths, by the numbers of their fields."""

    def varint(at: int) -> tuple[int, int]:
        end = next(place for place in range(at, len(data)) if data[place] < 128) + 1
        digits = (byte & 127 for byte in reversed(data[at:end]))
        return functools.reduce(lambda number, digit: number << 7 | digit, digits, 0), end

    found, at = [], 0
    while at < len(data):
        length, at = varint(at)
        end, fields = at + length, collections.defaultdict(list)
        while at < end:
            key, at = varint(at)
            value: Any
            value, at = varint(at)
            if key & 7 == 2:
                value, at = data[at : at + value], at + value
            fields[key >> 3].append(value)
        found.append(fields)
    return found


def test_chakra_trace_has_the_operations_and_what_is_between_them(tmp_path: Path) -> None:
    run(tmp_path, CHAKRA, trace=f"{tmp_path}/of.et")
    for rank in range(2):
        metadata, *nodes = messages((tmp_path / f"of.{rank}.et").read_bytes())
        assert metadata[1] == [b"1.0.0"]
        kinds = {node[1][0]: (node[2][0].split()[0], node[3]) for node in nodes}
        sums = [number for number, kind in kinds.items() if kind == (b"allreduce", [7])]
        assert len(sums) == 3
        assert (b"scan", [4]) in kinds.values()
        assert kinds[len(nodes)] == (b"allgather", [7])
        attribute = b"\x0a\x09comm_size\x48" + bytes([0x80 | 8000 & 127, 8000 >> 7])
        assert all(attribute in node[10] for node in nodes if node[1][0] in sums)
        slept = nodes[sums[0]]
        assert (slept[2], slept[3], slept[5]) == ([b"the program"], [4], [sums[0]])
        assert slept[7][0] >= 20_000
        after = {node[1][0]: node[5] for node in nodes}
        assert after[sums[1]] == slept[1]
        assert all(before < number for number, those in after.items() for before in those)


def test_chakras_own_tool_reads_its_traces(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf")
    pytest.importorskip("chakra.src.jsonizer.jsonizer")
    run(tmp_path, CHAKRA, trace=f"{tmp_path}/{{rank}}.et")
    command = [sys.executable, "-m", "chakra.src.jsonizer.jsonizer", "--input_filename"]
    command += [f"{tmp_path}/1.et", "--output_filename", f"{tmp_path}/1.json"]
    subprocess.run(command, check=True)
    text = (tmp_path / "1.json").read_text()
    assert text.count("COMM_COLL_NODE") == 4
    assert text.count('"allreduce of 1000 float64 with sum"') == 3


def test_chakra_alone_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(tmp_path, CHAKRA, trace="chakra")
    assert sorted(path.name for path in tmp_path.glob("*.et")) == ["chakra.0.et", "chakra.1.et"]
