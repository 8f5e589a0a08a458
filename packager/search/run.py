"""Carries a search out: plans the space, builds and measures what is chosen, judges by the goals.

Rules:
- The reference variant, what `--keep` names and `--search-cap` candidates are built, no other.
- `tpe` learns from each candidate before it chooses the next one; the other methods choose all at
  once, so that their steps run at the same time.
- The gates hold with a search as without one. A goal drops more, before the variants of a package
  are selected; the best by the goals always stays.
- The reference variant is never dropped by a goal: a device falls back to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from packager.judge.field import as_told, is_told
from packager.judge.gates import Gates, judge
from packager.judge.verdicts import Verdict, Verdicts
from packager.plan.figures import ModelFacts
from packager.plan.planner import make_plan
from packager.plan.runtimes import Runtimes
from packager.plan.values import Candidate, Host, Plan, PlanSettings, Step
from packager.run.pipeline import Pipeline
from packager.search.choice import best, in_order, loss
from packager.search.goals import Change, Goal, changes, missed
from packager.search.judged import LATENCY, MEMORY
from packager.search.report import SearchReport, SearchRun
from packager.search.sampler import Score, open_sampler
from packager.search.settings import Search
from packager.search.space import Point, recipe_name, searched_runtimes, space, steps_of, variations
from wire.package.variant import Variant
from wire.profile import DeviceProfile

LOST: Final = 10.0
"""What cannot be built counts as ten times worse in every goal, so that a sampler turns away."""

Make = Callable[[Plan, tuple[Candidate, ...], tuple[Step, ...]], dict[str, str]]
"""Builds, measures and evaluates candidates by steps, of which the plan names those built before.
Returns those that are too slow, with the reason."""


Figures = Callable[[Candidate], Variant | None]
"""Returns a candidate with its figures; None if it could not be built or is too slow."""


def plan_with(
    search: Search | None,
    facts: ModelFacts,
    profiles: tuple[DeviceProfile, ...],
    *,
    runtimes: Runtimes,
    host: Host,
    settings: PlanSettings,
) -> Plan:
    """Plan a build, or the space of a search.

    Args:
        search: None for a build without a search.
        facts: As for `make_plan`, like all others.
        profiles: The kinds of devices.
        runtimes: What can be built.
        host: What the building machine has.
        settings: What the user asked for.

    Returns:
        The plan; that of a space has all that might be tried, and its repairs are candidates.
    """
    if search is None:
        return make_plan(facts, profiles, runtimes=runtimes, host=host, settings=settings)
    repairs = settings.repair_trials > 0
    found = variations(runtimes, repairs=repairs)
    wide = searched_runtimes(runtimes, repairs=repairs)
    plan = make_plan(facts, profiles, runtimes=wide, host=host, settings=settings)
    candidates = tuple(
        msgspec.structs.replace(c, recipe=found[recipe_name(c)].of) for c in plan.candidates
    )
    return msgspec.structs.replace(plan, candidates=candidates)


def carry_out(
    search: Search,
    plan: Plan,
    pipeline: Pipeline,
    make: Make,
    figures: Figures,
    *,
    runtimes: Runtimes,
    keep: tuple[str, ...],
) -> tuple[Plan, dict[str, str], SearchRun]:
    """Search.

    Args:
        search: How.
        plan: The space.
        pipeline: Takes the results.
        make: Builds candidates.
        figures: Tells what they are like.
        runtimes: Those that the space was planned with.
        keep: Candidates that are built in any case.

    Returns:
        The plan of what was built; which candidates are too slow and why; what was tried.

    Raises:
        BuildError: A vital step failed.
    """
    known = {candidate.name: candidate for candidate in plan.candidates}
    points = space(plan, variations(runtimes))
    first = [point for point in points if point.name in keep]
    others = [point for point in points if point.name not in keep]
    work = _Work(plan, pipeline, make)
    work.add(tuple(c for c in plan.candidates if c.name in {*plan.references, *keep}))
    sampler = open_sampler(
        search.method, others, goals=len(search.goals), cap=search.cap, seed=search.seed
    )
    tried: list[Point] = []
    together = 1 if search.method == "tpe" else search.cap
    while len(tried) < search.cap:
        batch: list[Point] = []
        while len(batch) < min(together, search.cap - len(tried)):
            point = sampler.ask()
            if point is None:
                break
            batch.append(point)
        if not batch:
            break
        work.add(tuple(known[point.name] for point in batch))
        for point in batch:
            sampler.tell(point, _score(search.goals, known[point.name], plan, figures))
        tried += batch
    names = [point.name for point in tried]
    done = SearchRun(
        tried=(*(point.name for point in first), *names),
        untried=tuple(point.name for point in others if point.name not in names),
    )
    return work.plan, work.slow, done


class _Work:
    """What was built so far."""

    def __init__(self, plan: Plan, pipeline: Pipeline, make: Make) -> None:
        self._space, self._pipeline, self._make = plan, pipeline, make
        self.plan = msgspec.structs.replace(plan, steps=(), candidates=())
        self.slow: dict[str, str] = {}

    def add(self, candidates: tuple[Candidate, ...]) -> None:
        done = {record.name for record in self._pipeline.records}
        steps = steps_of(self._space, candidates)
        self.slow |= self._make(
            self.plan, candidates, tuple(s for s in steps if s.name not in done)
        )
        self.plan = msgspec.structs.replace(
            self.plan,
            steps=tuple({s.name: s for s in (*self.plan.steps, *steps)}.values()),
            candidates=(*self.plan.candidates, *candidates),
        )


def _score(goals: tuple[Goal, ...], candidate: Candidate, plan: Plan, figures: Figures) -> Score:
    """Return what a sampler learns of a candidate that was tried."""
    limits = [goal for goal in goals if goal.most_loss is not None]
    reference = next((c for c in plan.candidates if c.name in plan.references), None)
    ours = None if reference is None else figures(reference)
    mine = figures(candidate)
    if mine is None or ours is None:
        return Score(losses=(LOST,) * len(goals), misses=(LOST,) * len(limits))
    found = changes(mine, ours, timed=bool(set(candidate.info.profiles) & plan.here))
    return Score(
        losses=tuple(loss(goal.metric, found) for goal in in_order(goals)),
        misses=tuple(_miss(goal, found) for goal in limits),
    )


def _miss(goal: Goal, found: dict[str, Change]) -> float:
    change = found.get(goal.metric)
    return 0.0 if change is None or goal.most_loss is None else change.low - goal.most_loss


def judge_with(
    search: Search | None,
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    gates: Gates,
    *,
    references: frozenset[str],
    here: frozenset[str],
    keep: frozenset[str],
    **others: Any,  # noqa: ANN401 - what else `judge` takes
) -> Verdicts:
    """Judge as `judge` does, and drop before what misses a goal.

    Args:
        search: Its goals; None for none.
        variants: As for `judge`, like all others.
        profiles: The profiles.
        gates: The limits.
        references: Variants that no goal drops, and with which the others are compared.
        here: Profiles for which latency and memory, as measured here, are the device's.
        keep: Variants that are kept even if others beat them.
        **others: What `judge` takes beside these.

    Returns:
        The verdicts.
    """
    same = {"references": references, "here": here, **others}
    if search is None:
        return judge(variants, profiles, gates, keep=keep, **same)
    verdicts: Verdicts = {}
    for profile in profiles:
        found = _changes(variants, profile, references, here)
        dropped = {
            name: Verdict(kept=False, reason=miss[0], excess=miss[1])
            for name, change in found.items()
            if name not in references and (miss := missed(search.goals, change)) is not None
        }
        left = tuple(v for v in variants if v.name not in dropped)
        passed = judge(left, (profile,), gates, keep=keep, **same)[profile.name]
        able = {n: found[n] for n, v in passed.items() if v.excess is None and n in found}
        chosen = best(search.goals, able)
        if chosen is not None:
            pinned = keep | {chosen}
            passed = judge(left, (profile,), gates, keep=pinned, **same)[profile.name]
        verdicts[profile.name] = {**passed, **dropped}
    return verdicts


def report_of(
    search: Search | None,
    run: SearchRun | None,
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    verdicts: Verdicts,
    plan: Plan,
) -> SearchReport | None:
    """Return what a search did; None without one.

    Args:
        search: The search.
        run: What it tried.
        variants: What was built.
        profiles: The profiles.
        verdicts: What `judge_with` returned.
        plan: Its references and the profiles that this machine stands for.

    Returns:
        The report.
    """
    if search is None or run is None:
        return None
    lost: dict[str, dict[str, str]] = {}
    chosen: dict[str, str] = {}
    for profile in profiles:
        verdict = verdicts[profile.name]
        found = _changes(variants, profile, plan.references, plan.here)
        misses = {name: missed(search.goals, change) for name, change in found.items()}
        lost[profile.name] = {
            name: miss[0] for name, miss in misses.items() if miss and name not in plan.references
        }
        kept = {name: change for name, change in found.items() if verdict[name].kept}
        if (winner := best(search.goals, kept)) is not None:
            chosen[profile.name] = winner
    return SearchReport(
        method=search.method,
        seed=search.seed,
        cap=search.cap,
        goals=tuple(goal.text for goal in search.goals),
        space=len(run.tried) + len(run.untried),
        tried=run.tried,
        untried=run.untried,
        missed=lost,
        unapplied={
            p.name: tuple(g.text for g in search.goals if g.metric in {LATENCY, MEMORY})
            for p in profiles
            if p.name not in plan.here and not is_told(variants, p.name)
        },
        best=chosen,
    )


def _changes(
    variants: tuple[Variant, ...],
    profile: DeviceProfile,
    references: frozenset[str],
    here: frozenset[str],
) -> dict[str, dict[str, Change]]:
    """Return how the variants of a profile compare with its reference variant."""
    if is_told(variants, profile.name):
        variants, here = as_told(variants, profile.name), here | {profile.name}
    planned = [v for v in variants if profile.name in v.info.profiles]
    reference = next((v for v in variants if v.name in references), None)
    if reference is None:
        return {}
    return {v.name: changes(v, reference, timed=profile.name in here) for v in planned}
