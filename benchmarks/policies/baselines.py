"""Policies of others, by which ours are judged; each with the interface of `agent.select`.

What each is mapped to, because none was made for this place:
- `engineer`: a constant choice, made from the declared figures and the deadline alone. Its one
  number was fitted on the development set (`benchmarks.policies.judged.fitted_share`).
- `ewma`: what a careful engineer adds to that: an exponentially weighted mean of the measured
  latency, two thresholds and a dwell. It moves to the next variant of a ladder of latencies.
- `alert`: Wan et al., with its filter and its expected accuracy. The device has no power caps to
  choose among, requests do not come one after the other, and no power was profiled for a variant:
  the goal of energy holds where a battery tells its power and energy, with a fixed share of idle
  power. Waits in the queue are unknown to it, as in the paper.
- `openvino_auto`: the list of priorities is that of the accuracies. It starts with what loads
  fastest, goes to the first of the list that fits, and falls back where serving fails.
- `infaas`: the accuracy that its user asks for is the greatest whose declared latency is within the
  deadline. Of the variants that have it, the least latency serves. A variant over the budget counts
  as overloaded and is left out until ten votes in a row say otherwise. One device has no replicas.

Rules:
- Pure. The state goes into the decision. None looks at anything but the policy's inputs.

Source:
    Wan et al., ALERT, USENIX ATC 2020, section 3.3 (the filter) and 3.4 (choice by the expected
    accuracy; in section 3.5 the error is minimised under a deadline and a goal of energy). Romero
    et al., INFaaS, USENIX ATC 2021, sections 4 and 5, and the votes of its source. OpenVINO
    documentation, Automatic Device Selection (start-up and run-time fallback).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from agent.select.decisions import (
    Candidate,
    Decision,
    Policy,
    PolicyContext,
    PolicyState,
    by_accuracy,
    by_latency,
    by_memory,
    inputs_of,
    switch_cost,
)
from agent.select.recent import normal_share
from wire.durations import DAY_S
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

ENGINEER_SHARE: Final = 0.05
"""Share of the deadline that the declared latency may have."""

EWMA_WEIGHT: Final = 0.3
"""Weight of the newest period, of the order that TCP and load balancers use."""

HIGH, LOW = 0.9, 0.6
"""Shares of the deadline: above the first it goes to a faster variant, and to a slower one if that
is expected below the second."""

CALM_PERIODS: Final = 10
"""So many periods in a row have to speak for a slower variant."""

ALERT_R: Final = 0.001
ALERT_Q: Final = 0.1
ALERT_ALPHA: Final = 0.3
ALERT_IDLE: Final = 0.4
"""Power of an idle board over that of a busy one, where ALERT filters a measured one."""

INFAAS_VOTES: Final = 10


def engineer(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose the most accurate variant whose declared latency is below a share of the deadline.

    Args:
        health: Not looked at.
        candidates: The variants.
        spec: The deadline.
        context: Not looked at.

    Returns:
        The decision; the fastest variant if none is below.
    """
    able = _able(candidates)
    return _decided(health, able, context, constant_choice(able, spec, ENGINEER_SHARE))


def constant_choice(candidates: Iterable[Candidate], spec: PolicySpec, share: float) -> Candidate:
    """Return the most accurate variant whose declared latency is below a share of the deadline.

    Args:
        candidates: The variants, at least one.
        spec: The deadline.
        share: Of the deadline.
    """
    able, limit_ms = list(candidates), share * _deadline_ms(spec)
    quick = [c for c in able if _latency_ms(c) <= limit_ms]
    return min(quick, key=by_accuracy) if quick else min(able, key=by_latency)


class EwmaState(PolicyState, frozen=True, kw_only=True):
    """The mean of the latency, and how long it has been low."""

    mean_ms: float | None = None
    low: int = 0


def ewma(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose by a mean of the measured latency, with two thresholds.

    Args:
        health: Not looked at.
        candidates: The variants.
        spec: The deadline and the dwell.
        context: The latencies, and the state before.

    Returns:
        The decision.
    """
    ladder = _ladder(_able(candidates))
    state = context.state if isinstance(context.state, EwmaState) else EwmaState()
    serving = next((c for c in ladder if c.name == context.variant), None)
    if serving is None:
        return _decided(health, ladder, context, constant_choice(ladder, spec, LOW))
    seen, limit_ms = context.observed, _deadline_ms(spec)
    mean_ms = state.mean_ms
    if seen is not None and seen.latency_ms is not None and seen.variant == serving.name:
        # What was refused, or waits still, counts as twice the deadline: a queue that grows is seen
        # before its answers are late.
        refused = max(seen.requests - seen.answered, 0.0) / max(seen.requests, 1.0)
        measured_ms = (1.0 - refused) * seen.latency_ms + refused * 2.0 * limit_ms
        known = measured_ms if mean_ms is None else mean_ms
        mean_ms = known + EWMA_WEIGHT * (measured_ms - known)
    place, low = ladder.index(serving), 0
    goes_to = serving
    if mean_ms is not None and mean_ms > HIGH * limit_ms and place + 1 < len(ladder):
        goes_to = ladder[place + 1]
    elif mean_ms is not None and place > 0:
        slower = ladder[place - 1]
        is_low = mean_ms * _latency_ms(slower) / _latency_ms(serving) < LOW * limit_ms
        low = state.low + 1 if is_low else 0
        goes_to = slower if low >= CALM_PERIODS else serving
    if goes_to is serving or context.since_switch_s < spec.dwell_s:
        return _decided(health, ladder, context, serving, EwmaState(mean_ms=mean_ms, low=low))
    return _decided(health, ladder, context, goes_to, EwmaState())


class AlertState(PolicyState, frozen=True, kw_only=True):
    """The filter of the global slowdown, with the paper's first values."""

    mean: float = 1.0
    variance: float = 0.1
    gain: float = 0.5
    process: float = ALERT_Q
    surprise: float = 0.0

    def after(self, slowdown: float) -> AlertState:
        """Return the filter after a measurement (section 3.3).

        Args:
            slowdown: Measured latency over that of the profile.
        """
        step = (self.gain * self.surprise) ** 2
        process = max(ALERT_Q, ALERT_ALPHA * self.process + (1.0 - ALERT_ALPHA) * step)
        spread = (1.0 - self.gain) * self.variance + process
        gain = spread / (spread + ALERT_R)
        surprise = slowdown - self.mean
        return AlertState(
            mean=self.mean + gain * surprise,
            variance=spread,
            gain=gain,
            process=process,
            surprise=surprise,
        )

    def in_time(self, profiled_ms: float, deadline_ms: float) -> float:
        """Return the probability that a variant answers within the deadline (section 3.4).

        Args:
            profiled_ms: Its latency in the profile.
            deadline_ms: The deadline.
        """
        if math.isinf(deadline_ms):
            return 1.0
        sigma = math.sqrt(self.variance) * profiled_ms
        return normal_share((deadline_ms - self.mean * profiled_ms) / max(sigma, 1e-9))


def alert(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose the greatest expected accuracy under a deadline and a goal of energy.

    Args:
        health: Power and energy of the battery.
        candidates: The variants.
        spec: The deadline, and how long the battery has to last.
        context: The latencies, and the state before.

    Returns:
        The decision.
    """
    able, seen = _able(candidates), context.observed
    state = context.state if isinstance(context.state, AlertState) else AlertState()
    if seen is not None and seen.samples > 0.0 and seen.alone_ms and not seen.mixed:
        state = state.after(seen.compute_s / seen.samples * 1000.0 / seen.alone_ms)
    limit_ms = _deadline_ms(spec)
    cheap = [c for c in able if _is_affordable(c, able, health, spec, context)]

    def expected(c: Candidate) -> tuple[float, float]:
        return state.in_time(_latency_ms(c), limit_ms) * (c.accuracy or 0.0), -_latency_ms(c)

    chosen = max(cheap, key=expected) if cheap else min(able, key=by_latency)
    return _decided(health, able, context, chosen, state)


def _is_affordable(
    c: Candidate,
    able: list[Candidate],
    health: HealthSnapshot,
    spec: PolicySpec,
    context: PolicyContext,
) -> bool:
    """Tell whether a variant's power meets the goal of energy, where the battery tells both."""
    serving = next((v for v in able if v.name == context.variant), None)
    left_j, draw_mw, seen = health.battery_energy_j, health.power_mw, context.observed
    if not health.battery_discharging or serving is None or seen is None or not left_j:
        return True
    until_s = spec.aim.battery_until_s
    lasts_s = spec.aim.battery_lasts_s if until_s is None else (until_s - health.local_s) % DAY_S
    if not draw_mw or lasts_s <= 0.0 or context.period_s <= 0.0:
        return True
    use = min(seen.compute_s / context.period_s, 1.0)
    other = min(use * _latency_ms(c) / _latency_ms(serving), 1.0)
    ratio = (ALERT_IDLE + (1.0 - ALERT_IDLE) * other) / (ALERT_IDLE + (1.0 - ALERT_IDLE) * use)
    return draw_mw / 1000.0 * ratio <= left_j / lasts_s


class AutoState(PolicyState, frozen=True, kw_only=True):
    """How far down the list it is; negative while the start-up variant serves."""

    place: int = -1


def openvino_auto(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose by a fixed list, after a start with what loads fastest; fall back where serving fails.

    Args:
        health: Free memory.
        candidates: The variants.
        spec: Not looked at.
        context: What serves, whether it answers, and the state before.

    Returns:
        The decision.
    """
    del spec
    ranked = _able(candidates)
    state = context.state if isinstance(context.state, AutoState) else AutoState()
    if context.variant is None:
        first = min(ranked, key=lambda c: (c.load_s, c.name))
        return _decided(health, ranked, context, first, AutoState())
    place = state.place
    failed = context.period_s > 0.0 and context.observed is None
    if place < 0:
        held = next((c.peak_memory_bytes or 0 for c in ranked if c.name == context.variant), 0)
        free = health.memory_available_bytes
        there = math.inf if free is None else free + held
        fits = [i for i, c in enumerate(ranked) if (c.peak_memory_bytes or 0) <= there]
        place = fits[0] if fits else len(ranked) - 1
    elif failed:
        place = min(place + 1, len(ranked) - 1)
    return _decided(health, ranked, context, ranked[place], AutoState(place=place))


class InfaasState(PolicyState, frozen=True, kw_only=True):
    """The variants that are left out, each with its votes to come back."""

    out: tuple[tuple[str, int], ...] = ()


def infaas(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose the quickest variant that has the accuracy asked for, and none that is overloaded.

    Args:
        health: Free memory.
        candidates: The variants.
        spec: The deadline.
        context: The latencies, and the state before.

    Returns:
        The decision.
    """
    able, limit_ms, seen = _able(candidates), _deadline_ms(spec), context.observed
    state = context.state if isinstance(context.state, InfaasState) else InfaasState()
    serving = next((c for c in able if c.name == context.variant), None)
    out = dict(state.out)
    if serving is not None and context.period_s > 0.0:
        late = seen is None or (seen.latency_ms is not None and seen.latency_ms > limit_ms)
        if late:
            out[serving.name] = 0
        elif seen is not None and seen.latency_ms is not None:
            slower = seen.latency_ms / _latency_ms(serving)
            by_name = {c.name: c for c in able}
            for name in list(out):
                good = name in by_name and slower * _latency_ms(by_name[name]) <= limit_ms
                out[name] = out[name] + 1 if good else 0
            out = {name: votes for name, votes in out.items() if votes < INFAAS_VOTES}
    held = (serving.peak_memory_bytes or 0) if serving else 0
    free = health.memory_available_bytes
    there = math.inf if free is None else free + held
    fits = [c for c in able if (c.peak_memory_bytes or 0) <= there] or [min(able, key=by_memory)]
    asked = constant_choice(able, spec, 1.0).accuracy or 0.0
    valid = [c for c in fits if c.name not in out]
    enough = [c for c in valid if (c.accuracy or 0.0) >= asked]
    # Without one that is accurate enough, the most accurate that is not overloaded.
    chosen = (
        min(enough, key=by_latency)
        if enough
        else min(valid, key=by_accuracy)
        if valid
        else min(fits, key=by_latency)
    )
    return _decided(health, able, context, chosen, InfaasState(out=tuple(sorted(out.items()))))


BASELINES: Final[dict[str, Policy]] = {
    "engineer": engineer,
    "ewma": ewma,
    "alert": alert,
    "openvino-auto": openvino_auto,
    "infaas": infaas,
}


def _able(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted((c for c in candidates if not c.benched), key=by_accuracy)


def _ladder(able: list[Candidate]) -> list[Candidate]:
    """Return the variants from slow to fast, without those that a faster one beats in accuracy."""
    found: list[Candidate] = []
    for c in sorted(able, key=by_accuracy):
        if not found or _latency_ms(c) < _latency_ms(found[-1]):
            found.append(c)
    return found


def _latency_ms(c: Candidate) -> float:
    return math.inf if c.latency_p50_ms is None else c.latency_p50_ms


def _deadline_ms(spec: PolicySpec) -> float:
    return math.inf if spec.aim.deadline_ms is None else spec.aim.deadline_ms


def _decided(
    health: HealthSnapshot,
    able: list[Candidate],
    context: PolicyContext,
    chosen: Candidate,
    state: PolicyState = PolicyState(),  # noqa: B008 - frozen
) -> Decision:
    serving = next((c for c in able if c.name == context.variant), None)
    decision = Decision(
        variant=chosen.name,
        reason="",
        state=state,
        inputs=inputs_of(health, context),
        verdicts={},
    )
    cost = switch_cost(serving, chosen, health.memory_available_bytes)
    return replace(decision, switch=cost)
