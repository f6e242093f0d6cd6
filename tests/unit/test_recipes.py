"""Recipes of package managers agree with pyproject.toml, and name the right files."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import gradred

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
CONDA = (PACKAGING / "conda-forge" / "recipe.yaml").read_text()
SPACK = PACKAGING / "spack/spack_repo/gradred/packages/py_gradred/package.py"
(EASYBUILD,) = PACKAGING.glob("easybuild/*.eb")


def split(requirement: str) -> tuple[str, str]:
    """Name and lowest version of a requirement; "" where any will do."""
    found = re.fullmatch(r"([\w-]+) ?(?:>=([\d.]+))?", requirement)
    assert found is not None, requirement
    return found[1], found[2] or ""


def required() -> tuple[dict[str, str], dict[str, str]]:
    """What pyproject.toml requires to build and to run."""
    build, run = importlib.import_module("environment").requirements([])
    return dict(map(split, build)), dict(map(split, run))


def of_conda(part: str) -> dict[str, str]:
    """The packages that the recipe lists under `host` or `run`."""
    found = re.search(rf"^  {part}:\n((?:    - .*\n)+)", CONDA, re.MULTILINE)
    assert found is not None
    return dict(split(line.strip("- ")) for line in found[1].splitlines())


def spack_directives(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, Any]]]:
    """What the recipe says to Spack: directive, first argument, others by name."""
    said: list[tuple[str, str, dict[str, Any]]] = []
    language = types.ModuleType("spack.package")

    def directive(name: str) -> Any:
        return lambda value, **options: said.append((name, value, options))

    for name in ("license", "version", "depends_on", "requires"):
        setattr(language, name, directive(name))
    builtin = types.ModuleType("spack_repo.builtin.build_systems.python")
    builtin.PythonPackage = type("PythonPackage", (), {})  # type: ignore[attr-defined]
    for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, language.__name__, language)
    monkeypatch.setitem(sys.modules, builtin.__name__, builtin)
    assert "PyGradred" in runpy.run_path(str(SPACK))
    return said


def test_recipes_and_citation_state_this_version(monkeypatch: pytest.MonkeyPatch) -> None:
    version = gradred.__version__
    assert f'version: "{version}"' in CONDA
    assert [value for name, value, _ in spack_directives(monkeypatch) if name == "version"] == [
        version
    ]
    assert runpy.run_path(str(EASYBUILD))["version"] == version
    assert EASYBUILD.name.startswith(f"gradred-{version}-")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_conda_recipe_requires_what_pyproject_requires() -> None:
    build, run = required()
    programs = {name: build.pop(name) for name in ("cmake", "ninja")}
    for name, version in programs.items():
        assert f"    - {name} >={version}\n".replace(" >=\n", "\n") in CONDA
    host = of_conda("host")
    assert {host.pop(name) for name in ("python", "pip")} == {""}
    assert host == build
    assert of_conda("run") == {"python": "", **run}


def test_conda_recipe_has_no_variant_for_an_mpi() -> None:
    """Only the tests name MPIs; one under `requirements` would make a build for each."""
    requirements = CONDA.partition("\nrequirements:")[2].partition("\ntests:")[0]
    assert re.findall(r"- (\w*mpi\w*)", requirements) == ["mpi4py"]
    assert "${{ mpi }}" not in CONDA


def test_spack_recipe_requires_what_pyproject_requires(monkeypatch: pytest.MonkeyPatch) -> None:
    build, run = required()
    said = [
        (what, options["type"])
        for name, what, options in spack_directives(monkeypatch)
        if name == "depends_on"
    ]

    def lowest(use: str) -> dict[str, str]:
        found = (what.partition("@") for what, uses in said if use in uses)
        return {name.removeprefix("py-"): version.rstrip(":") for name, _, version in found}

    assert lowest("build") == {
        **{"cxx": "", "python": "3.10"},
        **{name: version.removesuffix(".0") for name, version in build.items()},
    }
    assert lowest("run") == {**run, "python": "3.10", "mpi": ""}


def test_easybuild_recipe_names_what_it_needs() -> None:
    recipe = runpy.run_path(str(EASYBUILD))
    build, run = required()
    named = {name.lower() for name, _ in recipe["builddependencies"]}
    assert named == {*build} - {"setuptools", "numpy"}  # of Python and SciPy-bundle
    assert {name for name, _ in recipe["dependencies"]} == {"Python", "SciPy-bundle", *run} - {
        "numpy"
    }
