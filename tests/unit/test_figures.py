"""Figures measured between hosts: their files, the choice by them, the output of the commands."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any

import pytest

from gradred import UsageError, _core, cli, launch
from gradred.observe import figures

TEXT = """gradred-figures 4
mpi MPICH Version: 5.0.2
hosts h#
layout 2 on each of 2
measured 2026-11-22
inside 1e-06 1e-10
across 1e-05 8e-09
gap 5e-07
pieces 61440
local 5e-11 4e-11
on-host 4e-07
far 0.05
announcement 2e-05
size 8 5e-06
plan 2e-05 1.1e-05 recursive_doubling
size 65536 0.0001
plan 0.0011 0.00055 recursive_doubling
plan 0.0012 0.0004 hierarchical rabenseifner by all
end
"""
HOST_OF = [0, 0, 1, 1]


@pytest.fixture
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "gradred"
    folder.mkdir()
    return folder


def chosen(nbytes: int, text: str = TEXT, **more: Any) -> Any:
    return _core.choose_plan("allreduce", nbytes, HOST_OF, figures=text, **more)


def test_file_has_what_was_measured() -> None:
    found = _core.read_figures(TEXT)
    assert (found["mpi"], found["hosts"], found["layout"]) == (
        "MPICH Version: 5.0.2",
        "h#",
        "2 on each of 2",
    )
    assert (found["alpha_inside"], found["alpha"], found["beta"]) == (1e-6, 1e-5, 8e-9)
    doubling, lanes = "recursive_doubling", "hierarchical rabenseifner by all"
    assert found["sizes"] == [
        (8, 5e-6, [(doubling, 2e-5, 1.1e-5)]),
        (65536, 1e-4, [(doubling, 1.1e-3, 5.5e-4), (lanes, 1.2e-3, 4e-4)]),
    ]
    assert "2026-11-22" in found["source"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("gradred-figures 4", "gradred-figures 3", "it does not begin with 'gradred-figures 4'"),
        ("end\n", "", "where 'size' should stand"),
        ("across 1e-05 8e-09", "across 1e-05", "the value of 'across'"),
        ("across 1e-05 8e-09", "across 1e-05 nan", "the value of 'across'"),
        ("across 1e-05 8e-09", "across 1e-05 -1", "the value of 'across'"),
        ("inside 1e-06", "inside 1e+06", "the value of 'inside'"),
        ("size 8 ", "size 65536 ", "the size 65536"),
        ("size 8 5e-06", "size 8 0", "the size 8"),
        (TEXT[TEXT.index("size 8") : TEXT.index("end")], "", "no sizes"),
        ("plan 2e-05 1.1e-05 recursive_doubling\n", "", "the size 8"),
        (
            "plan 2e-05 1.1e-05",
            "plan 2e-05 0",
            "the plan '2e-05 0 recursive_doubling' has no times",
        ),
        ("plan 2e-05 1.1e-05 recursive_doubling", "plan 2e-05 1.1e-05", "no name"),
        ("plan 2e-05", "plan x", "the value of 'plan'"),
        ("gap", "gaps", "where 'gap' should stand"),
    ],
)
def test_broken_file_is_refused_with_a_reason(old: str, new: str, why: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=why):
        _core.read_figures(TEXT.replace(old, new))


def test_no_beginning_of_a_file_is_taken_for_a_whole_one() -> None:
    for end in range(len(TEXT) - 1):
        with pytest.raises(UsageError):
            _core.read_figures(TEXT[:end])


def test_mpi_is_chosen_where_it_was_clearly_faster() -> None:
    """The announcement counts: at 8 bytes the call alone would be faster."""
    assert chosen(8)["plan"] != "mpi"
    found = chosen(65536)
    assert found["plan"] == "mpi"
    assert "measured on 2026-11-22" in found["reason"]
    assert found["seconds"] == pytest.approx(1.05 * (2e-5 + 1e-4))
    assert chosen(65536, TEXT.replace("size 65536 0.0001", "size 65536 0.1"))["plan"] != "mpi"
    assert chosen(4 * 65536)["plan"] == "mpi"  # longer than the measured lengths
    assert chosen(1 << 20)["plan"] != "mpi"  # much longer
    assert chosen(65536, "")["plan"] != "mpi"


def test_shared_memory_has_a_cost_that_is_compared_with_the_mpis() -> None:
    one_host = [0, 0, 0, 0]
    for nbytes in (8, 65536):
        found = _core.choose_plan("allreduce", nbytes, one_host, figures=TEXT)
        assert found["plan"] == "node"
        assert found["seconds"] > _core.memory_model()["call"]
        assert "comes next with" in found["reason"]
    fast = TEXT.replace("announcement 2e-05", "announcement 0")
    fast = fast.replace("size 8 5e-06", "size 8 1e-07")
    found = _core.choose_plan("allreduce", 8, one_host, figures=fast)
    assert (found["plan"], found["seconds"]) == ("mpi", pytest.approx(1.05e-7))
    assert _core.choose_plan("allreduce", 65536, one_host, figures=fast)["plan"] == "node"
    assert _core.choose_plan("bcast", 8, one_host, figures=fast)["plan"] == "node"
    unmeasured = _core.choose_plan("allreduce", 8, one_host)
    assert unmeasured["reason"].startswith("all ranks share memory")


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("sum", "int8"),
        ("sum", "bfloat16"),
        ("avg", "float16"),
        ("sum", "float8_e5m2"),
        ("max", "float32"),
    ],
)
def test_mpi_is_not_chosen_where_its_results_may_differ(op: str, dtype: str) -> None:
    assert chosen(65536, op=op, dtype=dtype)["plan"] != "mpi"


def test_mpi_is_not_chosen_for_what_was_not_measured() -> None:
    for collective in ("reduce_scatter", "allgather", "bcast"):
        assert _core.choose_plan(collective, 65536, HOST_OF, figures=TEXT)["plan"] != "mpi"


def test_schedules_take_as_much_longer_than_the_model_says_as_was_measured() -> None:
    for nbytes, factor in ((8, 2e-5 / 1.1e-5), (65536, 2.0), (1 << 24, 2.0)):
        plan = chosen(nbytes, plan="ring", slices=1)
        model = {name: value for name, value in plan["model"].items() if name != "source"}
        cost = _core.algorithm_cost("allreduce", "ring", 4, {}, HOST_OF)
        assert plan["seconds"] == pytest.approx(factor * cost.seconds(nbytes, **model))


def test_plan_that_was_tried_takes_as_long_as_it_did_there() -> None:
    """The MPI sends some lengths with another protocol, which the model does not know."""
    fast, faster = (TEXT.replace("plan 0.0012 ", f"plan {time} ") for time in ("0.0002", "0.0001"))
    ways = [chosen(65536, text, plan="hierarchical")["seconds"] for text in (fast, faster)]
    assert ways[0] == pytest.approx(2 * ways[1])
    assert chosen(65536, fast, plan="ring") == chosen(65536, plan="ring")
    longer = [chosen(65537, text, plan="hierarchical") for text in (fast, faster)]
    assert longer[0] == longer[1]  # beyond this length only the model compares plans


def test_layouts_and_series_of_hosts_have_one_name() -> None:
    assert _core.layout_text([0, 0, 1, 1]) == "2 on each of 2"
    assert _core.layout_text([0, 0, 0, 1]) == "3 on 0, 1 on 1"
    assert _core.layout_text([0, 1, 0]) == "1 on 0, 1 on 1, 1 on 0"
    assert _core.hosts_text(["node012", "node7", "login1"]) == "login#,node#"


def test_the_newest_file_for_such_ranks_is_found(cache: pathlib.Path) -> None:
    (cache / "a.figures").write_text(TEXT)
    newer = TEXT.replace("2026-11-22", "2027-01-01")
    (cache / "b.figures").write_text(newer)
    os.utime(cache / "a.figures", (1, 1))
    assert figures.find(HOST_OF, [], "MPICH", "5.0.2") == newer
    assert figures.find(HOST_OF, ["h1", "h2"], "MPICH", "5.0.2") == newer
    assert figures.find(HOST_OF, ["node1", "node2"], "MPICH", "5.0.2") == ""
    assert figures.find([0, 1], [], "MPICH", "5.0.2") == ""
    assert figures.find(HOST_OF, [], "Open MPI", "5.0.2") == ""


def test_info_tells_of_files_and_of_those_that_are_ignored(
    cache: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["info", "figures"]) == 0
    assert capsys.readouterr().out == f"{cache}: nothing was measured\n"
    (cache / "a.figures").write_text(TEXT)
    (cache / "b.figures").write_text("something else")
    os.mkfifo(cache / "c.figures")  # no process writes to it, so gradred must not open it
    (cache / "other.txt").write_text("")
    assert cli.main(["info", "figures"]) == 0
    text = capsys.readouterr().out
    assert "ranks 2 on each of 2 (h#)" in text
    assert "b.figures (it does not begin with 'gradred-figures 4'" in text
    assert "c.figures (it is not a file of figures)" in text
    assert "other" not in text


def test_cache_that_is_no_absolute_path_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert figures.folder() == pathlib.Path.home() / ".cache" / "gradred"


def test_user_without_a_home_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "nowhere")
    assert (figures.folder(), figures.kept()) == (None, [])
    assert cli.main(["info", "figures"]) == 0
    assert "nothing is kept" in capsys.readouterr().out


def test_explain_says_where_its_figures_come_from(
    cache: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mpi = launch.Mpi("MPICH", "5.0.2", pathlib.Path("libmpi"), pathlib.Path("mpiexec"))
    monkeypatch.setattr(launch, "find_mpi", lambda: mpi)
    words = ["explain", "--bytes", "64k", "-np", "4", "--hosts", "2", "--no-measure"]

    def report() -> dict[str, Any]:
        assert cli.main([*words, "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    assert report()["model"]["source"] == "round figures for a fast network, not measured"
    (cache / "a.figures").write_text(TEXT)
    found = report()
    assert found["plan"] == "mpi"
    assert found["predicted_us"] == pytest.approx(126)
    assert cli.main(words) == 0
    assert "predicted: 126.00 us (measured on 2026-11-22" in capsys.readouterr().out
    for knob in ("GRADRED_DETERMINISTIC=1", "GRADRED_TUNE=0"):
        with monkeypatch.context() as context:
            context.setenv(*knob.split("="))
            assert report()["plan"] != "mpi"
