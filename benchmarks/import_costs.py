"""What each import of the supervisor costs: resident memory that its modules add, by package.

A fresh process imports the supervisor and looks at its resident size before and after each module;
what a module adds by itself counts for its package, not what it imports in turn. Figures depend on
the order: what two packages share is paid by the first, and the interpreter takes memory by the
mebibyte, which is paid by the package that needed the next one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import Final, TypedDict

from benchmarks.harness import Row, alone, main

ROUNDS: Final = 5
LISTED: Final = 14
PROGRAM: Final = """
import importlib._bootstrap as bootstrap, json

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4

load, added, inner = bootstrap._load_unlocked, {}, []

def counted(spec):
    before = resident()
    inner.append(0)
    try:
        return load(spec)
    finally:
        whole = resident() - before
        own = whole - inner.pop()
        if inner:
            inner[-1] += whole
        parts = spec.name.split(".")
        ours = parts[0] in ("agent", "telemetry", "wire")
        package = ".".join(parts[:2]) if ours else parts[0].lstrip("_")
        added[package] = added.get(package, 0) + own

start = resident()
bootstrap._load_unlocked = counted
import agent.cli.main, agent.app.daemon
print(json.dumps({"start": start, "end": resident(), "added": added}))
"""
KIB: Final = 1024.0


def measure(quick: bool) -> list[Row]:
    """Import the supervisor in some fresh processes."""
    rounds = [_one() for _ in range(2 if quick else ROUNDS)]
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
    """What one process showed, in bytes."""

    start: int
    end: int
    added: dict[str, int]


def _one() -> Imports:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True
    )
    result: Imports = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.exit(main("What the supervisor's imports cost", measure))
