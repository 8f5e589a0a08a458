"""Run every benchmark and write docs/benchmarks.md."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "benchmarks.md"
NOT_A_BENCHMARK = {"harness", "run_all"}


def section(document: dict[str, object]) -> str:
    """Return one benchmark's figures as a Markdown section."""
    quick = " (quick run)" if document["quick"] else ""
    lines = [
        f"## {document['title']}",
        "",
        f"{document['machine']}{quick}; measured on {time.strftime('%Y-%m-%d')}",
        "",
        "| figure | value | unit | peer | peer's | ratio | spread | aim | |",
        "|---|---:|---|---|---:|---:|---|---|---|",
    ]
    rows = document["rows"]
    assert isinstance(rows, list)  # noqa: S101 - narrows the type of our own document
    for row in rows:
        met = {True: "met", False: "missed", None: ""}[row["met"]]
        peer_value = "" if row["peer_value"] is None else f"{row['peer_value']:.4g}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        lines.append(
            f"| {row['name']} | {row['value']:.4g} | {row['unit']} | {row['peer']} | {peer_value} "
            f"| {ratio} | {row['spread']} | {row['aim']} | {met} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all and write the page; return 1 when one could not run."""
    status = 0
    parts = ["# Benchmarks\n\nWritten by `make bench`; run one with `python benchmarks/NAME.py`.\n"]
    for script in sorted(HERE.glob("*.py")):
        if script.stem in NOT_A_BENCHMARK:
            continue
        print(f"{script.stem} ...", flush=True)
        done = subprocess.run(
            [sys.executable, script, "--json", *sys.argv[1:]],
            stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            print(f"{script.stem} ended with {done.returncode}", file=sys.stderr)
            status = 1
            continue
        parts.append(section(json.loads(done.stdout)))
    OUT.write_text("\n".join(parts))
    print(f"wrote {OUT.relative_to(HERE.parent)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
