"""The documents say what is so: links, modules, make targets, hooks."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

from controller.domain.gates.language import parse_gate
from wire.policy import Sharing
from wire.policy_file import checked_policy

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
PACKAGES = "wire|runtime_adapters|telemetry|packager|agent|controller|tests|benchmarks|examples"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def named(documents: list[Path]) -> list[tuple[Path, str]]:
    return [(path, path.read_text()) for path in documents]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in link:
            assert (document.parent / link).exists(), link


def test_gates_that_documents_show_can_be_read() -> None:
    text = (ROOT / "docs/gates.md").read_text() + (ROOT / "README.md").read_text()
    shown = re.findall(r"(?:\| `|--gate ')([^`'|]+(?:<=|>=)[^`']+)[`']", text)
    assert len(shown) > 8
    for gate in shown:
        assert parse_gate(gate).text == gate


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_are_named_exist(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        pytest.skip("it speaks of the past")
    for name in re.findall(rf"(?<![\w/.-])(?:{PACKAGES})/[\w./-]*\w", document.read_text()):
        if not re.search("NAME|NNNN", name):
            assert (ROOT / name).exists(), name


def test_modules_of_the_architecture_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    found = re.findall(rf"(?<![\w/.])(?:{PACKAGES})(?:\.[a-z_]+)+", text)
    assert len(found) > 40
    for name in found:
        path = ROOT / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir(), name


def test_layers_are_written_as_they_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    text = (ROOT / "docs" / "architecture.md").read_text()
    for contract in contracts["contracts"]:
        if contract["type"] == "layers" and "containers" in contract:
            (package,) = contract["containers"]
            written = package + "\n    " + "\n  > ".join(contract["layers"]) + "\n"
            assert f"\n{written}" in text, f"write it as\n{written}"


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(document: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    found = re.findall(r"(?:^    |`)make ([a-z]+)", (ROOT / document).read_text(), re.MULTILINE)
    assert found
    for target in found:
        assert re.search(rf"(?m)^{target}:", makefile), target


def test_every_make_target_says_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?m)^([a-z]+):", makefile))
    assert targets == set(re.findall(r"(?m)^([a-z]+):.*  ## \S", makefile))


def test_hooks_are_what_the_check_runs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    for tool in ("ruff format", "ruff check", "mypy .", "lint-imports"):
        assert f".venv/bin/{tool}" in hooks


def test_policies_that_are_shown_can_be_set() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    of_device, of_fleet = (
        tomllib.loads(t) for t in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    )
    assert checked_policy(of_device["policy"]).kind == "adaptive"
    spec = checked_policy(of_fleet)
    assert isinstance(spec.sharing, Sharing)
    assert spec.sharing.weight == 5.0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_empty_line_cuts_a_table_in_two(document: Path) -> None:
    """A row after an empty line, without a line of dashes after it, is shown as text with bars."""
    blocks = re.split(r"\n\s*\n", re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL))
    for block in blocks:
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert not rows or re.search(r"(?m)^\|[-| :]+\|$", block), block


def test_there_is_one_table_of_decisions_and_its_newest_comes_first() -> None:
    tables = [path for path, text in named(DOCUMENTS) if "| rejected |" in text]
    assert [path.name for path in tables] == ["decisions.md"]
    dates = re.findall(r"(?m)^\| (\d{4}-\d\d-\d\d) \|", tables[0].read_text())
    assert all(newer >= older for newer, older in pairwise(dates))


def test_words_of_the_glossary_are_explained_once() -> None:
    words = re.findall(r"(?m)^\| ([^|]+?) \| ", (ROOT / "docs" / "glossary.md").read_text())
    words = [word for word in words if word not in {"word", "---"}]
    assert len(words) == len(set(words)) > 30
