"""Programs that say `import horovod`: where that name leads to gradred.

`gradred run --horovod -np 4 python train.py` does it for a job; `install()` for this process.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradred.errors import UsageError, explain

VERSION = "0.28.1"
"""The version of Horovod whose functions these are."""


def path() -> str:
    """The folder that `import horovod` has to find first."""
    return str(Path(__file__).with_name("horovod_path"))


def install() -> None:
    """Let `import horovod` find gradred in this process, also where a Horovod is installed.

    Raises:
        gradred.UsageError: another horovod has been imported already.
    """
    loaded = sys.modules.get("horovod")
    if loaded is not None and not str(getattr(loaded, "__file__", "")).startswith(path()):
        found = f"{getattr(loaded, '__file__', 'another one')} has been imported"
        remedy = "Call gradred.horovod.install() before anything imports horovod"
        raise UsageError(explain("gradred.horovod.install()", found, remedy))
    if path() not in sys.path:
        sys.path.insert(0, path())
        importlib.invalidate_caches()


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    **others: Any,
) -> list[Any]:
    """Start ranks that each call `func(*args, **kwargs)`: blocks, and returns results by rank.

    Args:
        func: pickled with cloudpickle.
        args: its arguments.
        kwargs: likewise.
        num_proc: how many ranks.
        np: Horovod's older name for it.
        others: Horovod's further options, none of which exists here.

    Raises:
        gradred.UsageError: an option that does not exist here is set.
    """
    import gradred

    wanted = [name for name, value in others.items() if value not in (None, False)]
    if wanted:
        remedy = "Leave them out, or start the program by gradred run"
        raise UsageError(explain("horovod.run", f"there is no {', '.join(wanted)} here", remedy))
    ranks = num_proc or np or 1
    return gradred.run(func, tuple(args), kwargs=dict(kwargs or {}), np=ranks)
