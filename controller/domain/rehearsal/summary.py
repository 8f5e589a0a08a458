"""What the runs of a rehearsal come to together. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from controller.domain.rehearsal.results import RehearsedCourse, RehearsedHalt, Spread, ToldGate
from controller.domain.rehearsal.setting import Outcome

SLOW: Final = 0.9


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
