"""The two tables of runtimes: they agree, they are whole, and nothing else knows a runtime."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from packager.report.marks import MARKS
from packager.runtimes.table import RUNTIMES
from packager.steps.functions import KINDS
from runtime_adapters.machine import versions_of
from runtime_adapters.runtimes import BY_NAME, REAL, RuntimeSpec
from runtime_adapters.runtimes import RUNTIMES as DEVICE_RUNTIMES

ROOT = Path(__file__).parents[4]
CODE = ("wire", "runtime_adapters", "telemetry", "agent", "packager", "controller")
NAMES = frozenset(spec.name for spec in REAL)
TABLES = {"runtime_adapters/runtimes.py", "packager/runtimes/table.py"}
BUILT_FOR = {f"packager/runtimes/{name}" for name in NAMES}
ADAPTED = {f"runtime_adapters/{name}" for name in NAMES}


def strings(path: Path) -> set[str]:
    """Return the string constants of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def test_a_runtime_is_known_by_name_in_its_own_folders_and_in_the_tables_alone() -> None:
    knowing: dict[str, set[str]] = {}
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            known = strings(path) & NAMES
            if name in TABLES or path.parent.relative_to(ROOT).as_posix() in BUILT_FOR | ADAPTED:
                known -= {path.parent.name} if name not in TABLES else NAMES
            if known:
                knowing[name] = known
    assert not knowing


def test_both_tables_have_the_same_runtimes_in_the_same_order() -> None:
    assert [row.name for row in RUNTIMES.rows] == [spec.name for spec in REAL]
    assert set(MARKS) == NAMES


def test_each_runtime_has_a_folder_on_both_sides() -> None:
    for spec in DEVICE_RUNTIMES:
        assert (ROOT / "runtime_adapters" / spec.name / "adapter.py").is_file()
    for row in RUNTIMES.rows:
        assert (ROOT / "packager" / "runtimes" / row.name / "spec.py").is_file()


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_names_a_function_that_there_is(kind: str) -> None:
    module, _, function = KINDS[kind].partition(":")
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_recipe_and_every_source_has_its_step() -> None:
    for row in RUNTIMES.rows:
        assert {recipe.runtime for recipe in row.recipes} == {row.name}
        assert {r.kind for r in row.recipes} <= {*row.steps, "prepare"}
        assert row.tunes == (f"tune-{row.name}" in KINDS)
        if row.source is not None:
            assert f"prepare-{row.source.kind}" in row.steps
            assert row.source.recipe in RUNTIMES.recipes
    assert sum(len(row.recipes) for row in RUNTIMES.rows) == len(RUNTIMES.recipes)


def test_versions_are_asked_of_packages_that_a_device_installs() -> None:
    for row in RUNTIMES.rows:
        assert set(row.packages) <= set(BY_NAME[row.name].packages)


def megabytes(line: str, package: str) -> int:
    """Return the size that a comment in pyproject.toml gives for a package."""
    sizes = re.findall(r"\d+", line.partition("#")[2])
    return int(sizes[-1]) if package in line else 0


@pytest.mark.parametrize("spec", REAL, ids=lambda spec: spec.name)
def test_a_runtimes_extra_installs_its_package_of_the_size_that_the_table_says(
    spec: RuntimeSpec,
) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needs = tomllib.loads(text)["project"]["optional-dependencies"][spec.name]
    own = [re.split(r"[>=<]", need)[0] for need in needs if not need.startswith("numpy")]
    assert own == list(spec.packages[:1])
    if own:
        line = next(line for line in text.splitlines() if line.startswith(f"{spec.name} ="))
        assert megabytes(line, own[0]) == spec.size_mb


@pytest.mark.parametrize("spec", REAL, ids=lambda spec: spec.name)
def test_the_documents_name_what_the_table_says(spec: RuntimeSpec) -> None:
    building = (ROOT / "docs" / "building.md").read_text(encoding="utf-8")
    assert f"| {spec.title} | " in building
    processors = ", ".join(spec.architectures)
    installed = ", ".join(f"`{package}`" for package in spec.packages) or "the C library alone"
    size = f"{spec.size_mb} MB" if spec.size_mb else "none"
    row = (
        f"| {spec.title} | {installed} | {size} | {processors} | {spec.threads} | {spec.devices} |"
    )
    assert row in (ROOT / "docs" / "runtimes.md").read_text(encoding="utf-8").splitlines()


def test_the_versions_of_what_is_not_installed_are_left_out() -> None:
    assert set(versions_of(["msgspec", "no-such-package"])) == {"msgspec"}
