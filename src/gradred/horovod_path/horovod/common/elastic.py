"""Horovod's names for the parts of elastic jobs that its front ends share."""

from __future__ import annotations

from typing import Any

from gradred.horovod.elastic.state import ObjectState, State, run_fn

__all__ = ["ObjectState", "State", "notification_manager", "run_fn"]


class _NotificationManager:
    """Does nothing: `State.check_host_updates` reads the launcher's page instead."""

    def init(self, rendezvous_addr: Any = None, nic: Any = None) -> None:
        """Do nothing."""

    def register_listener(self, listener: Any) -> None:
        """Do nothing."""

    def remove_listener(self, listener: Any) -> None:
        """Do nothing."""


notification_manager = _NotificationManager()
