"""The test of the verifier: schedules with one step changed are rejected, or proved equivalent.

A mutant drops or duplicates a step, or changes its peer, buffer, slot, chunks, kind or operands.
The equivalent ones are known, by number: a verifier that grows weaker lets more of them pass.
"""

from __future__ import annotations

import re

import pytest

from gradred import _core, schedules
from gradred.schedules import Schedule, copy, make_all, recv, scratch, send, work

ALGORITHMS = [(row["collective"], row["name"]) for row in schedules.algorithms()]

# A rank may add up more than it is left with: the rest of the last message still lies in the
# scratch buffer, and the sum goes to a chunk that is overwritten or not looked at later.
HARMLESS = re.compile(r"reduce (.*) into (.*): both ends: reduce (.*) into (.*)")

# Equivalent mutants over 1 to 9 ranks (all mutants) and in the samples of larger sizes.
EQUIVALENT = {
    ("allreduce", "rabenseifner"): (30, 2),
    ("allreduce", "circulant"): (46, 0),
    ("allreduce", "swing"): (29, 1),
    ("reduce_scatter", "recursive_halving"): (31, 0),
    ("reduce_scatter", "circulant"): (46, 1),
}


def parameters_of(collective: str, name: str, size: int) -> dict[str, int]:
    if collective == "bcast":
        return {"root": size // 3}
    if name == "hierarchical":
        return {"local": max(n for n in range(1, size + 1) if size % n == 0 and n * n <= size)}
    return {}


def judge(collective: str, name: str, size: int, sample: int = 0) -> _core.MutationResult:
    parameters = parameters_of(collective, name, size)
    given = make_all(name, size, collective=collective, **parameters)
    result = _core.mutate_schedules(given, sample=sample, seed=size)
    assert result.mutants == result.rejected + len(result.equivalent) + len(result.different)
    return result


def check_survivors(result: _core.MutationResult) -> int:
    """No mutant may pass with another sum; the equivalent ones must be of the harmless sort."""
    assert result.different == []
    for survivor in result.equivalent:
        assert HARMLESS.search(survivor), survivor
    return len(result.equivalent)


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_mutant_for_up_to_9_ranks_is_rejected_or_equivalent(
    collective: str, name: str
) -> None:
    results = [judge(collective, name, size) for size in range(1, 10)]
    assert results[0].mutants == 0
    assert all(result.mutants > 10 for result in results[2:])
    survivors = sum(map(check_survivors, results))
    assert survivors == EQUIVALENT.get((collective, name), (0, 0))[0]


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_sampled_mutants_of_larger_sizes_are_rejected_or_equivalent(
    collective: str, name: str
) -> None:
    results = [judge(collective, name, size, sample=400) for size in (16, 31, 64)]
    assert [result.mutants for result in results] == [400, 400, 400]
    survivors = sum(map(check_survivors, results))
    assert survivors == EQUIVALENT.get((collective, name), (0, 0))[1]


def test_harmless_changes_are_listed_as_equivalent() -> None:
    """A copy may be made twice, and a copy that nobody needs may be dropped."""
    given = [
        Schedule(
            [[send(1, work(0)), copy(work(0), scratch(0, 0))]],
            rank=0, size=2, chunks=1, collective="bcast",
        ),
        Schedule([[recv(0, work(0))]], rank=1, size=2, chunks=1, collective="bcast"),
    ]  # fmt: skip
    found = _core.mutate_schedules(given).equivalent
    assert "rank 0, round 0, step 1: copy chunk 0 to chunk 0 in slot 0: duplicate" in found
    assert "rank 0, round 0, step 1: copy chunk 0 to chunk 0 in slot 0: drop" in found
