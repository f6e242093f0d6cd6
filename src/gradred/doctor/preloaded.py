"""Whether a program would use the library of `gradred run --preload`, without running it."""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess

from gradred.doctor.findings import Finding, fail, ok, warn
from gradred.errors import UsageError
from gradred.launch import preload

_MPI = re.compile(r"lib(mpi|mpich|mpi_abi|mpi_[a-z]+)\.so[.\d]*")
_BOUND = re.compile(r"binding file (.+) \[0\] to (.+) \[0\]: normal symbol `(\w+)'")
_BEGINS_OR_ENDS = re.compile(r"mpi_(init|finalize)", re.IGNORECASE)
_OUT_OF_REACH = "Make it load its MPI without RTLD_DEEPBIND"


def use_of_library(program: str) -> Finding:
    """Find out whether gradred would have a program's calls, and why not.

    `program` is a path, or a name that PATH finds; a script stands for its interpreter.

    Raises:
        UsageError: there is no such program, or the package was built without the library.
    """
    found = shutil.which(program)
    if found is None:
        raise UsageError(f"--preload {program}", "there is no such program", "Write its path")
    library = str(preload.library())
    try:
        with open(found, "rb") as file:
            head = file.read(256)
    except OSError as error:
        raise UsageError(
            f"--preload {program}", f"it cannot be read ({error})", "Allow it"
        ) from None
    if head.startswith(b"#!"):
        return _of_script(found, head)
    if not head.startswith(preload.ELF):
        return fail(f"{program} is neither a program nor a script", "Give the program itself")
    reason = preload.why_not(found)
    return (
        _of_bindings(program, os.path.abspath(found), library) if reason is None else fail(*reason)
    )


def _of_script(path: str, head: bytes) -> Finding:
    words = shlex.split(head.splitlines()[0][2:].decode(errors="replace")) or ["sh"]
    if os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    if b"RTLD_DEEPBIND" in pathlib.Path(path).read_bytes():
        found = f"{path} names RTLD_DEEPBIND, with which its MPI is out of reach"
        return fail(found, _OUT_OF_REACH)
    return use_of_library(words[0] if words else "sh")


def _of_bindings(program: str, path: str, library: str) -> Finding:
    """Ask the dynamic linker which library has each function; the program does not run."""
    variables: dict[str, str] = {}
    preload.add_to(variables)
    asking = {"LD_TRACE_LOADED_OBJECTS": "1", "LD_WARN": "yes", "LD_BIND_NOW": "yes"}
    environment = {**os.environ, **variables, **asking, "LD_DEBUG": "bindings"}
    answer = subprocess.run([path], env=environment, capture_output=True, text=True, check=False)
    bound = [found.groups() for found in _BOUND.finditer(answer.stderr)]
    to = {name: where for user, where, name in bound if user == path}
    loaded = [line.split()[0] for line in answer.stdout.splitlines() if line.strip()]
    if missing := re.findall(r"(\S+) => not found", answer.stdout):
        return fail(f"{program} lacks {', '.join(missing)}", "Set LD_LIBRARY_PATH as for its runs")
    if any("libmpitrampoline" in name for name in loaded):
        return fail(f"{program} uses MPItrampoline, which loads with RTLD_DEEPBIND", _OUT_OF_REACH)
    mpi = next((name for name in loaded if _MPI.fullmatch(os.path.basename(name))), None)
    if mpi is None:
        return _without_mpi(program, path)
    ours = [name for name, where in to.items() if where == library]
    ours = sorted(name for name in ours if not _BEGINS_OR_ENDS.match(name))
    names = pathlib.Path(library).read_bytes()
    tools = sorted(name for name in to if name.startswith("PMPI_"))
    if others := [name for name in tools if f"\0{name[1:]}\0".encode() in names]:
        fix = "Build it without the tool or library that calls these"
        return warn(f"{program} uses {mpi}, of which it calls {', '.join(others)} itself", fix)
    found = f"{program} uses {mpi}; gradred has its calls"
    return ok(f"{found} {', '.join(ours)}" if ours else f"{found}, if its libraries make any")


def _without_mpi(program: str, path: str) -> Finding:
    if b"MPITRAMPOLINE_LIB" in pathlib.Path(path).read_bytes():
        return fail(f"{program} uses MPItrampoline, which loads with RTLD_DEEPBIND", _OUT_OF_REACH)
    found = f"{program} has no MPI at its start. If it loads one, gradred has its calls, unless "
    return ok(found + "that is done with RTLD_DEEPBIND: then a line at its end says so")
