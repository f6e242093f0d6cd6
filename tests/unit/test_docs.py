"""The pages: generated parts are up to date, every example runs, and claims match the code."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradred import _core

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def tool(name: str) -> ModuleType:
    """A program of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """Line and text of a page's blocks in one language."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found[1] == language:
            yield text.count("\n", 0, found.start(2)), found[2]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---- generated parts -------------------------------------------------------------------------


def test_algorithm_pages_and_figures_are_up_to_date() -> None:
    assert tool("gen_algorithm_docs").drifted() == []


def test_changed_missing_and_left_over_figures_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = tool("gen_algorithm_docs")
    monkeypatch.setattr(generator, "DOCS", tmp_path)
    generator.write()
    assert generator.drifted() == []
    (tmp_path / "algorithms.md").write_text("other")
    (tmp_path / "figures" / "allreduce-ring.svg").unlink()
    (tmp_path / "figures" / "allreduce-gone.svg").write_text("<svg/>")
    stale = ["algorithms.md", "figures/allreduce-gone.svg", "figures/allreduce-ring.svg"]
    assert generator.drifted() == stale


def test_tables_of_results_are_up_to_date() -> None:
    generator = tool("gen_results_table")
    for page in generator.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert generator.renewed(page, text) == text


def test_families_in_the_page_on_calls_are_those_of_the_table() -> None:
    page = (ROOT / "docs" / "design" / "calls.md").read_text(encoding="utf-8")
    _, _, rows = page.partition("| family | plans |")
    rows, _, _ = rows.partition("\n\n")
    shown = re.findall(r"^\| ([a-z_, ]+) \|", rows, re.MULTILINE)
    names = [family["name"] for family in _core.plan_families()]
    assert ", ".join(shown).split(", ") == names


def test_every_record_stands_in_a_page() -> None:
    """Nobody reads a record that no page refers to, or notices that it is out of date."""
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    folder = ROOT / "benchmarks" / "results"
    names = [str(path.relative_to(folder)) for path in folder.rglob("*.json")]
    assert [name for name in names if f"benchmarks/results/{name}" not in pages] == []


def record(date: str, mpi: str, ratio: float) -> dict[str, Any]:
    row = {"bytes": 1 << 20, "gradred_us": 100.0, "mpi_us": 100.0 * ratio, "ratio": ratio}
    row |= {"ratio_p10": ratio - 0.1, "ratio_p90": ratio + 0.1}
    return {
        "schema": "gradred-allreduce/1",
        "date": date,
        "ranks": 2,
        "hosts": 1,
        "arguments": {"type": "float32", "op": "sum"},
        "machine": {"cpu": "a processor", "cores": 2},
        "versions": {"mpi": mpi, "gradred": "0.1.0"},
        "rows": [row],
    }


def test_newest_result_of_each_mpi_is_shown_and_slow_sizes_are_named(tmp_path: Path) -> None:
    mpich, open_mpi = "MPICH Version: 5.0.2 MPICH Release date: x", "Open MPI v5.0.11, package: y"
    records = {
        "a.json": record("2030-01-02T00:00:00+00:00", mpich, 0.5),
        "b.json": record("2030-01-01T00:00:00+00:00", mpich, 3.0),
        "c.json": record("2030-01-01T00:00:00+00:00", open_mpi, 2.0),
        "d.json": {"schema": "gradred-call-cost/1"},
    }
    for name, content in records.items():
        (tmp_path / name).write_text(json.dumps(content))
    section = tool("gen_results_table").section(tmp_path)
    assert "MPICH 5.0.2" in section
    assert "Open MPI 5.0.11" in section
    assert "(benchmarks/results/a.json)" in section
    assert "b.json" not in section
    assert "d.json" not in section
    assert "| 1 MiB | 100.00 µs | 50.00 µs | 0.50, **slower** | 0.40-0.60 |" in section
    assert "Slower than the MPI (lowest ratio) at: 1 MiB (0.50)." in section
    assert "Slower than the MPI (lowest ratio) at: no size measured." in section


def test_rounds_of_two_placements_have_their_rows_and_each_loss_is_shown(
    tmp_path: Path,
) -> None:
    mpich = "MPICH Version: 5.0.2 MPICH Release date: x"
    content = record("2030-01-02T00:00:00+00:00", mpich, 2.0)
    row = content["rows"][0]
    figures = {name: value for name, value in row.items() if name != "bytes"}
    near, far = figures | {"ratio": 3.0}, figures | {"ratio": 0.9}
    placements = {"near": near, "far": far, "unknown": figures | {"ratio": 0.1}}
    odd = row | {"bytes": 48, "ratio": 0.97}  # the table has no line for this size
    content["rows"] = [row | {"bytes": 8, "placements": placements}, odd, row]
    flags = {"near": {"rounds": 9, "flag_us": 0.04}, "far": {"rounds": 8, "flag_us": 0.25}}
    content |= {"schema": "gradred-allreduce/2", "placements": flags}
    (tmp_path / "a.json").write_text(json.dumps(content))
    hosts = record("2029-01-02T00:00:00+00:00", mpich, 2.0) | {"hosts": 2}
    hosts["arguments"] = hosts["arguments"] | {"note": "By a cable."}
    (tmp_path / "hosts.json").write_text(json.dumps(hosts))
    section = tool("gen_results_table").section(tmp_path)
    assert "| 8 B | near | 100.00 µs | 200.00 µs | 3.00 | 1.90-2.10 |" in section
    assert "| 8 B | far | 100.00 µs | 200.00 µs | 0.90, **slower** | 1.90-2.10 |" in section
    assert "| 48 B" not in section
    assert "| 1 MiB |  | 100.00 µs |" in section
    assert "Slower than the MPI (lowest ratio) at: 8 B (0.90), 48 B (0.97)." in section
    assert "near: 9 rounds, one-way latency 0.04 µs; far: 8 rounds" in section
    assert "2 ranks on 2 hosts, MPICH 5.0.2" in section  # an older record, with other hosts
    assert "By a cable." in section


def test_records_of_one_day_are_shown_for_each_placement_of_the_cores(tmp_path: Path) -> None:
    mpich = "MPICH Version: 5.0.2 MPICH Release date: x"
    for name, date, flag in (
        ("near", "2030-01-02T08:00:00+00:00", 0.04),
        ("far", "2030-01-02T09:00:00+00:00", 0.25),
        ("older", "2030-01-02T07:00:00+00:00", 0.05),
    ):
        content = record(date, mpich, 2.0) | {"schema": "gradred-allreduce/2"}
        content["placements"] = {"all": {"rounds": 9, "flag_us": flag}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    generator = tool("gen_results_table")
    assert list(generator.newest(tmp_path)) == ["far.json", "near.json"]
    section = generator.section(tmp_path)
    assert "near: 9 rounds, one-way latency 0.04 µs." in section
    content = record("2030-01-03T00:00:00+00:00", mpich, 2.0) | {"schema": "gradred-allreduce/2"}
    content["placements"] = {"all": {"rounds": 9, "flag_us": 0.04}}
    (tmp_path / "next_day.json").write_text(json.dumps(content))
    assert list(generator.newest(tmp_path)) == ["next_day.json"]


# ---- examples ---------------------------------------------------------------------------------


def session(page: Path) -> str:
    """A page with everything but its doctests blanked, so that line numbers do not change."""
    lines = [""] * (page.read_text(encoding="utf-8").count("\n") + 1)
    for line, text in blocks(page, "pycon"):
        for offset, content in enumerate(text.splitlines()):
            lines[line + offset] = content
    return "\n".join(lines) + "\n"


RUN_SESSION = """
import doctest, sys
text, name = sys.stdin.read(), sys.argv[1]
test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
runner = doctest.DocTestRunner(optionflags=flags)
runner.run(test)
sys.exit(runner.summarize(verbose=False).failed > 0)
"""


def environment(cache: Path) -> dict[str, str]:
    """Return variables by which no knob and no figures kept on this machine change a plan."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GRADRED_")}
    return own | {"XDG_CACHE_HOME": str(cache)}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(blocks(page, "pycon"))], ids=name_of
)
def test_sessions_in_a_page_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    text = session(page)
    assert doctest.DocTestParser().get_examples(text)
    command = [sys.executable, "-c", RUN_SESSION, name_of(page)]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, env=environment(tmp_path), timeout=50
    )
    assert done.returncode == 0, done.stdout + done.stderr


PROGRAMS = [(page, line, text) for page in PAGES for line, text in blocks(page, "python")]


@pytest.mark.parametrize(
    ("page", "line", "text"),
    PROGRAMS,
    ids=[f"{name_of(page)}:{line}" for page, line, _ in PROGRAMS],
)
def test_programs_in_a_page_run(page: Path, line: int, text: str, tmp_path: Path) -> None:
    if "import numba\n" in text:
        pytest.importorskip("numba")
    if "import torch\n" in text:
        pytest.importorskip("torch")
    program = tmp_path / "program.py"
    program.write_text(text)
    command, variables = [sys.executable, str(program)], environment(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_have_examples_of_both_sorts_and_no_session_hides() -> None:
    assert len(PROGRAMS) >= 5
    for page in PAGES:
        for language in ("", "py", "python", "sh", "text"):
            assert not any(">>>" in text for _, text in blocks(page, language)), (
                f"{name_of(page)}: a session belongs into a pycon block"
            )


# ---- claims -----------------------------------------------------------------------------------


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in LINK.findall(prose) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_page_of_faults_shows_results_times_and_statuses_of_each_mpi() -> None:
    mpis = [("MPICH", "5.0.2"), ("Open MPI", "5.0.11")]

    def record(mpi: int, call: str, **more: Any) -> dict[str, Any]:
        name, version = mpis[mpi]
        own = {"mpi": name, "version": version, "fault": "SIGKILL", "call": call, "path": "-"}
        return own | {"errors": [], "saw": "right results", "status": 0} | more

    rows = [
        record(0, "small", slowest_seconds=1.26, errors=["PeerLost"], status=-9),
        record(0, "large", slowest_seconds=0.0001),
        record(1, "small", slowest_seconds=None),
        record(0, "small", fault="SIGSTOP", slowest_seconds=0.0021),
        record(1, "small", fault="SIGSTOP", slowest_seconds=0.05),
    ]
    first, second = tool("gen_faults_docs").table(rows, mpis)[2:]
    assert first == (
        "| SIGKILL (2) | MPICH: `PeerLost` or right results; Open MPI: right results "
        "| MPICH: 0 or 137; Open MPI: 0 | 1.3 s | - |"
    )
    assert second == "| SIGSTOP | right results | 0 | 2 ms | 0.1 s |"


def test_page_of_faults_says_how_many_kills_and_at_which_commit() -> None:
    mpi = {"mpi": "MPICH", "version": "5.0.2"}
    sweep = {"part": "sweep", "date": "2026-11-22", "commit": "abc", "passed": 9, "skipped": 1}
    kill = {"part": "kills", "call": "Dup, Free", "path": "messages", "slowest_seconds": 0.6}
    kills = [
        kill | {"inside": "Dup", "half_written": False},
        kill | {"inside": "Free", "half_written": True, "slowest_seconds": 0.2},
    ]
    lines = tool("gen_faults_docs").page([mpi | one for one in [sweep, *kills]]).splitlines()
    head = "On MPICH 5.0.2 9 tests passed and 1 were skipped on 2026-11-22, at commit abc."
    assert head in lines
    assert "| Dup, Free | 2 | 1 | 0.6 s |" in lines


def test_page_of_faults_is_what_the_records_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "gen_faults_docs.py")]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "faults.md").read_text() == made.removesuffix("\n")


def words_of(page: Path) -> int:
    return len(re.findall(r"[A-Za-z][^\s|]*", page.read_text(encoding="utf-8")))


def test_pages_are_short() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    limits = {"README.md": 900, "faults.md": 1000}
    counts = {page.name: words_of(page) for page in pages}
    assert {page: n for page, n in counts.items() if n > limits.get(page, 1500)} == {}


def test_design_pages_are_short_together() -> None:
    counts = {page.name: words_of(page) for page in (ROOT / "docs" / "design").glob("*.md")}
    assert sum(counts.values()) <= 20_000, counts


@pytest.mark.parametrize("kind", ["algorithms", "measured"])
def test_generated_pages_are_short_with_their_tables(kind: str) -> None:
    pages = [*(ROOT / "docs").glob(f"{kind}*.md")]
    counts = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert len(counts) > 1
    assert {page: n for page, n in counts.items() if n > 2000} == {}
