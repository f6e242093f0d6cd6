"""The simulator of schedules: closed forms, shared links by hand, folding, noise and limits."""

from __future__ import annotations

import itertools
import os
from math import log2
from pathlib import Path
from typing import Any

import pytest

from gradred import _core, schedules
from gradred.errors import UsageError
from gradred.schedules import Schedule, make_all, recv, reduce, scratch, send, verify, work

UNLIMITED = float("inf")

# A network without contention: alpha is 0.5 + 2 + 0.5 us, beta 0.1 ns, gamma 0.05 ns.
ALPHA, BETA, GAMMA = 3e-6, 1e-10, 0.5e-10
PLAIN: dict[str, Any] = {
    "paths": [(2e-6, 1 / BETA)] * 5,
    "send_overhead": 0.5e-6,
    "receive_overhead": 0.5e-6,
    "reduce": GAMMA,
}


def hosts(ranks: int, local: int = 1) -> list[int]:
    return [rank // local for rank in range(ranks)]


def simulated(
    name: str,
    ranks: int,
    nbytes: float,
    *,
    local: int = 1,
    fold: bool = True,
    slices: int = 1,
    seed: int = 0,
    parameters: dict[str, int | str] | None = None,
    **cluster: Any,
) -> _core._Simulated:
    model = {"host_of": hosts(ranks, local), **PLAIN, **cluster}
    return _core.simulate_algorithm(
        "allreduce", name, parameters or {}, model, nbytes, slices=slices, seed=seed, fold=fold
    )


def seconds_of(given: list[Schedule], nbytes: float, **cluster: Any) -> float:
    model = {"host_of": hosts(len(given)), **cluster}
    return _core.simulate_schedules(given, model, nbytes)["seconds"]


# ---- closed forms -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 7, 8, 30, 64])
@pytest.mark.parametrize("nbytes", [0, 8, 1000, 1 << 20])
def test_a_ring_takes_alpha_beta_and_gamma_exactly(ranks: int, nbytes: int) -> None:
    wanted = (
        2 * (ranks - 1) * (ALPHA + nbytes / ranks * BETA) + (ranks - 1) / ranks * nbytes * GAMMA
    )
    assert simulated("ring", ranks, nbytes)["seconds"] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 4, 32, 256])
@pytest.mark.parametrize("nbytes", [0, 8, 1000, 1 << 20])
def test_doubling_and_rabenseifner_take_alpha_beta_and_gamma_exactly(
    ranks: int, nbytes: int
) -> None:
    doubling = log2(ranks) * (ALPHA + nbytes * (BETA + GAMMA))
    assert simulated("recursive_doubling", ranks, nbytes)["seconds"] == pytest.approx(doubling)
    share = (ranks - 1) / ranks * nbytes
    halving = 2 * log2(ranks) * ALPHA + share * (2 * BETA + GAMMA)
    assert simulated("rabenseifner", ranks, nbytes)["seconds"] == pytest.approx(halving)


def test_a_long_message_waits_for_its_receiver() -> None:
    """Two latencies more in each round, from the first byte above the threshold on."""
    short, long = (simulated("ring", 4, n, rendezvous=1000.0)["seconds"] for n in (4000, 4004))
    eager = [simulated("ring", 4, n)["seconds"] for n in (4000, 4004)]
    assert short == pytest.approx(eager[0])
    assert long == pytest.approx(eager[1] + 6 * 2 * 2e-6)


def test_slices_hide_reductions_behind_messages() -> None:
    """Two slices: while one is on the wire, the processor reduces the other."""
    model: dict[str, Any] = {"port": 1 / BETA, "reduce": BETA}  # both take as long
    whole = simulated("recursive_doubling", 2, 1 << 24, **model)["seconds"]
    halves = simulated("recursive_doubling", 2, 1 << 24, slices=2, **model)["seconds"]
    assert whole == pytest.approx(ALPHA + 2 * (1 << 24) * BETA)
    assert halves < 0.8 * whole


def test_the_whole_is_within_the_cost_model_where_ranks_are_alike() -> None:
    """Where nothing is shared, the selector's model and the simulator say the same."""
    for name in ("ring", "recursive_doubling", "rabenseifner", "swing"):
        modelled = schedules.coefficients(name, 16).seconds(
            1 << 20, alpha=ALPHA, beta=BETA, gamma=GAMMA
        )
        assert simulated(name, 16, 1 << 20)["seconds"] == pytest.approx(modelled), name


# ---- shared links, by hand ----------------------------------------------------------------------


def one_way(ranks: int, messages: list[tuple[int, int, int]]) -> list[Schedule]:
    """Messages of all ranks in one round: (from, to, chunks) of a vector of 12 chunks."""
    rounds: list[list[schedules.Step]] = [[] for _ in range(ranks)]
    for source, target, chunks in messages:
        rounds[source].append(send(target, work(0, chunks)))
        rounds[target].append(recv(source, scratch(12 * source, 0, chunks)))
    return [Schedule([steps], rank=r, size=ranks, chunks=12) for r, steps in enumerate(rounds)]


def test_messages_of_one_port_share_it_equally() -> None:
    """Host 0 sends 12 bytes to each of three hosts through a port of 1 byte per second."""
    given = one_way(4, [(0, 1, 12), (0, 2, 12), (0, 3, 12)])
    assert seconds_of(given, 12, port=1.0) == pytest.approx(36)


def test_a_message_that_ends_leaves_its_share_to_the_others() -> None:
    """4 and 12 bytes share a port: half speed until 8 s, then the rest of 8 bytes at full speed."""
    given = one_way(3, [(0, 1, 4), (0, 2, 12)])
    assert seconds_of(given, 12, port=1.0) == pytest.approx(16)


def test_what_a_slow_message_leaves_goes_to_the_others() -> None:
    """Max-min: rank 0's two messages, of which one is limited to 1/4 by two others at its end.

    Rank 3's port takes three messages (two of hosts 1 and 2, one of host 0) at 1/3 each. Host 0's
    other message, to host 4, gets the 2/3 that are left: 8 bytes in 12 s.
    """
    given = one_way(5, [(0, 3, 4), (1, 3, 4), (2, 3, 4), (0, 4, 8)])
    assert seconds_of(given, 12, port=1.0) == pytest.approx(12)
    given = one_way(5, [(0, 3, 12), (1, 3, 12), (2, 3, 12), (0, 4, 8)])
    assert seconds_of(given, 12, port=1.0) == pytest.approx(36)


def test_messages_of_a_pair_follow_each_other_unless_they_are_to_share() -> None:
    """Rank 0 sends 12 bytes twice, by a port of 1 byte/s; rank 1 takes 6 s to reduce each."""
    sends = [[send(1, work(chunk))] for chunk in (0, 1)]
    receives = [
        [recv(0, scratch(0, chunk)), reduce(scratch(0, chunk), work(chunk))] for chunk in (0, 1)
    ]
    given = [
        Schedule(rounds, rank=rank, size=2, chunks=2, name="twice")
        for rank, rounds in enumerate((sends, receives))
    ]
    model: dict[str, Any] = {"port": 1.0, "reduce": 0.5}
    assert seconds_of(given, 24, **model) == pytest.approx(24 + 6)
    assert seconds_of(given, 24, in_order=False, **model) == pytest.approx(24 + 6 + 6)


def test_a_stream_is_not_faster_than_a_lane() -> None:
    given = one_way(3, [(0, 1, 12), (0, 2, 12)])
    assert seconds_of(given, 12, port=4.0, lanes=4) == pytest.approx(12)
    assert seconds_of(given, 12, port=4.0) == pytest.approx(6)


def test_ranks_of_a_host_share_its_ports() -> None:
    given = one_way(4, [(0, 2, 12), (1, 3, 12)])
    model = {"host_of": [0, 0, 1, 1], "port": 1.0}
    for ports, seconds in ((1, 24), (2, 12), (4, 6)):  # of four ports each rank has two
        found = _core.simulate_schedules(given, {**model, "ports": ports}, 12)
        assert found["seconds"] == pytest.approx(seconds), ports
        assert found["bytes_across"] == 24


def test_hosts_of_a_switch_share_its_uplink() -> None:
    given = one_way(4, [(0, 2, 12), (1, 3, 12)])
    inside = one_way(4, [(0, 1, 12), (2, 3, 12)])
    model = {"port": 1.0, "hosts_per_switch": 2, "switch_uplink": 1.0}
    assert seconds_of(given, 12, **model) == pytest.approx(24)
    assert seconds_of(inside, 12, **model) == pytest.approx(12)


def test_groups_share_their_uplink_and_are_farther_away() -> None:
    model = {
        "hosts_per_switch": 1,
        "switches_per_group": 2,
        "group_uplink": 1.0,
        "paths": [(0.0, UNLIMITED)] * 2 + [(1.0, 4.0), (2.0, 4.0), (3.0, 4.0)],
    }
    assert seconds_of(one_way(4, [(0, 1, 12)]), 12, **model) == pytest.approx(2 + 3)
    assert seconds_of(one_way(4, [(0, 2, 12)]), 12, **model) == pytest.approx(3 + 12)
    assert seconds_of(one_way(4, [(0, 2, 12), (1, 3, 12)]), 12, **model) == pytest.approx(3 + 24)


def test_sockets_have_their_own_path_and_bus() -> None:
    model = {
        "host_of": [0] * 4,
        "sockets": 2,
        "socket_bus": 2.0,
        "host_bus": 1.0,
        "paths": [(1.0, 4.0), (2.0, 4.0)] + [(9.0, 4.0)] * 3,
    }

    def seconds(messages: list[tuple[int, int, int]]) -> float:
        return _core.simulate_schedules(one_way(4, messages), model, 12)["seconds"]

    assert seconds([(0, 1, 12)]) == pytest.approx(1 + 6)
    assert seconds([(0, 1, 12), (1, 0, 6), (2, 3, 12)]) == pytest.approx(1 + 9)
    assert seconds([(0, 2, 12)]) == pytest.approx(2 + 12)
    assert seconds([(0, 2, 12), (3, 1, 6)]) == pytest.approx(2 + 18)


def test_routes_of_a_torus_cross() -> None:
    """Four hosts in a circle: 0 to 2 passes 1, and shares the link from 1 to 2."""
    model = {"torus": [4], "port": 1.0, "hop": 0.5, "paths": [(1.0, UNLIMITED)] * 5}
    assert seconds_of(one_way(4, [(0, 1, 12)]), 12, **model) == pytest.approx(13)
    assert seconds_of(one_way(4, [(0, 2, 12)]), 12, **model) == pytest.approx(13.5)
    assert seconds_of(one_way(4, [(0, 3, 12)]), 12, **model) == pytest.approx(13)
    # The second starts half a second earlier, alone; then both have half of the link.
    crossing = seconds_of(one_way(4, [(0, 2, 12), (1, 2, 12)]), 12, **model)
    assert crossing == pytest.approx(1 + 24)
    assert seconds_of(one_way(4, [(0, 1, 12), (2, 3, 12)]), 12, **model) == pytest.approx(13)


def test_a_message_of_a_rank_without_a_receiver_is_refused() -> None:
    given = [
        Schedule([[recv(1, work(0))]], rank=0, size=2, chunks=1),
        Schedule([], rank=1, size=2, chunks=1),
    ]
    with pytest.raises(UsageError, match="rank 0, round 0: waits for ever"):
        seconds_of(given, 8)


# ---- folding ------------------------------------------------------------------------------------

SYMMETRIC = [
    (row["collective"], row["name"])
    for row in schedules.algorithms()
    if _core.is_symmetric(row["collective"], row["name"], {}, 8, 4)
]


def test_the_symmetric_algorithms_are_these() -> None:
    assert len(SYMMETRIC) == 11
    assert not _core.is_symmetric("allreduce", "rabenseifner", {}, 12, 4)
    assert _core.is_symmetric("allreduce", "ring", {}, 12, 4)
    assert not _core.is_symmetric("allreduce", "ring", {}, 12, 5)


@pytest.mark.parametrize(("collective", "name"), SYMMETRIC)
def test_ranks_of_symmetric_algorithms_are_alike(collective: str, name: str) -> None:
    if name == "direct":  # whose many messages between two classes are compared by their times
        return
    for ranks in range(1, 65):
        if not _core.is_symmetric(collective, name, {}, ranks, ranks):
            continue
        given = make_all(name, ranks, collective=collective)
        for period in (n for n in range(1, ranks) if ranks % n == 0):
            assert _core.is_symmetric(collective, name, {}, ranks, period)
            model = {"host_of": hosts(ranks, period)}
            assert _core.ranks_are_alike(given, period, model), (ranks, period)


@pytest.mark.parametrize("across", ["ring", "rabenseifner", "swing", "recursive_doubling"])
@pytest.mark.parametrize("leaders", [0, 1])
def test_hosts_of_symmetric_hierarchies_are_alike(across: str, leaders: int) -> None:
    for local, count, inside in itertools.product((1, 2, 3, 4), (2, 4, 8), ("direct", "ring")):
        ranks = local * count
        parameters: dict[str, Any] = {
            "local": local,
            "across": across,
            "leaders": leaders,
            "inside": inside,
        }
        given = make_all("hierarchical", ranks, **parameters)
        for period in (n for n in range(1, ranks) if ranks % n == 0):
            symmetric = period % local == 0
            asked = ("allreduce", "hierarchical", parameters, ranks, period)
            assert _core.is_symmetric(*asked) == symmetric
            model = {"host_of": hosts(ranks, period)}
            assert not symmetric or _core.ranks_are_alike(given, period, model)
    uneven: dict[str, Any] = {"groups": [0, 0, 1, 1], "across": across}
    assert not _core.is_symmetric("allreduce", "hierarchical", uneven, 4, 2)


SHARED: dict[str, Any] = {
    "paths": [(0.3e-6, 4e10), (0.6e-6, 2e10), (2e-6, 2e10), (2.5e-6, 1e10), (4e-6, 1e10)],
    "port": 1.2e10,
    "host_bus": 3e10,
    "socket_bus": 5e10,
    "sockets": 2,
    "rendezvous": 20000.0,
    "copy": 0.5e-10,
}


@pytest.mark.parametrize("name", [n for n in schedules.names() if n != "hierarchical"])
@pytest.mark.parametrize("local", [1, 2, 4, 8])
def test_folding_equals_not_folding(name: str, local: int) -> None:
    layouts: list[dict[str, Any]] = [
        {},
        {"hosts_per_switch": 2, "switch_uplink": 1.5e10},
        {"hosts_per_switch": 1, "switches_per_group": 2, "group_uplink": 2e10, "ports": 2},
    ]
    for layout, nbytes, slices in itertools.product(layouts, (64, 1 << 20), (1, 3)):
        both = [
            simulated(name, 32, nbytes, local=local, fold=fold, slices=slices, **SHARED, **layout)
            for fold in (True, False)
        ]
        folded, whole = both
        assert folded["seconds"] == pytest.approx(whole["seconds"], rel=1e-9)
        assert folded["bytes_across"] == pytest.approx(whole["bytes_across"])
        assert folded["messages"] == whole["messages"]
        assert whole["simulated_ranks"] == 32
        if _core.is_symmetric("allreduce", name, {}, 32, local):
            assert folded["simulated_ranks"] < 32 or not layout


def test_hierarchical_folds_where_hosts_are_alike() -> None:
    parameters: dict[str, int | str] = {"local": 4, "across": "rabenseifner", "inside": "direct"}
    both = [
        simulated("hierarchical", 64, 1 << 20, local=4, fold=f, parameters=parameters, **SHARED)
        for f in (True, False)
    ]
    assert both[0]["simulated_ranks"] == 4
    assert both[0]["seconds"] == pytest.approx(both[1]["seconds"], rel=1e-9)


def test_ranks_that_are_not_alike_are_all_simulated() -> None:
    assert simulated("ring", 6, 600, host_of=[0, 0, 0, 1, 1, 2])["simulated_ranks"] == 6
    assert simulated("circulant", 12, 600)["simulated_ranks"] == 12  # its runs wrap around
    assert simulated("recursive_doubling", 12, 600)["simulated_ranks"] == 12
    assert simulated("ring", 12, 600, noise=0.1)["simulated_ranks"] == 12


# ---- noise --------------------------------------------------------------------------------------


def test_noise_is_a_function_of_the_seed() -> None:
    def seconds(seed: int) -> float:
        return simulated("rabenseifner", 16, 1 << 16, noise=0.2, seed=seed)["seconds"]

    quiet = simulated("rabenseifner", 16, 1 << 16)["seconds"]
    found = [seconds(seed) for seed in range(8)]
    assert found == [seconds(seed) for seed in range(8)]
    assert len(set(found)) == 8
    assert all(one > quiet for one in found)  # each round waits for the slowest of 16
    assert max(found) < 2 * quiet


# ---- limits: counts, no times -------------------------------------------------------------------


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("local", [1, 4, 32])
def test_a_ring_of_4096_ranks_takes_few_events_and_little_memory(local: int) -> None:
    before = resident()
    found = simulated("ring", 4096, 64 << 20, local=local, port=1.25e9)
    assert found["rounds"] == 2 * 4095
    assert found["messages"] == 2 * 4095 * 4096
    assert found["simulated_ranks"] == local
    assert found["events"] < 5 * 2 * 4095 * local
    assert resident() - before < 64 << 20


def test_doubling_of_65536_ranks_simulates_one_host() -> None:
    found = simulated("recursive_doubling", 65536, 64 << 20, local=16, port=2.5e10)
    assert found["messages"] == 16 * 65536
    assert found["simulated_ranks"] == 16
    assert found["events"] < 5 * 16 * 16


# ---- two trees ----------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [1, 2, 3, 8])
def test_two_trees_are_proved(local: int) -> None:
    for count in (1, 2, 3, 4, 5, 8, 13, 16):
        for pieces in (1, 2, 5):
            verify(_core.two_trees(local * count, local, pieces))


def test_two_trees_use_the_whole_bandwidth() -> None:
    """A long vector takes 2 n beta; a single tree would take twice as long at its inner ranks."""
    given = _core.two_trees(32, 1, 256)
    found = _core.simulate_schedules(given, {"host_of": hosts(32), **PLAIN, "port": 1e10}, 1 << 30)
    moved = 2 * (1 << 30) * BETA
    reduced = (1 << 30) * GAMMA
    assert moved < found["seconds"] < 1.15 * (moved + reduced)


def test_two_trees_need_whole_hosts() -> None:
    with pytest.raises(UsageError, match="two trees of 6 ranks, 4 on each host"):
        _core.two_trees(6, 4, 1)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host_of": []}, "it has no rank"),
        ({"port": 0.0}, "a link has no speed"),
        ({"reduce": -1.0}, "is not a time"),
        ({"ports": 0}, "at least one socket, port and lane"),
        ({"torus": [2]}, "the torus has 2 hosts, and the ranks are on 4"),
        ({"colour": 1}, "a cluster has no 'colour'"),
        ({"port": "fast"}, "port='fast': this is a value of another type"),
    ],
)
def test_clusters_that_make_no_sense_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulated("ring", 4, 8, **change)


def test_schedules_of_other_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="3 schedules were given for 4 ranks"):
        _core.simulate_schedules(make_all("ring", 3), {"host_of": hosts(4)}, 8)
    with pytest.raises(UsageError, match="at least one slice"):
        simulated("ring", 4, 8, slices=0)
