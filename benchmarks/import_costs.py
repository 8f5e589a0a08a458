"""What each import of the supervisor costs: resident memory that its modules add, by package.

A fresh process imports the supervisor and looks at its resident size before and after each module;
what a module adds by itself counts for its package, not what it imports in turn. Figures depend on
the order: what two packages share is paid by the first, and the interpreter takes memory by the
mebibyte, which is paid by the package that needed the next one. The environment is a device's, with
typing_extensions as LiteRT's package brings it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, TypedDict

from benchmarks.harness import Row, alone, main
from benchmarks.programs import program
from tests.simulators.device_environment import device_environment

ROUNDS: Final = 5
LISTED: Final = 14
KIB: Final = 1024.0


def measure(quick: bool) -> list[Row]:
    """Import the supervisor in some fresh processes."""
    with tempfile.TemporaryDirectory() as directory:
        python = device_environment(Path(directory), "typing_extensions") / "python"
        rounds = [_one(python) for _ in range(2 if quick else ROUNDS)]
    packages = {name for one in rounds for name in one["added"]}
    costs = {name: [one["added"].get(name, 0) / KIB for one in rounds] for name in packages}
    ranked = sorted(costs, key=lambda name: -statistics.median(costs[name]))
    rest = [sum(costs[name][i] for name in ranked[LISTED:]) for i in range(len(rounds))]
    return [
        alone("interpreter", [one["start"] / KIB for one in rounds], unit="MiB"),
        *(alone(f"import of {name}", costs[name], unit="MiB") for name in ranked[:LISTED]),
        alone(f"{len(ranked) - LISTED} other packages", rest, unit="MiB"),
        alone("all imported", [one["end"] / KIB for one in rounds], unit="MiB"),
    ]


class Imports(TypedDict):
    """What one process showed, in KiB."""

    start: int
    end: int
    added: dict[str, int]


def _one(python: Path) -> Imports:
    done = subprocess.run(
        [python, "-P", program("supervisor_imports")],
        check=True,
        capture_output=True,
        text=True,
    )
    result: Imports = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.exit(main("What the supervisor's imports cost", measure))
