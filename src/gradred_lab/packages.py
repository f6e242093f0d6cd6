"""Packages that the laboratory needs and gradred does not: the extra `gradred[lab]` has them."""

from __future__ import annotations

import importlib.util

from gradred.cli.laboratory import INSTALL
from gradred.errors import UsageError


def require(package: str, asked: str, found: str, otherwise: str = "") -> None:
    """Raise UsageError, with the command that installs it, if a package is missing.

    Args:
        package: the name that is imported.
        asked: what needs it.
        found: what is wrong without it.
        otherwise: what else would help, after the command.
    """
    if importlib.util.find_spec(package) is None:
        raise UsageError(asked, found, INSTALL + otherwise)
