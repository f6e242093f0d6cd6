"""The library that programs load before their MPI, so that gradred carries out their calls."""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from pathlib import Path

from gradred.errors import UsageError

VARIABLE = "LD_PRELOAD"
ELF = b"\x7fELF"
"""The first bytes of a program of the system, and of a library."""

_INTERPRETER = 3  # the kind of a program header that names the dynamic linker
_GLIBC = re.compile(r"ld(-linux.*|64)\.so\.\d+")
_LINK_SHARED = "Link it with the MPI's shared library"


def library() -> Path:
    """Return the path of the library, for LD_PRELOAD.

    Raises:
        UsageError: the package was built without it.
    """
    found = Path(__file__).resolve().parents[1] / "libgradred_mpi.so"
    if not found.exists():
        raise UsageError(str(found), "there is no such file", "Install gradred again")
    return found


def add_to(variables: dict[str, str]) -> None:
    """Make programs with these variables load the library, before what they load already.

    A tool that they load too sees the calls that gradred leaves to the MPI.
    """
    before = variables.get(VARIABLE, os.environ.get(VARIABLE, ""))
    variables[VARIABLE] = ":".join(filter(None, [str(library()), before]))


def why_not(program: str) -> tuple[str, str] | None:
    """Return why a program of the system never loads the library, and the remedy; quick.

    Args:
        program: the path of a file that begins with `ELF`.
    """
    with open(program, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        if _machine(text[:64]) != _machine(_head_of_library()):
            return f"{program} is for another processor than gradred", "Build it for this one"
        if _is_privileged(program):
            found = f"{program} gets rights of its own (setuid), so the system loads nothing for it"
            return found, "Run it as its owner, or without these rights"
        linker = _linker(text)
        if linker is None:
            return f"{program} is linked statically, with its MPI", _LINK_SHARED
        if not _GLIBC.fullmatch(os.path.basename(linker)):
            return f"{program} is loaded by {linker}, not by glibc", "Link it with glibc"
        if text.find(b"PMPI_Allreduce") >= 0 and text.find(b"\0libmpi") < 0:
            return f"{program} contains its MPI", _LINK_SHARED
    return None


def _head_of_library() -> bytes:
    with open(library(), "rb") as file:
        return file.read(64)


def _machine(head: bytes) -> bytes:
    """Return what differs between kinds of processors: word length, byte order, machine."""
    return head[4:6] + head[18:20]


def _is_privileged(path: str) -> bool:
    status = os.stat(path)
    other_user = status.st_mode & stat.S_ISUID and status.st_uid != os.getuid()
    other_group = status.st_mode & stat.S_ISGID and status.st_gid != os.getgid()
    try:
        rights = os.getxattr(path, "security.capability")
    except OSError:
        rights = b""
    return bool(other_user or other_group or rights)


def _linker(program: mmap.mmap) -> str | None:
    """Return the dynamic linker that a program of 64 bits names; None: it is linked statically."""
    order = "<" if program[5] == 1 else ">"
    (start,) = struct.unpack_from(order + "Q", program, 32)
    size, count = struct.unpack_from(order + "HH", program, 54)
    for at in range(start, start + size * count, size):
        kind, _, offset = struct.unpack_from(order + "IIQ", program, at)
        (length,) = struct.unpack_from(order + "Q", program, at + 32)
        if kind == _INTERPRETER:
            return program[offset : offset + length].rstrip(b"\0").decode()
    return None
