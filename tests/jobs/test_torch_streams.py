"""Jobs in which streams of a simulated GPU wait for operations of torch.distributed."""

from __future__ import annotations

import pathlib
import subprocess

import pytest
from bounds import within
from jobs.test_device import IMPORTS, expect_lost, job

pytest.importorskip("torch", reason="PyTorch is not installed")
IN_STREAMS = (
    IMPORTS
    + """
    import contextlib, ctypes, datetime, threading
    import torch
    import torch.distributed as dist
    import gradred.torch
    from gpu.tensors import in_stream, on_gpu
    from gpu.test_torch_tensors import held_back

    LIMIT = datetime.timedelta(seconds=30)
    dist.init_process_group("gradred", init_method=f"file://{os.getcwd()}/store",
                            rank=comm.rank, world_size=comm.size,
                            timeout=datetime.timedelta(seconds=float(os.environ.get("LIMIT", 30))))
    stream = device.stream()
    at_end = contextlib.ExitStack()
    at_end.enter_context(in_stream(device, stream))
    xs = [on_gpu(torch.ones(300_000 + 1000 * i)) for i in range(int(os.environ.get("TENSORS", 4)))]
    for _ in range(3):  # gradred exports allocations that it has seen twice
        for x in xs:
            dist.all_reduce(x, async_op=True).wait(LIMIT)

    def finish():  # the stream
        device.must("cuStreamSynchronize", ctypes.c_void_p(stream))

    def start():
        works = [dist.all_reduce(x, async_op=True) for x in xs]
        for work in works:
            work.wait()
        return works

    def check(times=4):
        for x in xs:
            assert torch.equal(x.cpu(), torch.full_like(x.cpu(), float(comm.size) ** times)), x
"""
)


def in_streams(
    tmp_path: pathlib.Path, program: str, ranks: int = 3, **knobs: str
) -> subprocess.CompletedProcess[str]:
    """Run a job whose streams wait for operations of torch.distributed."""
    return job(tmp_path, program, ranks, IN_STREAMS, SIMULATED_CUDA_MPS="1", **knobs)


def test_rank_that_is_killed_while_streams_wait(tmp_path: pathlib.Path) -> None:
    done = in_streams(
        tmp_path,
        """
        if comm.rank == 1:  # its input is never there
            at_end.enter_context(held_back(device, stream))
        works = start()
        assert not works[0].is_completed()
        come()
        if comm.rank == 1:
            die()
        try:
            works[-1].wait(LIMIT)
        except gradred.PeerLost as error:
            assert "rank 1" in str(error), error
            lost()
        finish()  # the stream goes on
        """,
    )
    expect_lost(done)


@pytest.mark.parametrize(
    ("knobs", "ends"),
    [
        ({"TENSORS": "150"}, "finish(); check()"),  # more than there are slots for
        ({"GRADRED_PROGRESS_THREAD": "0"}, "finish(); check()"),
        ({}, "finish(); check()"),
        ({}, ""),  # the program ends while operations are on the device
        ({}, "dist.destroy_process_group()"),
    ],
    ids=["many", "no progress thread", "some", "ends at once", "frees at once"],
)
def test_streams_that_come_late(tmp_path: pathlib.Path, knobs: dict[str, str], ends: str) -> None:
    """Rank 0's stream is 0.3 s behind."""
    done = in_streams(
        tmp_path,
        f"""
        if comm.rank == 0:
            go_on = at_end.enter_context(held_back(device, stream))
            threading.Timer(0.3, go_on).start()
        works = start()
        if comm.rank == 0:
            finish()
            check()
        {ends}
        """,
        **knobs,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""


def test_memory_is_freed_while_only_callbacks_wait(tmp_path: pathlib.Path) -> None:
    """As in DDP's backward pass, beside an allocator that gives memory back."""
    done = in_streams(
        tmp_path,
        """
        spare = on_gpu(torch.ones(1000))
        go_on = at_end.enter_context(held_back(device, stream))
        ends = [threading.Event() for _ in xs]
        for x, end in zip(xs, ends):  # futures need PyTorch's build for CUDA
            request = dist.all_reduce(x, async_op=True)._requests[0]
            request.add_done_callback(lambda _, end=end: end.set())
        threading.Timer(0.2, go_on).start()
        time.sleep(0.1)
        device.set("synchronises", 1)
        spare.memory.free()
        device.set("synchronises", 0)
        assert all(end.wait(20) for end in ends)
        check()
        """,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_time_limit_of_what_streams_wait_for(tmp_path: pathlib.Path) -> None:
    done = in_streams(
        tmp_path,
        """
        if comm.rank == 1:
            go_on = at_end.enter_context(held_back(device, stream))
        begin = time.monotonic()
        works = start()
        assert not works[0].is_completed()
        try:
            works[-1].wait(LIMIT)
        except gradred.TimeoutError as error:
            print("late", time.monotonic() - begin, str(error)[:200], flush=True)
        if comm.rank == 1:
            go_on()
        finish()
        """,
        2,
        LIMIT="2",
    )
    late = [line for line in done.stdout.splitlines() if line.startswith("late ")]
    assert len(late) == 2, (done.stdout, done.stderr)
    assert all(2 <= float(line.split()[1]) < within(3.5) for line in late), done.stdout
    assert any("for which a stream waits" in line for line in late), done.stdout


def test_memory_is_freed_while_work_is_given(tmp_path: pathlib.Path) -> None:
    """The driver waits for the device, and lets no other thread in, after each part of the work."""
    done = in_streams(
        tmp_path,
        """
        stop = threading.Event()

        def free():
            device.use_in_this_thread()
            while not stop.is_set():
                device.set("synchronises", 1)
                on_gpu(torch.ones(100)).memory.free()
                device.set("synchronises", 0)

        freeing = threading.Thread(target=free)
        freeing.start()
        for _ in range(15):
            start()
        finish()
        stop.set()
        freeing.join()
        check(18)
        """,
        2,
        SIMULATED_CUDA_SLOW="cuStreamWriteValue32:500",
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
