"""The command line of the benchmark beside other quantizers."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Row, main, not_measured
from benchmarks.quantizers import olive
from benchmarks.quantizers.comparison import rows_of
from benchmarks.quantizers.runners import Pace
from benchmarks.quantizers.task import FULL, QUICK
from benchmarks.quantizers.tasks import TASKS

TITLE = "Packager: int8 beside other quantizers, one thread"
QUICK_TASKS = ("digits",)


def command(argv: list[str]) -> int:
    """Run the benchmark.

    Args:
        argv: `--olive PYTHON`, `--task NAME`, and what every benchmark takes.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--olive", default="", metavar="PYTHON", help="interpreter that has Olive")
    parser.add_argument("--task", action="append", choices=TASKS, help="only this; repeatable")
    parser.add_argument("--folder", default="", help="keep all files in this new folder")
    known, rest = parser.parse_known_args(argv)

    def measure(quick: bool) -> list[Row]:
        python = olive.interpreter(known.olive)
        chosen = tuple(known.task or (QUICK_TASKS if quick else TASKS))
        if known.folder:
            Path(known.folder).mkdir()
            return _rows(Path(known.folder).resolve(), python, chosen, quick=quick)
        with tempfile.TemporaryDirectory(prefix="quantizers-") as folder:
            return _rows(Path(folder), python, chosen, quick=quick)

    return main(TITLE, measure, rest)


def _rows(folder: Path, python: Path | str, chosen: tuple[str, ...], *, quick: bool) -> list[Row]:
    sizes = QUICK if quick else FULL
    pace = Pace(rounds=8, round_s=0.05) if quick else Pace(rounds=40, round_s=0.25)
    rows: list[Row] = []
    for name in chosen:
        task = TASKS[name](folder / name, sizes)
        if isinstance(task, str):
            rows.append(not_measured(name, task))
            continue
        try:
            rows += rows_of(task, folder / name, python, pace)
        except RuntimeError as exc:
            rows.append(not_measured(task.name, str(exc)))
        print(f"{name}: done", file=sys.stderr, flush=True)
    return rows
