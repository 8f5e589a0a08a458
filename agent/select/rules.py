"""Chooses a variant by the state of the device. Pure: values in, a decision with its reasons out.

A device can be under three pressures: heat, a low battery, little memory. Each begins at one
threshold and ends at another. Between the two, or without a reading, it stays as it was: unknown
never counts as cool, full or free. Without pressure the most accurate variant serves; under heat or
on a low battery the cheapest; with little memory the smallest.

Rules:
- A benched variant is never chosen, even if it is pinned.
- Two switches are at least `dwell_s` apart, unless the serving variant must not go on.
- Every candidate that was not chosen has a reason in the decision.
- Ties are broken by name, so equal inputs give equal decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agent.select.decisions import (
    Candidate,
    Decision,
    PolicyContext,
    PolicyState,
    Pressure,
    by_accuracy,
    by_latency,
    by_memory,
    inputs_of,
    switch_cost,
)
from agent.select.strain import levers_of
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

Rank = Callable[[Candidate], tuple[Any, ...]]


def choose(
    health: HealthSnapshot,
    candidates: Iterable[Candidate],
    policy: PolicySpec,
    context: PolicyContext,
) -> Decision:
    """Choose which variant should serve.

    Args:
        health: The newest readings.
        candidates: All variants that are on the device.
        policy: Thresholds.
        context: What serves, for how long, under which pressures.

    Returns:
        The decision.
    """
    everyone = sorted(candidates, key=lambda c: c.name)
    able = [c for c in everyone if not c.benched]
    best = min(able, key=by_accuracy, default=None)
    pressures = _pressures(health, policy, context.state.pressures, best)
    winner, reason = _winner(able, policy, context, pressures)
    return Decision(
        variant=winner.name if winner else None,
        reason=reason,
        state=PolicyState(pressures=pressures),
        inputs=inputs_of(health, context),
        verdicts={
            c.name: _verdict(c, winner, reason, pressures)
            for c in everyone
            if winner is None or c.name != winner.name
        },
        switch=switch_cost(
            next((c for c in able if c.name == context.variant), None),
            winner,
            health.memory_available_bytes,
        ),
        levers=levers_of(health, policy, context),
    )


def _winner(
    able: list[Candidate],
    policy: PolicySpec,
    context: PolicyContext,
    pressures: frozenset[Pressure],
) -> tuple[Candidate | None, str]:
    if not able:
        return None, "no variant may serve"
    by_name = {c.name: c for c in able}
    serving = by_name.get(context.variant or "")
    pinned = by_name.get(context.pinned or "")
    rank, reason = _aim(pressures)
    aim = min(able, key=rank)
    if pinned is not None:
        # A pin of the operator takes precedence over dwell.
        return pinned, f"pinned to {pinned.name}"
    if serving is not None and aim is not serving and context.since_switch_s < policy.dwell_s:
        waited = f"{context.since_switch_s:.1f} of {policy.dwell_s:g} s"
        return serving, f"held: {waited} since the last switch"
    return aim, reason


def _aim(pressures: frozenset[Pressure]) -> tuple[Rank, str]:
    if "memory" in pressures:
        return by_memory, "little memory: the smallest variant"
    if "heat" in pressures:
        return by_latency, "hot: the cheapest variant"
    if "battery" in pressures:
        return by_latency, "low battery: the cheapest variant"
    return by_accuracy, "no pressure: the most accurate variant"


def _pressures(
    health: HealthSnapshot,
    policy: PolicySpec,
    before: frozenset[Pressure],
    best: Candidate | None,
) -> frozenset[Pressure]:
    # During a switch, the old and the new variant are both in memory.
    enough_bytes = policy.low_memory_bytes + ((best.peak_memory_bytes or 0) if best else 0)
    memory, heat = health.memory_available_bytes, health.headroom
    battery, discharging = health.battery_ratio, health.battery_discharging
    begins: dict[Pressure, bool] = {
        "heat": heat is not None and heat > policy.hot_headroom,
        "battery": battery is not None
        and discharging is True
        and battery < policy.low_battery_ratio,
        "memory": memory is not None and memory < policy.low_memory_bytes,
    }
    ends: dict[Pressure, bool] = {
        "heat": heat is not None and heat < policy.cool_headroom,
        "battery": discharging is False
        or (battery is not None and battery > policy.ok_battery_ratio),
        "memory": memory is not None and memory >= enough_bytes,
    }
    return frozenset(name for name in begins if begins[name] or (name in before and not ends[name]))


def _verdict(
    loser: Candidate, winner: Candidate | None, reason: str, pressures: frozenset[Pressure]
) -> str:
    if loser.benched:
        return f"benched: {loser.benched}"
    if winner is None or reason.startswith(("pinned", "held")):
        return reason
    if "memory" in pressures:
        return f"larger: {_text(loser.peak_memory_bytes)} against {_text(winner.peak_memory_bytes)}"
    if pressures:
        return f"slower: {_ms(loser.latency_p50_ms)} against {_ms(winner.latency_p50_ms)} ms"
    if loser.accuracy == winner.accuracy:
        return (
            f"as accurate, worst error {_text(loser.worst_error)} against "
            f"{_text(winner.worst_error)}"
        )
    return f"less accurate: {_text(loser.accuracy)} against {_text(winner.accuracy)}"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"
