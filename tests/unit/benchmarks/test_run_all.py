"""The page of all benchmarks: one run, one commit, one machine."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from benchmarks import run_all
from benchmarks.harness import machine

ROOT = Path(__file__).parents[3]
BENCHMARK = """\
import sys
from benchmarks.harness import Row, main, not_measured

def measure(quick):
    return [
        Row(name="a|b", value=1.25, unit="ms", aim="<= 1 ms", met=False),
        not_measured("other", "there is no Olive", peer="Olive"),
    ]

sys.exit(main("Quick ones", measure))
"""
LINES = [
    "| figure | value | unit | peer | peer's | ratio | spread | aim | |",
    "|---|---:|---|---|---:|---:|---|---|---|",
    r"| a\|b | 1.25 | ms |  |  |  |  | <= 1 ms | missed |",
    "| other |  |  | Olive |  |  | not run: there is no Olive |  |  |",
]


@pytest.fixture
def scripts(tmp_path: Path) -> list[Path]:
    """Write a benchmark that works, one that fails and one that prints something else."""
    made = {
        "good": BENCHMARK,
        "failing": "raise SystemExit(3)\n",
        "chatty": "print('hello')\n",
    }
    for name, text in made.items():
        (tmp_path / f"{name}.py").write_text(text)
    return [tmp_path / f"{name}.py" for name in made]


def nothing(_line: str) -> None:
    """Say nothing."""


def test_the_page_is_written_in_one_go_with_what_it_holds_for(
    tmp_path: Path, scripts: list[Path]
) -> None:
    out = tmp_path / "page.md"
    assert run_all.main([], scripts=scripts[:1], out=out, say=nothing) == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "# Benchmarks"
    assert lines[4].startswith(f"One run of commit `{run_all.commit()}` on 2")
    assert lines[4].endswith(f": {machine()}.")
    assert lines[6:] == ["## Quick ones", "", *LINES]
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".new"] == []


def test_what_could_not_run_says_so_and_fails_the_run(tmp_path: Path, scripts: list[Path]) -> None:
    out = tmp_path / "page.md"
    assert run_all.main([], scripts=scripts, out=out, say=nothing) == 1
    page = out.read_text()
    assert "## failing\n\nNot run: it ended with status 3.\n" in page
    assert "## chatty\n\nNot run: it printed no JSON.\n" in page
    assert "## Quick ones\n" in page


def test_a_quick_run_writes_no_page(
    tmp_path: Path, scripts: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.md"
    assert run_all.main(["--quick"], scripts=scripts[:1], out=out, say=nothing) == 0
    assert not out.exists()
    shown = capsys.readouterr().out
    assert "One quick run of commit" in shown
    assert LINES[2] in shown


def test_one_section_is_replaced_and_names_its_own_commit(
    tmp_path: Path, scripts: list[Path]
) -> None:
    out = tmp_path / "page.md"
    others = "# Benchmarks\n\nOne run.\n\n## Others\n\nkept"
    out.write_text(f"{others}\n\n## Quick ones\n\nold\n\n## Z\n\nz\n")
    assert run_all.main(["--only", "good"], scripts=scripts, out=out, say=nothing) == 0
    kept, _, rest = out.read_text().partition("\n\n## Quick ones\n\n")
    assert kept == others
    remark, table, *last = rest.split("\n\n")
    assert remark.startswith(f"Run alone, of commit `{run_all.commit()}` on 2")
    assert remark.endswith(f": {machine()}.")
    assert table.splitlines() == LINES
    assert last == ["## Z", "z\n"]
    before = out.read_text()
    assert run_all.main(["--only", "good"], scripts=scripts, out=out, say=nothing) == 0
    assert out.read_text() == before, "a page with a section of its own can be replaced again"


def test_a_missed_aim_fails_a_run_that_checks(tmp_path: Path, scripts: list[Path]) -> None:
    out = tmp_path / "page.md"
    assert run_all.main(["--check"], scripts=scripts[:1], out=out, say=nothing) == 1
    assert out.is_file()


def test_the_commit_says_when_the_tree_has_changes(tmp_path: Path) -> None:
    assert run_all.commit(tmp_path) == "unknown"
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    (tmp_path / "file").write_text("one")
    for arguments in (("init", "-q"), ("add", "file"), (*identity, "commit", "-q", "-m", "one")):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    clean = run_all.commit(tmp_path)
    assert len(clean) == 12
    (tmp_path / "file").write_text("two")
    assert run_all.commit(tmp_path) == f"{clean}-dirty"


def has_the_one_form(script: Path) -> bool:
    """Tell whether a script, or what it leaves its command line to, gives it to the harness."""
    found = (
        node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)
    )
    for node in found:
        names, module = {alias.name for alias in node.names}, node.module or ""
        if module == "benchmarks.harness" and "main" in names:
            return True
        if "command" in names and has_the_one_form(ROOT / f"{module.replace('.', '/')}.py"):
            return True
    return False


@pytest.mark.parametrize("script", run_all.benchmarks(), ids=lambda script: script.stem)
def test_every_benchmark_has_the_one_form(script: Path) -> None:
    assert has_the_one_form(script)
    assert "sys.exit(" in script.read_text()


def test_no_script_hides_a_package_from_the_scripts_beside_it() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert not packages & {script.stem for script in run_all.benchmarks()}
