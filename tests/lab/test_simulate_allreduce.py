"""Predictions of allreduce: a known model is found again, every row gets an answer and a band."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradred import cli
from gradred_lab.simulate import accuracy, patterns
from gradred_lab.simulate.measured import Case, Measured
from gradred_lab.simulate.patterns import INSIDE, KEPT, REDUCED

pytest.importorskip("sklearn")

from gradred_lab.simulate import validation
from gradred_lab.simulate.allreduce import Clusters, banded
from gradred_lab.simulate.costs import Prior

SIZES = [32, 256, 2048, 16384, 131072, 1 << 20, 8 << 20, 64 << 20]
COLUMNS = (
    *("system", "nodes", "ranks", "buffer", "library", "impl", "algorithm", "segment_bytes"),
    *("bytes", "run", "note"),
)
ALPHA, BETA = 2.0, 3e-4  # microseconds per message and per byte of the synthetic cluster


def case(algorithm: str = "ring", nodes: int = 8, nbytes: int = 1024, **more: object) -> Case:
    given: dict[str, object] = {
        "system": "Testbed",
        "nodes": nodes,
        "ranks": nodes,
        "buffer": "host",
        "library": "MPI 1",
        "impl": "mpi",
        "algorithm": algorithm,
        "segment": "",
        "bytes": nbytes,
        "run": f"2025_01_01___{nodes}",
        "note": "",
    }
    return Case(**{**given, **more})  # type: ignore[arg-type]


def doubling(p: int, n: float) -> float:
    return math.log2(p) * (ALPHA + BETA * n)


def halving(p: int, n: float) -> float:
    return 2 * (math.log2(p) * ALPHA + BETA * n * (p - 1) / p)


def ring(p: int, n: float) -> float:
    return 2 * (p - 1) * (ALPHA + BETA * n / p)


KNOWN: dict[str, Callable[[int, float], float]] = {
    "recursive_doubling": doubling,
    "rabenseifner": halving,
    "ring": ring,
}


def rows(
    scales: tuple[int, ...] = (8, 16, 32, 64), noise: float = 0.0, **more: object
) -> list[Measured]:
    """Times of three algorithms on a cluster whose messages cost the same everywhere."""
    chance = random.Random(3)
    return [
        Measured(
            case(name, p, n, **more),
            time(p, n) * math.exp(chance.gauss(0, noise)),
            None,
            None,
            None,
        )
        for p in scales
        for name, time in KNOWN.items()
        for n in SIZES
        if name == "recursive_doubling" or n >= 4 * p
    ]


@pytest.mark.parametrize("name", KNOWN)
def test_known_model_is_found_again_at_two_and_four_times_the_scale(name: str) -> None:
    model = Clusters(rows())
    for p, bound in ((128, 0.06), (256, 0.12)):
        cases = [case(name, p, n, run="") for n in SIZES if n >= 4 * p]
        guess = model.guess(cases)
        errors = [
            abs(math.expm1(mean - math.log(KNOWN[name](p, one.bytes))))
            for one, mean in zip(cases, guess.mean, strict=True)
        ]
        assert max(errors) < bound


def test_times_grow_with_scale_where_there_is_more_to_do() -> None:
    model = Clusters(rows())
    for name in KNOWN:
        guess = model.guess([case(name, p, 1 << 20) for p in (64, 128, 256, 512, 1024)])
        assert list(guess.mean) == sorted(guess.mean)


def test_switch_of_protocol_is_learned_from_the_messages_length() -> None:
    """A message above 64 KiB costs 30 us more, whichever algorithm sends it."""

    def message(m: float) -> float:
        return ALPHA + BETA * m + 30.0 * (m > 65536)

    fit = [
        Measured(case("ring", p, n), 2 * (p - 1) * message(n / p), None, None, None)
        for p in (8, 16, 32)
        for n in (2**k for k in range(10, 29))
    ]
    cases = [case("ring", 64, 2**k, run="") for k in range(12, 28)]
    guess = Clusters(fit).guess(cases)
    errors = sorted(
        abs(mean - math.log(2 * 63 * message(one.bytes / 64)))
        for one, mean in zip(cases, guess.mean, strict=True)
    )
    assert errors[len(errors) // 2] < 0.08
    assert errors[-1] < 0.8  # beside the switch itself


def test_bands_hold_nine_of_ten_in_cross_validation_on_noisy_times() -> None:
    fit = rows((8, 16, 32, 64, 128), noise=0.1)
    tried = validation.attempts(fit, Prior())
    bands = validation.errors(tried, fit, Clusters(fit))
    beyond = [attempt for attempt in tried if attempt.is_beyond]
    reach = bands.reach("Testbed host", "extrapolated, near")
    assert {attempt.step for attempt in beyond} == {"extrapolated, near"}
    inside = [attempt.trial.deviations <= reach for attempt in beyond]
    assert 0.85 <= sum(inside) / len(inside) <= 1.0
    assert accuracy.accuracy([attempt.trial for attempt in beyond], reach).median < 15


def test_band_of_what_was_never_measured_is_wider() -> None:
    model = Clusters(rows())
    known, strange, elsewhere = model.guess(
        [case("ring", 128), case("nobody_knows", 128), case("ring", 128, system="Elsewhere")]
    ).deviation
    assert known < strange < elsewhere


@pytest.mark.parametrize(
    "strange",
    [
        case("nobody_knows"),
        case("ring", system="Elsewhere", buffer="gpu"),
        case("ring", 1, 0),
        case("recursive_doubling", 3, 1),
        case("ring", 100_000, 1 << 40),
        case("bine_bandwidth_segmented", 60, 8192, segment="512"),
        case("bine_bandwidth_segmented", 64, 8192, segment="n/p"),
        case("default", 17, 77),
        case("hierarchical_bandwidth", 4, 1 << 20, ranks=16),
        case("nccl_tree", 2, 1 << 20, ranks=3, impl="nccl", buffer="gpu"),
        case("trix6", 64, 1 << 20, note="torus 64x64x64"),
        case("ring", 64, 1 << 20, impl="utofu", note="torus 4x4x4; 6 ports", run="2025_99_99"),
        case("ring", 8, 1024, ranks=2),
    ],
    ids=lambda one: f"{one.algorithm}-{one.nodes}-{one.bytes}",
)
def test_every_row_gets_an_ordered_band_and_a_reason(strange: Case) -> None:
    model = Clusters(rows())
    one = banded(model.guess([strange]), 0, 1.645, model.reason(strange))
    assert 0 < one.low_us <= one.us <= one.high_us < math.inf
    assert one.reason


def test_one_measurement_is_enough_to_predict() -> None:
    guess = Clusters(rows()[:1]).guess([case("ring", 512, 1 << 20)])
    assert 0 < math.exp(guess.mean[0]) < math.inf


def test_algorithm_that_switches_follows_the_one_whose_time_it_shares() -> None:
    fit = rows()
    fit += [
        Measured(
            case("default", p, n), doubling(p, n) if n < 4096 else halving(p, n), None, None, None
        )
        for p in (8, 16, 32, 64)
        for n in SIZES
    ]
    model = Clusters(fit)
    small, large = case("default", 128, 512, run=""), case("default", 128, 32 << 20, run="")
    assert "doubling, switches" in model.reason(small)
    assert "halving, switches" in model.reason(large)
    guess = model.guess([small, large])
    assert math.exp(guess.mean[0]) == pytest.approx(doubling(128, 512), rel=0.1)
    assert math.exp(guess.mean[1]) == pytest.approx(halving(128, 32 << 20), rel=0.1)


def test_library_that_compares_times_switches_elsewhere_at_another_scale() -> None:
    def tree(p: int, n: float) -> float:
        piece = min(n, math.sqrt(n * patterns.PIECE))
        return 2 * math.log2(p) * (ALPHA + BETA * piece) + BETA * n

    def of_nccl(name: str, p: int, n: int, run: str = "one") -> Case:
        return case(name, p, n, impl="nccl", buffer="gpu", run=run)

    times: dict[str, Callable[[int, float], float]] = {
        "nccl_ring": ring,
        "nccl_tree": tree,
        "nccl_collnet": lambda p, n: min(ring(p, n), tree(p, n)),
    }
    fit = [
        Measured(of_nccl(name, p, n), time(p, n), None, None, None)
        for name, time in times.items()
        for p in (4, 8)
        for n in SIZES
    ]
    nodes, nbytes = 128, 128 << 10
    assert ring(8, nbytes) < tree(8, nbytes)
    assert tree(nodes, nbytes) < ring(nodes, nbytes)
    asked = [of_nccl(name, nodes, nbytes, "") for name in times]
    model = Clusters(fit)
    assert "GPU tree, switches, to the fastest of those that it takes" in model.reason(asked[-1])
    ring_us, tree_us, chosen_us = (math.exp(mean) for mean in model.guess(asked).mean)
    assert tree_us < ring_us
    assert chosen_us == pytest.approx(tree_us, rel=0.05)


def test_name_that_the_library_did_not_heed_counts_as_what_it_ran() -> None:
    other = [row for row in rows((8, 16)) if row.case.algorithm != "ring"]
    unheeded = [
        Measured(case("recursive_doubling", p, n, impl="other"), halving(p, n), None, None, None)
        for p in (8, 16)
        for n in SIZES[-4:]
    ]
    model = Clusters([*other, *unheeded])
    reason = model.reason(case("recursive_doubling", 32, 8 << 20, impl="other", run=""))
    assert reason.startswith("halving")


# ---- what is sent -----------------------------------------------------------------------------


def sent(one: Case) -> Iterator[tuple[int, float, float]]:
    family = patterns.family_of(one)
    assert family
    for send in patterns.pattern(one, family).sends:
        if send.kind in (REDUCED, KEPT, INSIDE):
            yield send.kind, send.times, send.bytes


@pytest.mark.parametrize("p", [2, 8, 64])
@pytest.mark.parametrize("name", ["ring", "rabenseifner", "bine_bandwidth_segmented"])
def test_algorithms_that_spare_bandwidth_send_two_vectors_less_a_share(name: str, p: int) -> None:
    n = 1 << 20
    one = case(name, p, n, segment="4096" if "segmented" in name else "")
    total = sum(times * nbytes for _, times, nbytes in sent(one))
    assert total == pytest.approx(2 * n * (p - 1) / p)


def test_rounds_of_doubling_grow_by_two_where_ranks_are_no_power_of_two() -> None:
    def rounds(p: int) -> float:
        return sum(times for _, times, _ in sent(case("recursive_doubling", p)))

    assert [rounds(p) for p in (4, 5, 8, 60, 64)] == [2, 4, 3, 7, 6]


def test_rounds_inside_nodes_are_not_between_them() -> None:
    kinds = [kind for kind, _, _ in sent(case("recursive_doubling", 4, ranks=16)) if kind == INSIDE]
    assert len(kinds) == 1
    times = {kind: times for kind, times, _ in sent(case("recursive_doubling", 4, ranks=16))}
    assert times[INSIDE] == 2


def test_segment_of_one_ranks_part_makes_as_many_messages_as_a_ring() -> None:
    one = case("bine_bandwidth_segmented", 64, 1 << 20, segment="n/p")
    assert sum(times for _, times, _ in sent(one)) == 2 * 63


def test_ring_of_less_than_an_element_a_rank_is_recursive_doubling() -> None:
    assert patterns.pattern(case("ring", 64, 128), "ring").family == "doubling"


# ---- the command, which reads tables with pandas -----------------------------------------------


@pytest.fixture
def reads_tables() -> None:
    pytest.importorskip("pandas")


def write(path: Path, table: list[Measured], *, times: bool) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [*COLUMNS, *(("median_us", "p10_us", "p90_us", "n_samples") if times else ())]
        )
        for row in table:
            one = row.case
            given = [
                *(one.system, one.nodes, one.ranks, one.buffer, one.library, one.impl),
                *(one.algorithm, one.segment, one.bytes, one.run, one.note),
            ]
            writer.writerow(
                [*given, *((row.us, row.us * 0.98, row.us * 1.02, 50) if times else ())]
            )
    return str(path)


@pytest.mark.usefixtures("reads_tables")
def test_record_has_each_row_in_order_and_the_error_by_system_and_algorithm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = write(tmp_path / "fit.csv", rows((8, 16, 32)), times=True)
    wanted = [
        Measured(case(name, p, n, run=""), 1.0, None, None, None)
        for name in ("ring", "nobody_knows", "rabenseifner")
        for p in (128, 64)
        for n in (1 << 20, 512)
    ]
    asked = write(tmp_path / "rows.csv", wanted, times=False)
    out = tmp_path / "new" / "out.json"
    words = ["simulate", "allreduce", "--calibrate", fit, "--rows", asked, "--json", str(out)]
    assert cli.main(words) == cli.DONE
    record = json.loads(out.read_text())
    assert record["schema"] == "gradred-simulate-allreduce/1"
    assert [(one["algorithm"], one["nodes"], one["bytes"]) for one in record["rows"]] == [
        (one.case.algorithm, one.case.nodes, one.case.bytes) for one in wanted
    ]
    for one in record["rows"]:
        errors = ("error_median_percent", "error_p95_percent", "error_of")
        assert list(one) == [*COLUMNS, "predicted_us", "low_us", "high_us", *errors, "reason"]
        assert 0 < one["low_us"] <= one["predicted_us"] <= one["high_us"]
        assert one["reason"].startswith("predicted (simulated): ")
    validated = record["cross_validation"]
    assert {one["algorithm"] for one in validated["by_algorithm"]} == set(KNOWN)
    for part in ("by_system", "by_algorithm", "by_scale", "by_length"):
        for one in validated[part]:
            assert {"median_error_percent", "p95_error_percent"} <= set(one["all"])
    assert [one["nodes"] for one in validated["by_scale"]] == [8, 16, 32]
    printed = capsys.readouterr().out
    assert "12 times predicted (simulated)" in printed
    assert "Testbed host mpi ring" in printed


@pytest.mark.usefixtures("reads_tables")
def test_predictions_that_nothing_could_be_compared_with_say_that_their_error_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [one for one in rows((8, 16)) if one.case.algorithm == "ring"]
    one_scale = [one for one in both if one.case.nodes == 8]
    fit = write(tmp_path / "fit.csv", both, times=True)
    asked = write(
        tmp_path / "rows.csv",
        [replace(one, case=replace(one.case, system=s)) for one in both for s in ("Testbed", "Z")],
        times=False,
    )
    words = ["simulate", "allreduce", "--calibrate", fit, "--rows", asked, "--json", "-"]
    assert cli.main(words) == cli.DONE
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    unknown = {"system": "Z host", "step": "from other systems", "rows": len(both)}
    assert record["cross_validation"]["not_compared"] == [unknown]
    assert f"Error of {len(both)} of these, for Z host: not known." in printed.err
    assert "for Testbed" not in printed.err
    for one in record["rows"]:
        assert (one["error_median_percent"] is None) == (one["system"] == "Z")
        assert one["error_of"].startswith("not known") == (one["system"] == "Z")
    write(tmp_path / "fit.csv", one_scale, times=True)
    assert cli.main(words[:-2]) == cli.DONE
    printed = capsys.readouterr()
    assert "for Testbed host: not known. They are extrapolated, near" in printed.out
    assert "left out  " not in printed.out, "a table without lines"


@pytest.mark.usefixtures("reads_tables")
def test_record_goes_to_stdout_and_the_table_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = write(tmp_path / "fit.csv", rows((8, 16)), times=True)
    words = ["simulate", "allreduce", "--calibrate", fit, "--rows", fit, "--json", "-"]
    assert cli.main(words) == cli.DONE
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)["rows"]) == len(rows((8, 16)))
    assert "predicted (simulated)" in printed.err
    assert "Guesses of the model" in printed.err
    assert "network_of_a_further_rank 0.333" in printed.err


@pytest.mark.usefixtures("reads_tables")
def test_table_without_rows_gives_a_record_without_rows(tmp_path: Path) -> None:
    fit = write(tmp_path / "fit.csv", rows((8,)), times=True)
    asked = write(tmp_path / "rows.csv", [], times=False)
    out = tmp_path / "out.json"
    words = ["simulate", "allreduce", "--calibrate", fit, "--rows", asked, "--json", str(out)]
    assert cli.main(words) == cli.DONE
    assert json.loads(out.read_text())["rows"] == []


@pytest.mark.usefixtures("reads_tables")
def test_record_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "allreduce", "--calibrate", "x", "--rows", "x", "--json", str(tmp_path)]
    assert cli.main(words) == cli.USAGE
    assert "it cannot be written" in capsys.readouterr().err
