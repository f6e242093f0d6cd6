"""Report at the end of a job which backend of torch.distributed the training used, if not gradred.

Only ranks of `gradred run` report it, since a user who starts a program in this way may assume that
gradred carries out the training's communication. The facts come from torch's own records; this
module imports nothing of torch.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from typing import Any

from gradred.launch import rank_pipe

_REPLACEABLE = {"gloo", "mpi"}  # backends that gradred can replace

_used: set[str] = set()  # backends that have carried out operations, as noted so far


def watch() -> None:
    """Register the report at exit of this rank. Call once, after torch.distributed was imported."""
    core = sys.modules.get("torch.distributed.distributed_c10d")
    dist = sys.modules.get("torch.distributed")
    destroys = getattr(core, "destroy_process_group", None)
    if rank_pipe.VARIABLE not in os.environ or destroys is None or dist is None:
        return

    @functools.wraps(destroys)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        _note(core)  # destroying the group removes torch's records
        return destroys(*args, **kwargs)

    for module in (core, dist):
        setattr(module, destroys.__name__, destroy_process_group)
    atexit.register(_say, core, os.getpid())


def _note(core: Any) -> None:
    """Add the backends that torch's current groups have used, on rank 0 of several ranks."""
    with contextlib.suppress(RuntimeError, AttributeError, ValueError):  # an unknown torch
        if core.get_rank() or core.get_world_size() == 1:
            return
        for group in core._world.pg_map:
            for device in group._device_types:
                backend = group._get_backend(device)
                if _has_worked(backend):
                    _used.add(backend.name())


def _has_worked(backend: Any) -> bool:
    try:
        return int(backend._get_sequence_number_for_group()) > 0
    except RuntimeError:  # it does not count its operations
        return True


def _say(core: Any, process: int) -> None:
    """Print the report at exit; prints nothing after an error, so that the user sees the error."""
    if os.getpid() != process or hasattr(sys, "last_value") or _gradred_serves():
        return
    _note(core)
    if _used and _used <= _REPLACEABLE and _optimizer_was_made():
        names = " and ".join(sorted(_used))
        print(
            f"gradred: this program trained by torch.distributed's backend {names}, not by gradred."
            " To change that: gradred run --torch, or"
            ' torch.distributed.init_process_group("gradred") in the'
            " program; docs/clients.md has the line for Lightning, Accelerate and others",
            file=sys.stderr,
        )


def _gradred_serves() -> bool:
    """Return whether this process has used communicators of gradred."""
    core = sys.modules.get("gradred._core")
    return core is not None and bool(core.shows_rank())


def _optimizer_was_made() -> bool:
    """Return whether the program trains: torch's optimizers mark their class when one is made."""
    waiting = [getattr(sys.modules.get("torch.optim"), "Optimizer", object())]
    for kind in waiting:  # the loop extends the list
        if getattr(getattr(kind, "step", None), "hooked", False):
            return True
        waiting += getattr(kind, "__subclasses__", list)()
    return False
