"""The policy that keeps an objective: the variant whose answers are worth most.

From what the device has shown, the policy predicts for each variant how much of its answers' worth
would be lost (`agent.select.estimates`, `agent.select.outlook`): inaccurate ones, late ones, those
of a board that is too hot, out of memory, or whose battery ends too soon. What each variant would
have lost since the start adds up (`agent.select.work`), and a switch is worth it once it would have
paid for itself.

Rules:
- Pure. Equal inputs give equal decisions.
- A variant that must go is left at once: too little memory, too hot, or soon too hot.
- A variant with more work serves only if heat and memory allow it for minutes.
- Two switches are at least `dwell_s` apart, unless the serving variant must go.

Source:
    Android's thermal headroom for the scale; ALERT (USENIX ATC 2020) for a slowdown that all
    variants share; NestDNN (MobiCom 2018) for the soft cost where no variant keeps the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from agent.select.decisions import (
    Candidate,
    Decision,
    PolicyContext,
    PolicyState,
    Pressure,
    apart,
    by_accuracy,
    by_latency,
    inputs_of,
    switch_cost,
)
from agent.select.estimates import Estimates
from agent.select.explained import better, first, leaves, objection, stays, verdict
from agent.select.limits import SOON_S, Fault
from agent.select.others import NO_OTHERS, Others
from agent.select.outlook import (
    PARKED,
    Own,
    Prediction,
    beside,
    by_itself,
    conditions,
    parked,
    predicted_share,
)
from agent.select.strain import levers_of
from agent.select.switch_costs import Costs
from agent.select.work import Work
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

IDLE_PER_S: Final = 0.1
"""Requests a second that a device without any is taken to have: it should be ready for the next."""

CLEARLY: Final = 0.02
"""Answers that a variant must lose less if it has to go too: what comes next is chance."""

WARM: Final = 0.8
"""A headroom from which the first variant is the one with the least work: as warm as where most
boards start their throttling, or a few degrees below."""

PARKED_S: Final = 120.0
"""A model that comes back as soon as the board is a little cooler heats it up again: as long as
little memory is remembered."""

NOBODY: Final = "-"
"""No variant has this name."""

PAID: Final = 1.0 - 1e-9
"""Sums of many losses are not exact."""

_PRESSURES: Final[dict[str, Pressure]] = {"heat": "heat", "battery": "battery", "memory": "memory"}


def choose(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose which variant should serve.

    Args:
        health: The newest readings.
        candidates: All variants that are on the device.
        spec: The objective.
        context: What serves, its observations, and what was learnt before.

    Returns:
        The decision.
    """
    known = context.state.estimates.update(health, context.observed, context.period_s)
    everyone = sorted(candidates, key=by_accuracy)
    known = recorded(known, everyone, spec, context)
    now = conditions(known, spec)
    owns = {c.name: by_itself(c, known, spec, now) for c in everyone if not c.benched}
    return decide(health, everyone, spec, context, known=known, owns=owns)


class View(NamedTuple):
    """How a model sees the others of its device; by default there are none."""

    others: Others = NO_OTHERS
    """What they take."""

    harm: Callable[[Own], float] | None = None
    """What a variant costs them, in answers of this model."""

    parked: Own | None = None
    """How it does if no variant serves; None if it may not be parked."""

    told: str | None = None
    """The variant that was chosen for all together, with its reason; empty for none."""

    why: str = ""
    is_settled: bool = False
    """Whether it was decided for all together who has to go at once."""


ALONE: Final = View()


def decide(
    health: HealthSnapshot,
    everyone: list[Candidate],
    spec: PolicySpec,
    context: PolicyContext,
    *,
    known: Estimates,
    owns: Mapping[str, Own],
    view: View = ALONE,
) -> Decision:
    """Choose which variant should serve, from what is known.

    Args:
        health: The newest readings.
        everyone: All variants that are on the device, the most accurate first.
        spec: The objective.
        context: What serves, and what was learnt before.
        known: What is known now.
        owns: What each variant that may serve does by itself.
        view: What else the device serves.

    Returns:
        The decision.
    """
    held = PARKED if context.state.parked else context.variant or NOBODY
    able = _seen(everyone, owns, known, spec, view, held)
    by_name = {o.candidate.name: o for o in able}
    cost = Costs(able, known)
    answers = max(known.demand_per_s, IDLE_PER_S) * context.period_s
    work = context.state.work.update({o.candidate.name: o.loss * answers for o in able}, cost.of)
    serving = by_name.get(held)
    pinned = by_name.get(context.pinned or NOBODY)
    winner, reason = (
        (by_name[view.told], view.why)
        if view.told is not None
        else _winner(able, serving, work, cost, known=known, spec=spec, context=context, view=view)
        if pinned is None
        else (pinned, f"pinned to {pinned.candidate.name}")
    )
    is_parked = winner is not None and winner.candidate.name == PARKED
    chosen = winner.candidate if winner and not is_parked else None
    served = serving.candidate if serving and serving.candidate.name != PARKED else None
    # The levers are about the whole load, whoever causes it.
    whole = msgspec.structs.replace(known, other_load=known.other_load + view.others.load)
    return Decision(
        variant=chosen.name if chosen else None,
        reason=reason,
        state=PolicyState(
            pressures=_pressures(able), estimates=known, work=work, parked=is_parked
        ),
        inputs=_inputs(health, context, whole, winner),
        verdicts={
            c.name: verdict(by_name[c.name], winner, serving, reason)
            if c.name in by_name
            else f"benched: {c.benched}"
            for c in everyone
            if c is not chosen
        },
        stream=chosen is not None and any(f.kind == "memory" for f in by_name[chosen.name].faults),
        switch=switch_cost(served, chosen, health.memory_available_bytes),
        levers=levers_of(health, spec, context, known=whole, chosen=chosen),
    )  # fmt: skip


def _is_more(c: Candidate, serving: Candidate | None) -> bool:
    ours, theirs = c.latency_p50_ms, serving.latency_p50_ms if serving is not None else None
    return c is not serving and (ours is None or theirs is None or ours > theirs)


def _seen(
    everyone: list[Candidate],
    owns: Mapping[str, Own],
    known: Estimates,
    spec: PolicySpec,
    view: View,
    held: str,
) -> list[Prediction]:
    """Return how each variant would do beside the others, what it costs them included."""
    listed = [owns[c.name] for c in everyone if c.name in owns]
    serving = next((own.candidate for own in listed if own.candidate.name == held), None)
    able = [
        # Only what is more work than the serving one has to hold for minutes.
        beside(own, known, spec, view.others, begins=_is_more(own.candidate, serving))
        for own in listed
    ]
    if view.parked is not None:
        listed.append(view.parked)
        able.append(parked(view.parked, known, view.others))
    if view.harm is None:
        return able
    return [
        msgspec.structs.replace(o, loss=o.loss + view.harm(own))
        for o, own in zip(able, listed, strict=True)
    ]


def recorded(
    known: Estimates, everyone: list[Candidate], spec: PolicySpec, context: PolicyContext
) -> Estimates:
    """Return the estimates with the record of what was in time.

    Args:
        known: The estimates without it.
        everyone: The variants.
        spec: The objective.
        context: What was observed.
    """
    seen = context.observed
    served = next((c for c in everyone if seen is not None and c.name == seen.variant), None)
    if seen is None or served is None or seen.in_time is None or seen.mixed:
        return known
    if context.state.estimates.waiting > 1.0 + seen.answered:
        return known  # they were late before they began
    record = known.record.update(
        predicted_share(served, known, conditions(known, spec)),
        seen.in_time,
        seen.answered,
        context.period_s,
    )
    return msgspec.structs.replace(known, record=record)


def _winner(
    able: list[Prediction],
    serving: Prediction | None,
    work: Work,
    cost: Costs,
    *,
    known: Estimates,
    spec: PolicySpec,
    context: PolicyContext,
    view: View,
) -> tuple[Prediction | None, str]:
    if not any(o.candidate.name != PARKED for o in able):
        return None, "no variant may serve"
    if serving is None:
        able = [o for o in able if o.candidate.name != PARKED]
        is_hot = all(any(f.urgent and f.kind == "heat" for f in o.faults) for o in able)
        is_hot = is_hot or begins_warm(known)
        chosen = min(able, key=lambda o: by_latency(o.candidate) if is_hot else _rank(o))
        return chosen, first(chosen, is_hot=is_hot)
    urgent = None if view.is_settled else next((f for f in serving.faults if f.urgent), None)
    if urgent is not None and (least := _rescue(able, serving, urgent)) is not None:
        return least, leaves(serving, urgent, least)
    # An operator's change needs neither to pay for itself nor to wait.
    is_new_policy = context.is_new_policy
    best = _better(able, serving) if is_new_policy else _paid(able, serving, work, cost)
    if best is None:
        return serving, stays(serving)
    least_s = rest_s(spec, known, is_parked=serving.candidate.name == PARKED)
    if context.since_switch_s < least_s and not is_new_policy:
        waited, _ = apart(context.since_switch_s, least_s, 1)
        return serving, f"held: {waited} of {least_s:g} s since the last switch"
    return best, better(best, serving)


def rest_s(spec: PolicySpec, known: Estimates, *, is_parked: bool) -> float:
    """Return for how long at least nothing changes after a switch.

    Args:
        spec: The policy.
        known: What is known now. Memory remembers by itself for how long it was short; heat does
            not.
        is_parked: Whether the switch parked the model.
    """
    return max(spec.dwell_s, PARKED_S) if is_parked and is_warm(known) else spec.dwell_s


def is_warm(known: Estimates) -> bool:
    """Tell whether a board is about as warm as where most start their throttling."""
    now = known.heat.now
    return now is not None and now.mean >= WARM


def begins_warm(known: Estimates) -> bool:
    """Tell whether a board is warm on which nobody knows yet how many requests will come."""
    # The least work is the coolest.
    return known.demand_per_s <= 0.0 and is_warm(known)


def _rescue(able: list[Prediction], serving: Prediction, urgent: Fault) -> Prediction | None:
    """Return where to go from a variant that must go; None where nothing is better."""
    if urgent.kind == "heat":
        # A board that is too warm with less work is too warm with more work too.
        able = [o for o in able if o.load <= serving.load]
    least = min(able, key=_rank)
    is_sound = not any(f.urgent for f in least.faults)
    margin = 0.0 if is_sound or urgent.kind == "heat" else CLEARLY
    return least if least.loss < serving.loss - margin else None


def _better(able: list[Prediction], serving: Prediction) -> Prediction | None:
    """Return the variant that loses least, if that is clearly less than the serving one."""
    least = min((o for o in able if not objection(o, serving)), key=_rank, default=serving)
    return least if least.loss < serving.loss - CLEARLY else None


def _paid(
    able: list[Prediction], serving: Prediction, work: Work, cost: Costs
) -> Prediction | None:
    """Return the variant to which a switch would have paid for itself, and pays now."""
    name = serving.candidate.name
    leads = {
        o.candidate.name: work.lead(o.candidate.name, name)
        for o in able
        if o.loss < serving.loss and not objection(o, serving)
    }
    paid = [
        o
        for o in able
        if o.candidate.name in leads
        and leads[o.candidate.name] >= PAID * cost.of(name, o.candidate.name)
    ]
    return min(paid, key=lambda o: (o.loss - leads[o.candidate.name], _rank(o)), default=None)


def _rank(o: Prediction) -> tuple[Any, ...]:
    return (o.loss, *by_accuracy(o.candidate))


def _pressures(able: list[Prediction]) -> frozenset[Pressure]:
    """Return what keeps the most accurate variant from serving."""
    kinds = {fault.kind for fault in able[0].faults} if able else set()
    return frozenset(_PRESSURES[kind] for kind in kinds if kind in _PRESSURES)


def _inputs(
    health: HealthSnapshot, context: PolicyContext, known: Estimates, winner: Prediction | None
) -> dict[str, Any]:
    load = winner.load if winner else known.other_load
    name = winner.candidate.name if winner else ""
    ahead = {f"{after_s:g}": known.heat.forecast(load, after_s) for after_s in SOON_S}
    return inputs_of(health, context) | {
        "demand_per_s": round(known.demand_per_s, 3),
        "request_samples": round(known.request_samples, 1),
        "slowdown": round(known.slowdown.expected(name).factor, 3),
        "in_time_expected": round(winner.in_time, 4) if winner else None,
        "load": round(load, 3),
        "headroom_forecast": {
            key: None if f is None else [round(f.mean, 3), round(f.sigma, 3)]
            for key, f in ahead.items()
        },
        "battery_lasts_s": known.battery.lasts_s(load),
    }
