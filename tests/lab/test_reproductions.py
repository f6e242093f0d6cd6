"""docs/reproductions.md is that of its record, and the record that of the code."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("ring", "pascal", "nccl", "tcp", "copies")
"""Claims that take less than a second each; the nightly run computes all."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """tools/gen_reproductions.py as a module."""
    sys.path.insert(0, str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(
        "gen_reproductions", ROOT / "tools" / "gen_reproductions.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record(generator: ModuleType) -> dict[str, Any]:
    """What the page shows."""
    found: dict[str, Any] = json.loads(generator.newest("reproductions-*.json").read_text())
    return found


def test_page_is_that_of_the_newest_record(generator: ModuleType) -> None:
    wanted = generator.page(generator.newest("reproductions-*.json"))
    assert generator.PAGE.read_text(encoding="utf-8") == wanted


def test_record_has_every_claim_with_figures_assumption_and_error(
    generator: ModuleType, record: dict[str, Any]
) -> None:
    assert record["simulated"] is True
    names = [claim.name for claim in generator.reproduced.CLAIMS]
    assert [claim["name"] for claim in record["claims"]] == names
    for claim in record["claims"]:
        assert claim["figures"]
        assert claim["holds"]
        assert claim["assumption"]
        assert all(figure["error"] for figure in claim["figures"])


def same_figures(found: dict[str, Any], recorded: dict[str, Any], rel: float) -> None:
    """Compare two records of one claim."""
    for key in ("headline", "source", "holds"):
        assert found[key] == recorded[key]
    assert [f["setting"] for f in found["figures"]] == [f["setting"] for f in recorded["figures"]]
    for one, other in zip(found["figures"], recorded["figures"], strict=True):
        assert one["simulated"] == pytest.approx(other["simulated"], rel=rel), one["setting"]


def claims(generator: ModuleType, *names: str) -> list[Any]:
    return [one for one in generator.reproduced.CLAIMS if one.name in names]


@pytest.mark.parametrize("name", SMALL)
def test_figures_of_the_record_are_those_of_the_code(
    name: str, generator: ModuleType, record: dict[str, Any]
) -> None:
    (found,) = generator.compute(claims(generator, name))["claims"]
    recorded = next(one for one in record["claims"] if one["name"] == name)
    same_figures(found, recorded, rel=1e-6)
    assert found["why"] == recorded["why"]


def test_schemes_by_tcp_are_within_five_points_of_published_ones(generator: ModuleType) -> None:
    for figure in generator.reproduced.over_tcp().figures:
        assert abs(figure.ours - float(figure.published.removesuffix(" %"))) < 5, figure.setting


def test_a_changed_figure_is_noticed(generator: ModuleType, record: dict[str, Any]) -> None:
    (found,) = generator.compute(claims(generator, "copies"))["claims"]
    found["figures"][0]["simulated"] *= 1.01
    recorded = next(one for one in record["claims"] if one["name"] == "copies")
    with pytest.raises(AssertionError, match="alexnet_grouped"):
        same_figures(found, recorded, rel=1e-6)


def test_workers_that_wait_for_each_other_follow_one_process(generator: ModuleType) -> None:
    pytest.importorskip("sklearn")
    workers = generator.reproduced.simulated_workers
    one = workers.run(workers.Workers(2, 0.5, staleness=0, together=True), loss=0.6)
    late = workers.run(workers.Workers(2, 0.5, staleness=0, together=True, late=4.0), loss=0.6)
    asp = workers.run(workers.Workers(2, 0.5, late=4.0), loss=0.6)
    assert one.iterations == late.iterations
    assert late.seconds > 2 * one.seconds
    assert asp.iterations / asp.seconds > 1.3 * late.iterations / late.seconds


@pytest.mark.full
@pytest.mark.parametrize("name", ["servers", "scaling", "asynchronous"])
def test_figures_that_take_minutes_are_those_of_the_code(
    name: str, generator: ModuleType, record: dict[str, Any]
) -> None:
    if name == "asynchronous":
        pytest.importorskip("sklearn")
    (found,) = generator.compute(claims(generator, name))["claims"]
    recorded = next(one for one in record["claims"] if one["name"] == name)
    # Iterations to a loss depend on the last bits of the library that multiplies matrices.
    same_figures(found, recorded, rel=0.25 if name == "asynchronous" else 1e-6)
