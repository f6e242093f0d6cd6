"""Operations of process groups as torch.profiler shows them, next to the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

import torch

_profiles = torch.autograd._profiler_enabled

_Collective = TypeVar("_Collective", bound=Callable[..., Any])


def shown(title: str) -> Callable[[_Collective], _Collective]:
    """Have calls of a method seen as "gradred:" and the title, and the work's wait after that."""
    seen = f"gradred:{title}"

    def decorate(collective: _Collective) -> _Collective:
        @functools.wraps(collective)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _profiles():
                return collective(*args, **kwargs)
            with torch.profiler.record_function(seen):
                work = collective(*args, **kwargs)
            work.shown_as = f"{seen}, wait"
            return work

        return cast("_Collective", call)

    return decorate


def waiting(title: str | None) -> AbstractContextManager[Any]:
    """Within it is the wait for what `shown` has called so; None: the call was not seen."""
    if title is None or not _profiles():
        return nullcontext()
    seen: AbstractContextManager[Any] = torch.profiler.record_function(title)
    return seen
