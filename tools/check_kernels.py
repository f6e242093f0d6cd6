"""Compile the GPU kernels with nvcc for every architecture, and check that none spills registers.

    python tools/check_kernels.py               # all types; a line per architecture
    python tools/check_kernels.py --json FILE   # and the registers of each kernel

Exit status: 0 no problem, or no nvcc on this machine; 1 a kernel does not compile, spills or is
missing, or nothing was compiled.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tally

SOURCES = Path(__file__).resolve().parent.parent / "csrc" / "device" / "kernels"
ELEMENTS = (
    *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"),
    *("int32", "int64", "uint8"),
)
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
OPERATIONS = ("sum", "prod", "min", "max", "scaled_sum")
INPUTS = (0, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Unit:
    """One source file, compiled with one set of options."""

    source: str
    kernels: set[str]
    options: tuple[str, ...] = ("-cubin",)
    typed: bool = True
    """Whether it is compiled for each element type."""


UNITS = (
    Unit("reduce.cu", {f"{operation}_{inputs}" for operation in OPERATIONS for inputs in INPUTS}),
    # For a program's own operation, whose function is linked to the kernel.
    Unit(
        "reduce.cu",
        {f"user_{inputs}" for inputs in INPUTS if inputs != 8},
        ("-dc", "-DGRADRED_USER_OP"),
    ),
    Unit(
        "shots.cu",
        {f"{operation}_{shots}" for operation in OPERATIONS[:4] for shots in ("one", "two")},
    ),
    Unit("shots.cu", {"user_one", "user_two"}, ("-dc", "-DGRADRED_USER_OP")),
    Unit("copies.cu", {"gradred_copies"}, typed=False),
)
ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)


@dataclasses.dataclass
class Compiled:
    """nvcc's results for an element type and an architecture."""

    element: str
    architecture: int
    registers: dict[str, int]
    """By kernel: operation_inputs, operation_shots, or the whole name if it has no type."""
    problems: list[str]


def compile_one(unit: Unit, element: str, architecture: int) -> Compiled:
    """Compile a unit for one element type and architecture."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["nvcc", "-std=c++17", *unit.options, f"-arch=sm_{architecture}"]
        command += ["-Xptxas", "-v", f"-DGRADRED_ELEMENT={element}"]
        command += [str(SOURCES / unit.source), "-o", f"{folder}/out"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    where = f"{unit.source}, {element} for sm_{architecture}"
    if done.returncode != 0:
        return Compiled(element, architecture, {}, [f"{where}: {done.stderr.strip()}"])
    registers: dict[str, int] = {}
    problems: list[str] = []
    for found in ENTRY.finditer(done.stderr):
        name = found["name"].removeprefix(f"gradred_{element}_")
        registers[name] = int(found["registers"])
        if any(int(found[part]) for part in ("stack", "stores", "loads")):
            problems.append(f"{where}: {name} spills")
    missing = unit.kernels - set(registers)
    problems += [f"{where}: no kernel {name}" for name in sorted(missing)]
    return Compiled(element, architecture, registers, problems)


def known_architectures() -> set[int]:
    """Return the architectures that this nvcc supports."""
    said = subprocess.run(["nvcc", "--list-gpu-arch"], capture_output=True, text=True, check=True)
    return {int(one) for one in re.findall(r"compute_(\d+)", said.stdout)}


def nvcc_version() -> str:
    """Return the version that nvcc reports."""
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"V([\d.]+)", said.stdout)
    return found[1] if found else said.stdout.strip()


def write(file: Path, compiled: list[Compiled]) -> None:
    """Write the record: registers by architecture, type and kernel."""
    rows = [
        {"architecture": f"sm_{one.architecture}", "type": one.element, "registers": one.registers}
        for one in compiled
    ]
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    head = {"schema": "gradred-kernels-nvcc/1", "date": date, "nvcc": nvcc_version()}
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    file.write_text(json.dumps(head)[:-1] + f',\n "spills": 0, "rows": [\n{lines}\n]}}\n')


def main() -> int:
    """Run the checks; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a record")
    parser.add_argument("--types", default=",".join(ELEMENTS), metavar="NAME,...")
    everywhere = ",".join(map(str, ARCHITECTURES))
    parser.add_argument("--architectures", default=everywhere, metavar="NUMBER,...")
    arguments = parser.parse_args()
    if shutil.which("nvcc") is None:
        tally.skip("no nvcc on this machine")
        return 0
    known = known_architectures()
    wanted = [int(one) for one in arguments.architectures.split(",")]
    units = [
        (unit, element, one)
        for unit in UNITS
        for one in wanted
        for element in (arguments.types.split(",") if unit.typed else ["bytes"])
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        compiled = list(
            pool.map(lambda unit: compile_one(*unit), [u for u in units if u[2] in known])
        )
    version = nvcc_version()
    unknown = Counter(f"nvcc {version} does not know sm_{u[2]}" for u in units if u[2] not in known)
    problems = [problem for one in compiled for problem in one.problems]
    for architecture in sorted({one.architecture for one in compiled}):
        used = [
            count
            for one in compiled
            if one.architecture == architecture
            for count in one.registers.values()
        ]
        middle = statistics.median(used) if used else 0
        print(f"sm_{architecture:<4} {len(used)} kernels, {middle:.0f} registers, at most", end=" ")
        print(max(used, default=0))
    if not compiled:
        problems.append("nothing was compiled")
    for line in [*(f"skipped: {reason}" for reason in unknown), *problems]:
        print(line)
    tally.add(sum(not one.problems for one in compiled), unknown)
    if arguments.json and not problems:
        write(arguments.json, compiled)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
