"""A build by the plan's own rule beside searches, on the same models in turn.

Each round builds every model by the default, `exhaustive`, `random` and `tpe`, each with a cache of
its own, so that no build takes a step from another one. The next round begins with another of them.
A row tells the time of a build, and the best variant beside the reference's latency with its
spread over the rounds. `--cap` and `--rounds` choose the size. ResNet-20 needs EDGEFLEET_MODELS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.harness import Row, main
from benchmarks.quantizers.images import cifar, digits
from benchmarks.quantizers.task import FULL, QUICK, Task
from packager.build import build
from packager.device_profiles import load_profile
from packager.request import BuildRequest
from packager.result import BuildResult
from packager.search.settings import read_search
from wire.profile import DeviceProfile

WAYS: Final = ("default", "exhaustive", "random", "tpe")
PROFILES: Final = ("x86-64-vnni",)
REFERENCE: Final = "onnxruntime-fp32"
GOALS: Final = ("accuracy: at most 1% worse", "latency")
LEAST_RETENTION: Final = 0.99
QUICK_CAP: Final = 1
QUICK_RUNTIMES: Final = ("onnxruntime",)


def measure(quick: bool, cap: int, rounds: int) -> list[Row]:
    """Build every model in every way.

    Args:
        quick: One round of as few runs as will do, of `QUICK_CAP` candidates of
            one runtime, without repairs.
        cap: Candidates of a search.
        rounds: How often.

    Returns:
        A row for each model and way.
    """
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        for make in (digits, cifar):
            task = make(Path(folder) / make.__name__, QUICK if quick else FULL)
            if isinstance(task, str):
                print(f"{make.__name__}: {task}", file=sys.stderr)
                continue
            rows += _compared(task, quick, min(cap, QUICK_CAP) if quick else cap, rounds)
    return rows


def _compared(task: Task, quick: bool, cap: int, rounds: int) -> list[Row]:
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    found: dict[str, list[tuple[float, str]]] = {way: [] for way in WAYS}
    for number in range(1 if quick else rounds):
        turn = number % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):
            with tempfile.TemporaryDirectory(prefix="search-") as folder:
                began_s = time.perf_counter()
                result = _built(Path(folder), task, way, cap=cap, seed=number, quick=quick)
                seconds[way].append(time.perf_counter() - began_s)
                found[way].append(_best(result))
    return [_row(task.name, way, seconds[way], found[way]) for way in WAYS]


def _built(folder: Path, task: Task, way: str, *, cap: int, seed: int, quick: bool) -> BuildResult:
    search = None if way == "default" else read_search(way, cap, GOALS, seed)
    request = BuildRequest(
        model=str(task.model),
        profiles=_profiles(quick),
        calibration=str(task.calibration),
        evaluation=str(task.gate),
        preprocessing=task.preprocessing,
        metric="top1",
        cache=folder / "cache",
        output=folder / "package",
        search=search,
        repair_trials=0 if quick else 24,
        min_runs=5 if quick else 200,
        min_duration_s=0.0 if quick else 0.3,
    )
    return build(request, lambda line: print(f"  {line}", file=sys.stderr, flush=True))


def _profiles(quick: bool) -> tuple[DeviceProfile, ...]:
    found = tuple(load_profile(name) for name in PROFILES)
    if not quick:
        return found
    return tuple(msgspec.structs.replace(p, runtimes=QUICK_RUNTIMES) for p in found)


def _best(result: BuildResult) -> tuple[float, str]:
    """Return the lowest latency beside the reference's among what is accurate enough."""
    timed = {
        c.name: c.performance.latency_p50_ms
        for c in result.candidates
        if c.performance is not None
        and c.accuracy is not None
        and c.accuracy.retention >= LEAST_RETENTION
    }
    name = min(timed, key=lambda key: timed[key])
    return timed[name] / timed[REFERENCE], name


def _row(task: str, way: str, seconds: list[float], found: list[tuple[float, str]]) -> Row:
    ratios = [ratio for ratio, _ in found]
    names = ", ".join(dict.fromkeys(name for _, name in found))
    text = (
        f"{min(seconds):.0f} to {max(seconds):.0f} s; best {statistics.median(ratios):.2f} "
        f"({min(ratios):.2f} to {max(ratios):.2f}) times the reference's latency: {names}"
    )
    return Row(
        name=f"{task}, {way}", value=statistics.median(seconds), unit="s", spread=text, aim="",
        met=True,
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--cap", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    known, rest = parser.parse_known_args()
    sys.exit(main("Search", lambda quick: measure(quick, known.cap, known.rounds), rest))
