"""What strains a device, from its readings and from what was learnt; both policies say it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agent.select.decisions import Candidate, Decision, PolicyContext
from agent.select.estimates import Observed
from agent.select.levers import Levers
from agent.select.policies import POLICIES
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec

ONE = Candidate(name="one", latency_p50_ms=50.0, accuracy=0.99)
RULES = PolicySpec(kind="rules")
ADAPTIVE = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=200.0))
BOTH = pytest.mark.parametrize("spec", [RULES, ADAPTIVE], ids=["rules", "adaptive"])


def run(
    spec: PolicySpec, *readings: dict[str, Any], requests: float = 1.0, in_time: float = 1.0
) -> Levers:
    """Return the levers after one second with each of the readings."""
    context, decision = PolicyContext(), None
    for reading in readings:
        health = HealthSnapshot(at_s=0.0, **({"cpu_busy_ratio": 0.1} | reading))
        decision = POLICIES[spec.kind](health, [ONE], spec, context)
        context = _next(decision, requests, in_time)
    assert decision is not None
    return decision.levers


def _next(decision: Decision, requests: float, in_time: float) -> PolicyContext:
    answered = min(requests, 20.0)  # of 50 ms each
    seen = Observed(
        variant="one", alone_ms=50.0, held_bytes=0, requests=requests, answered=answered,
        in_time=in_time * answered, samples=answered, compute_s=answered * 0.05, latency_ms=50.0,
        own_load=min(answered * 0.05, 1.0),
    )  # fmt: skip
    return PolicyContext(
        variant="one", state=decision.state, period_s=1.0, observed=seen, levers=decision.levers
    )


@BOTH
def test_nothing_known_strains_nothing(spec: PolicySpec) -> None:
    assert run(spec, {}, {}, {}) == Levers()


@BOTH
def test_heat(spec: PolicySpec) -> None:
    hot = run(spec, *[{"headroom": 0.95}] * 2)
    assert hot.causes == ("heat",)
    assert not hot.joins
    assert hot.sampling_ratio < 0.5
    blind = run(spec, {"headroom": 0.95}, {"headroom": 0.95}, {})
    assert blind.causes == ("heat",)


@BOTH
def test_a_slow_clock(spec: PolicySpec) -> None:
    levers = run(spec, {"throttled": True, "cpu_frequency_limit_ratio": 0.5})
    assert (levers.causes, levers.sampling_ratio) == (("heat",), 0.5)


@BOTH
def test_a_low_charge(spec: PolicySpec) -> None:
    low = {"battery_ratio": 0.1, "battery_discharging": True}
    assert run(spec, low).sampling_ratio == 0.5
    assert run(spec, low, low | {"battery_discharging": False}).causes == ()
    assert run(spec, {"battery_ratio": 0.1}).causes == ()


def test_a_battery_that_will_not_last_as_long_as_asked() -> None:
    reading = {
        "battery_ratio": 0.9, "battery_discharging": True, "power_mw": 5000.0,
        "battery_energy_j": 36_000.0,
    }  # fmt: skip
    lasts = run(ADAPTIVE, *[reading] * 3)  # 2 h of the 4 h that are asked for
    assert lasts.causes == ("battery",)
    assert lasts.sampling_ratio == pytest.approx(0.1), "even the idle board takes more"


@BOTH
@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        ({"cpu_stall_ratio": 0.5}, True),
        ({"cpu_stall_ratio": 0.1, "load_ratio": 2.0}, False),
        ({"load_ratio": 2.0}, True),
        ({"load_ratio": 0.5}, False),
    ],
)
def test_other_programs(spec: PolicySpec, reading: dict[str, Any], expected: bool) -> None:
    assert run(spec, reading).defer is expected
    kept = run(spec, {"load_ratio": 2.0}, {"load_ratio": 1.2})
    assert kept.causes == ("contention",)


def test_load_is_what_was_learnt() -> None:
    calm = run(ADAPTIVE, *[{}] * 20, requests=4.0)
    assert calm == Levers()
    loaded = run(ADAPTIVE, *[{}] * 20, requests=40.0, in_time=0.1)
    assert loaded.causes == ("load",)
    assert loaded.sampling_ratio < 1.0
    assert loaded.longest_wait_s == pytest.approx(0.15, abs=0.02)
    assert run(RULES, *[{}] * 20, requests=40.0, in_time=0.1) == Levers()


def test_clients_that_wait_for_each_answer_are_no_load() -> None:
    assert run(ADAPTIVE, *[{}] * 20, requests=20.0, in_time=0.1).causes == ("load",)
    assert run(ADAPTIVE, *[{}] * 20, requests=20.0, in_time=1.0) == Levers()


def test_where_every_answer_is_late_nothing_is_shed() -> None:
    spec = msgspec.structs.replace(ADAPTIVE, objective=Objective(deadline_ms=20.0))
    assert run(spec, *[{}] * 20, requests=40.0, in_time=0.0).longest_wait_s is None
