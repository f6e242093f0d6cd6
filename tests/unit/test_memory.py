"""Arrays of `gradred.empty` and its like: real memory that forked children share."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradred

SMALL, LARGE = 100_000, 20_000_000  # bytes: in a slab with others, and in a separate one


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` returns true in a forked child."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def files() -> dict[str, int]:
    """The files that hold arrays of this process, and the bytes that each really has."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.islink(path) and "gradred-arrays" in os.readlink(path):
            found[name] = os.stat(path).st_blocks * 512
    return found


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_child_reads_the_array_and_keeps_what_it_writes_to_itself(nbytes: int) -> None:
    x = gradred.empty(nbytes, "uint8")
    x.fill(7)

    def work() -> bool:
        seen = bool(np.all(x == 7))
        x.fill(9)
        return seen and bool(np.all(x == 9))

    assert in_child(work)
    assert np.all(x == 7)


@pytest.mark.parametrize("nbytes", [SMALL, LARGE])
def test_child_still_has_an_array_that_the_parent_has_freed(nbytes: int) -> None:
    other = gradred.empty(SMALL, "uint8")  # keeps the slab alive
    x = gradred.empty(nbytes, "uint8")
    x.fill(5)
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(ready, 1)  # end of file: the parent has freed it
        os._exit(0 if bool(np.all(x == 5)) else 1)
    os.close(ready)
    del x
    gc.collect()
    os.close(go)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert other.size == SMALL


def test_arrays_made_after_a_fork_are_each_process_s_own() -> None:
    before = gradred.zeros(SMALL, "uint8")

    def work() -> bool:
        mine = gradred.zeros(SMALL, "uint8")
        mine.fill(3)
        return bool(np.all(mine == 3)) and not before.any()

    assert in_child(work)
    after = gradred.zeros(SMALL, "uint8")
    assert not after.any()


def test_memory_goes_back_with_the_array() -> None:
    gc.collect()
    before = files()
    kept = gradred.empty(SMALL, "uint8")
    held = sum(files().values())
    small, large = gradred.empty(30 * SMALL, "uint8"), gradred.empty(LARGE, "uint8")
    assert sum(files().values()) >= held + 30 * SMALL + LARGE, "allocated for real"
    view = small[:10]
    del small, large
    assert sum(files().values()) >= held + 30 * SMALL, "a view holds it"
    del view
    assert sum(files().values()) <= held
    del kept
    assert len(files()) <= len(before) + 1


def test_many_arrays_take_few_descriptors() -> None:
    before = len(files())
    many = [gradred.empty(1 << 20, "uint8") for _ in range(100)]
    assert len(files()) <= before + 5
    assert len(many) == 100


def test_zeros_are_zero_where_memory_was_used_before() -> None:
    for _ in range(3):
        x = gradred.zeros(50 * SMALL, "uint8")
        assert not x.any()
        x.fill(255)
        del x


@pytest.mark.parametrize(
    ("limit", "reason"),
    [("RLIMIT_AS", "Cannot allocate memory"), ("RLIMIT_NOFILE", "Too many open files")],
)
def test_refused_memory_is_a_memory_error_that_says_why(limit: str, reason: str) -> None:
    program = f"""
        import os, resource
        import gradred
        gradred.empty(1)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize() + (64 << 20)
        hard = resource.getrlimit(resource.{limit})[1]
        value = used if "{limit}" == "RLIMIT_AS" else 3
        resource.setrlimit(resource.{limit}, (value, hard))
        try:
            gradred.empty(1 << 30, "uint8")
        except MemoryError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60
    )
    assert reason in done.stdout, done
    assert "empty of 1073741824 bytes" in done.stdout


# ---- the sum of all processes' memory -----------------------------------------------------------

GIB = 1 << 30
WORKERS = 3


def available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


def share(pid: int) -> int:
    """A process's proportional share of memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


@pytest.mark.skipif(available() < 6 * GIB, reason="less than 6 GiB of memory are available")
@pytest.mark.timeout(120)
def test_forked_pool_and_a_parent_that_writes_do_not_double_a_quarter_of_a_gib() -> None:
    x = gradred.zeros(GIB // 4 // 8, "int64")
    begin = share(os.getpid())  # other tests have left much memory there, too
    stop, never = os.pipe()
    done, say = os.pipe()
    workers = []
    for _ in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            os.close(never)
            x[:: 4096 // 8].sum()  # touches every page
            os.write(say, b".")
            os.read(stop, 1)
            os._exit(0)
        workers.append(pid)
    try:
        for _ in range(WORKERS):
            os.read(done, 1)
        x.fill(1)  # with private memory each page would exist twice now
        shares = share(os.getpid()) + sum(map(share, workers)) - begin
    finally:
        for end in (never, stop, done, say):
            os.close(end)
        ended = [os.waitpid(pid, 0)[1] for pid in workers]
    assert ended == [0] * WORKERS
    assert shares < 0.375 * GIB, "each page counts once"


@pytest.mark.parametrize("shape", [-1, (2, -3), 1.5, "3"])
def test_shapes_that_are_none_are_refused(shape: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        gradred.empty(shape)


def test_lengths_may_be_of_any_kind_of_whole_number() -> None:
    assert gradred.empty(np.int64(3)).shape == (3,)
    assert gradred.zeros([np.int8(2), 2]).shape == (2, 2)


def test_memory_of_a_gpu_says_that_there_is_no_driver() -> None:
    program = "import gradred\ngradred.empty(3, device='cuda')"
    environment = os.environ | {"GRADRED_LIBCUDA": "/nowhere/libcuda.so"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "DeviceError" in done.stderr
    assert "cannot be loaded: /nowhere/libcuda.so" in done.stderr, done.stderr


@pytest.mark.parametrize("dtype", ["float33", "datetime64[s]", "U3"])
def test_type_that_is_none_or_is_not_reduced_is_a_usage_error(dtype: str) -> None:
    with pytest.raises(gradred.UsageError, match=r"^an array of .* Use one of int8, ") as caught:
        gradred.empty(4, dtype)
    assert isinstance(caught.value, TypeError)


def test_types_of_pytorch_serve_by_their_names() -> None:
    class Type:
        __module__ = "torch"

        def __str__(self) -> str:
            return "torch.int16"

    given: Any = Type()
    assert gradred.empty(4, given).dtype == np.int16
    assert gradred.zeros((2, 3), given).dtype == np.int16


def test_more_than_the_machine_has_is_refused_before_it_is_filled() -> None:
    """Run in a process that cannot make such a file, because the kernel could kill it or others."""
    program = """
import os, resource, gradred
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
try:
    gradred.empty(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + 1, "uint8")
except MemoryError as error:
    print("the machine has" in str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "True\n", done.stdout + done.stderr
