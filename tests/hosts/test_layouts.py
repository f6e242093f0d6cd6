"""Ranks on hosts of any layout: data in each host's memory, and data between hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import faked, jobs

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.geteuid() != 0, reason="a host name of its own takes root"),
    pytest.mark.skipif(bool(jobs.why_not()), reason=str(jobs.why_not())),
]
PROGRAM = Path(__file__).with_name("layouts.py")


def run(layout: str, *parts: str, **variables: str) -> None:
    ranks = len(layout.split(","))
    environment = {**os.environ, faked.VARIABLE: layout, "GRADRED_TUNE": "0", **variables}
    words = ["run", "-np", str(ranks), "--timeout", "60", str(PROGRAM), *parts]
    command = [sys.executable, "-m", "gradred", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("right") == ranks, (done.stdout, done.stderr)


EVERYTHING = (
    *("blocking", "in_flight", "others", "others_of_another", "scans_and_roots", "every_plan"),
    *("disagreeing", "starting_odd"),
)


@pytest.mark.parametrize(
    ("layout", "slices"),
    [
        ("0,0,1,1", "0"),
        ("0,0,0,1", "3"),
        pytest.param("0,0,1,1", "3", marks=pytest.mark.full),
        pytest.param("0,1,1,1,1", "0", marks=pytest.mark.full),
    ],
)
def test_sums_are_exact_and_ranks_that_differ_get_an_error_and_go_on(
    layout: str, slices: str
) -> None:
    run(layout, *EVERYTHING, **({"GRADRED_SLICES": slices} if slices != "0" else {}))


@pytest.mark.parametrize(("layout", "slices"), [("0,0,1", "1"), ("0,1,0,1", "3"), ("0,1", "1")])
def test_sums_of_leaves_have_the_same_bits_on_any_layout(layout: str, slices: str) -> None:
    run(layout, "leaves", GRADRED_SLICES=slices)


@pytest.mark.parametrize("layout", ["0,1", "0,0,1", "0,1,2,1"])
def test_compressed_wire_has_the_same_bits_on_all_ranks(layout: str) -> None:
    run(layout, "wires")


def test_rank_that_is_lost_on_a_compressed_wire_is_an_error_on_all_others() -> None:
    environment = {**os.environ, faked.VARIABLE: "0,0,1,1", "GRADRED_TUNE": "0"}
    words = ["run", "-np", "4", "--timeout", "60", str(PROGRAM), "lost_on_the_wire"]
    command = [sys.executable, "-m", "gradred", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.stdout.count("right") == 3, (done.stdout, done.stderr)


# On two hosts every plan adds two sums, so their order does not matter.
@pytest.mark.parametrize(
    "layout",
    [
        "0,1,2",
        "0,0,1,2",
        pytest.param("0,0,1,1", marks=pytest.mark.full),
        pytest.param("0,1,2,0,1", marks=pytest.mark.full),
    ],
)
def test_sums_of_any_length_have_the_same_bits_where_that_is_asked_for(layout: str) -> None:
    run(layout, "any_length", GRADRED_DETERMINISTIC="size")


@pytest.mark.full
def test_sums_of_any_length_on_hosts_that_share_no_memory() -> None:
    run("0,0,1", "any_length", GRADRED_DETERMINISTIC="size", GRADRED_SHM="0")


# Ranks numbered in turn, a host with one rank first, three hosts.
@pytest.mark.parametrize(
    "layout",
    ["0,1,0,1", "0,1,1", pytest.param("0,0,0,1,1,2", marks=pytest.mark.full)],
)
def test_hosts_of_any_layout_share_memory(layout: str) -> None:
    run(layout, "blocking")


def test_hosts_with_one_rank_each_share_nothing() -> None:
    run("0,1")
