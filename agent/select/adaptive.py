"""The policy that keeps an objective: the most accurate variant that meets all constraints.

From what the device has shown, the policy predicts how each variant would do
(`agent.select.estimates`, `agent.select.outlook`). Constraints come first: answers in time, enough
memory, heat below severe, a battery that lasts long enough. Among the variants that meet them, the
most accurate serves; among equally accurate ones, the one with the least work. If none meets them
all, the variant whose shortfalls cost least serves.

Rules:
- Pure. Equal inputs give equal decisions.
- The serving variant stays while it meets the objective. A variant with more work replaces it only
  if that one would meet the objective under the worst conditions of the last minutes too. This
  prevents flapping; no timer is needed for it.
- Two switches are at least `dwell_s` apart, unless the serving variant must not go on.

Source:
    Android's thermal headroom for the scale; ALERT (USENIX ATC 2020) for a slowdown that all
    variants share; NestDNN (MobiCom 2018) for the soft cost where no variant keeps the objective.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from agent.select.decisions import (
    UNKNOWN_LOAD_MS,
    Candidate,
    Decision,
    PolicyContext,
    PolicyState,
    Pressure,
    by_accuracy,
    by_latency,
    inputs_of,
    switch_cost,
)
from agent.select.estimates import Estimates
from agent.select.outlook import SOON_S, Prediction, predict
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

AS_ACCURATE: Final = 0.001
"""Retentions that differ by less count as equal: evaluation sets are too small to tell."""

WORTH_A_SWITCH: Final = 0.1
"""Share of the work that a variant of equal accuracy must save."""

MISTAKE_S: Final = 0.5
"""Cost of the first switch to more work if it is a mistake: the answers of so many seconds."""

MS_PER_S: Final = 1000.0
FIRST: Final = "no variant of this release serves yet"
SECONDS_PER_MINUTE: Final = 60.0
TINY_S: Final = 1e-9
"""Used in place of zero seconds."""

CHEAPER: Final = 0.02
"""How much the cost of shortfalls must fall before another variant replaces the serving one."""

_PRESSURES: Final[dict[str, Pressure]] = {"heat": "heat", "battery": "battery", "memory": "memory"}


class Outlooks(msgspec.Struct, frozen=True, kw_only=True):
    """The predictions for a variant under both outlooks."""

    now: Prediction
    lately: Prediction

    @property
    def candidate(self) -> Candidate:
        """The variant."""
        return self.now.candidate

    @property
    def accuracy(self) -> float:
        """Its retention; 0 if it is unknown."""
        known = self.candidate.accuracy
        return 0.0 if known is None else known

    @property
    def is_hot(self) -> bool:
        """Whether the board would be too warm under it."""
        return any(fault.kind == "heat" for fault in self.now.faults)


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
    able = [
        Outlooks(
            now=predict(c, known, spec, lately=False), lately=predict(c, known, spec, lately=True)
        )
        for c in everyone
        if not c.benched
    ]
    by_name = {o.candidate.name: o for o in able}
    serving = by_name.get(context.variant or "")
    pinned = by_name.get(context.pinned or "")
    winner, reason = (
        _winner(able, serving, known, dwell_s=spec.dwell_s, since_switch_s=context.since_switch_s)
        if pinned is None
        else (pinned, f"pinned to {pinned.candidate.name}")
    )
    chosen = winner.candidate if winner else None
    return Decision(
        variant=chosen.name if chosen else None,
        reason=reason,
        state=PolicyState(pressures=_pressures(able), estimates=known),
        inputs=_inputs(health, context, known, winner),
        verdicts={
            c.name: _verdict(by_name[c.name], winner, serving, known, reason)
            if c.name in by_name
            else f"benched: {c.benched}"
            for c in everyone
            if c is not chosen
        },
        stream=winner is not None and any(f.kind == "memory" for f in winner.now.faults),
        switch=switch_cost(
            serving.candidate if serving else None, chosen, health.memory_available_bytes
        ),
    )  # fmt: skip


def _winner(
    able: list[Outlooks],
    serving: Outlooks | None,
    known: Estimates,
    *,
    dwell_s: float,
    since_switch_s: float,
) -> tuple[Outlooks | None, str]:
    if not able:
        return None, "no variant may serve"
    well = [o for o in able if not _objection(o, serving, known)]
    if serving is None or serving.now.faults:
        return _leave(able, well, serving)
    best = _best([serving, *(o for o in well if o is not serving)])
    if best is serving or not _is_better(best, serving):
        return serving, "the most accurate variant that keeps the objective"
    if since_switch_s < dwell_s:
        return serving, f"held: {since_switch_s:.1f} of {dwell_s:g} s since the last switch"
    gain = best.accuracy - serving.accuracy
    if gain > AS_ACCURATE:
        return (
            best,
            f"keeps the objective, also over the last minutes, and gains {gain:.2%} of the quality",
        )
    return best, "as accurate with less work"


def _leave(
    able: list[Outlooks], well: list[Outlooks], serving: Outlooks | None
) -> tuple[Outlooks, str]:
    """Choose a variant if none serves, or if the serving one may not go on."""
    why = f"{serving.candidate.name}: {serving.now.faults[0].text}" if serving else FIRST
    if well:
        return _best(well), why
    lightest = min(able, key=lambda o: by_latency(o.candidate))
    if (serving or lightest).is_hot:
        # A board that is too warm with less work is too warm with more work too.
        able = [o for o in able if not _is_more_work(o, serving or lightest)]
    least = min(able, key=lambda o: (o.now.cost, o.now.load, *by_accuracy(o.candidate)))
    if serving is not None and serving.now.cost - least.now.cost < CHEAPER:
        return serving, f"no variant keeps the objective; {why}"
    return least, f"no variant keeps the objective, this one loses the fewest answers; {why}"


def _objection(o: Outlooks, serving: Outlooks | None, known: Estimates) -> str:
    """Return the objection to a variant, or an empty text. More work must pay under `lately`."""
    if o.now.faults:
        return "; ".join(fault.text for fault in o.now.faults)
    if serving is None or not _is_more_work(o, serving):
        return ""
    if o.lately.faults:
        return f"over the last minutes: {o.lately.faults[0].text}"
    # Each time the variant turns late, the serving one comes back, and the answers until then are
    # lost. One such mistake always counts; it weighs less the longer the device was observed.
    in_time, turns = o.lately.in_time_lately, o.lately.turns_late_per_s
    gain = in_time * (o.accuracy - serving.lately.in_time_lately * serving.accuracy)
    first = MISTAKE_S / max(known.slowdown_lately.seen_s, TINY_S)
    mistakes = first + turns * _back_s(o, serving, known)
    if gain > mistakes * o.accuracy:
        return ""
    if gain <= 0.0:
        return f"over the last minutes: more work and no gain, {in_time:.1%} would be in time"
    return (
        f"over the last minutes: {in_time:.1%} would be in time, {gain:.3f} gained, "
        f"{mistakes * o.accuracy:.3f} lost in {turns * SECONDS_PER_MINUTE:.1f} turns a minute"
    )


def _back_s(o: Outlooks, serving: Outlooks, known: Estimates) -> float:
    """Return how long it takes to notice that a variant is late, and what both switches cost."""
    loads_ms = (c.candidate.load_ms for c in (o, serving))
    load_s = sum(UNKNOWN_LOAD_MS if ms is None else ms for ms in loads_ms) / MS_PER_S
    return known.period_s + load_s


def _is_more_work(o: Outlooks, serving: Outlooks) -> bool:
    if o is serving:
        return False
    ours, theirs = o.candidate.latency_p50_ms, serving.candidate.latency_p50_ms
    return ours is None or theirs is None or ours > theirs


def _best(well: list[Outlooks]) -> Outlooks:
    """Return the one with the least work among those that are about as accurate as the best."""
    most = max(o.accuracy for o in well)
    equals = [o for o in well if most - o.accuracy <= AS_ACCURATE]
    return min(equals, key=lambda o: (o.now.load, *by_accuracy(o.candidate)))


def _is_better(o: Outlooks, serving: Outlooks) -> bool:
    if o.accuracy - serving.accuracy > AS_ACCURATE:
        return True
    return o.now.load < (1.0 - WORTH_A_SWITCH) * serving.now.load


def _pressures(able: list[Outlooks]) -> frozenset[Pressure]:
    """Return what keeps the most accurate variant from serving."""
    kinds = {fault.kind for fault in able[0].now.faults} if able else set()
    return frozenset(_PRESSURES[kind] for kind in kinds if kind in _PRESSURES)


def _verdict(
    o: Outlooks, winner: Outlooks | None, serving: Outlooks | None, known: Estimates, reason: str
) -> str:
    if objection := _objection(o, serving, known):
        return objection
    if winner is None or reason.startswith(("pinned", "held")):
        return reason
    if o.accuracy < winner.accuracy - AS_ACCURATE:
        return f"less accurate: {o.accuracy:.4g} against {winner.accuracy:.4g}"
    if o.now.load == winner.now.load:
        return "about as accurate, with as much work"
    if o.now.load > winner.now.load:
        return f"more work: {o.now.load:.3g} of the processor against {winner.now.load:.3g}"
    return "not worth a switch yet"


def _inputs(
    health: HealthSnapshot, context: PolicyContext, known: Estimates, winner: Outlooks | None
) -> dict[str, Any]:
    load = winner.now.load if winner else known.other_load
    name = winner.candidate.name if winner else ""
    ahead = {f"{after_s:g}": known.heat.forecast(load, after_s) for after_s in SOON_S}
    return inputs_of(health, context) | {
        "demand_per_s": round(known.demand_per_s, 3),
        "request_samples": round(known.request_samples, 1),
        "slowdown": round(known.slowdown.expected(name).factor, 3),
        "load": round(load, 3),
        "headroom_forecast": {
            key: None if f is None else [round(f.mean, 3), round(f.sigma, 3)]
            for key, f in ahead.items()
        },
        "battery_lasts_s": known.battery.lasts_s(load),
    }
