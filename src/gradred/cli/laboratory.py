"""The commands of the laboratory, `gradred_lab`, which the library knows by their names alone.

No module of gradred imports the laboratory. This table is the only place that names its modules,
and they are loaded when a user asks for them. An entry point would need no table, but every start
of `gradred` would read the metadata of all installed packages.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from types import ModuleType

from gradred.errors import UsageError

INSTALL = 'Install it with: pip install "gradred[lab]"'
_PACKAGE = "gradred_lab"
COMMANDS = {
    "schemes": "train a small network by parameter servers, allreduce and others, and compare",
    "train": "measure data-parallel training by a fixed protocol, beside its peers, and report it",
}
"""By the names of their modules, with their help."""
SIMULATED = {
    "training": (
        "Predict",
        "iterations of training on a cluster, or throughput from measurements at smaller scales",
    ),
    "record": ("Record", "the iterations of a PyTorch program, for simulate training --trace"),
    "study": (
        "Study",
        "training on a cluster: eleven tables, with pictures, as Markdown and JSON",
    ),
}
"""What else can be simulated: the modules are `simulated_` and these names."""


def is_here() -> bool:
    """Return whether the laboratory can be imported, without importing it."""
    return importlib.util.find_spec(_PACKAGE) is not None


def hint() -> str:
    """How to get the commands that are absent; nothing if the laboratory is here."""
    names = [*COMMANDS, *(f"simulate {name}" for name in SIMULATED)]
    return "" if is_here() else f"Commands of the laboratory: {', '.join(names)}. {INSTALL}"


def require(words: Sequence[str]) -> None:
    """Raise UsageError if these words begin with a command of the laboratory and it is absent."""
    names = [*COMMANDS, *(f"simulate {name}" for name in SIMULATED)]
    for name in names:
        if list(words[: len(name.split())]) == name.split() and not is_here():
            raise _missing(name, _PACKAGE)


def module(name: str) -> ModuleType:
    """Return a module of the laboratory's commands.

    Raises:
        UsageError: the laboratory or a package that the module needs is not installed.
    """
    try:
        return importlib.import_module(f"{_PACKAGE}.cli.{name}")
    except ModuleNotFoundError as error:
        raise _missing(name.replace("_", " "), str(error.name).partition(".")[0]) from None


def _missing(name: str, package: str) -> UsageError:
    return UsageError(name, f"{package} is not installed", INSTALL)
