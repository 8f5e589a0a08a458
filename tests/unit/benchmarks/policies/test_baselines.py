"""The policies of others: each does on a small case what its paper or its documents say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.select.decisions import Candidate, Decision, Policy, PolicyContext
from agent.select.estimates import Observed
from benchmarks.policies.baselines import (
    BASELINES,
    CALM_PERIODS,
    INFAAS_VOTES,
    AlertState,
    alert,
    constant_choice,
    engineer,
    ewma,
    infaas,
    openvino_auto,
)
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec

MIB = 1024**2


def variant(name: str, ms: float, accuracy: float, mib: int, load_ms: float) -> Candidate:
    return Candidate(
        name=name,
        latency_p50_ms=ms,
        accuracy=accuracy,
        peak_memory_bytes=mib * MIB,
        load_ms=load_ms,
    )


LARGE = variant("large", 80.0, 1.0, 400, 3000.0)
MIDDLE = variant("middle", 40.0, 0.97, 200, 1500.0)
SMALL = variant("small", 10.0, 0.9, 100, 500.0)
ALL = (LARGE, MIDDLE, SMALL)
SPEC = PolicySpec(kind="rules", objective=Objective(deadline_ms=100.0, battery_lasts_s=3600.0))
FINE = HealthSnapshot(at_s=0.0, memory_available_bytes=1000 * MIB)


def seen(
    c: Candidate, *, slower: float = 1.0, wait_ms: float = 0.0, count: float = 5.0
) -> Observed:
    service_ms = (c.latency_p50_ms or 0.0) * slower
    return Observed(
        variant=c.name,
        alone_ms=c.latency_p50_ms,
        held_bytes=c.peak_memory_bytes or 0,
        requests=count,
        answered=count,
        samples=count,
        compute_s=count * service_ms / 1000.0,
        latency_ms=service_ms + wait_ms,
        own_load=0.2,
    )


def run(
    policy: Policy,
    observed: Sequence[Observed | None],
    *,
    first: Candidate | None = None,
    health: HealthSnapshot = FINE,
) -> list[str | None]:
    """Return what a policy chooses after each of these periods of a second."""
    context, names = PolicyContext(variant=first.name if first else None), []
    for period in observed:
        context = PolicyContext(
            variant=context.variant, state=context.state, period_s=1.0, observed=period
        )
        decision: Decision = policy(health, ALL, SPEC, context)
        names.append(decision.variant)
        context = PolicyContext(variant=decision.variant, state=decision.state)
    return names


def test_an_engineer_takes_the_most_accurate_below_a_share_of_the_deadline() -> None:
    assert constant_choice(ALL, SPEC, 0.9) is LARGE
    assert constant_choice(ALL, SPEC, 0.5) is MIDDLE
    assert constant_choice(ALL, SPEC, 0.2) is SMALL
    assert constant_choice(ALL, SPEC, 0.05) is SMALL


def test_an_engineer_never_changes_it() -> None:
    slow = [None, *(seen(MIDDLE, slower=9.0) for _ in range(5))]

    assert len(set(run(engineer, slow))) == 1


def test_ewma_goes_to_the_next_faster_variant_when_answers_are_late() -> None:
    assert run(ewma, [seen(LARGE, wait_ms=50.0)], first=LARGE) == ["middle"]
    assert run(ewma, [seen(LARGE)], first=LARGE) == ["large"]


def test_ewma_comes_back_after_a_while_of_low_latency() -> None:
    # Twice 28 ms is below 60 % of 100 ms.
    quick = [seen(MIDDLE, slower=0.7 * 0.99) for _ in range(CALM_PERIODS)]

    assert run(ewma, quick, first=MIDDLE) == ["middle"] * (CALM_PERIODS - 1) + ["large"]


def test_alert_filters_as_its_paper_says() -> None:
    # By hand: the process noise stays 0.1, and the spread before the gain is 0.5 * 0.1 + 0.1.
    once = AlertState().after(2.0)

    assert once.gain == pytest.approx(0.15 / 0.151)
    assert once.mean == pytest.approx(1.0 + 0.15 / 0.151)
    assert once.variance == pytest.approx(0.15)
    twice = once.after(2.0)
    assert twice.process == pytest.approx(0.03 + 0.7 * once.gain**2)
    assert twice.variance == pytest.approx((1.0 - once.gain) * 0.15 + twice.process)


def test_alert_weighs_accuracy_with_the_probability_of_the_deadline() -> None:
    # At slowdown 1 with variance 0.1: large 0.79 * 1, middle 1.00 * 0.97.
    assert AlertState().in_time(80.0, 100.0) == pytest.approx(0.7854, abs=1e-3)
    assert run(alert, [None]) == ["middle"]
    assert run(alert, [seen(MIDDLE, slower=2.6)] * 3, first=MIDDLE)[-1] == "small"


def test_alert_keeps_the_goal_of_energy_where_the_battery_tells_it() -> None:
    health = HealthSnapshot(
        at_s=0.0,
        battery_discharging=True,
        battery_energy_j=3600.0 * 4.0,
        power_mw=5000.0,
        memory_available_bytes=1000 * MIB,
    )

    # 4 W for an hour: middle at 5 W with the server half busy has to go.
    assert run(alert, [seen(MIDDLE, count=12.5)], first=MIDDLE, health=health) == ["small"]


def test_openvino_starts_with_what_loads_fastest_and_then_takes_the_first_of_its_list() -> None:
    assert run(openvino_auto, [None, seen(SMALL), seen(LARGE)]) == ["small", "large", "large"]


def test_openvino_takes_what_fits_and_falls_back_when_serving_fails() -> None:
    tight = HealthSnapshot(at_s=0.0, memory_available_bytes=150 * MIB)

    names = run(openvino_auto, [None, seen(SMALL), None, seen(SMALL)], health=tight)
    assert names == ["small", "middle", "small", "small"]


def test_infaas_takes_the_quickest_of_the_accuracy_that_can_be_had() -> None:
    assert run(infaas, [None]) == ["large"]


def test_infaas_leaves_out_an_overloaded_variant_until_ten_votes() -> None:
    good = [seen(MIDDLE) for _ in range(INFAAS_VOTES)]

    names = run(infaas, [seen(LARGE, wait_ms=50.0), *good], first=LARGE)
    assert names == ["middle"] * INFAAS_VOTES + ["large"]


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_each_decides_without_any_reading(name: str) -> None:
    decision = BASELINES[name](HealthSnapshot(at_s=0.0), ALL, SPEC, PolicyContext())

    assert decision.variant in {"large", "middle", "small"}
