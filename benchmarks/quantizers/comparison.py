"""The rows that set our best int8 variant beside those of other tools.

Rules:
- Ours is the fastest int8 variant in the package, by the figures of the build itself: one that
  passed its gates and that no other variant beats. It is chosen before a report sample is seen, and
  is what a device serves when it must save. The most accurate one, which a device serves first, is
  reported too where it is another. Where the build kept no int8, all it kept counts: the name says
  what it is.
- The aim for quality is held against the tool that is best on the report samples, that for latency
  against the tool that is fastest there: against whichever is hardest to meet.
- A difference in quality is stated with its interval; the aim is met where the whole interval lies
  above the margin.
- A tool that fails has a row that says with which words.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Row, against, alone, not_measured
from benchmarks.quantizers import olive, ours, runners
from benchmarks.quantizers.build_times import Work, beside_one, beside_search
from benchmarks.quantizers.ours import Built
from benchmarks.quantizers.qualities import Part, total
from benchmarks.quantizers.shares import difference
from benchmarks.quantizers.task import Task
from benchmarks.quantizers.tools import Made, nncf_defaults, onnxruntime_defaults
from wire.package.variant import VariantInfo

MARGIN: Final = 0.01
"""Quality may be worse by this much: the whole interval must lie above it. That the difference is
within noise would show nothing where there are few samples."""

MAX_LATENCY_RATIO: Final = 1.05
PER_CENT: Final = 100.0
WORDS: Final = {
    "right_class": "top-1",
    "right_characters": "right characters",
    "found_pixels": "found pixels",
}
"""What the qualities are called in rows."""


class Measured(NamedTuple):
    """A model and what it does."""

    made: Made
    parts: list[Part]
    rounds_ms: list[float]

    @property
    def quality(self) -> float:
        """Its quality over the report samples."""
        return total(self.parts)


def rows_of(task: Task, folder: Path, python: Path | str, pace: runners.Pace) -> list[Row]:
    """Let every tool work on a task, and compare what they made.

    Args:
        task: The model and its samples.
        folder: To work in; it exists.
        python: Olive's interpreter, or why there is none.
        pace: How long latency is measured.

    Returns:
        The rows.
    """
    load = [os.getloadavg()[0]]
    whole = ours.build_with(task, folder / "ours")
    alike = None
    if not task.slow:
        alike = ours.build_with(task, folder / "ours-onnxruntime", ("onnxruntime",))
    peers, faults = _peers(task, folder, python)
    load.append(os.getloadavg()[0])
    kept = ours.kept_int8(whole)
    fastest, finest = kept[0], ours.most_accurate(kept)
    chosen = [fastest] if finest is fastest else [fastest, finest]
    infos = {c.name: ours.declaration(whole, folder / "ours", c.name) for c in chosen}
    mine = [ours.made(whole, folder / "ours", c) for c in chosen]
    source = Made("the model itself", "onnxruntime", task.model, {}, 0.0)
    measured = _measure(task, [source, *mine, *peers], pace, infos)
    load.append(os.getloadavg()[0])
    reference, others = measured[0], measured[1 + len(mine) :]
    rows = [
        *_beside(task, measured[1], others, reference),
        *_time(task, whole, alike, peers),
    ]
    for second in measured[2 : 1 + len(mine)]:
        rows += [replace(row, aim="", met=None) for row in _beside(task, second, others, reference)]
    rows += [not_measured(f"{task.name}: int8", why, peer=tool) for tool, why in faults.items()]
    rows.append(alone(f"{task.name}: load average meanwhile", load, unit="processes"))
    return rows


def _peers(task: Task, folder: Path, python: Path | str) -> tuple[list[Made], dict[str, str]]:
    """Let the other tools work; return what they made, and why the others made nothing."""
    tools: dict[str, Callable[[], Made]] = {
        "quantize_static": lambda: onnxruntime_defaults(task, folder / "onnxruntime"),
        "NNCF": lambda: nncf_defaults(task, folder / "nncf"),
    }
    faults: dict[str, str] = {}
    if isinstance(python, str):
        faults["Olive"] = python
    else:
        tools["Olive"] = lambda: olive.search(python, task, folder / "olive")
    made: list[Made] = []
    for tool, work in tools.items():
        try:
            made.append(work())
        except RuntimeError as exc:
            faults[tool] = str(exc)
    return made, faults


def _beside(task: Task, first: Measured, others: list[Measured], reference: Measured) -> list[Row]:
    """Return the rows of a variant of ours beside the model itself and what the others made."""
    return [
        _quality(task, first, reference, aimed=False),
        *_qualities(task, first, others),
        *_latency(task, first, others),
        *(_size(task, first, other) for other in (reference, *others)),
    ]


def _measure(
    task: Task, models: list[Made], pace: runners.Pace, infos: dict[str, VariantInfo]
) -> list[Measured]:
    runs = {made.tool: runners.open_runner(task, made, infos.get(made.tool)) for made in models}
    parts = {name: runners.qualities(task, run) for name, run in runs.items()}
    rounds = runners.alternate(runs, task.samples[:1], pace)
    return [Measured(made, parts[made.tool], rounds[made.tool]) for made in models]


def _qualities(task: Task, first: Measured, others: list[Measured]) -> list[Row]:
    hardest = max(others, key=lambda other: other.quality, default=None)
    return [_quality(task, first, other, aimed=other is hardest) for other in others]


def _quality(task: Task, first: Measured, other: Measured, *, aimed: bool) -> Row:
    found = difference(first.parts, other.parts)
    chance = "" if found.p_value is None else f", p = {found.p_value:.2g}"
    return Row(
        name=f"{task.name}: {WORDS[task.quality]} of {first.made.tool}",
        value=PER_CENT * first.quality,
        unit=f"% of {len(first.parts)}",
        peer=other.made.tool,
        peer_value=PER_CENT * other.quality,
        spread=(
            f"{PER_CENT * found.value:+.2f} points, 95 % from "
            f"{PER_CENT * found.low:+.2f} to {PER_CENT * found.high:+.2f}{chance}"
        ),
        aim=f"surely within {PER_CENT * MARGIN:g} point" if aimed else "",
        met=found.low >= -MARGIN if aimed else None,
    )


def _latency(task: Task, first: Measured, others: list[Measured]) -> list[Row]:
    fastest = min(others, key=lambda other: statistics.median(other.rounds_ms), default=None)
    return [
        against(
            f"{task.name}: latency of {first.made.tool}",
            first.rounds_ms,
            other.rounds_ms,
            unit="ms",
            peer=other.made.tool,
            at_most=MAX_LATENCY_RATIO if other is fastest else None,
        )
        for other in others
    ]


def _size(task: Task, first: Measured, other: Measured) -> Row:
    mine, theirs = runners.size_bytes(first.made), runners.size_bytes(other.made)
    return Row(
        name=f"{task.name}: size of {first.made.tool}",
        value=mine / 1024,
        unit="KiB",
        peer=other.made.tool,
        peer_value=theirs / 1024,
        ratio=mine / theirs,
    )


def _time(task: Task, whole: Built, alike: Built | None, peers: list[Made]) -> list[Row]:
    """Compare the builds' durations with those of the other tools."""
    everything = _work("several runtimes" if task.slow else "all runtimes", whole)
    same = everything if alike is None else _work("ONNX Runtime", alike)
    rows: list[Row] = []
    for peer in peers:
        theirs = Work(peer.tool, peer.seconds, peer.models)
        if peer.models > 1:
            rows += beside_search(task.name, same, everything, theirs)
        else:
            rows += beside_one(task.name, everything, theirs)
    return rows


def _work(who: str, built: Built) -> Work:
    return Work(who, built.seconds, sum(not c.lost for c in built.result.candidates))
