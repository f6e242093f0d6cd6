"""Includes and imports point downward only; the two tables here are the order of the layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What each folder of csrc may include, beside itself. An include may also point to what those
# include, so that each line names only the nearest layers below.
CXX_LAYERS = {
    "base": [],
    "schedule": ["base"],
    "reduce": ["base"],
    "mpi": ["schedule", "reduce"],
    "node": ["mpi"],
    "device": ["node"],
    "transport": ["device"],
    "engine": ["transport"],
    "plan": ["schedule"],
    "comm": ["engine", "plan"],
    "coordinator": ["comm"],
    "python": ["coordinator"],
    "preload": ["coordinator"],
    "tests": ["coordinator"],
}

# Modules and packages of gradred from the lowest layer to the highest. A module may import what
# stands in its own line or above it; `__init__` is `import gradred` itself.
PYTHON_LAYERS = (
    (
        "_files",
        "_inherit",
        "_news",
        "_proof",
        "_ranges",
        "_segments",
        "_terminal",
        "_voice",
        "_wire",
        "errors",
    ),
    ("_door", "_keeper"),
    ("_shim",),
    ("_core", "config"),
    ("_destinations",),
    ("element_types",),
    ("_cpu", "_figures", "_output", "_processes", "_profile", "_status", "dlpack", "hosts", "ops"),
    ("_autopsy", "_strangers", "refusing", "request", "schedules"),
    ("_job", "arrays", "launch", "persistent", "plans"),
    ("_launched", "_run", "_verdict", "_worker", "messages"),
    ("_rank",),
    ("_foreground",),
    ("typemaps",),
    ("handed", "moving"),
    ("comm", "shrunk"),
    ("arguments",),
    ("reductions",),
    ("functions", "memory", "parts", "started"),
    ("__init__",),
    ("bench", "doctor"),
    ("__main__", "cli"),
)


def below(layer: str) -> set[str]:
    """`layer` and everything it may include."""
    return {layer}.union(*(below(lower) for lower in CXX_LAYERS[layer]))


def cxx_includes() -> list[tuple[str, str, str]]:
    """(file, its layer, the layer of a quoted include), for every such line of csrc."""
    found = []
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        name = path.relative_to(ROOT / "csrc")
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            if name.parts[0] != "tests" or "/" in target:  # the tests' own headers lie beside them
                found.append((f"{name} includes {target}", name.parts[0], target.split("/")[0]))
    return found


def test_cxx_includes_point_downward() -> None:
    includes = cxx_includes()
    assert includes
    unknown = [line for line, _, target in includes if target not in CXX_LAYERS]
    assert not unknown, 'a quoted include starts with its layer: "base/types.h"'
    assert [line for line, layer, target in includes if target not in below(layer)] == []


def test_every_folder_of_csrc_is_a_layer() -> None:
    folders = {path.parent.relative_to(ROOT / "csrc").parts[0] for path in csrc_sources()}
    assert folders <= set(CXX_LAYERS)


def csrc_sources() -> list[Path]:
    return [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cc")]


def test_only_python_and_tests_include_python_headers() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in csrc_sources()
        if path.relative_to(ROOT / "csrc").parts[0] != "python"
        and re.search(r"#\s*include\s+[<\"](pybind11/|Python\.h|numpy/)", path.read_text())
    ]
    assert offenders == []


def test_no_file_includes_mpi_h() -> None:
    """One binary serves every MPI, so no MPI's header may shape it."""
    pattern = r"#\s*include\s+[<\"]mpi\.h"
    assert [str(path) for path in csrc_sources() if re.search(pattern, path.read_text())] == []


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ("float8_?e5m2", {"csrc/base/types.h", "csrc/reduce/kernels/elements.h"}),
        (
            "bxor|bit_?xor|bitwise_xor",
            {"csrc/base/types.h", "csrc/reduce/kernels/operations.h", "csrc/mpi/families.cc"},
        ),
    ],
)
def test_types_and_operations_stand_in_at_most_three_files(words: str, files: set[str]) -> None:
    """Of the product: what CONTRIBUTING tells of adding one is all that names one."""
    sources = [path for path in csrc_sources() if "tests" not in path.parts]
    sources += (ROOT / "src").rglob("*.py*")
    naming = {
        str(path.relative_to(ROOT))
        for path in sources
        if path.suffix != ".pyc" and re.search(words, path.read_text(), re.IGNORECASE)
    }
    assert naming == files


def python_modules() -> dict[str, list[Path]]:
    """The source files of each module or package directly in gradred."""
    package = ROOT / "src" / "gradred"
    modules: dict[str, list[Path]] = {}
    for path in sorted(package.rglob("*.py")):
        modules.setdefault(path.relative_to(package).parts[0].removesuffix(".py"), []).append(path)
    return modules


def imported_modules(path: Path, known: set[str]) -> set[str]:
    """What a file imports of gradred, wherever in the file it does."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its layer"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    # `from gradred import x` is the module x, or a public name of gradred itself.
    return {
        part[1] if part[1:] and part[1] in known else "__init__"
        for part in parts
        if part[0] == "gradred"
    }


def test_python_imports_point_downward() -> None:
    level = {name: level for level, names in enumerate(PYTHON_LAYERS) for name in names}
    modules = python_modules()
    assert set(modules) <= set(level), "a new module needs its place in PYTHON_LAYERS"
    upward = [
        f"{path.relative_to(ROOT)} imports {target}"
        for module, paths in modules.items()
        for path in paths
        for target in imported_modules(path, set(level))
        if level[target] > level[module]
    ]
    assert upward == []
