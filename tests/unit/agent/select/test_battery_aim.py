"""A device on its battery reaches the aim, spends what it has, and does not switch for nothing."""

from __future__ import annotations

import pytest

from agent.replay.board import Board, Inputs
from agent.replay.plant import ThermalPlant
from agent.replay.requests import Requests
from agent.replay.run import Replay, replay
from agent.replay.sensors import Sensors
from agent.replay.traces import Header, Tick, Trace
from agent.select.adaptive import choose
from agent.select.decisions import Candidate, PolicyContext
from agent.select.estimates import Observed
from wire.durations import HOUR_S
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec

PERIOD_S = 30.0
BEST = Candidate(name="best", latency_p50_ms=400.0, peak_memory_bytes=2**20, accuracy=0.99)
QUICK = Candidate(name="quick", latency_p50_ms=150.0, peak_memory_bytes=2**20, accuracy=0.96)
TINY = Candidate(name="tiny", latency_p50_ms=50.0, peak_memory_bytes=2**20, accuracy=0.93)
ALL = (BEST, QUICK, TINY)


def day(hours: float, *, battery_wh: float, sensors: Sensors, charger_w: float = 0.0) -> Trace:
    """Return a trace from ten o'clock: one request a second, and a board of 1 to 5 W."""
    header = Header(
        trace=1, name="shift", profile="bench", period_s=PERIOD_S, origin="synthetic",
        source="a test", deadline_ms=5000.0, begins_local_s=10 * HOUR_S, at_work=True,
        requests=Requests(arrivals="poisson", seed=3),
        board=Board(
            thermal=ThermalPlant(idle_w=1.0, busy_w=5.0, resistance_c_per_w=2.0),
            battery_wh=battery_wh, sensors=sensors,
        ),
    )  # fmt: skip
    inputs = Inputs(ambient_c=20.0, demand_per_s=1.0, charger_w=charger_w)
    count = round(hours * HOUR_S / PERIOD_S)
    return Trace(
        header=header,
        ticks=tuple(Tick(at_s=number * PERIOD_S, inputs=inputs) for number in range(count)),
    )


def lived(trace: Trace, until: str) -> Replay:
    objective = Objective(battery_until=until)
    return replay(trace, ALL, PolicySpec(kind="adaptive", objective=objective))


@pytest.mark.parametrize("has_power_gauge", [True, False], ids=["power", "charge-only"])
def test_the_shift_ends_with_an_empty_battery_that_was_used(has_power_gauge: bool) -> None:
    # `best` would take 2.6 W and empty it at 15:23, `tiny` 1.2 W and keep a third of it.
    sensors = Sensors(charge_step=0.01, has_power_gauge=has_power_gauge)
    done = lived(day(8.0, battery_wh=14.0, sensors=sensors), "18:00")
    left = done.steps[-1].charge_ratio
    assert done.totals.off_s == 0.0
    assert left is not None
    assert left < 0.12
    assert done.totals.served_s["best"] > 0.5 * HOUR_S
    assert done.totals.switches <= 20
    texts = [s.reason for s in done.switches if "battery" in s.reason]
    assert texts
    assert all("18:00 is required" in text for text in texts)


def test_what_surely_lasts_is_served_without_a_switch() -> None:
    done = lived(day(4.0, battery_wh=14.0, sensors=Sensors(charge_step=0.01)), "14:00")
    assert (done.totals.switches, done.totals.off_s) == (0, 0.0)
    assert done.totals.served_s["best"] == done.totals.duration_s


def test_a_charger_that_feeds_every_variant_makes_the_aim_no_matter() -> None:
    trace = day(3.0, battery_wh=14.0, sensors=Sensors(charge_step=0.01), charger_w=6.0)
    done = lived(trace, "09:00")
    assert (done.totals.switches, done.totals.served_s["best"]) == (0, done.totals.duration_s)


def lived_a_minute(ratio: float, variant: str | None) -> str | None:
    """Return what serves after a minute of one request a second, with a gauge that stands still."""
    health = HealthSnapshot(at_s=0.0, battery_ratio=ratio, battery_discharging=True)
    spec = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=5000.0), dwell_s=0.0)
    by_name, context = {c.name: c for c in ALL}, PolicyContext(variant=variant)
    for _ in range(60):
        decision = choose(health, ALL, spec, context)
        service_ms = by_name[decision.variant or ""].latency_p50_ms or 0.0
        context = PolicyContext(
            variant=decision.variant, state=decision.state, period_s=1.0,
            observed=Observed(
                variant=decision.variant or "", alone_ms=service_ms, held_bytes=2**20, requests=1.0,
                answered=1.0, in_time=1.0, samples=1.0, compute_s=service_ms / 1000.0,
                latency_ms=service_ms, own_load=service_ms / 1000.0,
            ),
        )  # fmt: skip
    return context.variant


@pytest.mark.parametrize("variant", [None, "best", "quick", "tiny"])
def test_a_nearly_empty_battery_of_unknown_draw_asks_for_the_least_work(
    variant: str | None,
) -> None:
    assert lived_a_minute(0.04, variant) == "tiny"


def test_half_a_battery_of_unknown_draw_is_no_reason() -> None:
    assert lived_a_minute(0.5, None) == "best"
