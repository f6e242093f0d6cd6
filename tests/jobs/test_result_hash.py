"""`GRADRED_RESULT_HASH` and `gradred.result_hash` find the first call whose results differ."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import gradred
from gradred import config, launch

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(launch.inside_job() is not None, reason="ranks cannot start ranks"),
]
LINE = re.compile(r"(\d{9}) (.+): (.+) ([0-9a-f]{16})")


def run(folder: Path, body: str, ranks: int = 2, **knobs: str) -> list[list[tuple[str, ...]]]:
    """The lines of each rank's file, sorted: number, call, subject, hash."""
    program = folder / "program.py"
    program.write_text(textwrap.dedent(body))
    command = [sys.executable, "-m", "gradred", "run", "-np", str(ranks), str(program)]
    knobs |= {"GRADRED_RESULT_HASH": str(folder / "hashes" / "run.txt")}
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(config.PREFIX)
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=50, env={**clean, **knobs}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = [folder / "hashes" / f"run.{rank}.txt" for rank in range(ranks)]
    found = [sorted(file.read_text().splitlines()) for file in files]
    matches = [[LINE.fullmatch(line) for line in lines] for lines in found]
    assert all(match for lines in matches for match in lines), found
    return [[match.groups() for match in lines if match] for lines in matches]


CALLS = """
    import sys
    import numpy as np
    from mpi4py import MPI
    import gradred

    comm = gradred.Comm(MPI.COMM_WORLD)
    other = gradred.Comm(MPI.COMM_WORLD.Dup())
    x = np.arange(1000.0) * (comm.rank + 1)
    for step in range(3):
        x[7] = step
        y = np.empty_like(x)
        comm.Allreduce(x, y)
        if step == 1 and {changed}:
            y[0] = -1
        comm.Iallreduce(MPI.IN_PLACE, y, MPI.MAX).Wait()
    operation = other.Allreduce_init(x, y)
    operation()
    operation.Start()
    operation.Wait()
    other.Bcast(x)
    z = gradred.reduce_scatter_block(x, comm=other)

    gradred.allreduce_many([x[:3], y[:5]], comm=other)
"""


def test_lines_name_the_calls_and_are_alike_on_all_ranks(tmp_path: Path) -> None:
    first, second = run(tmp_path, CALLS.format(changed=False))
    assert [line[:3] for line in first] == [line[:3] for line in second]
    scattered = [line for line in first if "scatter" in line[2]]
    assert [a != b for a, b in zip(first, second, strict=True)] == [
        line in scattered for line in first
    ]
    assert [line[:3] for line in first if line[1] == "communicator 1"] == [
        (f"{number:09}", "communicator 1", f"allreduce of 1000 float64 with {op}")
        for number, op in enumerate(["sum", "max"] * 3, 1)
    ]
    assert [line[2].split()[0] for line in first if line[1] == "communicator 2"] == [
        *("allreduce", "allreduce", "bcast", "reduce_scatter_block", "allreduce")
    ]


def test_first_line_that_differs_is_the_first_call_that_did(tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"
    again.mkdir()
    other.mkdir()
    usual = run(tmp_path, CALLS.format(changed=False))
    assert run(again, CALLS.format(changed=False)) == usual
    changed = run(other, CALLS.format(changed=True))
    differing = [a for a, b in zip(usual[0], changed[0], strict=True) if a != b]
    assert differing[0][:3] == (
        *("000000004", "communicator 1", "allreduce of 1000 float64 with max"),
    )


NAMED = """
    import torch
    import gradred.torch as hvd

    hvd.init()
    for step in range(2):
        handles = [
            hvd.allreduce_async(torch.full((n,), 1.0 + hvd.rank()), name=f"layer{n}", op=hvd.Sum)
            for n in (3, 5)
        ]
        for handle in handles:
            hvd.synchronize(handle)
    hvd.barrier()
    hvd.allgather(torch.ones(hvd.rank() + 1), name="gathered")
"""


def test_named_operations_have_lines_by_their_names(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    first, second = run(tmp_path, NAMED)
    by_name = [line for line in first if "layer" in line[1] or "gathered" in line[1]]
    assert [line[:3] for line in by_name] == [
        ("000000001", "'allgather.gathered'", "allgather"),
        ("000000001", "'allreduce.layer3'", "allreduce"),
        ("000000001", "'allreduce.layer5'", "allreduce"),
        ("000000002", "'allreduce.layer3'", "allreduce"),
        ("000000002", "'allreduce.layer5'", "allreduce"),
    ]
    assert first == second
    sums = {line[1]: line[3] for line in by_name}
    assert sums["'allreduce.layer3'"] == f"{gradred.result_hash(np.full(3, 3.0, 'float32')):016x}"
    assert sums["'allgather.gathered'"] == f"{gradred.result_hash(np.ones(3, 'float32')):016x}"


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31, 32, 33, 1000])
def test_hash_tells_every_byte_and_the_length(count: int) -> None:
    x = np.random.default_rng(1).integers(0, 256, count, dtype="uint8")
    whole = gradred.result_hash(x)
    assert 0 <= whole < 2**64
    assert gradred.result_hash(x.copy()) == whole
    assert gradred.result_hash(np.append(x, np.uint8(0))) != whole
    for place in range(count):
        x[place] ^= 1 << place % 8
        assert gradred.result_hash(x) != whole
        x[place] ^= 1 << place % 8


def test_hash_is_that_of_the_memory_whatever_library_has_it() -> None:
    torch = pytest.importorskip("torch")
    x = np.arange(12, dtype="float32").reshape(3, 4)
    assert gradred.result_hash(torch.from_numpy(x)) == gradred.result_hash(x)
    assert gradred.result_hash(torch.from_numpy(x).requires_grad_()) == gradred.result_hash(x)
    assert gradred.result_hash(x.T) == gradred.result_hash(x)
    with pytest.raises(gradred.UsageError, match="not dense"):
        gradred.result_hash(x[:, ::2])
