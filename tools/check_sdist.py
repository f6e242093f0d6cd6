"""Check that a source distribution has all files that this checkout was built from, byte for byte.

    python tools/check_sdist.py dist/gradred-0.1.0.tar.gz dist/gradred-0.1.0-cp311-...whl

Compiling again from the unpacked archive would take minutes and show nothing more. The compiler and
CMake have recorded each file that they read, and a wheel's other files are copies.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
OF_SETUPTOOLS = ("setup.py", "pyproject.toml", "README.md", "LICENSE")


def read_by_builds() -> set[Path]:
    """Return the files of this checkout that the compilers, Ninja and CMake have read."""
    import ninja

    found: set[Path] = set()
    for build in ROOT.glob("build/cmake-*/"):
        for question in (["deps"], ["inputs", "all"], ["query", "build.ninja"]):
            command = [str(Path(ninja.BIN_DIR) / "ninja"), "-C", str(build), "-t", *question]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found |= set(of_the_checkout(listed.splitlines(), build))
    return found


def of_the_checkout(lines: Iterable[str], build: Path) -> Iterable[Path]:
    """Yield the checkout's files in `lines`, relative to it, except those made by the build."""
    made = ROOT / "build"
    for line in lines:
        path = (build / line.strip().removeprefix("| ")).resolve()
        if path.is_relative_to(ROOT) and not path.is_relative_to(made) and path.is_file():
            relative = path.relative_to(ROOT)
            if not relative.parts[0].startswith(".venv"):  # headers of installed packages
                yield relative


def copied_into(wheel: Path) -> set[Path]:
    """Return the files of src/ in the wheel, except compiled ones."""
    names = ZipFile(wheel).namelist()
    return {
        Path("src", name)
        for name in names
        if name.startswith(("gradred/", "gradred_lab/")) and not name.endswith(".so")
    }


def differences(sdist: Path, needed: Iterable[Path]) -> list[str]:
    """Return the files of `needed` that are missing in the archive or differ from this checkout."""
    with tarfile.open(sdist) as archive:
        top = archive.getnames()[0].split("/")[0]
        held = {name.removeprefix(f"{top}/") for name in archive.getnames()}
        found = []
        for path in sorted(needed):
            if str(path) not in held:
                found.append(f"{path} is not in {sdist.name}")
                continue
            member = archive.extractfile(f"{top}/{path}")
            if member is None or member.read() != (ROOT / path).read_bytes():
                found.append(f"{path} is another one in {sdist.name}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("wheel", type=Path)
    options = parser.parse_args()
    compiled = read_by_builds()
    sources = [path for path in compiled if path.suffix == ".cc"]
    if not sources:
        sys.exit("nothing was built in this checkout")
    needed = compiled | copied_into(options.wheel) | {Path(name) for name in OF_SETUPTOOLS}
    found = differences(options.sdist, needed)
    print("\n".join(found) or f"{options.sdist.name} holds all {len(needed)} files of a build")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
