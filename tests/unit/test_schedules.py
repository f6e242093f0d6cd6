"""Schedules: proved for 1 to 64 ranks, with the stated costs; wrong ones get clear errors."""

from __future__ import annotations

import os
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from math import ceil, log2
from pathlib import Path
from typing import Literal

import pytest

from gradred import _core, schedules
from gradred.errors import UsageError
from gradred.schedules import (
    Schedule,
    Step,
    coefficients,
    copy,
    cost,
    draw,
    from_input,
    input_,
    make,
    make_all,
    recv,
    reduce,
    scratch,
    send,
    traffic,
    validate,
    verify,
    work,
)

Parameters = dict[str, schedules.Parameter]

ALGORITHMS = [(row["collective"], row["name"]) for row in schedules.algorithms()]
FOLDED = [
    (row["collective"], row["name"])
    for row in schedules.algorithms()
    if row["restriction"].startswith("any size; others than powers of two")
]


ROOTED = ("bcast", "gather", "scatter")


def variants(collective: str, name: str, size: int) -> Iterator[Parameters]:
    """The parameters to test for an algorithm on `size` ranks."""
    roots = sorted({0, size // 3, size - 1}) if collective in ROOTED else []
    rooted: list[Parameters] = [{"root": root} for root in roots] or [{}]
    if name == "recursive_multiplying":
        yield from ({"k": k} for k in (2, 3, 4, 7))
    elif name == "hierarchical":
        levels: Parameters = {"inside": "circulant", "across": "rabenseifner"}
        for local in (n for n in range(1, size + 1) if size % n == 0):
            for more in [levels] if collective == "allreduce" else rooted:
                yield {"local": local, **more}
    else:
        yield from rooted


def seconds(given: list[Schedule], nbytes: int) -> tuple[float, float, float]:
    """Rounds, bytes moved and bytes reduced on the critical path."""
    return (
        cost(given, nbytes, alpha=1, beta=0),
        cost(given, nbytes, alpha=0, beta=1),
        cost(given, nbytes, alpha=0, beta=0, gamma=1),
    )


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_size_from_1_to_64_is_proved(collective: str, name: str) -> None:
    for size in range(1, 65):
        for parameters in variants(collective, name, size):
            given = make_all(name, size, collective=collective, **parameters)
            proved = verify(given)
            from_inputs = verify(map(from_input, given))
            assert from_inputs.digest == proved.digest
            assert from_inputs.messages == proved.messages


@pytest.mark.parametrize("inside", ["ring", "circulant", "direct"])
@pytest.mark.parametrize(
    "across", [name for name in schedules.names("allreduce") if name != "hierarchical"]
)
def test_hierarchical_is_proved_for_every_pair_of_algorithms(inside: str, across: str) -> None:
    for local in (2, 3):
        for groups in (1, 2, 3, 6):
            verify(
                make_all("hierarchical", local * groups, local=local, inside=inside, across=across)
            )


LAYOUTS = [
    [0, 0, 0, 1],
    [0, 1, 1, 1, 1],
    [0, 1, 0, 1],
    [0, 0, 1, 1, 1, 2],
    [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3],
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("leaders", [0, 1])
@pytest.mark.parametrize("across", ["recursive_doubling", "rabenseifner", "circulant", "ring"])
def test_hierarchical_is_proved_for_groups_of_any_sizes(
    layout: list[int], leaders: int, across: str
) -> None:
    for inside in ("direct", "ring"):
        given = make_all(
            "hierarchical",
            len(layout),
            groups=layout,
            leaders=leaders,
            inside=inside,
            across=across,
        )
        proved = verify(given)
        assert verify(map(from_input, given)).digest == proved.digest


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("leaders", [0, 1])
def test_groups_of_any_sizes_send_each_other_no_more_than_single_ranks(
    layout: list[int], leaders: int
) -> None:
    """All lanes together are one vector, whichever ranks carry them."""
    hosts, nbytes = 1 + max(layout), 60 * 4
    given = make_all("hierarchical", len(layout), groups=layout, leaders=leaders)
    sent = [0] * hosts
    for schedule in given:
        for steps in schedule.rounds:
            for step in steps:
                if step.kind == "send" and step.source is not None and step.peer is not None:
                    crosses = layout[step.peer] != layout[schedule.rank]
                    sent[layout[schedule.rank]] += crosses * (
                        nbytes * step.source.chunks // schedule.chunks
                    )
    alone = make_all("recursive_doubling", hosts)
    assert sent == [traffic(one, nbytes).sent for one in alone]


CHEAP = ["recursive_doubling", "recursive_multiplying", "rabenseifner", "circulant", "swing"]


@pytest.mark.parametrize("name", ["recursive_doubling", "circulant"])
def test_a_thousand_ranks_are_proved(name: str) -> None:
    verify(make_all(name, 1000))


@pytest.mark.full
@pytest.mark.parametrize("size", [257, 1000, 1023, 1024])
@pytest.mark.parametrize("name", CHEAP)
def test_hundreds_of_ranks_are_proved(name: str, size: int) -> None:
    verify(make_all(name, size))


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_one_rank_has_nothing_to_do(collective: str, name: str) -> None:
    parameters: Parameters = {"local": 1} if name == "hierarchical" else {}
    assert not any(make(name, 0, 1, collective=collective, **parameters).rounds)


# The costs of generators.h for p ranks: rounds, bytes and reduced bytes in units of n / p.
COSTS: dict[tuple[str, str], Callable[[int], tuple[float, float, float]]] = {
    ("allreduce", "ring"): lambda p: (2 * (p - 1), 2 * (p - 1), p - 1),
    ("allreduce", "recursive_doubling"): lambda p: (log2(p), p * log2(p), p * log2(p)),
    ("allreduce", "rabenseifner"): lambda p: (2 * log2(p), 2 * (p - 1), p - 1),
    ("allreduce", "swing"): lambda p: (2 * log2(p), 2 * (p - 1), p - 1),
    ("allreduce", "circulant"): lambda p: (2 * ceil(log2(p)), 2 * (p - 1), p - 1),
    ("allreduce", "direct"): lambda p: (2 * min(p - 1, 1), 2 * (p - 1), p - 1),
    ("reduce_scatter", "ring"): lambda p: (p - 1, p - 1, p - 1),
    ("reduce_scatter", "recursive_halving"): lambda p: (log2(p), p - 1, p - 1),
    ("reduce_scatter", "circulant"): lambda p: (ceil(log2(p)), p - 1, p - 1),
    ("reduce_scatter", "direct"): lambda p: (min(p - 1, 1), p - 1, p - 1),
    ("allgather", "ring"): lambda p: (p - 1, p - 1, 0),
    ("allgather", "recursive_doubling"): lambda p: (log2(p), p - 1, 0),
    ("allgather", "circulant"): lambda p: (ceil(log2(p)), p - 1, 0),
    ("allgather", "direct"): lambda p: (min(p - 1, 1), p - 1, 0),
    ("bcast", "binomial"): lambda p: (ceil(log2(p)), p * ceil(log2(p)), 0),
    ("bcast", "scatter_allgather"): lambda p: (2 * ceil(log2(p)), 2 * (p - 1), 0),
    ("gather", "binomial"): lambda p: (ceil(log2(p)), p - 1, 0),
    ("gather", "linear"): lambda p: (min(p - 1, 1), p - 1, 0),
    ("scatter", "binomial"): lambda p: (ceil(log2(p)), p - 1, 0),
    ("scatter", "linear"): lambda p: (min(p - 1, 1), p - 1, 0),
    ("scan", "linear"): lambda p: (p - 1, p * (p - 1), p * (p - 1)),
    ("scan", "recursive_doubling"): lambda p: (
        ceil(log2(p)),
        p * ceil(log2(p)),
        p * ceil(log2(p)),
    ),
    ("exscan", "linear"): lambda p: (p - 1, p * (p - 1), p * max(p - 2, 0)),
}


@pytest.mark.parametrize(("collective", "name"), COSTS)
def test_rounds_and_bytes_are_the_stated_ones(collective: str, name: str) -> None:
    folded = (collective, name) in FOLDED
    for size in [1, 2, 4, 8, 16, 32, 64] if folded else range(1, 65):
        unit = 8
        given = make_all(name, size, collective=collective)
        rounds, moved, reduced = COSTS[collective, name](size)
        wanted = (rounds, moved * unit, reduced * unit)
        assert seconds(given, size * unit) == pytest.approx(wanted), size


@pytest.mark.parametrize(("collective", "name"), FOLDED)
def test_folding_adds_two_rounds(collective: str, name: str) -> None:
    for size in (3, 5, 6, 7, 24, 63):
        mains = 1 << (size.bit_length() - 1)
        nbytes = size * mains
        rounds, moved, reduced = seconds(make_all(name, size, collective=collective), nbytes)
        assert rounds == COSTS[collective, name](mains)[0] + 2
        if collective == "allreduce":
            base = seconds(make_all(name, mains), nbytes)
            wanted = (base[1] + 2 * nbytes, base[2] + nbytes)
            assert (moved, reduced) == pytest.approx(wanted)


@pytest.mark.parametrize(("k", "exponent"), [(2, 5), (3, 3), (4, 2), (7, 1)])
def test_recursive_multiplying_costs_k_minus_1_vectors_per_round(k: int, exponent: int) -> None:
    given = make_all("recursive_multiplying", k**exponent, k=k)
    assert seconds(given, 8) == (exponent, 8 * exponent * (k - 1), 8 * exponent * (k - 1))


def test_mixed_radix_needs_no_folding() -> None:
    assert [len(make("recursive_multiplying", 0, 24, k=k).rounds) for k in (2, 3, 4)] == [6, 4, 3]


def test_hierarchical_sends_only_a_slice_across_groups() -> None:
    local, groups, nbytes = 4, 8, 3200
    for schedule in make_all("hierarchical", local * groups, local=local):
        sent = sum(
            nbytes * step.source.chunks // schedule.chunks
            for steps in schedule.rounds
            for step in steps
            if step.kind == "send" and step.source is not None
            if step.peer is not None and step.peer // local != schedule.rank // local
        )
        assert sent == log2(groups) * nbytes / local


def test_rabenseifner_sends_the_largest_messages_to_the_nearest_rank() -> None:
    first = make("rabenseifner", 5, 16).rounds[0][0]
    assert (first.peer, first.source) == (4, work(0, 8))


# Odd numbers, powers of two and their neighbours, above the sizes that compare all ranks.
LARGER = (65, 96, 100, 127, 128, 129, 192, 257)


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_two_ranks_cost_what_all_ranks_do(collective: str, name: str, full: bool) -> None:
    for size in [*range(1, 65), *(LARGER if full else LARGER[:3])]:
        for parameters in variants(collective, name, size):
            everyone = _core.schedule_cost(
                make_all(name, size, collective=collective, **parameters)
            )
            found = coefficients(name, size, collective=collective, **parameters)
            for kind in ("rounds", "messages", "moved", "reduced", "copied"):
                assert getattr(found, kind) == getattr(everyone, kind), (size, parameters, kind)


@pytest.mark.parametrize("name", schedules.names("allreduce"))
def test_one_host_costs_what_all_hosts_do(name: str) -> None:
    host_of = [rank // 4 for rank in range(128)]
    size = len(host_of)
    for parameters in variants("allreduce", name, size):
        everyone = _core.schedule_cost(make_all(name, size, **parameters), host_of)
        found = coefficients(name, size, host_of=host_of, **parameters)
        for kind in ("rounds_across", "moved_across", "rounds", "moved", "reduced", "copied"):
            assert getattr(found, kind) == getattr(everyone, kind), (parameters, kind)


def test_ranks_of_a_host_share_its_link() -> None:
    apart = coefficients("recursive_doubling", 4, host_of=[0, 1, 2, 3])
    assert (apart.rounds_across, apart.moved_across) == (2, 2)
    pairs = coefficients("recursive_doubling", 4, host_of=[0, 0, 1, 1])
    assert (pairs.rounds, pairs.rounds_across) == (2, 1)
    assert (pairs.moved, pairs.moved_across) == (3, 2)  # in the second round both ranks at once
    grouped = coefficients("hierarchical", 4, host_of=[0, 0, 1, 1], local=2)
    assert grouped.moved_across == 1  # each rank takes its half
    slow = {"alpha": 1.0, "beta": 1.0, "alpha_inside": 0.25, "beta_inside": 0.5}
    assert pairs.seconds(8, **slow) == (0.25 + 8 * 0.5) + (1 + 16)


def test_hosts_of_other_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="hosts of 3 ranks for a schedule of 4"):
        coefficients("ring", 4, host_of=[0, 0, 1])


def walked(schedules: list[Schedule], nbytes: int) -> tuple[float, float]:
    """Bytes moved and reduced by the busiest rank of each round, chunk by chunk."""
    chunks = schedules[0].chunks
    starts = [i * (nbytes // chunks) + min(i, nbytes % chunks) for i in range(chunks + 1)]

    def total(steps: Sequence[Step], kind: str) -> int:
        spans = [step.target or step.source for step in steps if step.kind == kind]
        return sum(starts[s.first + s.chunks] - starts[s.first] for s in spans if s is not None)

    moved = reduced = 0
    for steps in zip_longest(*(schedule.rounds for schedule in schedules), fillvalue=()):
        moved += max(max(total(each, "send"), total(each, "recv")) for each in steps)
        reduced += max(total(each, "reduce") for each in steps)
    return moved, reduced


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_cost_is_linear_but_for_the_rounding_of_chunks(collective: str, name: str) -> None:
    for size in (2, 5, 12):
        parameters = next(variants(collective, name, size))
        given = make_all(name, size, collective=collective, **parameters)
        chunks = given[0].chunks
        for nbytes in (0, 8 * chunks, 8 * chunks + 1, 9 * chunks - 1, 1000):
            exact, found = walked(given, nbytes), seconds(given, nbytes)[1:]
            if nbytes % chunks == 0:
                assert found == pytest.approx(exact)
            short, long = (nbytes // chunks) * chunks, -(-nbytes // chunks) * chunks
            low, high = seconds(given, short)[1:], seconds(given, long)[1:]
            for kind in (0, 1):
                assert low[kind] - 1e-9 <= exact[kind] <= high[kind] + 1e-9
                assert low[kind] - 1e-9 <= found[kind] <= high[kind] + 1e-9


def test_messages_of_one_round_share_the_port() -> None:
    """The direct exchange has two rounds on any number of ranks, each of p-1 messages."""
    assert coefficients("direct", 64).rounds == coefficients("direct", 3).rounds == 2
    assert coefficients("direct", 64).messages == 2 * 62
    assert coefficients("ring", 64).messages == 0
    small = [coefficients(name, 64) for name in ("direct", "recursive_doubling")]
    model = {"alpha": 2e-6, "beta": 1e-10, "gap": 3e-7}
    assert small[0].seconds(8, **model) > small[1].seconds(8, **model)
    model["gap"] = 0.0
    assert small[0].seconds(8, **model) < small[1].seconds(8, **model)


def test_copies_have_a_cost() -> None:
    given = [from_input(schedule) for schedule in make_all("ring", 4, collective="allgather")]
    assert cost(given, 400, alpha=0, beta=0, delta=1) == 100
    assert traffic(given[1], 400).copied == 100


@pytest.mark.wider  # only --full asserts the time
def test_thousands_of_ranks_are_costed_in_no_time(full: bool) -> None:
    begin = time.process_time()
    found = [coefficients(name, 4096) for name in ("ring", *CHEAP)]
    assert time.process_time() - begin < 2.0 or not full, "the day's sweep measures no machine"
    assert found[0].rounds == 2 * 4095
    begin = time.process_time()
    for _ in range(100):
        found[0].seconds(1 << 20, alpha=1e-6, beta=1e-10)
    assert time.process_time() - begin < 0.1 or not full


def test_traffic_counts_uneven_chunks_exactly() -> None:
    found = traffic(make("direct", 1, 3), 7)  # chunks of 3, 2 and 2 bytes
    assert (found.messages, found.sent, found.received, found.reduced) == (4, 9, 9, 4)


# A user's own schedule ----------------------------------------------------------------------------


def my_ring(rank: int, size: int) -> Schedule:
    """A ring as in the style guide, written in Python."""
    right, left = (rank + 1) % size, (rank - 1) % size

    def rounds() -> Iterator[list[Step]]:
        for s in range(size - 1):
            mine = (rank - s - 1) % size
            inbox = scratch(0, mine)
            yield [
                send(right, work((rank - s) % size)),
                recv(left, inbox),
                reduce(inbox, work(mine)),
            ]
        for s in range(size - 1):
            yield [send(right, work((rank + 1 - s) % size)), recv(left, work((rank - s) % size))]

    return Schedule(rounds(), rank=rank, size=size, chunks=size, name="my ring")


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_a_users_generator_is_proved(size: int) -> None:
    given = [my_ring(rank, size) for rank in range(size)]
    assert verify(given).messages == 2 * size * (size - 1)
    assert cost(given, size, alpha=0, beta=1) == cost(make_all("ring", size), size, alpha=0, beta=1)


def test_a_schedule_needs_as_many_slots_as_its_spans_use() -> None:
    steps = [recv(1, scratch(2, 0, 3)), reduce(scratch(2, 0, 3), work(0, 3))]
    assert Schedule([steps], rank=0, size=2, chunks=3).scratch_slots == 5


# The input in a separate buffer -------------------------------------------------------------------


def copied(schedule: Schedule) -> int:
    """The number of chunks that a rank copies."""
    steps = [step for steps in schedule.rounds for step in steps if step.kind == "copy"]
    return sum(step.source.chunks for step in steps if step.source is not None)


@pytest.mark.parametrize("name", [*CHEAP, "ring", "direct"])
def test_an_allreduce_copies_none_of_its_input_on_powers_of_two(name: str) -> None:
    for size in (2, 4, 8, 32):
        assert not any(copied(from_input(schedule)) for schedule in make_all(name, size))


def test_what_lies_partly_in_work_is_copied_before_it_is_sent() -> None:
    """The first round on 7 ranks reduces into chunks 0 to 2, the second sends 2 and 3."""
    before, after = make("circulant", 0, 7), from_input(make("circulant", 0, 7))
    assert after.rounds[0][-1] == copy(input_(3), work(3))
    assert after.rounds[1][0] == before.rounds[1][0] == send(2, work(2, 2))
    assert copied(after) == 1


def test_a_reduction_from_the_input_has_three_addresses() -> None:
    (steps,) = from_input(make("recursive_doubling", 1, 2)).rounds
    assert steps == (
        send(0, input_(0)),
        recv(0, scratch(0, 0)),
        reduce(scratch(0, 0), work(0), operand=input_(0)),
    )
    assert repr(steps[2]) == "reduce(scratch(0, 0), work(0), operand=input_(0))"
    assert steps[2].operand == input_(0)


def test_what_no_message_touches_is_copied_at_the_end() -> None:
    (steps,) = from_input(make("ring", 0, 1)).rounds
    assert steps == (copy(input_(0), work(0)),)
    last = from_input(make("ring", 2, 3, collective="allgather")).rounds[-1]
    assert last[-1] == copy(input_(2), work(2))
    untouched = from_input(Schedule([], rank=1, size=3, chunks=6, collective="reduce_scatter"))
    assert untouched.rounds[0] == (copy(input_(2, 2), work(2, 2)),)


def test_from_input_twice_is_from_input() -> None:
    once = from_input(make("ring", 1, 3))
    assert (once.in_place, make("ring", 1, 3).in_place) == (False, True)
    assert from_input(once) == once != make("ring", 1, 3)


@pytest.mark.parametrize("name", ["ring", "circulant", "rabenseifner"])
def test_ranks_may_differ_in_where_their_input_lies(name: str) -> None:
    given = make_all(name, 5)
    mixed = [from_input(schedule) if rank % 2 else schedule for rank, schedule in enumerate(given)]
    assert verify(mixed).digest == verify(given).digest


def test_equal_sums_have_equal_digests() -> None:
    digests = {
        name: verify(make_all(name, 8)).digest for name in ("recursive_doubling", "ring", "direct")
    }
    assert verify(make_all("recursive_multiplying", 8, k=2)).digest == digests["recursive_doubling"]
    assert len(set(digests.values())) == 3


# Rounds on demand ---------------------------------------------------------------------------------


def resident() -> int:
    """The resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("name", ["ring", "hierarchical", "recursive_multiplying"])
@pytest.mark.wider  # only --full asserts the time
def test_thousands_of_ranks_take_little_memory_and_time(name: str, full: bool) -> None:
    """The rounds of all ranks of a ring would be 5 GiB."""
    parameters: Parameters = {"local": 64} if name == "hierarchical" else {}
    before, begin = resident(), time.process_time()
    everyone = make_all(name, 4096, **parameters)
    assert time.process_time() - begin < 2.0 or not full
    assert sum(len(schedule.rounds) for schedule in everyone) >= 4096 * 6
    assert resident() - before < 64 << 20


@pytest.mark.wider  # only --full asserts the time
def test_rounds_of_a_long_schedule_come_one_by_one(full: bool) -> None:
    before, begin = resident(), time.process_time()
    schedule = make("ring", 1, 4096)
    for each in (schedule, from_input(schedule)):
        assert len(each.rounds) == 2 * 4095
        assert each.rounds[4094][-1].kind == "reduce"
        assert each.rounds[-1][0] == send(2, work(3))
        assert sum(len(steps) for steps in each.rounds) == 5 * 4095
        validate(each)
    assert time.process_time() - begin < 2.0 or not full
    assert resident() - before < 8 << 20


def test_rounds_are_a_sequence() -> None:
    rounds = make("ring", 1, 3).rounds
    whole = tuple(rounds)
    assert isinstance(rounds, Sequence)
    assert (len(rounds), len(whole)) == (4, 4)
    assert (rounds[0], rounds[-1], rounds[1:3]) == (whole[0], whole[-1], whole[1:3])
    assert (rounds[::-1], rounds[3:0:-2]) == (whole[::-1], whole[3:0:-2])
    assert tuple(reversed(rounds)) == whole[::-1]
    assert whole[2] in rounds
    assert () not in rounds
    assert (rounds.index(whole[2]), rounds.count(whole[2])) == (2, 1)
    assert rounds == make("ring", 1, 3).rounds == whole
    assert rounds != make("ring", 2, 3).rounds
    assert hash(rounds) == hash(whole)
    assert repr(rounds) == repr(whole)
    for index in (4, -5):
        with pytest.raises(IndexError, match="no such round"):
            rounds[index]
    with pytest.raises(ValueError, match="not in tuple"):
        rounds.index(())


# Wrong schedules ----------------------------------------------------------------------------------

SWAP = [[send(1, work(0)), recv(1, scratch(0, 0)), reduce(scratch(0, 0), work(0))]]
SWAP_BACK = [[send(0, work(0)), recv(0, scratch(0, 0)), reduce(scratch(0, 0), work(0))]]

# The mistake, the rounds of rank 0 and of rank 1, the chunks, and the text of the error.
WRONG: list[tuple[str, list[list[Step]], list[list[Step]], int, str]] = [
    (
        "nobody receives",
        [[send(1, work(0))]],
        [],
        1,
        "rank 0, round 0, step 0: .*rank 1 has finished",
    ),
    (
        "both send first",
        [[send(1, work(0))], [recv(1, scratch(0, 0))]],
        [[send(0, work(0))], [recv(0, scratch(0, 0))]],
        1,
        r"never met: rank 1 waits in round 0 to send chunk 0 to rank 0",
    ),
    (
        "sizes differ",
        [[send(1, work(0, 2))]],
        [[recv(0, work(0))]],
        2,
        r"rank 1, round 0, step 0: receives chunk 0 where rank 0 \(round 0, step 0\) sends",
    ),
    ("chunks differ", [[send(1, work(0))]], [[recv(0, work(1))]], 2, "receives chunk 1 where"),
    (
        "receives twice into one place",
        [[recv(1, work(0)), recv(1, work(0, 2))]],
        [],
        2,
        "rank 0, round 0, step 1: in flight together and overlapping",
    ),
    ("sends what it receives", [[send(1, work(0)), recv(1, work(0))]], [], 1, "overlapping"),
    (
        "outside the vector",
        [[send(1, work(1, 2))]],
        [],
        2,
        "chunks 1..2 lies outside the vector of 2",
    ),
    ("empty span", [[send(1, work(0, 0))]], [], 1, "a span is empty"),
    ("no such peer", [[send(2, work(0))]], [], 1, "peer 2 is none of the 2 ranks"),
    ("itself as peer", [[send(0, work(0))]], [], 1, "sends itself no messages"),
    ("ends differ", [[reduce(work(0), work(1))]], [], 2, "source and target are different chunks"),
    ("ends overlap", [[copy(work(0), work(0))]], [], 1, "source and target overlap"),
    (
        "operand differs",
        [[reduce(scratch(0, 0), work(0), operand=work(1))]],
        [],
        2,
        "operand and target are different chunks: reduce .* and chunk 1 into chunk 0",
    ),
    (
        "operand and target overlap",
        [[reduce(work(0, 2), scratch(0, 0, 2), operand=scratch(1, 0, 2))]],
        [],
        2,
        "operand and target overlap",
    ),
    (
        "receives into the input",
        [[recv(1, input_(0))]],
        [],
        1,
        "the input is only read: recv chunk 0 of the input from rank 1",
    ),
    ("copies into the input", [[copy(work(0), input_(0))]], [], 1, "the input is only read"),
    (
        "takes work for the input",
        [[send(1, input_(0)), recv(1, scratch(0, 0)), reduce(scratch(0, 0), work(0))]],
        SWAP_BACK,
        1,
        "rank 0, round 0, step 2: .*: nobody has written chunk 0",
    ),
    ("nothing happens", [], [], 1, "rank 0: the result for chunk 0 lacks the input of rank 1"),
    (
        "one rank forgets to reduce",
        SWAP,
        [SWAP_BACK[0][:2]],
        1,
        "rank 1: the result for chunk 0 lacks the input of rank 0",
    ),
    (
        "counted twice",
        [[*SWAP[0], reduce(scratch(0, 0), work(0))]],
        [[*SWAP_BACK[0], reduce(scratch(0, 0), work(0))]],
        1,
        "rank 0, round 0, step 3: the result for chunk 0 on rank 0 counts an input twice",
    ),
    (
        "reads nothing",
        [[reduce(scratch(0, 0), work(0))]],
        [],
        1,
        "nobody has written chunk 0 there",
    ),
    (
        "reads a run from its middle",
        [[send(1, work(0, 2))]],
        [[recv(0, scratch(0, 0, 2)), reduce(scratch(1, 1), work(1))]],
        2,
        "slot 1 was written as part of a run from chunk 0 in slot 0",
    ),
    (
        "reads a run whose tail was overwritten",  # chunk 0 may be longer than chunk 1
        [[send(1, work(1, 3))], [send(1, work(0))], [send(1, work(1))]],
        [
            [recv(0, scratch(0, 1, 3))],
            [recv(0, scratch(0, 0))],
            [recv(0, scratch(0, 1)), reduce(scratch(0, 1, 3), work(1, 3))],
        ],
        4,
        "rank 1, round 2, step 1: .* nobody has written chunk 2 there",
    ),
]


@pytest.mark.parametrize(
    ("zero", "one", "chunks", "words"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
def test_wrong_schedules_are_refused(
    zero: list[list[Step]], one: list[list[Step]], chunks: int, words: str
) -> None:
    given = [
        Schedule(rounds, rank=rank, size=2, chunks=chunks)
        for rank, rounds in enumerate([zero, one])
    ]
    with pytest.raises(UsageError, match=words):
        verify(given)


def test_another_order_of_summation_is_refused() -> None:
    """All three ranks have every input once, but rank 2 adds from the other end."""

    def all_to_all(rank: int, order: list[int]) -> Schedule:
        peers = [peer for peer in range(3) if peer != rank]
        inbox = {peer: scratch(slot, 0) for slot, peer in enumerate(peers)}
        steps = [step for peer in peers for step in (send(peer, work(0)), recv(peer, inbox[peer]))]
        own = scratch(2, 0)
        first, second, third = ((inbox | {rank: own})[peer] for peer in order)
        steps += [copy(work(0), own), reduce(first, second), reduce(second, third)]
        return Schedule([[*steps, copy(third, work(0))]], rank=rank, size=3, chunks=1)

    verify([all_to_all(rank, [0, 1, 2]) for rank in range(3)])
    verify([all_to_all(rank, [1, 0, 2] if rank == 1 else [0, 1, 2]) for rank in range(3)])
    with pytest.raises(UsageError, match=r"rank 2: .* added up in another order than on rank 0"):
        verify([all_to_all(rank, [2, 1, 0] if rank == 2 else [0, 1, 2]) for rank in range(3)])


@pytest.mark.parametrize(
    ("collective", "words"),
    [
        ("reduce_scatter", "rank 1: the result for chunk 1 lacks the input of rank 0"),
        ("allgather", "rank 0: ends with chunk 1 wrong: nobody has written it"),
        ("bcast", "rank 1: ends with chunk 0 wrong: nobody has written it"),
    ],
)
def test_the_final_state_is_what_the_collective_demands(collective: str, words: str) -> None:
    take = [recv(1, scratch(0, 0)), reduce(scratch(0, 0), work(0))]
    rounds = [[take], [[send(0, work(0))]]] if collective == "reduce_scatter" else [[], []]
    given = [
        Schedule(rounds[rank], rank=rank, size=2, chunks=2, collective=collective)
        for rank in range(2)
    ]
    with pytest.raises(UsageError, match=words):
        verify(given)


def test_a_broadcast_adds_nothing_up() -> None:
    twice = [recv(0, work(0)), recv(0, scratch(0, 0)), reduce(scratch(0, 0), work(0))]
    given = [
        Schedule([steps], rank=rank, size=2, chunks=1, collective="bcast")
        for rank, steps in enumerate([[send(1, work(0))] * 2, twice])
    ]
    with pytest.raises(UsageError, match="rank 1: ends with chunk 0 wrong: inputs were added up"):
        verify(given)


def test_the_root_of_a_broadcast_writes_nothing_to_its_array() -> None:
    """It may be read-only, as a mapped file is."""
    there_and_back = [
        [[send(1, work(0))], [recv(1, work(0))]],
        [[recv(0, work(0))], [send(0, work(0))]],
    ]
    given = [
        Schedule(rounds, rank=rank, size=2, chunks=1, collective="bcast")
        for rank, rounds in enumerate(there_and_back)
    ]
    with pytest.raises(
        UsageError, match="rank 0, round 1, step 0: the array of a broadcast's root"
    ):
        verify(given)


def test_schedules_that_do_not_belong_together_are_refused() -> None:
    ring = make_all("ring", 3)
    for given, words in [
        ([], "there is no schedule"),
        (ring[:2], "2 schedules were given for 3 ranks"),
        ([ring[0], ring[2], ring[1]], "rank 1: this place holds the schedule of rank 2"),
        (
            [ring[0], ring[1], make("direct", 2, 4)],
            "rank 2: size, chunks, root, collective or leaves differ",
        ),
    ]:
        with pytest.raises(UsageError, match=words):
            verify(given)


def test_absurd_sizes_are_refused_before_memory_is_taken() -> None:
    for chunks, slot in [(2**32 - 1, 0), (1, 2**31)]:
        steps = [copy(work(0), scratch(slot, 0))]
        with pytest.raises(UsageError, match="too large to verify"):
            verify([Schedule([steps], rank=0, size=1, chunks=chunks)])


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(TypeError, match="a step is what send, recv, reduce or copy makes"):
        Schedule([["send"]], rank=0, size=1, chunks=1)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="a round is a list of steps"):
        Schedule([send(1, work(0))], rank=0, size=2, chunks=1)  # type: ignore[list-item]


def test_validation_looks_at_one_rank_alone() -> None:
    validate(Schedule([[send(1, work(0))]], rank=0, size=2, chunks=1))
    with pytest.raises(UsageError, match=r"rank 0, round 1, step 0: .* outside the vector"):
        validate(Schedule([[], [send(1, work(1))]], rank=0, size=2, chunks=1))
    with pytest.raises(UsageError, match="3 chunks for 2 ranks: allgather needs a multiple"):
        validate(Schedule([], rank=0, size=2, chunks=3, collective="allgather"))


# Names, parameters, pictures -------------------------------------------------------------


def test_misspelt_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="'rabenseifer'; did you mean 'rabenseifner'"):
        make("rabenseifer", 0, 4)
    with pytest.raises(UsageError, match="allgather, allreduce, bcast, exscan, gather"):
        schedules.names("alreduce")
    with pytest.raises(UsageError, match="'alltoallw'; use one of allreduce"):
        make("ring", 0, 4, collective="alltoallw")


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("ring", {"k": 2}, "ring takes no parameter 'k'; it takes none"),
        ("recursive_multiplying", {"k": 1}, "needs k of 2 or more"),
        ("recursive_multiplying", {"k": 2**40}, "k=1099511627776: give a small whole number"),
        ("hierarchical", {"local": 2, "inside": 3}, "inside=3: give a name"),
        ("hierarchical", {}, "give local"),
        ("hierarchical", {"local": 4}, "local=4 and 6 ranks"),
        (
            "hierarchical",
            {"local": 2, "inside": "binomial"},
            "no reduce_scatter algorithm is called",
        ),
        ("hierarchical", {"local": 2, "across": "hierarchical"}, "describe one level"),
    ],
)
def test_parameters_that_are_not_served_are_refused(
    name: str, parameters: Parameters, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        make(name, 0, 6, collective="allreduce", **parameters)


@pytest.mark.parametrize(("rank", "size"), [(-1, 4), (4, 4), (0, 0)])
def test_ranks_outside_the_size_are_refused(rank: int, size: int) -> None:
    with pytest.raises(UsageError, match="the rank must lie from 0 to size - 1"):
        make("ring", rank, size)


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_equal_schedules_have_one_hash(collective: str, name: str) -> None:
    parameters = next(variants(collective, name, 6))
    one, other = (make(name, 4, 6, collective=collective, **parameters) for _ in range(2))
    assert (one, hash(one)) == (other, hash(other))
    assert one != make(name, 3, 6, collective=collective, **parameters)


def test_a_schedule_reads_like_its_constructors() -> None:
    step = make("circulant", 2, 5).rounds[0][1]
    assert repr(step) == "recv(4, scratch(0, 2, 2))"
    assert eval(repr(step), {"recv": recv, "scratch": scratch}) == step
    assert (step.kind, step.peer, step.source) == ("recv", 4, None)
    assert step.target == scratch(0, 2, 2) != work(2, 2)


KINDS: tuple[Literal["text"], Literal["svg"]] = ("text", "svg")


def test_pictures_are_deterministic_and_well_formed() -> None:
    for name in ("ring", "circulant", "rabenseifner"):
        text, svg = (draw(make_all(name, 5), kind) for kind in KINDS)
        assert (text, svg) == (draw(make_all(name, 5)), draw(make_all(name, 5), "svg"))
        assert text.count("→") == text.count("←")
        lines = [e for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("}line")]
        assert len(lines) == text.count("→")


def test_pictures_escape_names_and_show_single_ranks() -> None:
    schedule = Schedule([[recv(1, work(0, 2))]], rank=0, size=2, chunks=2, name="a<b & c")
    svg = draw(schedule, "svg")
    assert "a&lt;b &amp; c: allreduce" in svg
    assert "<title>rank 1 to 0: 0-1</title>" in svg
    assert draw(schedule).splitlines()[2] == "rank 0  ←1[0-1]"
    assert draw(from_input(make("recursive_doubling", 0, 2))).splitlines()[2] == (
        "rank 0  →1[in:0] ←1[0] +[in:0]"
    )
    with pytest.raises(UsageError, match="Use 'text' or 'svg'"):
        draw(schedule, "png")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no schedule"):
        draw([])
