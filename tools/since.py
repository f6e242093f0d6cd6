"""Select the tests that a change concerns, for tools/ci.py --since, by the tables of layers.

A test concerns the layers that it imports, and all layers below them. It also concerns the layers
imported by helper files that it names. STARTED lists the layers that tests use without importing
them. The tests of the laboratory, tests/lab, concern the laboratory and the names that it uses.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import checks
from checks import MPICH, OPENMPI, ROOT
from layers import (
    CXX_LAYERS,
    PYTHON_LAYERS,
    PYTHON_PARTS,
    USED_BY_THE_LABORATORY,
    below,
    used_by,
)
from stages import Stage

# Layers that tests use by a command or in programs of their own, in addition to those that the
# test's file imports.
STARTED = {
    "tests/core": ["_core"],
    "tests/faults": ["__main__", "cli", "launch", "csrc/comm", "calls", "named", "observe"],
    "tests/hosts": ["launch", "csrc/comm", "calls", "named", "without_mpi"],
    "tests/hosts/test_commands.py": ["bench", "doctor"],
    "tests/hosts/test_run.py": ["__main__", "cli"],
    "tests/jobs/test_carried_by_mpi.py": ["calls"],
    "tests/jobs/test_device.py": ["calls"],
    "tests/jax_programs": ["jax"],
    "tests/mxnet_programs": ["mxnet"],
    "tests/paddle_programs": ["paddle"],
    "tests/jobs/test_elastic": ["horovod", "torch"],
    "tests/jobs/test_ends.py": ["calls"],
    "tests/jobs/test_endurance.py": ["calls"],
    "tests/jobs/test_jax": ["jax", "jax_stand_in"],
    "tests/jobs/test_profile.py": ["calls"],
    "tests/jobs/test_run_command.py": ["__main__", "cli"],
    "tests/jobs/test_torch": ["horovod", "torch", "torch_distributed"],
    "tests/jobs/test_unequal_ranks.py": ["calls"],
    "tests/pytorch": ["horovod", "torch", "torch_distributed"],
    "tests/jobs/test_tensorflow": ["horovod", "keras", "csrc/python", "csrc/tensorflow"],
    "tests/tf": ["horovod", "keras", "csrc/python", "csrc/tensorflow"],
    "tests/unit/test_jobs.py": ["calls"],
}

# The environments and the runners depend on these files: a change needs the whole gate.
EVERYTHING = (
    ".ci/",
    "Makefile",
    "csrc/CMakeLists.txt",
    "pyproject.toml",
    "setup.py",
    "src/gradred/__init__.py",
    "tests/conftest.py",
    "tools/checks.py",
    "tools/environment.py",
    "tools/processes.py",
    "tools/run_tests.py",
    "tools/stages.py",
    "tools/tally.py",
)
OF_TENSORFLOW = ("tests/tf/", checks.WITH_TENSORFLOW)
LABORATORY = "gradred_lab"
OF_THE_LABORATORY = "tests/lab/"
WITH_RANKS = ("tests/mpi/", "tests/gpu/", "tests/jax_programs/", "tests/pytorch/")


@dataclass
class Choice:
    """The tests to run, and the core's test programs."""

    tests: list[str] = field(default_factory=list)
    programs: list[str] = field(default_factory=list)
    docs: bool = False
    doctests: bool = False
    whole: str = ""
    """The file whose change needs the whole gate."""

    def __str__(self) -> str:
        if self.whole:
            return f"{self.whole} has changed: the whole gate"
        left_out = {*all_tests()}.difference(self.tests)
        lines = [f"{len(self.tests)} files of tests concern the change:"]
        lines += [f"  {name}" for name in summed_up({*self.tests})]
        if self.programs:
            lines.append(f"  of csrc/tests: {', '.join(self.programs)}")
        lines.append(f"{len(left_out)} are left out:")
        lines += [f"  {name}" for name in summed_up(left_out)]
        if len(self.programs) < len(all_programs()):
            lines.append(f"  {len(all_programs()) - len(self.programs)} programs of csrc/tests")
        if not self.docs:
            lines.append("  the docs build")
        if not self.doctests:
            lines.append("  the examples of docstrings")
        lines.append("  Open MPI and the wheel, but for what needs PyTorch")
        return "\n".join(lines)


def summed_up(tests: set[str]) -> list[str]:
    """Return the tests with whole folders replaced by the folders' names."""
    lines = []
    for folder in sorted({str(Path(test).parent) for test in tests}):
        inside = {one for one in all_tests() if str(Path(one).parent) == folder}
        lines += [folder] if inside <= tests else sorted(inside & tests)
    return lines


class UnknownRevisionError(Exception):
    """git finds no such commit."""


def changed(revision: str) -> list[str]:
    """Return the files that differ from a revision, including untracked files."""
    known = ["git", "rev-parse", "--verify", f"{revision}^{{commit}}"]
    asked = subprocess.run(known, cwd=ROOT, capture_output=True, text=True)
    if asked.returncode:
        reason = " ".join(asked.stderr.split())
        raise UnknownRevisionError(
            f"--since {revision}: git finds no such commit ({reason}). Name a commit, a branch or a"
            " tag, as in --since HEAD."
        )
    differing = ["git", "diff", "--name-only", "--no-renames", revision]
    untracked = ["git", "ls-files", "--others", "--exclude-standard"]
    found: set[str] = set()
    for command in (differing, untracked):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found.update(done.stdout.splitlines())
    return sorted(found)


@cache
def all_tests() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


@cache
def all_programs() -> list[str]:
    """Return the names of the programs of csrc/tests."""
    sources = [*(ROOT / "csrc/tests").glob("*.cc"), *(ROOT / "csrc/tests/device").glob("*_test.cc")]
    return sorted(path.stem for path in sources)


def layer_of(name: str) -> str:
    return PYTHON_PARTS.get(name, name)


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements of a file; ast.walk() takes longer, since it visits expressions too."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(node, part, None)
            waiting += inside if isinstance(inside, list) else []


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the layers of gradred, and of the core, that a file imports."""
    found = set()
    for node in statements(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "gradred":
                layer = layer_of(rest.partition(".")[0])
                found.add(layer if layer in PYTHON_LAYERS else "__init__")
            elif package == LABORATORY:
                found.add(LABORATORY)
            elif package == "horovod":
                found.add("horovod_path")
            elif package == "core_testing":
                found |= {"_core", "csrc/testing"}
    return frozenset(found)


@cache
def concerns(test: str) -> tuple[set[str], set[str]]:
    """Return the layers of the package, and of the core, whose changes a test may detect."""
    path = ROOT / test
    layers = set(imported(path))
    layers.update(*(names for where, names in STARTED.items() if test.startswith(where)))
    layers.update(*(imported(helper) for helper in helpers_of(path)))
    # Where the table names layers of the core, it names all that are meant.
    names_core = any(layer.startswith("csrc/") and layer != "csrc/testing" for layer in layers)
    package: set[str] = set()
    core: set[str] = set()
    for layer in layers:
        if layer == LABORATORY:
            package.add(layer)
            continue
        if layer.startswith("csrc/"):
            core |= below(layer.removeprefix("csrc/"), CXX_LAYERS)
            continue
        python, cxx = used_by(layer)
        package |= python
        if not names_core:
            core |= cxx
    return package, core


def helpers_of(test: Path) -> list[Path]:
    """Return the other files of its folder that a test names."""
    text = test.read_text()
    files = [one for one in test.parent.glob("*.py") if not one.name.startswith("test_")]
    return [one for one in files if one.stem == "conftest" or re.search(rf"\b{one.stem}\b", text)]


@cache
def program_concerns(name: str) -> set[str]:
    """Return the layers of the core that a program of csrc/tests uses, with its includes."""
    folder = ROOT / "csrc" / "tests"
    source = next(iter([*folder.glob(f"{name}.cc"), *folder.glob(f"device/{name}.cc")]))
    text = source.read_text() + "".join(one.read_text() for one in folder.glob("*.h"))
    layers = {one for one in re.findall(r'#include "(\w+)/', text) if one in CXX_LAYERS}
    return set().union(*(below(layer, CXX_LAYERS) for layer in layers - {"tests"}))


def concerns_the_laboratory(file: str) -> bool:
    """Return whether a file is part of the laboratory or its tests, or has names that it uses."""
    if file.startswith((f"src/{LABORATORY}/", OF_THE_LABORATORY)):
        return True
    if not file.startswith("src/gradred/"):
        return False
    module = file.removeprefix("src/").rpartition(".")[0].replace("/", ".")
    if module.removesuffix(".__init__") in USED_BY_THE_LABORATORY:
        return True
    # A package's public names are defined in its files.
    packages = [name for name in USED_BY_THE_LABORATORY if module.startswith(f"{name}.")]
    names = {name for one in packages if one != "gradred" for name in USED_BY_THE_LABORATORY[one]}
    text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
    return bool(names & set(re.findall(r"^(?:def |class )?(\w+)", text, re.MULTILINE)))


def naming(file: str) -> list[str]:
    """Return the tests that name a file of examples, benchmarks, tools or pages."""
    words = rf"\b{re.escape(Path(file).name)}"
    if file.startswith("tools/"):
        words += rf"|[\"']{re.escape(Path(file).stem)}[\"']"
    return [test for test in all_tests() if re.search(words, (ROOT / test).read_text())]


def choose(files: Sequence[str]) -> Choice:
    """Return the tests that the changes of these files concern."""
    choice = Choice()
    tests: set[str] = set()
    programs: set[str] = set()
    for file in files:
        if file.startswith(EVERYTHING):
            return Choice(all_tests(), all_programs(), docs=True, whole=file)
        parts = Path(file).parts
        of_the_library = [one for one in all_tests() if not one.startswith(OF_THE_LABORATORY)]
        if concerns_the_laboratory(file):
            tests.update({*all_tests()}.difference(of_the_library))
        if parts[0] == "src":
            layer = layer_of(parts[2].partition(".")[0]) if parts[1] == "gradred" else parts[1]
            tests.update(test for test in of_the_library if layer in concerns(test)[0])
        elif parts[:2] == ("csrc", "tests"):
            stem = Path(file).stem
            programs |= {stem} & set(all_programs()) or set(all_programs())
            if parts[2] == "ranks":
                tests.update(test for test in all_tests() if test.startswith("tests/core/"))
        elif parts[0] == "csrc":
            tests.update(test for test in of_the_library if parts[1] in concerns(test)[1])
            programs |= {one for one in all_programs() if parts[1] in program_concerns(one)}
        elif file in all_tests():
            tests.add(file)
        elif parts[0] == "tests":
            folder = f"{Path(file).parent}/"
            tests.update(test for test in all_tests() if test.startswith(folder))
        else:
            choice.docs |= parts[0] == "docs" or len(parts) == 1
            tests.update(naming(file))
            if file.endswith(".md"):
                tests.add("tests/unit/test_docs.py")
        if file.startswith(("src/", "csrc/")):
            tests |= {"tests/unit/test_layers.py", "tests/unit/test_wall.py"}
        if file.startswith("src/"):
            tests.add("tests/unit/test_docs.py")  # pages and README have programs
            choice.doctests = True
    choice.tests, choice.programs = sorted(tests), sorted(programs)
    return choice


def stages(choice: Choice, gate: Iterable[Stage]) -> list[Stage]:
    """Return the stages that run a choice."""
    if choice.whole:
        return list(gate)
    found = [Stage("lint", checks.lint)]
    needs_torch = [test for test in choice.tests if asks_for_torch(test)]
    with_ranks = [test for test in choice.tests if test.startswith(WITH_RANKS)]
    of_tensorflow = [test for test in choice.tests if test.startswith(OF_TENSORFLOW)]
    apart = {*with_ranks, *needs_torch, *of_tensorflow}
    others = [test for test in choice.tests if test not in apart]
    if choice.programs:
        found.append(Stage("core", lambda: core(choice.programs)))
    if others:
        found.append(Stage("tests", lambda: checks.jobs(MPICH, *others, seconds=3000)))
    # JAX is installed for the nightly run alone.
    elsewhere = ("tests/pytorch/", "tests/jax_programs/")
    if on_hosts := [test for test in with_ranks if not test.startswith(elsewhere)]:
        two_ranks = ["--no-unit", "--ranks", "2", "--paths", ",".join(on_hosts)]
        found.append(Stage("tests, 2 ranks", lambda: checks.ranks(MPICH, *two_ranks)))
    front_ends = any(test.startswith("tests/pytorch/") for test in with_ranks)
    if needs_torch or front_ends or of_tensorflow:  # an existing environment has an older wheel
        found.append(Stage("sdist and wheel", checks.wheel))
    if jobs := [test for test in needs_torch if test not in with_ranks]:
        found.append(Stage("jobs with torch", lambda: checks.torch_jobs(*jobs)))
    if front_ends:
        torch_words = ["--no-unit", "--torch", "--ranks", "2"]
        found.append(
            Stage("torch", lambda: not checks.has_torch() or checks.ranks(OPENMPI, *torch_words))
        )
    if of_tensorflow:
        newest = list(checks.TENSORFLOWS)[-1]
        found.append(Stage(f"tensorflow {newest}", lambda: checks.tensorflow(newest)))
    if choice.doctests:
        found.append(Stage("doctests", checks.doctests))
    if choice.docs:
        found.append(Stage("docs", checks.docs))
    return found


def asks_for_torch(test: str) -> bool:
    """Return whether all tests of a file are skipped without PyTorch."""
    return bool(
        re.search(r'^(\w+ = )?pytest\.importorskip\("torch"', (ROOT / test).read_text(), re.M)
    )


def core(programs: Sequence[str]) -> bool:
    """Run some programs of csrc/tests."""
    build = checks.build_of(MPICH)
    if build is None or not checks.compiled(build):
        return False
    chosen = [one for one in checks.programs_of(build) if one.name in programs]
    return checks.run_programs(map(checks.Program, chosen), checks.CORES)
