"""Includes and imports point downward only; tools/layers.py has the tables of layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from layers import CXX_LAYERS, LABORATORY_LAYERS, PYTHON_LAYERS, PYTHON_PARTS

ROOT = Path(__file__).resolve().parents[2]

# Functions by which modules above the extension pass it a function or a class that it calls or
# derives from, and the modules that do so.
UPCALLS = {
    "call_callback": ["calls", "request"],
    "call_with_waits": ["torch_distributed"],
    "connect": ["without_mpi"],
    "install": ["_rank"],
    "install_memory_comm": ["comm"],
    "know_groups": ["torch_distributed"],
    "persistent_type": ["persistent"],
    "replace_method": ["persistent"],
    "request_type": ["request"],
    "serve_jax_processes": ["jax_stand_in"],
    "use_array_functions": ["calls"],
    "use_array_request_class": ["calls"],
    "use_request_class": ["request"],
    "wait_for_message": ["torch_distributed"],
}

# The modules of a rank's launch proxy and supervisor. They are loaded once per rank, without
# gradred's other modules and the packages that these need.
BESIDE_A_RANK = {
    "authentication",
    "begun",
    "failure_board",
    "mpi_segments",
    "proc",
    "protocol",
    "proxy",
    "rank_pipe",
    "supervisor",
    "variables",
}


def reached(layer: str, graph: dict[str, set[str]], path: tuple[str, ...] = ()) -> set[str]:
    """All layers that a layer uses, directly or through others."""
    assert layer not in path, f"a circle: {' -> '.join([*path, layer])}"
    further = (reached(lower, graph, (*path, layer)) for lower in graph[layer])
    return graph[layer].union(*further)


def nearest(graph: dict[str, set[str]]) -> dict[str, list[str]]:
    """The layers that each layer uses and does not get through another one."""
    return {
        layer: sorted(direct.difference(*(reached(lower, graph) for lower in direct)))
        for layer, direct in graph.items()
    }


def cxx_includes() -> dict[str, set[str]]:
    """The other folders that each folder of csrc includes."""
    found: dict[str, set[str]] = {}
    for path in csrc_sources():
        layer = path.relative_to(ROOT / "csrc").parts[0]
        targets = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE)
        found.setdefault(layer, set())
        for target in targets:
            if layer != "tests" or "/" in target:  # the tests' own headers are in the same folder
                found[layer].add(target.split("/")[0])
    return {layer: targets - {layer} for layer, targets in found.items()}


def test_quoted_includes_start_with_their_layer() -> None:
    includes = cxx_includes()
    assert set().union(*includes.values()) <= set(includes), 'like this: "base/types.h"'


def test_cxx_includes_point_downward_and_the_table_has_no_spare_line() -> None:
    assert {layer: sorted(lower) for layer, lower in CXX_LAYERS.items()} == nearest(cxx_includes())


def test_the_product_has_at_most_21_folders() -> None:
    assert len(CXX_LAYERS.keys() - {"testing", "tests"}) <= 21


def modules(folder: Path) -> dict[str, set[str]]:
    """The modules of a folder (a header and a source of one name) that each of them includes."""
    found: dict[str, set[str]] = {}
    name = folder.relative_to(ROOT / "csrc")
    for path in folder.iterdir():
        if path.suffix in (".h", ".cc"):
            targets = re.findall(rf'#\s*include\s+"{name}/(\w+)\.h"', path.read_text())
            found.setdefault(path.stem, set()).update(targets)
    return {module: (used - {module}) & found.keys() for module, used in found.items()}


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules that include themselves through others."""
    found = set()
    for module in graph:
        used: set[str] = set()
        waiting = [module]
        while waiting:
            new = graph[waiting.pop()] - used
            used |= new
            waiting += new
        if module in used:
            found.add(module)
    return found


def test_no_files_of_one_folder_include_each_other_in_a_circle() -> None:
    folders = {path.parent for path in csrc_sources()}
    found = {
        str(folder.relative_to(ROOT / "csrc")): in_circles(modules(folder)) for folder in folders
    }
    assert {name: circle for name, circle in found.items() if circle} == {}


def test_rooms_and_their_folder_do_not_include_each_other_in_a_circle() -> None:
    found: dict[str, set[str]] = {}
    for path in csrc_sources():
        room = path.relative_to(ROOT / "csrc").parent
        if room.parts[0] not in ("testing", "tests"):
            includes = re.findall(rf'#\s*include\s+"({room.parts[0]}/[\w/]+)\.h"', path.read_text())
            rooms = {str(Path(target).parent) for target in includes}
            found.setdefault(str(room), set()).update(rooms)
    graph = {room: targets & found.keys() - {room} for room, targets in found.items()}
    assert nearest(graph).keys() == found.keys()  # it fails for a circle


def test_each_header_has_a_name_of_its_own() -> None:
    names = [path.name for path in csrc_sources() if path.suffix == ".h"]
    assert [name for name in names if names.count(name) > 1] == []


@pytest.mark.parametrize(
    ("number", "layers"),
    [
        (0, {name: CXX_LAYERS[name] for name in CXX_LAYERS.keys() - {"testing", "tests"}}),
        (1, PYTHON_LAYERS),
    ],
    ids=["core", "package"],
)
def test_picture_of_the_house_shows_each_folder_above_those_that_it_uses(
    number: int, layers: dict[str, list[str]]
) -> None:
    page = (ROOT / "docs" / "design" / "house.md").read_text()
    picture = page.split("```")[2 * number + 1].strip("\n").splitlines()
    floors = [re.split(r"\s{2,}", line.strip())[0].split(", ") for line in picture]
    floor_of = {name: floor for floor, names in enumerate(floors) for name in names}
    assert sorted(name for names in floors for name in names) == sorted(layers)
    for layer in layers:
        assert [low for low in layers[layer] if floor_of[low] <= floor_of[layer]] == []


def csrc_sources() -> list[Path]:
    """All files of C++, except for the list of all names that an MPI has."""
    files = [path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cc")]
    return [path for path in files if path.name != "jax_mpi_names.cc"]


def product_sources(*beside: str) -> list[Path]:
    """The files of C++ but those of tests and of some more folders."""
    left_out = {"tests", "testing", *beside}
    folders = ((path, path.relative_to(ROOT / "csrc").parts[0]) for path in csrc_sources())
    return [path for path, folder in folders if folder not in left_out]


def test_only_python_and_tests_include_python_headers() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in csrc_sources()
        if path.relative_to(ROOT / "csrc").parts[:2] != ("testing", "python")
        and path.relative_to(ROOT / "csrc").parts[0] != "python"
        and re.search(r"#\s*include\s+[<\"](pybind11/|Python\.h|numpy/)", path.read_text())
    ]
    assert offenders == []


def test_no_file_includes_mpi_h() -> None:
    """One binary serves every MPI, so it must not depend on any MPI's header."""
    pattern = r"#\s*include\s+[<\"]mpi\.h"
    assert [str(path) for path in csrc_sources() if re.search(pattern, path.read_text())] == []


ELEMENTS = "csrc/reduce/kernels/elements.h"
ON_GPUS = ["csrc/device/kernels/arguments.h", "csrc/device/kernels/reduce.cu"]


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ("float8_?e5m2", [ELEMENTS, *ON_GPUS]),  # a type that MPI lacks
        (
            r"\bk?bor\b|bit_?or\b|bitwise_or",
            ["csrc/reduce/kernels/operations.h", "csrc/mpi/mpi_families.cc"],
        ),
    ],
)
def test_types_and_operations_stand_in_three_files_and_two_of_gpus(
    words: str, files: list[str]
) -> None:
    """In the product, only the files that CONTRIBUTING lists for a new one name it."""
    sources = [*product_sources(), *(ROOT / "src").rglob("*.py*")]
    sources += (ROOT / "csrc").rglob("*.cu")
    naming = {
        str(path.relative_to(ROOT))
        for path in sources
        if path.suffix != ".pyc" and re.search(words, path.read_text(), re.IGNORECASE)
    }
    assert naming == {"csrc/base/types.h", *files}


KINDS = {
    "gather": r"\bk(Gather|Scatter)\b|\bi(gather|scatter)\b|(binomial|linear)_(gather|scatter)\b|"
    r"\bmake_gathers\b",
    "scan": r"\bk?(i|I)?(ex|Ex)?(scan|Scan)\b|_scans?\b",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_call_stands_in_the_files_that_the_page_lists(kind: str) -> None:
    """In the product, at most eight files name it, beside the names that csrc/preload exports."""
    page = (ROOT / "docs" / "design" / "house.md").read_text()
    table = page.partition("| scans | gathers and scatters |")[2].partition("\n\n")[0]
    column = ["scan", "gather"].index(kind)
    listed = [re.findall(r"`([\w./]+)`", row)[column] for row in table.splitlines()[2:]]
    sources = [*product_sources("preload"), *(ROOT / "src").rglob("*.py")]
    sources += (ROOT / "src").rglob("*.pyi")
    naming = [path for path in sources if has(path, KINDS[kind])]
    assert sorted(str(path.relative_to(ROOT)) for path in naming) == sorted(listed)
    assert len(listed) <= 8


def test_plan_of_a_library_stands_in_four_files() -> None:
    """In the product, only the files that the page lists for one more plan name such a plan."""
    sources = [*product_sources(), *(ROOT / "src").rglob("*.py")]
    naming = [path for path in sources if has(path, r"(one|two)_shot\b")]
    assert sorted(str(path.relative_to(ROOT)) for path in naming) == [
        "csrc/device/libraries/libraries.h",
        "csrc/device/libraries/shots.cc",
        "csrc/families/devices/family_library.cc",
        "src/gradred/simulate/plans.py",
    ]


def has(path: Path, pattern: str) -> bool:
    """Whether a file has the pattern outside comments and docstrings."""
    found = re.search(pattern, path.read_text())  # most files have it nowhere
    return found is not None and re.search(pattern, without_text(path)) is not None


def without_text(path: Path) -> str:
    """A file without its comments and docstrings, in which a word may mean something else.

    Declarations that only type checkers read are left out as well.
    """
    text = path.read_text()
    if path.suffix not in (".py", ".pyi"):
        return re.sub(r"//.*", "", text)
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            end = node.body[-1].end_lineno or 0
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    return re.sub(r'"""(?:.|\n)*?"""|#.*', "", "\n".join(lines))


PACKAGE = ROOT / "src" / "gradred"
LABORATORY = ROOT / "src" / "gradred_lab"


def imported_names(path: Path, package: Path = PACKAGE) -> list[list[str]]:
    """The names that a file imports from a package, anywhere in it, as parts of dotted names."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides its layer"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return [part for part in parts if part[0] == package.name]


def names_imported_by_the_extension() -> list[list[str]]:
    """The names that C++ files import."""
    pattern = r'import\w*\(\s*"(gradred[\w.]*)"'
    texts = [path.read_text() for path in (ROOT / "csrc" / "python").glob("*.*")]
    found = [name for text in texts for name in re.findall(pattern, text, re.IGNORECASE)]
    return [name.split(".") for name in found]


def layer_of(path: Path, package: Path = PACKAGE) -> str:
    name = path.relative_to(package).parts[0].partition(".")[0]
    return PYTHON_PARTS.get(name, name)


def python_imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """The modules that each module or package directly in a package imports."""
    files: dict[str, list[Path]] = {}
    for path in sorted([*package.rglob("*.py"), *package.glob("*.pyi")]):
        files.setdefault(layer_of(path, package), []).append(path)
    known = {*files, *PYTHON_PARTS}
    found: dict[str, set[str]] = {}
    for layer, paths in files.items():
        parts = [part for path in paths for part in imported_names(path, package)]
        parts += names_imported_by_the_extension() if layer == "_core" else []
        # `from gradred import x` is the module x, or a public name of the package itself.
        names = {part[1] if part[1:] and part[1] in known else "__init__" for part in parts}
        found[layer] = {PYTHON_PARTS.get(name, name) for name in names} - {layer}
    return found


@pytest.mark.parametrize(
    ("package", "layers"), [(PACKAGE, PYTHON_LAYERS), (LABORATORY, LABORATORY_LAYERS)]
)
def test_python_imports_point_downward_and_the_table_has_no_spare_line(
    package: Path, layers: dict[str, list[str]]
) -> None:
    table = {layer: sorted(lower) for layer, lower in layers.items()}
    assert table == nearest(python_imports(package))


def takers_of_functions() -> set[str]:
    """The extension's functions that take a function or a class, according to its stub."""
    functions = ast.parse((PACKAGE / "_core.pyi").read_text()).body
    return {
        node.name
        for node in functions
        if isinstance(node, ast.FunctionDef)
        and re.search(r"\bCallable\b|\btype\[", ast.unparse(node.args))
    }


def test_upcalls_of_the_extension_are_those_of_the_table() -> None:
    assert takers_of_functions() == UPCALLS.keys()
    found: dict[str, set[str]] = {name: set() for name in UPCALLS}
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"\b_core\.(\w+)\(", path.read_text()):
            if name in found:
                found[name].add(layer_of(path))
    assert {name: sorted(layers) for name, layers in found.items()} == UPCALLS


def test_what_runs_beside_a_rank_imports_nothing_else_of_gradred_but_the_clock() -> None:
    waiting, found = ["proxy"], set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        imported = imported_names(PACKAGE / "launch" / f"{name}.py")
        imported = [part for part in imported if part[1:] != ["_util", "clock"]]
        assert all(part[1] == "launch" for part in imported), name
        waiting += [part[2] for part in imported if part[2] not in found]
    assert found == BESIDE_A_RANK


def bound_by(source: Path) -> set[str]:
    """The names that a module binds anywhere, and those of the modules beside it."""
    found = {one.stem for one in source.parent.iterdir()}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            found |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return found


@pytest.mark.parametrize("name", sorted(one.name for one in (ROOT / "benchmarks").glob("*.py")))
def test_benchmark_imports_what_is_there(name: str) -> None:
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / name).read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        inside = node.module.startswith(("gradred.", "gradred_lab."))
        base = (ROOT / "src" if inside else ROOT / "benchmarks") / node.module.replace(".", "/")
        for source in (base.with_suffix(".py"), base / "__init__.py"):
            if source.exists():
                imported = {alias.name for alias in node.names}
                assert imported <= bound_by(source), f"{name}: from {node.module}"
