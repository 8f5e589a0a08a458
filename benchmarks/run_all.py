"""Run every benchmark and write docs/benchmarks.md.

`python benchmarks/run_all.py [--quick] [--check] [--only NAME]`

Rules:
- The page is what one run measured, on one machine, of one commit; both are named at its top. It is
  written when all has been measured, whole or not at all.
- A benchmark that could not run has its section, which says so.
- `--only` replaces the section of one benchmark, which then names its own commit, day and machine.
- A quick run is for trying the benchmarks: its page goes to the terminal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.harness import machine, shown

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "docs" / "benchmarks.md"
NOT_A_BENCHMARK = {"harness", "run_all"}
COLUMNS = """\
| figure | value | unit | peer | peer's | ratio | spread | aim | |
|---|---:|---|---|---:|---:|---|---|---|
"""

Document: TypeAlias = dict[str, Any]
"""What a benchmark prints with `--json`, or `{"title": ..., "fault": ...}` of one that failed."""


def benchmarks() -> list[Path]:
    """Return the scripts of all benchmarks."""
    return [path for path in sorted(HERE.glob("*.py")) if path.stem not in NOT_A_BENCHMARK]


def run(script: Path, *, quick: bool) -> Document:
    """Run a benchmark.

    Args:
        script: The benchmark.
        quick: Whether it is to be quick.

    Returns:
        What it measured, or why it did not.
    """
    done = subprocess.run(
        [sys.executable, script, "--json", *(["--quick"] if quick else [])],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"title": script.stem, "fault": f"it ended with status {done.returncode}"}
    try:
        document: Document = json.loads(done.stdout)
    except ValueError:
        return {"title": script.stem, "fault": "it printed no JSON"}
    return document


def commit(root: Path = HERE.parent) -> str:
    """Return what `git describe` calls the working tree, or `unknown` where it is none."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def heading(of: str, *, date: str, quick: bool) -> str:
    """Return the top of the page.

    Args:
        of: The commit.
        date: The day.
        quick: Whether the run was quick.

    Returns:
        The text.
    """
    kind = "quick run" if quick else "run"
    return (
        "# Benchmarks\n\n"
        "Written by `make bench`; run one with `python benchmarks/NAME.py`.\n\n"
        f"One {kind} of commit `{of}` on {date}: {machine()}.\n"
    )


def section(document: Document, remark: str = "") -> str:
    """Return one benchmark's figures as Markdown.

    Args:
        document: What it measured.
        remark: What is to be said before them.

    Returns:
        The text.
    """
    if "fault" in document:
        return f"## {document['title']}\n\nNot run: {document['fault']}.\n"
    rows = "".join(f"{_line(row)}\n" for row in document["rows"])
    return f"## {document['title']}\n\n{remark}{COLUMNS}{rows}"


def replaced(page: str, new: str) -> str:
    """Return a page with another text for one of its sections, or with one more.

    Args:
        page: The page.
        new: A section, with its title.

    Returns:
        The page.
    """
    title = new.partition("\n")[0]
    head, *sections = page.rstrip("\n").split("\n## ")
    found = [f"## {text}" for text in sections]
    titles = [text.partition("\n")[0] for text in found]
    if title in titles:
        found[titles.index(title)] = new
    else:
        found.append(new)
    return "\n\n".join(text.rstrip("\n") for text in (head, *found)) + "\n"


def _line(row: dict[str, Any]) -> str:
    cells = (
        row["name"],
        shown(row["value"], ".4g"),
        row["unit"],
        row["peer"],
        shown(row["peer_value"], ".4g"),
        shown(row["ratio"], ".3f"),
        row["spread"],
        row["aim"],
        {True: "met", False: "missed", None: ""}[row["met"]],
    )
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def has_missed(document: Document) -> bool:
    """Tell whether a benchmark missed one of its aims."""
    return any(row["met"] is False for row in document.get("rows", ()))


def publish(page: str, out: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        page: Its text.
        out: Where.
    """
    new = out.with_suffix(".new")
    new.write_text(page, encoding="utf-8")
    new.replace(out)


def main(
    argv: list[str] | None = None,
    *,
    scripts: Iterable[Path] | None = None,
    out: Path = OUT,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> int:
    """Run all and write the page.

    Args:
        argv: The command line, or None for this process's own.
        scripts: The benchmarks, or None for all.
        out: Where the page goes.
        say: Tells how far it is.

    Returns:
        The exit status: 1 when a benchmark failed or, with `--check`, when an aim was missed.
    """
    parser = argparse.ArgumentParser(description="every benchmark, or one")
    parser.add_argument("--quick", action="store_true", help="print a page of quick runs")
    parser.add_argument("--check", action="store_true", help="exit 1 when an aim is missed")
    parser.add_argument("--only", default="", metavar="NAME", help="replace one section")
    arguments = parser.parse_args(argv)
    of, date = commit(), time.strftime("%Y-%m-%d")  # before the page itself changes the tree
    documents: list[Document] = []
    chosen = benchmarks() if scripts is None else list(scripts)
    if arguments.only:
        chosen = [script for script in chosen if script.stem == arguments.only]
    for script in chosen:
        say(f"{script.stem} ...")
        documents.append(run(script, quick=arguments.quick))
    if arguments.only and not arguments.quick and documents:
        remark = f"Run alone, of commit `{of}` on {date}: {machine()}.\n\n"
        page = replaced(out.read_text(encoding="utf-8"), section(documents[0], remark))
    else:
        page = "\n".join(
            [
                heading(of, date=date, quick=arguments.quick),
                *(section(document) for document in documents),
            ]
        )
    if arguments.quick:
        print(page)
    else:
        publish(page, out)
        say(f"wrote {out}")
    failed = any("fault" in document for document in documents)
    return int(failed or (arguments.check and any(map(has_missed, documents))))


if __name__ == "__main__":
    sys.exit(main())
