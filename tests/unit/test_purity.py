"""Pure modules: each that says so is in an import contract, and none reaches for the world itself.

The contracts in `pyproject.toml` whose names end in "are pure" list the modules; import-linter
checks what they import, also indirectly. Here is what it cannot see: docstrings and calls.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS = [c for c in CONFIG["contracts"] if c["name"].endswith("are pure")]
LISTED = [module for contract in CONTRACTS for module in contract["source_modules"]]
FORBIDDEN = frozenset({
    "glob", "io", "logging", "numpy.random", "os", "paho", "pathlib", "random", "secrets", "shutil",
    "socket", "sqlalchemy", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
    "wire.clock", "wire.files", "wire.mqtt",
})  # fmt: skip
HARMLESS = frozenset({
    "numpy.random.PCG64",  # with a fixed seed, which it does not have by itself
    "pathlib.PurePath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath",
})  # fmt: skip
CALLS = frozenset({"open", "print", "input", "eval", "exec"})
METHODS = frozenset({"read_bytes", "read_text", "write_bytes", "write_text"})


def files_of(module: str) -> list[Path]:
    """Return the source of a module, or of all modules of a package."""
    place = ROOT.joinpath(*module.split("."))
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def says_pure(path: Path) -> bool:
    return re.search(r"\bpure\b", ast.get_docstring(parsed(path)) or "", re.IGNORECASE) is not None


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted name of everything that a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in {"np", "numpy"}:
            yield f"numpy.{node.attr}"


def is_forbidden(name: str) -> bool:
    parts = name.split(".")
    prefixes = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return name not in HARMLESS and not FORBIDDEN.isdisjoint(prefixes)


def calls_of(tree: ast.Module) -> Iterator[str]:
    """Yield what a module calls that reads, writes, prints or runs text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Name) and called.id in CALLS:
                yield called.id
            elif isinstance(called, ast.Attribute) and called.attr in METHODS | {"open"}:
                yield called.attr


SOURCES = sorted({path for module in LISTED for path in files_of(module)})


def test_every_listed_module_exists() -> None:
    assert LISTED
    assert [m for m in LISTED if not all(f.is_file() for f in files_of(m) or [ROOT / m])] == []
    assert len(LISTED) == len(set(LISTED))


def test_every_module_that_says_pure_is_listed() -> None:
    everything = [path for package in CONFIG["root_packages"] for path in files_of(package)]
    saying = {path for path in everything if says_pure(path)}
    assert sorted(str(p.relative_to(ROOT)) for p in saying - set(SOURCES)) == []
    assert len(saying) > 20


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_module_reaches_for_nothing_outside(path: Path) -> None:
    tree = parsed(path)
    assert [name for name in imports_of(tree) if is_forbidden(name)] == []
    assert list(calls_of(tree)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os.path", ["os.path"]),
        ("from wire.clock import SystemClock", ["wire.clock.SystemClock"]),
        ("def f():\n    from pathlib import Path", ["pathlib.Path"]),
        ("from pathlib import PurePosixPath", []),
        ("import numpy as np\nnp.random.rand()", ["numpy.random"]),
        ("import numpy as np\nnp.mean([1])", []),
        ("open('x')\nprint(1)\nplace.read_text()", ["open", "print", "read_text"]),
        ("import timeit", []),
    ],
)
def test_the_search_finds_what_is_forbidden(source: str, found: list[str]) -> None:
    tree = ast.parse(source)
    assert [name for name in imports_of(tree) if is_forbidden(name)] + list(calls_of(tree)) == found
