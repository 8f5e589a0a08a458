"""Judges policies on one draw: every policy, every variant alone, and the best way that is known.

Rules:
- Pure: a draw determines what comes out, so two versions of a policy can be compared draw by draw.
- The best known is the best of all: each variant alone, each policy, and a search of the oracle
  that knows the trace, but moves only in each `EVERY`th tick and keeps `MOST_WAYS` ways. The exact
  oracle would take minutes for a trace. So a regret is over the best way that anybody found: the
  true one can only be greater.
- The worth is that of `benchmarks.policies.outcomes`.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable
from typing import Final

import msgspec

from agent.replay.run import replay
from agent.select.decisions import Candidate
from benchmarks.policies.baselines import BASELINES, ENGINEER_SHARE, constant_choice
from benchmarks.policies.families import Draw, draw
from benchmarks.policies.oracle import SWITCH_WORTH, best_possible
from wire.policy import Objective, PolicySpec

OURS: Final = ("adaptive", "rules")
POLICY_NAMES: Final = (*OURS, *BASELINES)
EVERY: Final = 4
MOST_WAYS: Final = 30
FLOOR: Final = 0.05
"""A regret is a share of the best known worth, but of no less than this share of the requests:
where hardly anything can be answered in time, a few answers are no great loss."""

SHARES: Final = (0.0, 0.05, *(round(0.1 * step, 1) for step in range(1, 11)))
"""Shares of the deadline that the engineer may have chosen; with 0 the fastest always serves."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy, or a variant alone, did on a draw."""

    worth: float
    """Less that of the switches."""

    miss_ratio: float
    severe_s: float
    switches: int
    flaps: int
    energy_j: float
    off_s: float = 0.0
    """Time for which the board was off because its battery was empty."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A draw with all figures."""

    family: str
    seed: int
    spacing: str
    case: str
    hours: float
    requests: float
    deadline_ms: float
    variants: tuple[Candidate, ...]
    alone: dict[str, Figures]
    """By variant."""

    policies: dict[str, Figures]
    searched: float
    """Worth of the way that the search found."""

    searched_severe_s: float

    @property
    def best(self) -> float:
        """The best known worth."""
        known = (f.worth for f in (*self.alone.values(), *self.policies.values()))
        return max(self.searched, *known)

    @property
    def best_alone(self) -> float:
        """Worth of the variant that was the best one alone: known only afterwards."""
        return max(f.worth for f in self.alone.values())

    def loss(self, worth: float, *, below: float) -> float:
        """Return the share of a worth that another one is below it.

        Args:
            worth: That which lost.
            below: That of which it is a share.
        """
        return (below - worth) / max(below, FLOOR * self.requests, 1.0)

    def regret(self, name: str) -> float:
        """Return the share of the best known worth that a policy lost."""
        return self.loss(self.policies[name].worth, below=self.best)

    def behind_alone(self, name: str) -> float:
        """Return how far a policy is behind the best variant alone; negative if it is better."""
        return self.loss(self.policies[name].worth, below=self.best_alone)

    def avoidable_misses(self, name: str) -> float:
        """Return the share of deadlines that a policy missed beyond the least of any variant."""
        least = min(f.miss_ratio for f in self.alone.values())
        return max(self.policies[name].miss_ratio - least, 0.0)

    def severe_per_hour(self, name: str, *, searched: bool = False) -> float:
        """Return the time in severe heat that a variant alone would not have had, in s an hour.

        A board that was off for longer is not cool by its choice: that time counts as severe.

        Args:
            name: Of the policy.
            searched: Whether to count what the search avoided too.
        """
        ours = self.policies[name]
        least = min(f.severe_s + max(f.off_s - ours.off_s, 0.0) for f in self.alone.values())
        if searched:
            least = min(least, self.searched_severe_s)
        return max(ours.severe_s - least, 0.0) / self.hours


def judged(family: str, seed: int) -> Judged:
    """Judge every policy on a draw.

    Args:
        family: Of the draw.
        seed: Of the draw.
    """
    drawn = draw(family, seed)
    rules = drawn.spec("rules")
    alone = {v.name: _figures(drawn, rules, pinned=v.name) for v in drawn.variants}
    policies = {
        "adaptive": _figures(drawn, drawn.spec("adaptive")),
        "rules": _figures(drawn, rules),
    }
    for name in BASELINES:
        if name == "engineer":
            policies[name] = alone[constant_choice(drawn.variants, rules, ENGINEER_SHARE).name]
        else:
            policies[name] = _figures(drawn, rules, other=name)
    found = best_possible(drawn.trace, drawn.variants, every=EVERY, most_ways=MOST_WAYS)
    return Judged(
        family=family,
        seed=seed,
        spacing=drawn.spacing,
        case=drawn.case,
        hours=drawn.trace.duration_s / 3600.0,
        requests=float(sum(len(came or ()) for came in drawn.trace.arrivals())),
        deadline_ms=drawn.trace.header.deadline_ms,
        variants=drawn.variants,
        alone=alone,
        policies=policies,
        searched=found.score,
        searched_severe_s=found.severe_s,
    )


def fitted_share(found: Iterable[Judged]) -> float:
    """Return the engineer's share of the deadline that loses least on these draws.

    Args:
        found: The draws of the development set.
    """
    listed = list(found)
    return min(
        SHARES, key=lambda share: statistics.fmean(map(functools.partial(_lost, share), listed))
    )


def _lost(share: float, one: Judged) -> float:
    spec = PolicySpec(kind="rules", objective=Objective(deadline_ms=one.deadline_ms))
    chosen = constant_choice(one.variants, spec, share)
    return one.loss(one.alone[chosen.name].worth, below=one.best_alone)


def _figures(
    drawn: Draw, spec: PolicySpec, *, pinned: str | None = None, other: str | None = None
) -> Figures:
    policy = None if other is None else BASELINES[other]
    totals = replay(drawn.trace, drawn.variants, spec, pinned=pinned, policy=policy).totals
    return Figures(
        worth=(totals.worth or 0.0) - SWITCH_WORTH * totals.switches,
        miss_ratio=totals.miss_ratio,
        severe_s=totals.severe_s,
        switches=totals.switches,
        flaps=totals.flaps,
        energy_j=totals.energy_j,
        off_s=totals.off_s,
    )
