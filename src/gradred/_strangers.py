"""Ranks of this job on this host that this process has met in no call, and must know nevertheless.

One that leaves before its first call has told nobody of itself; it is found as `gradred ps` finds
it. Who waits long in a call looks for such ranks, and so does who comes to MPI_Finalize.
"""

from __future__ import annotations

import os
import time

from gradred import _core, _inherit, _status, _voice

_PATIENCE_S = 2.0  # some may still be about to import gradred, and some never do


def await_all() -> None:
    """At the end, look for them again until all are known or `_PATIENCE_S` is over. Blocks."""
    _voice.tell_leaving(follows=False)  # the others see the end of this rank from here on
    deadline = time.monotonic() + _PATIENCE_S
    while not meet() and time.monotonic() < deadline:
        time.sleep(0.05)


def meet() -> bool:
    """Let the extension know them; costs nothing where it knows all. Local.

    A job is told from others by its launcher, so none is found where there is none above the ranks.

    Returns:
        Whether there is nobody left to look for.
    """
    mine = _status.about()
    if mine is None or mine["spawned"]:  # those of its parents' program have the same launcher
        return True
    others = (_inherit.ranks_on_host(os.environ) or mine["size"]) - 1
    if _core.ranks_met() >= others:
        return True
    job = _status.launcher_of(mine["pid"], nearest=True)
    if job == 0:
        return True
    for about, files in _status.shown():
        same = about["size"] == mine["size"] and not about.get("spawned")
        if (
            same
            and about["pid"] != mine["pid"]
            and _status.launcher_of(about["pid"], nearest=True) == job
        ):
            _core.meet_rank(about["rank"], about["pid"], int(os.path.basename(files[_status.RANK])))
    return _core.ranks_met() >= others
