"""The rows that set our best int8 variant beside those of other tools.

Rules:
- Ours is the fastest int8 variant in the package, by the figures of the build itself: one that
  passed its gates and that no other variant beats. It is chosen before a report image is seen, and
  is what a device serves when it must save. The most accurate one, which a device serves first, is
  reported too where it is another.
- The aim for accuracy is held against the tool that is best on the report images, that for latency
  against the tool that is fastest there: against whichever is hardest to meet.
- A difference in accuracy is stated with its interval; accuracy is met where the interval holds 0
  or lies above it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness import Row, against, alone, not_measured
from benchmarks.quantizers import olive, ours, runners
from benchmarks.quantizers.build_times import Work, beside_one, beside_search
from benchmarks.quantizers.ours import Built
from benchmarks.quantizers.paired import compare_paired
from benchmarks.quantizers.tasks import Task
from benchmarks.quantizers.tools import Made, nncf_defaults, onnxruntime_defaults
from wire.package.manifest import VariantInfo

MARGIN: Final = 0.01
"""Top-1 may be worse by this much: the whole interval must lie above it. That the difference is
within noise would show nothing where there are few images."""

MAX_LATENCY_RATIO: Final = 1.05
PER_CENT: Final = 100.0


class Measured(NamedTuple):
    """A model and what it does."""

    made: Made
    right: list[bool]
    rounds_ms: list[float]

    @property
    def accuracy(self) -> float:
        """Share of the report images that it answers right."""
        return sum(self.right) / len(self.right)


def rows_of(task: Task, folder: Path, python: Path | str, pace: runners.Pace) -> list[Row]:
    """Let every tool work on a task, and compare what they made.

    Args:
        task: The model and its images.
        folder: To work in; it exists.
        python: Olive's interpreter, or why there is none.
        pace: How long latency is measured.

    Returns:
        The rows.
    """
    load = [os.getloadavg()[0]]
    whole = ours.build_with(task, folder / "ours")
    alike = ours.build_with(task, folder / "ours-onnxruntime", ("onnxruntime",))
    peers = [
        onnxruntime_defaults(task, folder / "onnxruntime"),
        nncf_defaults(task, folder / "nncf"),
    ]
    found, small = _olive(python, task, folder)
    peers += [found] if isinstance(found, Made) else []
    load.append(os.getloadavg()[0])
    kept = ours.kept_int8(whole)
    if not kept:
        return [not_measured(f"{task.name}: int8", "no int8 variant was kept")]
    fastest, finest = kept[0], ours.most_accurate(kept)
    chosen = [fastest] if finest is fastest else [fastest, finest]
    infos = {c.name: ours.declaration(whole, folder / "ours", c.name) for c in chosen}
    mine = [ours.made(whole, folder / "ours", c) for c in chosen]
    measured = _measure(task, [*mine, *peers], pace, infos)
    load.append(os.getloadavg()[0])
    others = measured[len(mine) :]
    rows = [
        *_beside(task, measured[0], others),
        *_time(task, whole, alike, peers, small),
    ]
    for second in measured[1 : len(mine)]:
        rows += [replace(row, aim="", met=None) for row in _beside(task, second, others)]
    if isinstance(found, str):
        figures = (f"top-1 of {fastest.name}", f"latency of {fastest.name}", "build time")
        rows += [not_measured(f"{task.name}: {it}", found, peer="Olive") for it in figures]
    rows.append(alone(f"{task.name}: load average meanwhile", load, unit="processes"))
    return rows


def _beside(task: Task, first: Measured, others: list[Measured]) -> list[Row]:
    """Return the rows of a variant of ours beside what the other tools made."""
    return [
        *_accuracy(task, first, others),
        *_latency(task, first, others),
        *(_size(task, first, other) for other in others),
    ]


def _measure(
    task: Task, models: list[Made], pace: runners.Pace, infos: dict[str, VariantInfo]
) -> list[Measured]:
    runs = {made.tool: runners.open_runner(made, infos.get(made.tool)) for made in models}
    right = {
        name: runners.right_answers(run, task.images, task.labels) for name, run in runs.items()
    }
    rounds = runners.alternate(runs, task.images[:1], pace)
    return [Measured(made, right[made.tool], rounds[made.tool]) for made in models]


def _accuracy(task: Task, first: Measured, others: list[Measured]) -> list[Row]:
    hardest = max(others, key=lambda other: other.accuracy)
    rows: list[Row] = []
    for other in others:
        found = compare_paired(first.right, other.right)
        aimed = other is hardest
        rows.append(
            Row(
                name=f"{task.name}: top-1 of {first.made.tool}",
                value=PER_CENT * first.accuracy,
                unit=f"% of {found.samples}",
                peer=other.made.tool,
                peer_value=PER_CENT * other.accuracy,
                spread=(
                    f"{PER_CENT * found.difference:+.2f} points, 95 % from "
                    f"{PER_CENT * found.low:+.2f} to {PER_CENT * found.high:+.2f}, "
                    f"p = {found.p_value:.2g}"
                ),
                aim=f"surely within {PER_CENT * MARGIN:g} point" if aimed else "",
                met=found.low >= -MARGIN if aimed else None,
            )
        )
    return rows


def _latency(task: Task, first: Measured, others: list[Measured]) -> list[Row]:
    fastest = min(others, key=lambda other: sorted(other.rounds_ms)[len(other.rounds_ms) // 2])
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


def _olive(python: Path | str, task: Task, folder: Path) -> tuple[Made | str, Made | str]:
    """Let Olive search, as usual and among as few models as we make; say why where it cannot."""
    if isinstance(python, str):
        return python, python
    found: list[Made | str] = []
    for name, how in (("olive", olive.USUAL), ("olive-small", olive.SMALL)):
        try:
            found.append(olive.search(python, task, folder / name, how))
        except RuntimeError as exc:
            found.append(str(exc))
    return found[0], found[1]


def _time(
    task: Task, whole: Built, alike: Built, peers: list[Made], small: Made | str
) -> list[Row]:
    """Compare the builds' durations with those of the other tools."""
    everything, same = _work("all runtimes", whole), _work("ONNX Runtime", alike)
    few = Work("Olive", small.seconds, small.models) if isinstance(small, Made) else small
    rows: list[Row] = []
    for peer in peers:
        theirs = Work(peer.tool, peer.seconds, peer.models)
        if peer.models > 1:
            rows += beside_search(task.name, same, everything, theirs, few)
        else:
            rows += beside_one(task.name, everything, theirs)
    return rows


def _work(who: str, built: Built) -> Work:
    return Work(who, built.seconds, sum(not c.lost for c in built.result.candidates))
