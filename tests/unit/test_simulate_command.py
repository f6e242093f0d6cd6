"""`gradred simulate allreduce`: networks, plans, native plans, the table and the record."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradred import cli
from gradred.errors import UsageError
from gradred.simulate import citations, plans, presets, sweep
from gradred.simulate.calibration import Factors, calibrate
from gradred.simulate.plans import PLANS, Layout, simulate
from gradred.simulate.presets import NETWORKS


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_simulates_every_plan_that_serves_it(name: str) -> None:
    network = NETWORKS[name]
    hosts = min(network.hosts, 8)
    layout = Layout.even(hosts * network.local, hosts)
    served = [plan for plan in PLANS if not PLANS[plan].why_not(network, layout)]
    assert {"ring", "recursive_doubling", "rabenseifner"} <= {*served}
    for plan in served:
        short, long = (simulate(plan, network, layout, n) for n in (8, 1 << 24))
        assert 0 < short.seconds < long.seconds < 60, plan


def test_other_collectives_are_simulated_as_their_schedules() -> None:
    network, layout, nbytes = NETWORKS["V100-100Gb"], Layout.even(64, 8), 1 << 26
    whole = simulate("ring", network, layout, nbytes)
    scattered, gathered = (
        simulate("ring", network, layout, nbytes, collective=name)
        for name in ("reduce_scatter", "allgather")
    )
    assert scattered.rounds + gathered.rounds == whole.rounds
    assert scattered.seconds + gathered.seconds == pytest.approx(whole.seconds, rel=0.01)


def test_every_network_has_a_source_and_an_error() -> None:
    for name, network in NETWORKS.items():
        assert len(network.source) > 30, name
        assert network.error, name
        assert network.cluster([0, 0, 1])["host_of"] == [0, 0, 1]


def test_every_figure_of_every_network_has_a_source_and_no_source_is_left_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(citations.CITED) == list(NETWORKS)
    for name, network in NETWORKS.items():
        assert {what for what, _ in citations.given(network)} == {*citations.CITED[name]}, name
    out, _ = run("simulate networks 56Gb-IB", capsys)
    rows = {line[2:18].strip(): line[18:] for line in out.splitlines()[2:]}
    assert rows["port"].split()[:3] == ["6.8", "GB/s", "56"]
    assert rows["across latency"].split() == ["6", "us", "a", "round", "figure"]
    assert rows["reduce"].split()[:2] == ["0.0087", "ns/B"]
    assert f"error of simulated times: {NETWORKS['P40-56Gb-IB'].error}" in out
    assert run("simulate networks", capsys)[0].count("error of simulated times") == len(NETWORKS)
    assert "there is no such network" in run("simulate networks x", capsys, status=2)[1]


def test_networks_are_found_whatever_their_case() -> None:
    assert presets.find("10gbe") is NETWORKS["10GbE"]
    with pytest.raises(
        UsageError, match=r"--net 9GbE: there is no such network\. There are: 10GbE"
    ):
        presets.find("9GbE")


def test_native_plans_serve_where_they_would_run() -> None:
    cpu, gpu = NETWORKS["10GbE"], NETWORKS["V100-100Gb"]
    one, several = Layout.even(8, 1), Layout.even(8, 2)
    served = {
        (memory, layout.hosts): {
            name for name, plan in PLANS.items() if not plan.why_not(network, layout)
        }
        - {"ring", "recursive_doubling", "rabenseifner", "circulant", "direct", "swing"}
        - {"recursive_multiplying"}
        for memory, network in (("cpu", cpu), ("gpu", gpu))
        for layout in (one, several)
    }
    assert served == {
        ("cpu", 1): {"node"},
        ("cpu", 2): {"hierarchical"},
        ("gpu", 1): {"one_shot", "two_shot", "nccl_ring", "nccl_tree"},
        ("gpu", 2): {"hierarchical", "nccl_ring", "nccl_tree"},
    }
    with pytest.raises(UsageError, match="plan node: not all ranks share memory"):
        simulate("node", cpu, several, 8)


def test_shared_memory_beats_messages_inside_a_host() -> None:
    network, layout = NETWORKS["25GbE-RoCE"], Layout.even(4, 1)
    for nbytes in (8, 4096, 1 << 20):
        node = simulate("node", network, layout, nbytes).seconds
        assert node < simulate("recursive_doubling", network, layout, nbytes).seconds


def test_hierarchy_sends_less_between_hosts_than_a_flat_plan() -> None:
    network, layout = NETWORKS["25GbE-RoCE"], Layout.even(32, 4)
    flat = simulate("recursive_doubling", network, layout, 1 << 24)
    levels = simulate("hierarchical", network, layout, 1 << 24)
    assert levels.bytes_across < flat.bytes_across / 4
    assert levels.seconds < flat.seconds / 2
    uneven = Layout((0, 0, 0, 1, 1, 2))
    assert simulate("hierarchical", network, uneven, 8).variant.startswith("recursive_doubling")


def test_nccls_tree_wins_short_vectors_and_its_ring_long_ones() -> None:
    network, layout = NETWORKS["V100-100Gb"], Layout.even(32, 4)
    tree, ring = ([simulate(p, network, layout, n) for n in (8, 1 << 28)] for p in _NCCL)
    assert tree[0].seconds < ring[0].seconds
    assert ring[1].seconds < tree[1].seconds
    assert (ring[0].variant, ring[1].variant) == ("LL", "Simple")
    # The latency of a ring by NCCL's own formula: steps inside and between hosts.
    steps = 2 * (layout.ranks - 1)
    crossing = 2 * layout.hosts
    formula = 6.6e-6 + (steps - crossing) * 0.6e-6 + crossing * 2.7e-6
    assert ring[0].seconds == pytest.approx(formula, rel=0.02)


_NCCL = ("nccl_tree", "nccl_ring")


def test_direct_exchanges_of_thousands_are_left_out() -> None:
    network = NETWORKS["10GbE"]
    why_not = PLANS["direct"].why_not(network, Layout.even(4096, 128))
    assert why_not == "131072 messages in flight at once take minutes to simulate"
    assert not PLANS["direct"].why_not(network, Layout.even(512, 128))


# ---- the command --------------------------------------------------------------------------------

WORDS = "simulate allreduce --net 10GbE -np 16 --hosts 4 --algorithm ring,rabenseifner,node"


def run(words: str, capsys: pytest.CaptureFixture[str], status: int = 0) -> tuple[str, str]:
    try:
        found = cli.main(words.split())
    except SystemExit as stop:
        found = int(stop.code or 0)
    assert found == status
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_table_says_simulated_and_which_plan_wins_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = run(f"{WORDS} --bytes 64m", capsys)
    parts = out.split("\n\n")
    assert [part.splitlines()[0].partition(",")[0] for part in parts] == [
        "# simulated",
        "simulated",
        "simulated times",
    ]
    assert "# error of simulated times: median 62 %" in parts[0]
    assert "# left out: node (not all ranks share memory)" in parts[0]
    assert parts[1].splitlines()[0] == "simulated, 64 MiB:"
    rows = parts[2].splitlines()[2:]
    assert rows[0].startswith("8 B       rabenseifner")
    assert rows[-1].startswith("1 GiB     ring")
    assert len(rows) == len(sweep.SIZES) + 1


def test_the_record_holds_what_the_table_shows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, err = run(f"{WORDS} --bytes 1000 --json -", capsys)
    record = json.loads(out)
    assert err.startswith("# simulated")
    assert (record["schema"], record["simulated"]) == ("gradred-simulate-allreduce/1", True)
    assert (record["ranks"], record["hosts"], record["net"]) == (16, 4, "10GbE")
    assert record["network"]["rank_port"] is None  # unlimited
    assert record["left_out"] == {"node": "not all ranks share memory"}
    assert [row["bytes"] for row in record["rows"]] == sorted([*sweep.SIZES, 1000])
    row = record["rows"][0]
    times = {name: one["simulated_us"] for name, one in row["plans"].items()}
    assert row["best"] == min(times, key=lambda name: times[name]) == "rabenseifner"
    assert all(one["low_us"] == one["simulated_us"] for one in row["plans"].values())
    run(f"{WORDS} --bytes 1000 --json {tmp_path}/new/found.json", capsys)
    assert json.loads((tmp_path / "new" / "found.json").read_text()) == record


def test_noise_gives_a_band_by_seed(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{WORDS} --noise 0.2 --runs 5 --json -"
    first, again = (json.loads(run(words, capsys)[0]) for _ in range(2))
    assert first == again
    other = json.loads(run(f"{words} --seed 9", capsys)[0])
    found = first["rows"][0]["plans"]["ring"]
    assert found["low_us"] < found["simulated_us"] < found["high_us"]
    assert other["rows"][0]["plans"]["ring"] != found
    words = f"{WORDS} --noise 0.2 --runs 3"
    assert "--bytes N and --json also give 10-90 % of the runs" in run(words, capsys)[0]
    assert "of 1 MiB also 10-90 % of the runs" in run(f"{words} --bytes 1m", capsys)[0]
    assert found["simulated_ranks"] == 16


def test_plans_that_cannot_win_are_not_run_with_noise(capsys: pytest.CaptureFixture[str]) -> None:
    words = "simulate allreduce --net 10GbE -np 64 --hosts 16 --algorithm ring,rabenseifner"
    found = run(f"{words} --noise 0.1 --runs 3 --json -", capsys)[0]
    shortest, *_, longest = json.loads(found)["rows"]
    limit = sweep.cannot_win(0.1) * shortest["plans"][shortest["best"]]["simulated_us"]
    assert shortest["plans"]["ring"]["simulated_us"] > limit
    assert shortest["plans"]["ring"]["runs"] == 1
    assert longest["plans"]["ring"]["runs"] == 3
    assert all(row["plans"][row["best"]]["runs"] == 3 for row in (shortest, longest))


def test_long_runs_with_noise_say_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_SHORT", 0.0)
    lines = run(f"{WORDS} --noise 0.1 --runs 3", capsys)[1].splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "# run 1 of 3 with noise",
        "# run 2 of 3 with noise",
    ]
    assert lines[0].endswith(" s left")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--net 9GbE", "there is no such network"),
        ("--net 10GbE --algorithm rings", "--algorithm rings: there is no such plan. There are"),
        ("--net 10GbE --algorithm node --hosts 2", "node: not all ranks share memory"),
        ("--net 10GbE -np 2 --hosts 4", "--hosts 4: there are 2 ranks for 4 hosts"),
        ("--net 10GbE --runs 3", "without noise all runs are the same"),
        ("--net 10GbE --noise -1", "not a number from 0 to 2"),
        ("--net 10GbE --bytes many", "is not a number of bytes"),
        ("--net 10GbE --plot times.gif", "its ending says no format"),
        ("", "no network is named. Add --net with one of 10GbE"),
        ("--calibrate fit.csv", "or --rows ROWS.csv, if --calibrate names a CSV file"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, err = run(f"simulate allreduce {words}", capsys, status=2)
    assert message in err


def test_ranks_and_hosts_follow_from_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    for words, ranks, hosts in (
        ("", 16, 4),
        ("-np 6", 6, 2),
        ("--hosts 2", 8, 2),
        ("-np 5 --hosts 5", 5, 5),
    ):
        out, _ = run(
            f"simulate allreduce --net P40-56Gb-IB --algorithm ring --json - {words}", capsys
        )
        record = json.loads(out)
        assert (record["ranks"], record["hosts"]) == (ranks, hosts), words


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(f"{WORDS} --plot {tmp_path}/times.svg", capsys)
    assert "simulated allreduce, 16 ranks on 4 hosts" in (tmp_path / "times.svg").read_text()


@pytest.mark.full
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_swept_at_its_own_size(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = "ring,rabenseifner,recursive_doubling,nccl_ring,nccl_tree"
    out, _ = run(f"simulate allreduce --net {name} --algorithm {plan} --json -", capsys)
    record = json.loads(out)
    assert len(record["rows"]) == len(sweep.SIZES)
    for row in record["rows"]:
        assert all(one["simulated_us"] > 0 for one in row["plans"].values())


@pytest.mark.full
@pytest.mark.parametrize(("plan", "ranks"), [("ring", 4096), ("recursive_doubling", 65536)])
def test_thousands_of_ranks_are_simulated(
    plan: str, ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"simulate allreduce --net 10GbE -np {ranks} --hosts {ranks // 4} --algorithm {plan}"
    record = json.loads(run(f"{words} --json -", capsys)[0])
    assert record["ranks"] == ranks


# ---- calibration --------------------------------------------------------------------------------


def bench_record(network: presets.Network, ranks_on_hosts: list[int]) -> dict[str, Any]:
    """What `gradred bench --plan all` would write on this network."""
    layout = Layout(tuple(h for h, n in enumerate(ranks_on_hosts) for _ in range(n)))
    names = ("ring", "recursive_doubling", "rabenseifner")
    rows = []
    for nbytes in (8, 512, 8192, 1 << 16, 1 << 20, 1 << 22):
        times = {name: simulate(name, network, layout, nbytes).seconds * 1e6 for name in names}
        results = {name: {"avg_us": time} for name, time in times.items()}
        rows.append({"bytes": nbytes, "results": {**results, "mpi": {"avg_us": 1.0}}})
    return {
        "schema": "gradred-bench/1",
        "arguments": {"collective": "allreduce", "mode": "blocking"},
        "ranks_on_hosts": ranks_on_hosts,
        "rows": rows,
    }


def test_a_fit_finds_the_network_that_was_measured(tmp_path: Path) -> None:
    wanted = Factors(latency=3.0, speed=0.4, memory=2.0)
    network = NETWORKS["25GbE-RoCE"]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_record(wanted.applied(network), [2, 2, 2, 2])))
    found = calibrate(network, path)
    assert found.rows == 18
    assert found.factors.latency == pytest.approx(3.0, rel=0.1)
    assert found.factors.speed == pytest.approx(0.4, rel=0.1)
    assert found.median_error < 0.05
    assert "of 18 times in bench.json" in found.network.error


def test_a_calibrated_network_says_its_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench_record(NETWORKS["10GbE"], [1, 1, 1])))
    out, _ = run(
        f"simulate allreduce --net 10GbE -np 64 --algorithm ring --calibrate {path}", capsys
    )
    assert "# error of simulated times: median 0%, 95th percentile 0% of 18 times" in out
    assert "(8 B to 4 MiB, 3 ranks on 3 hosts)" in out
    assert "; on more ranks and at other lengths not known" in out
    words = f"simulate allreduce --net 10GbE -np 4 --algorithm ring --json - --calibrate {path}"
    record = json.loads(run(words, capsys)[0])
    path.write_text(json.dumps(bench_record(NETWORKS["10GbE"], [3])))
    error = json.loads(run(words, capsys)[0])["error"]
    assert "3 ranks on 1 host), " in error
    assert "; between hosts, on more ranks and at other lengths not known" in error
    assert record["calibration"]["rows"] == 18
    assert record["calibration"]["factors"]["speed"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema":\n nonsense}', "line 2, column 2: Expecting value"),
        ('{"schema": "gradred-allreduce/2"}', "its schema is 'gradred-allreduce/2'"),
        ('{"schema": "gradred-bench/1"}', "it lacks what such a record has (KeyError"),
        ("[1]", "it lacks what such a record has (TypeError"),
        (None, "it cannot be read (No such file or directory)"),
    ],
)
def test_bad_records_are_refused(
    text: str | None, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    if text is not None:
        path.write_text(text)
    _, err = run(f"simulate allreduce --net 10GbE --calibrate {path}", capsys, status=2)
    assert message in err


def test_records_of_something_else_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "bench.json"
    record = bench_record(NETWORKS["10GbE"], [1, 1])
    for changed, message in (
        ({"arguments": {"collective": "bcast", "mode": "blocking"}}, "it measured blocking bcast"),
        ({"rows": [{"bytes": 8, "results": {"ring": {}}}]}, "rows[0].results.ring lacks what such"),
        ({"rows": record["rows"][:1]}, "no two lengths at which plans over messages"),
    ):
        path.write_text(json.dumps(record | changed))
        _, err = run(f"simulate allreduce --net 10GbE --calibrate {path}", capsys, status=2)
        assert message in err
        assert err.count("--calibrate") == 1, "an error within an error"


# ---- text ---------------------------------------------------------------------------------------


def test_times_and_sizes_read_well() -> None:
    times = [sweep.time_text(t) for t in (0.1234567, 17.4, 999.4, 999.6, 12345, 2.5e6, 3.944e10)]
    assert times == [
        "0.1235 us",
        "17.4 us",
        "999.4 us",
        "0.9996 ms",
        "12.35 ms",
        "2.5 s",
        "39440 s",
    ]
    sizes = [sweep.size_text(n) for n in (0, 8, 1024, 1 << 26, 3 << 29, 1 << 42)]
    assert sizes == ["0 B", "8 B", "1 KiB", "64 MiB", "1.5 GiB", "4096 GiB"]


def test_hosts_of_a_layout_are_filled_equally() -> None:
    assert Layout.even(7, 3).host_of == (0, 0, 0, 1, 1, 2, 2)
    assert (Layout.even(8, 4).local, Layout.even(7, 3).local) == (2, 0)
    assert presets.torus_of(512, 3) == [8, 8, 8]
    assert all(math.prod(presets.torus_of(n, 3)) == n for n in range(1, 200))


def test_plans_are_named_as_elsewhere() -> None:
    from gradred import plans as of_calls

    known = {*of_calls.names("allreduce")}
    assert {*plans.PLANS} - known == {"nccl_ring", "nccl_tree"}


def test_ctrl_c_ends_the_process_while_it_simulates(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    during = []
    simulated = sweep.run

    def noted(question: sweep.Question, say: Callable[[str], object]) -> dict[str, Any]:
        during.append(signal.getsignal(signal.SIGINT))
        return simulated(question, say)

    monkeypatch.setattr(sweep, "run", noted)
    run(WORDS, capsys)
    assert during == [signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) == before
