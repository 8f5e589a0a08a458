"""What the runs of a rehearsal come to together. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.domain.rehearsal.setting import Outcome

SLOW: Final = 0.9


@dataclass(kw_only=True)
class Spread:
    """Figures of several runs."""

    runs: int
    """How many had one."""

    median: float
    slow: float
    """No more than a tenth of the runs had a greater one."""


@dataclass(kw_only=True)
class RehearsedHalt:
    """A rule that halted runs."""

    rule: str
    """A limit, as it is called in the file of a rollout, or a gate."""

    after_s: Spread
    """How long after the beginning."""

    started: Spread
    """How many devices had got the order by then."""

    with_release: Spread
    """How many of them had the release by then."""

    left: Spread
    """How many were spared: they had not started, or waited."""


@dataclass(kw_only=True)
class ToldGate:
    """When a gate could tell: when it first passed or failed."""

    gate: str
    stage: int | None = None
    """The only one in which it is asked; None for all."""

    after_s: Spread | None
    """None if it never could."""

    devices: Spread | None
    """How many had the release then."""


@dataclass(kw_only=True)
class RehearsedCourse:
    """What the runs came to."""

    runs: int
    succeeded: int
    halted: int
    unfinished: int
    """Those that had not ended when the virtual time was over."""

    takes_s: Spread | None
    """How long those took that succeeded."""

    stages_s: list[Spread | None]
    """How long each stage took, of runs in which it ended."""

    gates: list[ToldGate]
    halts: list[RehearsedHalt]
    """By the rule, that of most runs first."""

    waits: list[str]
    """For what unfinished runs waited: what most of them did first."""


def spread(values: Iterable[float]) -> Spread | None:
    """Return the median of some figures and what nine of ten do not exceed; None for no figure."""
    known = list(values)
    return _spread(known) if known else None


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    return Spread(runs=len(ordered), median=_at(ordered, 0.5), slow=_at(ordered, SLOW))


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[math.ceil(part * len(ordered)) - 1]


def summed(
    outcomes: Sequence[Outcome], gates: Sequence[tuple[str, int | None]], stages: int
) -> RehearsedCourse:
    """Put runs together.

    Args:
        outcomes: What each run came to.
        gates: Each gate with the only stage in which it is asked.
        stages: How many stages there are.
    """
    halted = [one for one in outcomes if one.end == "halted"]
    waits = Counter(one.waits for one in outcomes if one.end == "unfinished")
    return RehearsedCourse(
        runs=len(outcomes),
        succeeded=sum(one.end == "succeeded" for one in outcomes),
        halted=len(halted),
        unfinished=waits.total(),
        takes_s=spread(one.at_s for one in outcomes if one.end == "succeeded"),
        stages_s=[
            spread(one.stages_s[at] for one in outcomes if len(one.stages_s) > at)
            for at in range(stages)
        ],
        gates=[
            ToldGate(
                gate=text,
                stage=stage,
                after_s=spread(told.at_s for one in outcomes if (told := one.told[at])),
                devices=spread(told.devices for one in outcomes if (told := one.told[at])),
            )
            for at, (text, stage) in enumerate(gates)
        ],
        halts=[
            _halt(rule, [one for one in halted if one.rule == rule])
            for rule, _ in Counter(one.rule for one in halted).most_common()
        ],
        waits=[text for text, _ in waits.most_common(5)],
    )


def _halt(rule: str, outcomes: Sequence[Outcome]) -> RehearsedHalt:
    return RehearsedHalt(
        rule=rule,
        after_s=_spread([one.at_s for one in outcomes]),
        started=_spread([one.started for one in outcomes]),
        with_release=_spread([one.with_release for one in outcomes]),
        left=_spread([one.left for one in outcomes]),
    )
