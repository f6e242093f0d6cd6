"""Horovod's name for its front end to MXNet, of which there is none here."""

from __future__ import annotations

from gradred.horovod import refuse

refuse(__name__)
