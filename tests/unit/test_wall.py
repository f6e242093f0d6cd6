"""The wall between gradred and its laboratory, gradred_lab: the library never looks over it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from layers import USED_BY_THE_LABORATORY

from gradred.cli import COMMANDS, laboratory

ROOT = Path(__file__).resolve().parents[2]
LIBRARY, LABORATORY = ROOT / "src" / "gradred", ROOT / "src" / "gradred_lab"
TABLE = LIBRARY / "cli" / "laboratory.py"

MOST_LINES = 39_647
"""Of Python in the library. It may fall; a part that makes it grow belongs in the laboratory."""

MOST_NAMES = 55
"""That the laboratory uses. It may fall."""


def strings_of(source: str) -> Iterator[str]:
    """The names that a file imports anywhere, and its strings that are no docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
        elif isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield str(node.value)


def names_the_laboratory(source: str) -> bool:
    return "gradred_lab" in source and any("gradred_lab" in one for one in strings_of(source))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import gradred_lab.train", True),
        ("def f():\n    from gradred_lab import train", True),
        ("importlib.import_module(f'gradred_lab.{name}')", True),
        ("subprocess.run(['python', '-m', 'gradred_lab.simulate.recorder'])", True),
        ('"""gradred_lab has the rest."""', False),
        ("import gradred", False),
    ],
)
def test_name_of_the_laboratory_is_seen_in_imports_and_strings(source: str, found: bool) -> None:
    assert names_the_laboratory(source) is found


def test_only_the_table_of_commands_names_the_laboratory() -> None:
    naming = [path for path in LIBRARY.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    naming = [path for path in naming if names_the_laboratory(path.read_text())]
    assert naming == [TABLE]
    core = [path for path in (ROOT / "csrc").rglob("*.*") if path.suffix in (".h", ".cc", ".cu")]
    assert [str(path) for path in core if "gradred_lab" in path.read_text()] == []


def test_table_of_commands_names_modules_that_are_there() -> None:
    names = [*laboratory.COMMANDS, *(f"simulated_{name}" for name in laboratory.SIMULATED)]
    for name in [*names, *re.findall(r'\.module\("(\w+)"\)', sources_of_commands())]:
        assert (LABORATORY / "cli" / f"{name}.py").exists(), name


def sources_of_commands() -> str:
    return "".join(path.read_text() for path in (LIBRARY / "cli").glob("*.py"))


def is_module(name: str) -> bool:
    base = ROOT / "src" / name.replace(".", "/")
    return (
        base.with_suffix(".py").exists()
        or (base / "__init__.py").exists()
        or (base.with_suffix(".pyi").exists())
    )


def uses_of_the_library(source: str) -> set[tuple[str, str]]:
    """The modules of gradred that a file uses, and which of their names."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}  # by the names that the file gives them
    found: set[tuple[str, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "gradred":
                    modules[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "gradred":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if is_module(whole):
                    modules[alias.asname or alias.name] = whole
                else:
                    found.add((str(node.module), alias.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            found.add((modules[ast.unparse(node.value)], node.attr))
    return found


def test_uses_are_the_names_that_are_imported_or_read_of_a_module() -> None:
    source = (
        "import gradred\nimport gradred.torch as front\nfrom gradred.bench import options\n"
        "from gradred.errors import Error as E\ngradred.Comm(options.positive(front.init()))\n"
    )
    assert uses_of_the_library(source) == {
        ("gradred", "Comm"),
        ("gradred.bench.options", "positive"),
        ("gradred.errors", "Error"),
        ("gradred.torch", "init"),
    }


def test_laboratory_uses_the_names_of_the_table_which_may_only_shrink() -> None:
    found = {
        use for path in LABORATORY.rglob("*.py") for use in uses_of_the_library(path.read_text())
    }
    table = {(module, name) for module, names in USED_BY_THE_LABORATORY.items() for name in names}
    assert sorted(found - table) == [], "let the laboratory do without, or move it there"
    assert sorted(table - found) == [], "remove these from the table"
    assert len(table) <= MOST_NAMES


def test_library_has_at_most_so_many_lines() -> None:
    lines = sum(path.read_text().count("\n") for path in LIBRARY.rglob("*.py"))
    assert lines <= MOST_LINES


# Runs each command line, one after the other, as if some packages were not installed.
WITHOUT = """
import json, sys
absent, *lines = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(absent))
from gradred import cli
for line in lines:
    try:
        status = cli.main(line)
    except SystemExit as stop:
        status = stop.code
    print("status", status, line, flush=True)
print("loaded", any(one and name.startswith("gradred_lab") for name, one in sys.modules.items()))
"""


def without(absent: Sequence[str], *lines: str) -> tuple[list[str], str, str]:
    """The status of each command line, and what all wrote to stdout and stderr."""
    asked = json.dumps([absent, *(line.split() for line in lines)])
    command = [sys.executable, "-c", WITHOUT, asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    return re.findall(r"^status (\d+) ", done.stdout, re.MULTILINE), done.stdout, done.stderr


EXTRA = ("matplotlib", "pandas", "psutil", "sklearn", "torch", "torchvision")
"""The packages of the extra `lab`, as they are imported."""

OF_THE_LIBRARY = (
    "info --json",
    "explain --bytes 8 -np 2 --no-measure",
    "simulate networks 10GbE",
    "simulate allreduce --net 10GbE -np 4 --algorithm ring",
)


def test_commands_of_the_library_work_without_the_packages_of_the_laboratory() -> None:
    helps = [f"{name} --help" for name in COMMANDS]
    statuses, _, err = without(EXTRA, *helps, *OF_THE_LIBRARY)
    assert statuses == ["0"] * (len(COMMANDS) + len(OF_THE_LIBRARY)), err


def test_commands_of_the_library_work_without_the_laboratory() -> None:
    own = [name for name in COMMANDS if name not in laboratory.COMMANDS]
    lines = [f"{name} --help" for name in [*own, "simulate allreduce", "simulate networks"]]
    lines += OF_THE_LIBRARY
    statuses, out, err = without(["gradred_lab"], "--help", *lines)
    assert statuses == ["0"] * (1 + len(lines)), err
    assert "# simulated, not measured: allreduce" in out
    listed = out.partition("status")[0]
    assert [name for name in COMMANDS if f"\n    {name} " in listed] == own
    assert [name for name in laboratory.SIMULATED if f"\n    {name} " in out] == []
    assert PIP in " ".join(listed.split())


def test_library_loads_the_laboratory_for_its_commands_alone() -> None:
    _, out, _ = without([], "--help", "info --json", "bench --help")
    assert "\n    train " in out
    assert out.endswith("loaded False\n")
    assert without([], "train --help")[1].endswith("loaded True\n")


PIP = 'Install it with: pip install "gradred[lab]"'


@pytest.mark.parametrize(
    "line",
    [
        "schemes -np 2",
        "train --quick",
        "simulate training --model resnet50 --net 10GbE",
        "simulate record -- python a.py",
        "simulate study --help",
        "simulate allreduce --calibrate a.csv --rows b.csv",
    ],
)
def test_commands_of_an_absent_laboratory_say_how_to_install_it(line: str) -> None:
    statuses, _, err = without(["gradred_lab"], line)
    assert statuses == ["2"]
    assert f"gradred_lab is not installed. {PIP}" in err


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("torch", "train --quick"),
        ("torchvision", "train --quick"),
        ("torch", "simulate record -- python a.py"),
        ("sklearn", "schemes -np 2"),
        ("pandas", "simulate training --calibrate a.csv --rows b.csv"),
        ("sklearn", "simulate allreduce --calibrate a.csv --rows b.csv"),
        ("matplotlib", "schemes -np 2 --plot a.svg"),
        ("matplotlib", "simulate study --model resnet50 --net 10GbE --out a"),
        ("matplotlib", "simulate training --model resnet50 --net 10GbE --plot a.svg"),
        ("gradred_lab.train", "train --quick"),  # any that a module imports at its beginning
    ],
)
def test_commands_of_the_laboratory_say_how_to_install_a_package_that_they_lack(
    package: str, line: str
) -> None:
    statuses, _, err = without([package], line)
    assert statuses == ["2"]
    assert f"is not installed. {PIP}" in err


def test_extra_of_the_laboratory_has_what_it_says_to_install() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    extra, no_torch = (
        re.findall(r'"([\w-]+)', one)
        for one in re.findall(r"^lab(?:-no-torch)? = \[(.*)\]", project, re.MULTILINE)
    )
    assert extra == [*EXTRA[:3], "scikit-learn", *EXTRA[4:]]
    assert [*no_torch, *EXTRA[4:]] == extra
