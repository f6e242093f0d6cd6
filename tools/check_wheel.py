"""Check a wheel's tags, and that it keeps the rule of manylinux.

    python tools/check_wheel.py dist/gradred-0.1.0-cp311-cp311-linux_x86_64.whl

The file's name, the wheel's metadata and the extension's name must state this Python and this
machine. auditwheel must find a manylinux policy that the wheel meets: its extensions link only
libraries that every Linux with glibc has, so no MPI, CUDA or Python. Which policy depends on the
compiler's system; `make wheel` builds for the oldest.
"""

from __future__ import annotations

import argparse
import email
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from zipfile import ZipFile


def expected_tag() -> str:
    """Return the tag of an extension that this Python has built: one version, ABI and machine."""
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    abi = suffix.split("-")[1]  # .cpython-314t-x86_64-linux-gnu.so
    machine = sysconfig.get_platform().replace("-", "_")
    return f"cp{abi.rstrip('t')}-cp{abi}-{machine}"


def wrong_tags(wheel: Path) -> list[str]:
    """Return what the wheel's name and metadata say other than `expected_tag`."""
    tag = expected_tag()
    found = []
    if not wheel.name.endswith(f"-{tag}.whl"):
        found.append(f"{wheel.name} should end with {tag}.whl")
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (name,) = [one for one in names if one.endswith(".dist-info/WHEEL")]
        stated = email.message_from_bytes(archive.read(name))
    if stated.get_all("Tag") != [tag]:
        found.append(f"its tags are {stated.get_all('Tag')}, not [{tag!r}]")
    if stated["Root-Is-Purelib"] != "false":
        found.append("it is said to be the same on every machine")
    extension = f"gradred/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    if extension not in names:
        found.append(f"it has no {extension}")
    return found


def policy_of(shown: str) -> str | None:
    """Return the manylinux policy that `auditwheel show` has printed; None if it names none."""
    one_line = " ".join(shown.split())
    named = re.search(r'following platform tag: "(manylinux_[0-9]+_[0-9]+_\w+)"', one_line)
    return named[1] if named else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel
    found = wrong_tags(wheel)
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True)
    policy = policy_of(shown.stdout)
    if policy is None:
        found.append(f"it meets no policy of manylinux: {shown.stdout}{shown.stderr}")
    print("\n".join(found) or f"{wheel.name} has the right tags and meets {policy}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
