"""Says at the end of a job which backend of torch.distributed trained, where that was not gradred.

In ranks of `gradred run` alone: who starts a program so may think that gradred trains. What has
happened torch's own records tell; nothing of torch is imported here.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from typing import Any

from gradred.launch import rank_pipe

_REPLACEABLE = {"gloo", "mpi"}  # gradred does what they do

_used: set[str] = set()  # backends that have carried out something, as far as noted


def watch() -> None:
    """Have this process, a rank, say it at its end. Once, after torch.distributed was imported."""
    core = sys.modules.get("torch.distributed.distributed_c10d")
    dist = sys.modules.get("torch.distributed")
    destroys = getattr(core, "destroy_process_group", None)
    if rank_pipe.VARIABLE not in os.environ or destroys is None or dist is None:
        return

    @functools.wraps(destroys)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        _note(core)  # torch forgets it
        return destroys(*args, **kwargs)

    for module in (core, dist):
        setattr(module, destroys.__name__, destroy_process_group)
    atexit.register(_say, core, os.getpid())


def _note(core: Any) -> None:
    """Add the backends that torch's present groups have used, on rank 0 of several."""
    with contextlib.suppress(RuntimeError, AttributeError, ValueError):  # of a torch unknown here
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
    """At exit; nothing after an error, which is what the user has to see."""
    if os.getpid() != process or hasattr(sys, "last_value") or _gradred_serves():
        return
    _note(core)
    if _used and _used <= _REPLACEABLE and _optimizer_was_made():
        names = " and ".join(sorted(_used))
        print(
            f"gradred: this program trained by torch.distributed's backend {names}, not by gradred."
            ' To change that: torch.distributed.init_process_group("gradred"); the page Clients has'
            " the line for Lightning, Accelerate and others",
            file=sys.stderr,
        )


def _gradred_serves() -> bool:
    """Whether this process has had communicators of gradred."""
    core = sys.modules.get("gradred._core")
    return core is not None and bool(core.shows_rank())


def _optimizer_was_made() -> bool:
    """Whether the program trains: torch's optimizers mark their class when one is made."""
    waiting = [getattr(sys.modules.get("torch.optim"), "Optimizer", object())]
    for kind in waiting:  # grows while it is walked
        if getattr(getattr(kind, "step", None), "hooked", False):
            return True
        waiting += getattr(kind, "__subclasses__", list)()
    return False
