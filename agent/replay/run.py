"""Replays a policy over a trace: what it would have done, and what that would have cost.

Rules:
- Pure: trace, variants and policy in, result out; time comes from the trace alone.
- The policy sees the readings that the agent would see, and no other part of the trace.
- A switch loses no request, as in the agent, but loading takes time of the processor.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from agent.replay.board import is_off
from agent.replay.readings import sense
from agent.replay.server import Arrived
from agent.replay.simulation import TickResult, World, is_short, serve, start, switch
from agent.replay.traces import Trace
from agent.replay.variants import checked
from agent.select.decisions import Candidate, Decision, Policy, PolicyContext, PolicyState
from agent.select.estimates import Estimates, Observed, joined
from agent.select.learnt import Learnt
from agent.select.policies import POLICIES
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

FLAP_S: Final = 60.0
"""A switch back to the variant before within this time counts as a flap."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One tick of a replay."""

    at_s: float
    readings: HealthSnapshot
    decision: Decision | None
    """None while the board is off, and while a variant is being loaded."""

    variant: str | None
    """The variant that served."""

    off: bool

    served: TickResult
    observed: Observed | None
    """The agent's observations of the tick."""

    temperature_c: float
    """At the tick's beginning; this and the next are the model's own values, not readings."""

    charge_ratio: float | None
    power_w: float
    """Mean during the tick."""

    short_of_memory: bool
    """Whether the variant that served needed more memory than there was."""


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the variant."""

    at_s: float
    before: str | None
    after: str | None
    reason: str
    verdicts: dict[str, str]


class Ticked(NamedTuple):
    """One tick, and what came of it."""

    step: Step
    switch: Switch | None
    after: World
    """The device at its end, with the answers of the tick."""


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of all answers, waits included; a quantile is one of them."""

    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    greatest_ms: float


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """A replay in figures."""

    duration_s: float
    requests: float
    refused: float
    missed: float
    """Requests refused, or answered after the deadline."""

    miss_ratio: float
    unanswered: int
    """Single requests that had neither an answer nor a refusal at the end."""

    latencies: Latencies | None
    """None without answers to single requests."""

    mean_retention: float | None
    """Mean over answered requests; None without any, or if a variant that served has none."""

    worth: float | None
    """Sum of the worth of all ticks; None if a variant that served has no retention."""

    energy_j: float
    switches: int
    """Changes from one variant to another; the first choice is not counted."""

    flaps: int
    hottest_c: float
    severe_s: float
    """Time at or above the temperature that counts as severe."""

    short_of_memory_s: float
    off_s: float
    served_s: dict[str, float]
    """Time for which each variant was in service."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a policy over a trace."""

    trace: str
    policy: str
    totals: Totals
    switches: tuple[Switch, ...]
    """Every change, including the first choice."""

    steps: tuple[Step, ...]


def replay(
    trace: Trace,
    candidates: Sequence[Candidate],
    spec: PolicySpec,
    *,
    pinned: str | None = None,
    deadline_ms: float | None = None,
    policy: Policy | None = None,
) -> Replay:
    """Run a policy over a trace.

    Args:
        trace: The environment over time.
        candidates: The variants to choose from.
        spec: The policy and its thresholds.
        pinned: A variant that always serves, whatever the policy decides.
        deadline_ms: Deadline in place of the trace's own; None for that one.
        policy: A policy in place of that which `spec` names: one that no agent has.

    Returns:
        The totals, each switch and each tick.

    Raises:
        ReplayError: There is no such variant, or one has no latency or memory.
    """
    steps: list[Step] = []
    switches: list[Switch] = []
    latencies_ms = array("d")
    unanswered = 0
    for ticked in ticks(
        trace, candidates, spec, pinned=pinned, deadline_ms=deadline_ms, policy=policy
    ):
        steps.append(ticked.step)
        if ticked.switch is not None:
            switches.append(ticked.switch)
        latencies_ms.extend(answer.latency_ms for answer in ticked.after.answers)
        unanswered = ticked.after.backlog.requests
    served_s = dict.fromkeys((c.name for c in candidates), 0.0)
    return Replay(
        trace=trace.header.name,
        policy=spec.kind if pinned is None else f"pinned to {pinned}",
        totals=_totals(trace, served_s, steps, switches, unanswered, _quantiles(latencies_ms)),
        switches=tuple(switches),
        steps=tuple(steps),
    )


def ticks(
    trace: Trace,
    candidates: Sequence[Candidate],
    spec: PolicySpec,
    *,
    pinned: str | None = None,
    deadline_ms: float | None = None,
    policy: Policy | None = None,
) -> Iterator[Ticked]:
    """Run a policy over a trace, tick by tick.

    Args:
        trace: As for `replay`, like all others.
        candidates: The variants to choose from.
        spec: The policy and its thresholds.
        pinned: A variant that always serves.
        deadline_ms: Deadline in place of the trace's own.
        policy: A policy in place of that which `spec` names.

    Yields:
        Each tick, with the state of the device after it.

    Raises:
        ReplayError: There is no such variant, or one has no latency or memory.
    """
    policy = POLICIES[spec.kind] if policy is None else policy
    by_name = checked(candidates, pinned)
    header, board, period_s = trace.header, trace.header.board, trace.header.period_s
    limit_ms = header.deadline_ms if deadline_ms is None else deadline_ms
    if spec.aim.deadline_ms is None:
        objective = msgspec.structs.replace(spec.aim, deadline_ms=limit_ms)
        spec = msgspec.structs.replace(spec, objective=objective)
    world, context, switched_s = (
        start(board, at_work=header.at_work),
        PolicyContext(pinned=pinned),
        -math.inf,
    )
    seen: list[Observed | None] = []
    outside = zip(trace.ticks, trace.arrivals(), trace.sensor_errors(), strict=True)
    for tick, requests, error in outside:
        readings = sense(board, world, tick, error, begins_local_s=header.begins_local_s)
        decision, change = None, None
        off = is_off(board, world.state, tick.inputs)
        if off:
            # The agent starts again when the board is charged, with what it has in its file.
            learnt = Learnt.of(context.state.estimates.battery).fit()
            state = PolicyState(estimates=Estimates(battery=learnt))
            context, switched_s = PolicyContext(pinned=pinned, state=state), -math.inf
            seen.clear()
        elif world.coming is None:
            context = msgspec.structs.replace(
                context,
                since_switch_s=tick.at_s - switched_s,
                period_s=period_s * len(seen),
                observed=joined(seen),
            )
            decision = policy(readings, candidates, spec, context)
            seen.clear()
            world = switch(world, decision, by_name)
            if decision.variant != context.variant:
                switched_s = tick.at_s
                change = _switch(tick.at_s, context.variant, decision)
            context = msgspec.structs.replace(
                context, variant=decision.variant, state=decision.state
            )
        before = world
        served, world = serve(
            board,
            before,
            tick,
            period_s=period_s,
            deadline_ms=limit_ms,
            arrived=None if requests is None else Arrived(requests),
        )
        seen.append(world.observed)
        yield Ticked(
            Step(
                at_s=tick.at_s,
                readings=readings,
                decision=decision,
                variant=world.serving.name if world.serving else None,
                off=off,
                served=served,
                observed=world.observed,
                temperature_c=before.state.temperature_c,
                charge_ratio=before.state.charge_ratio,
                power_w=world.state.draw_w,
                short_of_memory=is_short(board, tick, world.serving),
            ),
            change,
            world,
        )


def _switch(at_s: float, before: str | None, decision: Decision) -> Switch:
    return Switch(
        at_s=at_s,
        before=before,
        after=decision.variant,
        reason=decision.reason,
        verdicts=decision.verdicts,
    )


def _totals(
    trace: Trace,
    served_s: dict[str, float],
    steps: Sequence[Step],
    switches: Sequence[Switch],
    unanswered: int,
    latencies: Latencies | None,
) -> Totals:
    period_s, severe_c = trace.header.period_s, trace.header.board.limits.severe_c
    requests = math.fsum(s.served.requests for s in steps)
    missed = math.fsum(s.served.missed for s in steps)
    answered = math.fsum(s.served.answered for s in steps)
    total = _sum(s.served.retained for s in steps)
    for step in steps:
        if step.variant is not None:
            served_s[step.variant] += period_s
    return Totals(
        duration_s=trace.duration_s,
        requests=requests,
        refused=math.fsum(s.served.refused for s in steps),
        missed=missed,
        miss_ratio=missed / requests if requests else 0.0,
        unanswered=unanswered,
        latencies=latencies,
        mean_retention=None if not answered or total is None else total / answered,
        worth=_sum(s.served.worth for s in steps),
        energy_j=math.fsum(s.power_w for s in steps) * period_s,
        switches=sum(s.before is not None for s in switches),
        flaps=_flaps(switches),
        hottest_c=max(s.temperature_c for s in steps),
        severe_s=sum(s.temperature_c >= severe_c for s in steps) * period_s,
        short_of_memory_s=sum(s.short_of_memory for s in steps) * period_s,
        off_s=sum(s.off for s in steps) * period_s,
        served_s=served_s,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of values; None if one is unknown."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return math.fsum(known) if len(known) == len(listed) else None


def _quantiles(latencies_ms: array[float]) -> Latencies | None:
    if not latencies_ms:
        return None
    ordered = sorted(latencies_ms)

    def quantile(share: float) -> float:
        return ordered[math.ceil(share * len(ordered)) - 1]

    return Latencies(
        mean_ms=math.fsum(ordered) / len(ordered),
        p50_ms=quantile(0.5),
        p95_ms=quantile(0.95),
        p99_ms=quantile(0.99),
        greatest_ms=ordered[-1],
    )


def _flaps(switches: Sequence[Switch]) -> int:
    return sum(
        back.after is not None and back.after == left.before and back.at_s - left.at_s < FLAP_S
        for left, back in itertools.pairwise(switches)
    )
