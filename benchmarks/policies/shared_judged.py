"""Judges decisions over several models on one draw: jointly, each alone, and constant combinations.

Rules:
- Pure: a draw determines what comes out.
- Loss: the share of the weighted worth of all requests that was not got. The worth of an answer is
  the retention of its variant, if it is in time and the board is below its severe heat; a switch
  costs `SWITCH_WORTH` answers of its model.
- The best constant combination is known only afterwards. It is sought from the most accurate, the
  middle and the lightest variants, by one change at a time as long as one is better; so the true
  one may be better.
- The engineer takes the most accurate variants and lightens the model of the least weight first,
  until the declared loads are below a share that lost least on the development set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from agent.replay.together import Chooser, Totals, replay_together
from agent.select import adaptive
from agent.select.decisions import Decision
from agent.select.joint import Asked, choose_jointly
from benchmarks.policies.oracle import SWITCH_WORTH
from benchmarks.policies.shared_boards import SharedDraw, draw_shared
from wire.health import HealthSnapshot

SHARES: Final = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ENGINEER_SHARE: Final = 0.2
"""Fitted on two draws of each family of the development set, of the shares above:
`python benchmarks/joint.py --set development --draws 2` prints it."""

MS_PER_S: Final = 1000.0
WAYS: Final = ("joint", "alone", "best static", "engineer")


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """What one way of choosing did on a draw."""

    loss: float
    severe_s: float
    off_s: float
    short_s: float
    switches: int
    parked_s: float
    missed: dict[str, float]
    """Share of the deadlines missed, by model."""


class SharedJudged(msgspec.Struct, frozen=True, kw_only=True):
    """A draw with all figures."""

    family: str
    seed: int
    hours: float
    weights: dict[str, float]
    ways: dict[str, Way]
    engineers: dict[str, float]
    """Loss of the engineer's combination, by the share that he could have chosen."""


def constant(names: Mapping[str, str]) -> Chooser:
    """Return who always chooses the same combination.

    Args:
        names: The variant of each model.
    """

    def choose(_: HealthSnapshot, models: Mapping[str, Asked]) -> dict[str, Decision]:
        return {
            name: Decision(
                variant=names[name],
                reason="constant",
                state=asked.context.state,
                inputs={},
                verdicts={},
            )
            for name, asked in models.items()
        }

    return choose


def each_alone(health: HealthSnapshot, models: Mapping[str, Asked]) -> dict[str, Decision]:
    """Let each model decide as if the others were other programs.

    Args:
        health: The readings.
        models: The models.
    """
    return {name: adaptive.choose(health, *asked) for name, asked in models.items()}


def fitted_share(found: Sequence[SharedJudged]) -> float:
    """Return the engineer's share that loses least on these draws.

    Args:
        found: The draws of the development set.
    """
    return min(SHARES, key=lambda s: math.fsum(d.engineers[f"{s:g}"] for d in found))


def judge_shared(family: str, seed: int) -> SharedJudged:
    """Judge all ways on a draw.

    Args:
        family: Of the draw.
        seed: Of the draw.
    """
    drawn = draw_shared(family, seed)
    weights = {name: m.spec.shared.weight for name, m in drawn.models.items()}
    known: dict[tuple[str, ...], Way] = {}

    def static(names: Mapping[str, str]) -> Way:
        key = tuple(names[name] for name in drawn.models)
        if key not in known:
            known[key] = _way(drawn, constant(names))
        return known[key]

    by_share = {share: static(engineer(drawn, share)) for share in SHARES}
    levels = drawn.levels
    starts = (levels[0], levels[len(levels) // 2], levels[-1])
    best = min((_ascended(drawn, start, static) for start in starts), key=lambda w: w.loss)
    best = min(best, *by_share.values(), key=lambda w: w.loss)
    return SharedJudged(
        family=family,
        seed=seed,
        hours=drawn.trace.duration_s / 3600.0,
        weights=weights,
        ways={
            "joint": _way(drawn, choose_jointly),
            "alone": _way(drawn, each_alone),
            "best static": best,
            "engineer": by_share[ENGINEER_SHARE],
        },
        engineers={f"{share:g}": way.loss for share, way in by_share.items()},
    )


def engineer(drawn: SharedDraw, most: float) -> dict[str, str]:
    """Return the combination that an engineer would pick from what is declared.

    Args:
        drawn: The draw; he knows the mean rates and the declared latencies.
        most: The share of the processor that he allows.
    """
    steps = dict.fromkeys(drawn.models, 0)

    def load(name: str) -> float:
        model = drawn.models[name]
        rate = sum(map(len, model.came)) / drawn.trace.duration_s
        latency_ms = model.candidates[steps[name]].latency_p50_ms or 0.0
        return rate * latency_ms / MS_PER_S * drawn.trace.header.board.cpu_share

    while math.fsum(map(load, steps)) > most:
        lighter = [n for n, m in drawn.models.items() if steps[n] + 1 < len(m.candidates)]
        if not lighter:
            break
        first = min(lighter, key=lambda n: (drawn.models[n].spec.shared.weight, -load(n)))
        steps[first] += 1
    return {name: drawn.models[name].candidates[step].name for name, step in steps.items()}


def _ascended(
    drawn: SharedDraw, start: Mapping[str, str], static: Callable[[Mapping[str, str]], Way]
) -> Way:
    """Return the best constant combination that is reached by single steps to a neighbour."""
    names, best = dict(start), static(start)
    while True:
        nearby = []
        for name, model in drawn.models.items():
            listed = [c.name for c in model.candidates]
            place = listed.index(names[name])
            nearby += [
                {**names, name: listed[next_]}
                for next_ in (place - 1, place + 1)
                if 0 <= next_ < len(listed)
            ]
        found = min(nearby, key=lambda near: static(near).loss)
        if static(found).loss >= best.loss:
            return best
        names, best = found, static(found)


def _way(drawn: SharedDraw, choose: Chooser) -> Way:
    totals = replay_together(drawn.trace, drawn.models, choose)
    return Way(
        loss=_loss(drawn, totals),
        severe_s=totals.severe_s,
        off_s=totals.off_s,
        short_s=totals.short_s,
        switches=sum(m.switches for m in totals.models.values()),
        parked_s=math.fsum(m.parked_s for m in totals.models.values()),
        missed={name: m.missed / max(m.requests, 1.0) for name, m in totals.models.items()},
    )


def _loss(drawn: SharedDraw, totals: Totals) -> float:
    got = asked = 0.0
    for name, model in totals.models.items():
        weight = drawn.models[name].spec.shared.weight
        got += weight * (model.worth - SWITCH_WORTH * model.switches)
        asked += weight * model.requests
    return 1.0 - got / max(asked, 1.0)
