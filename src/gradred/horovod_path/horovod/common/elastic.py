"""Horovod's names for what its front ends share in elastic jobs."""

from __future__ import annotations

from typing import Any

from gradred.horovod.elastic.state import ObjectState, State, run_fn

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]


class _NotificationManager:
    """Nothing is to be registered: `State.check_host_updates` asks the launcher's files."""

    def init(self, rendezvous_addr: Any = None, nic: Any = None) -> None:
        """Nothing."""

    def register_listener(self, listener: Any) -> None:
        """Nothing."""

    def remove_listener(self, listener: Any) -> None:
        """Nothing."""


notification_manager = _NotificationManager()
