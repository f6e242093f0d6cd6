"""Figures that communicators over several hosts have measured: files in the user's cache."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Sequence

from gradred import _core

_SUFFIX = ".figures"
_LONGEST = 1 << 20  # bytes


def folder() -> pathlib.Path | None:
    """Return the folder of the files: `gradred` in XDG_CACHE_HOME, or in ~/.cache.

    A relative XDG_CACHE_HOME is ignored. None if the user has no home, as in some containers: then
    figures are not stored.
    """
    place = _core.figures_folder()
    return pathlib.Path(place) if place else None


@dataclasses.dataclass(frozen=True)
class Kept:
    """A file of figures, read."""

    path: pathlib.Path
    text: str
    content: _core._Figures | None
    why_not: str
    """The reason why the file has no valid content; empty if it has."""


def kept() -> list[Kept]:
    """Return all files of the folder, the newest first."""
    place = folder()
    if place is None:
        return []
    try:
        paths = [path for path in place.iterdir() if path.name.endswith(_SUFFIX)]
        paths.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [_read(path) for path in paths]


def _read(path: pathlib.Path) -> Kept:
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST:  # a pipe would block
            return Kept(path, "", None, "it is not a file of figures")
        text = path.read_text()
        return Kept(path, text, _core.read_figures(text), "")
    except (OSError, ValueError) as error:  # UsageError is a ValueError
        return Kept(path, "", None, str(error))


def find(host_of: Sequence[int], names: Sequence[str], family: str, version: str) -> str:
    """Return the text of the newest file for such ranks; empty if there is none.

    Args:
        host_of: the number of each rank's host.
        names: the names of the hosts; empty for any hosts.
        family: the family of the MPI.
        version: the version of the MPI.
    """
    layout, hosts = _core.layout_text(host_of), _core.hosts_text(names)
    for one in kept():
        found = one.content
        if found is None or found["layout"] != layout or (names and found["hosts"] != hosts):
            continue
        if family in found["mpi"] and version in found["mpi"]:
            return one.text
    return ""


def summary() -> str:
    """Return one line about the files that are used and those that are ignored."""
    if folder() is None:
        return "nothing is kept: there is neither XDG_CACHE_HOME nor a home"
    files = kept()
    known = [one.content for one in files if one.content is not None]
    text = ", ".join(f"{found['layout']} ({found['hosts']})" for found in known)
    text = f"{folder()}: ranks {text}" if known else f"{folder()}: nothing was measured"
    ignored = [f"{one.path.name} ({one.why_not})" for one in files if one.content is None]
    return text + (f"; ignored: {', '.join(ignored)}" if ignored else "")
