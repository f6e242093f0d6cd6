"""The examples and benchmarks do what they promise, on one, two and three ranks."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi import sizes
from mpi4py import MPI

import gradred

ROOT = Path(__file__).resolve().parents[2]
WORLD = MPI.COMM_WORLD

pytestmark = sizes.up_to_three_ranks
needs_images = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="scikit-learn has the images"
)


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import from the two folders as their programs do; one BLAS thread per rank."""
    for folder in ("examples", "benchmarks"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    if importlib.util.find_spec("threadpoolctl") is None:  # this package comes with scikit-learn
        yield
        return
    with importlib.import_module("threadpoolctl").threadpool_limits(1):
        yield


@pytest.fixture
def shared_path(tmp_path: Path) -> Path:
    """The folder of rank 0, the same on every rank."""
    path: Path = WORLD.bcast(tmp_path)
    return path


@needs_images
def test_digits_weights_equal_those_of_one_process_in_all_bits() -> None:
    import demo_parts
    import digits

    steps = 6
    images, labels, batches, _ = digits.digits()
    network = demo_parts.network(WORLD.size)
    for batch in batches[:steps]:
        network.step(gradred.Comm(WORLD), images, labels, batch)
    assert network.weights.tobytes() == demo_parts.alone(WORLD.size, steps).tobytes()


@needs_images
def test_digits_learns_from_shards_of_unequal_length() -> None:
    import digits

    images, labels, batches, test = digits.digits()
    network = digits.Network()
    for batch in batches[:24]:
        # a prime, so that parts are never equal
        network.step(gradred.Comm(WORLD), images, labels, batch[:101])
    right = network.forward(images[test])[-1].argmax(axis=1) == labels[test]
    assert right.mean() > 0.85


@needs_images
def test_digits_gradient_of_shards_adds_up_to_that_of_the_batch() -> None:
    import digits

    images, labels, (batch, *_), _ = digits.digits()
    whole, parts = digits.Network(), digits.Network()
    whole.gradient(images[batch], labels[batch], len(batch))
    total = np.zeros_like(whole.grads)
    for shard in np.array_split(batch, 7):
        parts.gradient(images[shard], labels[shard], len(batch))
        total += parts.grads
    np.testing.assert_allclose(total, whole.grads, rtol=0, atol=1e-6)


@needs_images
def test_digits_gradient_is_the_slope_of_the_loss() -> None:
    import digits

    images, labels, (batch, *_), _ = digits.digits()
    network = digits.Network()

    def loss() -> float:
        scores = network.forward(images[batch])[-1].astype(np.float64)
        logs = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(batch)), labels[batch]]
        return float(logs.mean())

    network.gradient(images[batch], labels[batch], len(batch))
    direction = network.grads / np.linalg.norm(network.grads)
    before, step = network.weights.copy(), np.float32(1e-2)
    network.weights[:] = before + step * direction
    above = loss()
    network.weights[:] = before - step * direction
    slope = (above - loss()) / (2 * step)
    assert slope == pytest.approx(np.linalg.norm(network.grads), rel=0.01)


@needs_images
def test_rounded_gradients_add_up_alike_in_every_order() -> None:
    import demo_parts
    import digits

    images, labels, (batch, *_), _ = digits.digits()
    network = demo_parts.Rounded(5)
    parts = []
    for shard in np.array_split(batch, 5):
        network.gradient(images[shard], labels[shard], len(batch))
        parts.append(network.grads.copy())
    exact = np.sum(parts, axis=0, dtype=np.float64).astype(np.float32)
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        total = np.zeros_like(exact)
        for index in order:
            total += parts[index]
        np.testing.assert_array_equal(total, exact)


@needs_images
def test_adopted_program_prints_what_it_printed_before(capsys: pytest.CaptureFixture[str]) -> None:
    source = (ROOT / "examples" / "adopt.py").read_text()
    without = "\n".join(line for line in source.splitlines() if "<- the one line" not in line)
    printed = []
    for program in (source, without):
        exec(compile(program, "adopt.py", "exec"), {"__name__": "__main__"})
        printed.append(capsys.readouterr().out)
    # without the line, and without the end of the last line
    assert without.count("\n") == source.count("\n") - 2
    assert printed[0] == printed[1]
    assert ("purity" in printed[0]) == (WORLD.rank == 0)


def run_benchmark(
    program: Any, monkeypatch: pytest.MonkeyPatch, path: Path, *options: str
) -> tuple[int, dict[str, Any]]:
    """The exit status and, on every rank, the record that rank 0 wrote."""
    monkeypatch.setattr(sys, "argv", [program.__name__, "--json", str(path), *options])
    status = program.main()
    return status, WORLD.bcast(json.loads(path.read_text()) if WORLD.rank == 0 else None)


def test_benchmark_records_a_checked_row_for_each_size(
    monkeypatch: pytest.MonkeyPatch, shared_path: Path
) -> None:
    import allreduce

    options = ["--max", "16384", "--also", "4000", "--rounds", "3", "--seconds", "0.5"]
    options += ["--passes", "2"]
    status, record = run_benchmark(allreduce, monkeypatch, shared_path / "a.json", *options)
    assert status == 0
    assert record["schema"] == "gradred-allreduce/2"
    assert record["ranks"] == WORLD.size
    assert [row["bytes"] for row in record["rows"]] == [
        8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4000, 4096, 8192, 12288, 16384,
    ]  # fmt: skip
    for row in record["rows"]:
        assert row["checked"]
        assert len(row["gradred_rounds_us"]) == len(row["mpi_rounds_us"]) == row["rounds"] == 6
        assert min(row["gradred_us"], row["mpi_us"], row["ratio"]) > 0
        assert len(row["placement_rounds"]) == 6
        assert all((flag is None) == (WORLD.size == 1) for flag in row["flag_rounds_us"])
        assert sum(part["rounds"] for part in row["placements"].values()) == 6
    total = 6 * len(record["rows"])
    assert sum(part["rounds"] for part in record["placements"].values()) == total
    assert set(record["placements"]) <= {"near", "far", "all", "unknown"}


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([0.04, 0.25] * 5, ["near", "far"] * 5),
        ([0.04, 0.05, 0.06, 0.05, 0.04], ["all"] * 5),
        ([0.04] * 9 + [0.25], ["all"] * 10),  # one round is not a placement
        ([0.24, 5.0, 0.25, 0.25, 7.0], ["all", "unknown", "all", "all", "unknown"]),
        ([0.3, 0.04, 0.25, 2.0, 0.05], ["far", "near", "far", "unknown", "near"]),
        ([None] * 3, ["unknown"] * 3),
        ([], []),
    ],
)
def test_rounds_are_near_or_far_where_their_one_way_latencies_fall_into_two_groups(
    flags: list[float | None], names: list[str]
) -> None:
    import placement

    assert placement.named(flags) == names


def test_benchmark_fails_where_it_is_slower_than_allowed(
    monkeypatch: pytest.MonkeyPatch, shared_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import allreduce

    options = ["--max", "8", "--rounds", "3", "--seconds", "0.1", "--check-slower", "1e-9"]
    status, _ = run_benchmark(allreduce, monkeypatch, shared_path / "a.json", *options)
    assert status == 1
    assert ("at bytes [8]" in capsys.readouterr().err) == (WORLD.rank == 0)


def test_benchmark_refuses_a_wrong_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import allreduce

    class Wrong(MPI.Intracomm):
        def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:  # noqa: N802
            super().Allreduce(sendbuf, recvbuf, op)
            if sendbuf is MPI.IN_PLACE:
                recvbuf[-1] += self.rank == self.size - 1

    monkeypatch.setattr(gradred, "Comm", Wrong)
    monkeypatch.setattr(sys, "argv", ["allreduce", "--max", "8", "--seconds", "0.1"])
    assert allreduce.main() == 1
    error = capsys.readouterr().err
    assert ("wrong result at 8 bytes: gradred in place\n" in error) == (WORLD.rank == 0)


def test_plot_draws_the_medians_and_the_ratios_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    import allreduce

    rows = []
    for size, seconds in (8, [[1.0, 2.0], [3.0, 4.0], [2.0, 9.0]]), (16, [[1.0, 2.0]] * 4):
        found = allreduce.Measured(size, 2)  # sizes may have different numbers of rounds
        found.times = np.array(seconds)
        rows.append(found.row())
    record = {"rows": rows, "ranks": 2, "hosts": 1, "versions": {"gradred": "7.8"}}
    record["arguments"] = {"type": "float32", "op": "sum"}
    drawn: list[Any] = []
    draw = allreduce.plot.draw
    monkeypatch.setattr(allreduce.plot, "draw", lambda *given: drawn.append(given) or draw(*given))
    allreduce.draw(record, tmp_path / "new" / "plot.svg")
    ours, theirs = drawn[0][2]
    assert list(ours.times) == [row["gradred_us"] for row in rows] == [2e6, 1e6]
    assert list(theirs.times) == [row["mpi_us"] for row in rows]
    assert theirs.ratios == [row["ratio"] for row in rows]
    assert (theirs.ratios_low, theirs.ratios_high) == tuple(
        [row[name] for row in rows] for name in ("ratio_p10", "ratio_p90")
    )
    text = (tmp_path / "new" / "plot.svg").read_text()
    for said in ("gradred 7.8", allreduce.mpi_name(), "8 B", "16 B"):
        assert f"<!-- {said} -->" in text
    assert "line: median of the rounds" in text


def test_call_cost_times_every_way_to_call(
    monkeypatch: pytest.MonkeyPatch, shared_path: Path
) -> None:
    import call_cost

    options = ["--rounds", "2", "--seconds", "0.2"]
    status, record = run_benchmark(call_cost, monkeypatch, shared_path / "c.json", *options)
    assert status == 0
    ways = ["mpi4py", "gradred", "mpi4py, persistent", "gradred, persistent", "allreduce", "new"]
    ways += ["bcast", "allgather", "reduce_scatter", "iallreduce", "many", "scalar"]
    found = [row["call"] for row in record["rows"] if not row["call"].startswith("torch")]
    assert found == ways * len({1, WORLD.size})


def test_every_call_is_measured_against_the_mpi(
    monkeypatch: pytest.MonkeyPatch, shared_path: Path
) -> None:
    import every_call

    options = ["--rounds", "3", "--seconds", "0.5", "--sizes", "64"]
    status, record = run_benchmark(every_call, monkeypatch, shared_path / "c.json", *options)
    assert status == 0
    assert [row["call"] for row in record["rows"]] == list(every_call.CALLS)
    below = [row["call"] for row in record["rows"] if row["ratio"] < every_call.LIMIT]
    assert sorted(call for call, *_ in record["below"]) == sorted(below)


@pytest.mark.parametrize("between", ["arrivals", "work"])
def test_calls_are_timed_alone_where_ranks_come_apart(
    monkeypatch: pytest.MonkeyPatch, shared_path: Path, between: str
) -> None:
    import every_call

    calls = ["Comm.Allreduce_init, Start, Wait", "Comm.Iallreduce, work, Wait"]
    options = ["--rounds", "3", "--seconds", "0.1", "--sizes", "64", "--between", between]
    options += ["--dtypes", "i8", "c16", "--calls", *calls]
    status, record = run_benchmark(every_call, monkeypatch, shared_path / "c.json", *options)
    assert status == 0
    assert [(row["call"], row["dtype"]) for row in record["rows"]] == [
        (call, dtype) for call in calls for dtype in ("i8", "c16")
    ]
    for row in record["rows"]:
        for who in ("gradred", "mpi"):
            assert 0 < row["us"][who] <= row["worst_us"][who]


def test_a_call_with_another_result_than_the_mpis_is_not_timed(
    monkeypatch: pytest.MonkeyPatch, shared_path: Path
) -> None:
    import every_call

    wrong = every_call.Pair("y = gradred.allreduce(x) + 1", "w.Allreduce(x, y)")
    monkeypatch.setitem(every_call.CALLS, "allreduce", wrong)
    options = ["--calls", "allreduce", "--sizes", "64"]
    with pytest.raises(SystemExit, match="allreduce of 64 bytes, f4: the results differ"):
        run_benchmark(every_call, monkeypatch, shared_path / "c.json", *options)


@pytest.mark.parametrize("equal", [True, False])
def test_last_screen_of_the_demo_is_short_and_tells_unequal_weights(
    tmp_path: Path, equal: bool
) -> None:
    import demo

    row = {"bytes": 40, "gradred_us": 1500.0, "mpi_us": 3000.0, "ratio": 2.0}
    row |= {"ratio_p10": 1.9, "ratio_p90": 2.1, "flag_rounds_us": [0.1] * 9}
    training = {"ranks": 2, "accuracy": 0.97, "tested": 360, "steps": 9, "bytes": 40}
    contents = {
        "training": training | {"exchange_seconds": 1.5, "ranks_alike": True},
        "check": {"equal": equal, "weights": 10, "different": 3, "largest_difference": 1e-7},
        "allreduce": {"rows": [row]},
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    screen = demo.last_screen(tmp_path, {"training": 1.0, "comparison": 2.0}, 0)
    assert len(screen) <= 12
    assert "40 bytes: gradred 1.50, mpi4py 3.00 ms; ratio 2.00 (rounds: 1.9 to 2.1)" in "\n".join(
        screen
    )
    assert any("yes, all bits of 10" in line for line in screen) == equal
    assert any("NO: 3 differ" in line for line in screen) != equal
    assert not any("BUSY" in line for line in screen)
    screen = demo.last_screen(tmp_path, {"training": 1.0, "comparison": 2.0}, 3)
    assert len(screen) <= 12
    assert any("BUSY" in line and "3 other programs ran" in line for line in screen)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([0.04, 0.25] * 20, ""),
        ([0.1] * 39 + [40.0], ""),
        ([0.1] * 30 + [40.0] * 10, "before 10 of 40 rounds a rank waited for a core"),
        ([None] * 5, ""),  # one rank
    ],
)
def test_demo_tells_a_busy_machine_by_its_one_way_latencies(
    flags: list[float | None], line: str
) -> None:
    import demo

    assert demo.busy_machine(0, {"rows": [{"flag_rounds_us": flags}]}) == line
