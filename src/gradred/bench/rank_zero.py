"""Work that rank 0 does for all ranks: print, write records."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradred._util import files

if TYPE_CHECKING:
    from mpi4py import MPI


def say(comm: MPI.Intracomm, text: str, *, error: bool = False) -> None:
    """Print a line on rank 0 only."""
    if comm.rank == 0:
        print(text, file=sys.stderr if error else sys.stdout, flush=True)


def write_json(path: Path, record: dict[str, Any], *, new: bool = False) -> None:
    """Write `record` and make the folder of `path`; with `new` the path must not exist."""
    write_text(path, _text(record), new=new)


def write_text(path: Path, content: str, *, new: bool = False) -> None:
    """Write a text and make the folder of `path`; with `new` the path must not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(files.create(path, new=new), "w", encoding="utf-8") as file:
        file.write(content)


def write_so_far(name: str, record: dict[str, Any], *, last: bool) -> None:
    """Write a record that grows; a file contains a complete record at any time.

    Places that cannot be replaced get only the last record. These are stdout (`-`), a pipe, a
    device, or a file in another user's folder.
    """
    path = Path(name)
    place = path.resolve()
    is_file = name != "-" and (path.is_file() or not path.exists())
    if is_file and _replace(place, record):
        return
    if last:
        if name == "-":
            print(_text(record), end="", flush=True)
        else:
            write_json(path, record)


def _replace(place: Path, record: dict[str, Any]) -> bool:
    """Replace the file; False in another user's folder, or if the draft's name is too long."""
    draft = place.with_name(f".{place.name}.draft")
    try:
        draft.unlink(missing_ok=True)  # left by a run that was killed
        write_json(draft, record, new=True)
        if place.exists():
            shutil.copymode(place, draft)
        draft.replace(place)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return True


def _text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"
