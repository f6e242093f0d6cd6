"""The test of the verifier: schedules with one changed step are rejected, or proved equivalent.

A mutant drops or duplicates a step, or changes its peer or kind, or the buffer, slot or chunks of
what it reads or writes. The number of equivalent mutants is fixed: a weaker verifier lets more of
them pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from core_testing import MutationResult, mutate_schedules

from gradred import schedules
from gradred.schedules import Schedule, copy, from_input, make_all, recv, scratch, send, work

ALGORITHMS = [(row["collective"], row["name"]) for row in schedules.algorithms()]

# A rank may add up or copy more than it needs: the rest of the last message is still in the scratch
# buffer, and the sum goes to a chunk that is overwritten or not read later. A step that reads
# nothing of what it writes may be done twice. Copied data may be read from the input. In an
# exclusive scan a rank has its sum in the scratch buffer as well, and may add what arrives to
# either.
HARMLESS = re.compile(
    r"(reduce|copy) .* (into|to) .*: all ends: |"
    r"(reduce .* and .* into .*|copy .*): duplicate$|"
    r"send .*: buffer of source: .* of the input$|"
    r"recv chunk 0 in slot 0 .*: buffer of target: chunk 0$"
)

# Equivalent mutants over 1 to 7 ranks and over 8 and 9 (all mutants), in the samples of 16 and 31,
# and in that of 64 ranks; in place, and with the input in a separate buffer.
EQUIVALENT = {
    ("allreduce", "ring"): ((0, 0, 0, 0), (113, 128, 4, 0)),
    ("allreduce", "recursive_doubling"): ((0, 0, 0, 0), (21, 16, 2, 3)),
    ("allreduce", "rabenseifner"): ((13, 17, 0, 0), (34, 33, 2, 0)),
    ("allreduce", "circulant"): ((24, 22, 4, 0), (69, 60, 2, 0)),
    ("allreduce", "direct"): ((0, 0, 0, 0), (28, 17, 1, 0)),
    ("allreduce", "recursive_multiplying"): ((0, 0, 0, 0), (26, 17, 5, 0)),
    ("allreduce", "hierarchical"): ((0, 0, 0, 0), (23, 26, 3, 2)),
    ("allreduce", "swing"): ((12, 17, 1, 0), (33, 33, 1, 0)),
    ("reduce_scatter", "ring"): ((0, 0, 0, 0), (113, 128, 5, 0)),
    ("reduce_scatter", "recursive_halving"): ((14, 17, 2, 0), (35, 33, 2, 0)),
    ("reduce_scatter", "circulant"): ((24, 22, 0, 1), (69, 60, 1, 2)),
    ("reduce_scatter", "direct"): ((0, 0, 0, 0), (28, 17, 1, 0)),
    ("reduce_scatter", "hierarchical"): ((0, 0, 0, 0), (44, 59, 1, 0)),
    ("allgather", "ring"): ((0, 0, 0, 0), (28, 17, 0, 0)),
    ("allgather", "recursive_doubling"): ((0, 0, 0, 0), (21, 16, 0, 0)),
    ("allgather", "circulant"): ((0, 0, 0, 0), (28, 17, 1, 0)),
    ("allgather", "direct"): ((0, 0, 0, 0), (28, 17, 0, 0)),
    ("allgather", "hierarchical"): ((0, 0, 0, 0), (28, 17, 0, 0)),
    ("bcast", "binomial"): ((0, 0, 0, 0), (7, 2, 1, 0)),
    ("bcast", "scatter_allgather"): ((0, 0, 0, 0), (7, 2, 0, 0)),
    ("bcast", "hierarchical"): ((0, 0, 0, 0), (7, 2, 2, 0)),
    ("scan", "linear"): ((0, 0, 0, 0), (28, 17, 9, 4)),
    ("scan", "pipelined"): ((0, 0, 0, 0), (189, 228, 2, 0)),
    ("scan", "recursive_doubling"): ((0, 0, 0, 0), (28, 17, 1, 1)),
    ("exscan", "linear"): ((30, 26, 25, 14), (30, 26, 23, 10)),
    ("exscan", "pipelined"): ((280, 392, 6, 0), (280, 392, 3, 4)),
    ("exscan", "recursive_doubling"): ((45, 34, 7, 3), (45, 34, 5, 4)),
    ("gather", "binomial"): ((0, 0, 0, 0), (11, 8, 2, 0)),
    ("gather", "linear"): ((0, 0, 0, 0), (7, 2, 0, 0)),
    ("scatter", "binomial"): ((0, 0, 0, 0), (13, 4, 3, 0)),
    ("scatter", "linear"): ((0, 0, 0, 0), (13, 4, 1, 0)),
}
NONE = ((0, 0, 0, 0), (0, 0, 0, 0))


def parameters_of(collective: str, name: str, size: int) -> dict[str, int]:
    rooted = {"root": size // 3} if collective in ("bcast", "gather", "scatter") else {}
    if name == "hierarchical":
        local = max(n for n in range(1, size + 1) if size % n == 0 and n * n <= size)
        return {"local": local, **rooted}
    return rooted


def judge(collective: str, name: str, size: int, in_place: bool, sample: int = 0) -> MutationResult:
    parameters = parameters_of(collective, name, size)
    given = make_all(name, size, collective=collective, **parameters)
    if not in_place:
        given = [from_input(schedule) for schedule in given]
    result = mutate_schedules(given, sample=sample, seed=size)
    assert result.mutants == result.rejected + len(result.equivalent) + len(result.different)
    return result


def check_survivors(result: MutationResult) -> int:
    """No mutant may pass with another sum, and the equivalent ones must be harmless."""
    assert result.different == []
    for survivor in result.equivalent:
        assert HARMLESS.search(survivor), survivor
    return len(result.equivalent)


# 8 and 9 ranks take three times as long as all others.
@pytest.mark.parametrize(
    ("sizes", "column"), [(range(1, 8), 0), pytest.param((8, 9), 1, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_mutant_for_up_to_9_ranks_is_rejected_or_equivalent(
    collective: str, name: str, in_place: bool, sizes: Sequence[int], column: int
) -> None:
    results = {size: judge(collective, name, size, in_place) for size in sizes}
    for size, result in results.items():
        # One rank has to copy its input, unless it gets nothing.
        nothing = size == 1 and (in_place or collective == "exscan")
        assert (result.mutants == 0) == nothing
        assert result.mutants > 10 or size < 3
    survivors = sum(map(check_survivors, results.values()))
    assert survivors == EQUIVALENT.get((collective, name), NONE)[not in_place][column]


# A power of two, and a number far from one. 64 ranks take three times as long as both.
@pytest.mark.parametrize(
    ("sizes", "column"), [((16, 31), 2), pytest.param((64,), 3, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_sampled_mutants_of_larger_sizes_are_rejected_or_equivalent(
    collective: str, name: str, in_place: bool, sizes: tuple[int, ...], column: int
) -> None:
    results = [judge(collective, name, size, in_place, sample=400) for size in sizes]
    assert all(result.mutants == 400 for result in results)
    survivors = sum(map(check_survivors, results))
    assert survivors == EQUIVALENT.get((collective, name), NONE)[not in_place][column]


def test_harmless_changes_are_listed_as_equivalent() -> None:
    """A copy may be made twice, and a copy that nothing reads may be dropped."""
    given = [
        Schedule(
            [[send(1, work(0)), copy(work(0), scratch(0, 0))]],
            rank=0, size=2, chunks=1, collective="bcast",
        ),
        Schedule([[recv(0, work(0))]], rank=1, size=2, chunks=1, collective="bcast"),
    ]  # fmt: skip
    found = mutate_schedules(given).equivalent
    assert "rank 0, round 0, step 1: copy chunk 0 to chunk 0 in slot 0: duplicate" in found
    assert "rank 0, round 0, step 1: copy chunk 0 to chunk 0 in slot 0: drop" in found
