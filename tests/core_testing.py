"""Functions of the C++ core for tests only: csrc/testing, which an editable install builds here."""

from __future__ import annotations

try:
    from _core_testing import (
        MutationResult,
        best_isa,
        exact_words,
        isas,
        mutate_schedules,
        now_ns,
        ranks_on_host,
        reduce_many,
        reduce_pair,
        run_threads,
        scale,
        status_page,
        status_page_of_wait,
        take_clock_steps_from,
    )
except ImportError as error:
    raise ImportError(
        f"the tests' own extension is missing or out of date ({error}). Build it: "
        "python -m pip install --editable . in gradred's folder, or make test"
    ) from error

__all__ = [
    "MutationResult",
    "best_isa",
    "exact_words",
    "isas",
    "mutate_schedules",
    "now_ns",
    "ranks_on_host",
    "reduce_many",
    "reduce_pair",
    "run_threads",
    "scale",
    "status_page",
    "status_page_of_wait",
    "take_clock_steps_from",
]
