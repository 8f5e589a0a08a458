"""The battery: what it draws, what it holds and how long it lasts are found from readings alone."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.battery import BatteryFit
from wire.health import HealthSnapshot

CAPACITY_J = 20 * 3600.0
IDLE_W, BUSY_W = 1.5, 5.5


def read(**readings: float | bool | None) -> HealthSnapshot:
    return HealthSnapshot(at_s=0.0, **readings)  # type: ignore[arg-type]  # mixed types


def lived(hours: float, *, start: float = 0.837, tells_energy: bool = False) -> BatteryFit:
    """Let a battery be drawn from, under loads that change; its gauge counts in hundredths."""
    fit, left_j = BatteryFit(), start * CAPACITY_J
    for minute in range(int(hours * 60)):
        load = (0.2, 0.9, 0.5)[minute % 3]
        watts = IDLE_W + (BUSY_W - IDLE_W) * load
        left_j -= watts * 60.0
        ratio = math.floor(left_j / CAPACITY_J * 100) / 100
        fit = fit.update(
            read(
                battery_ratio=ratio, battery_discharging=True, power_mw=watts * 1000,
                battery_energy_j=left_j if tells_energy else None,
            ),
            load, 60.0,
        )  # fmt: skip
    return fit


def test_the_draw_is_found_at_every_load() -> None:
    fit = lived(2.0)
    assert fit.draw is not None
    for load in (0.0, 0.2, 0.6, 1.0):
        assert fit.draw.at(load) == pytest.approx(IDLE_W + (BUSY_W - IDLE_W) * load, abs=0.05)


@pytest.mark.parametrize("start", [0.8301, 0.837, 0.8399])
def test_the_capacity_is_found_from_falls_of_the_gauge(start: float) -> None:
    # The first fall is no measure: nobody knows how full the first hundredth was.
    assert lived(0.05, start=start).capacity_j is None
    fit = lived(3.0, start=start)
    assert fit.capacity_j == pytest.approx(CAPACITY_J, rel=0.15)


def test_how_long_it_lasts() -> None:
    fit = lived(2.0, tells_energy=True)
    assert fit.energy_j is not None
    assert fit.lasts_s(0.5) == pytest.approx(fit.energy_j / 3.5, rel=0.02)
    idle, busy = fit.lasts_s(0.0), fit.lasts_s(1.0)
    assert idle is not None
    assert busy is not None
    assert idle > busy


def test_a_capacity_that_the_battery_tells_is_believed() -> None:
    fit = BatteryFit().update(
        read(
            battery_ratio=0.5, battery_discharging=True, power_mw=2000.0,
            battery_capacity_j=CAPACITY_J,
        ),
        0.5, 1.0,
    )  # fmt: skip
    assert fit.energy_j == 0.5 * CAPACITY_J
    assert fit.lasts_s(0.5) == pytest.approx(0.25 * CAPACITY_J)


def test_nothing_is_said_before_a_reading() -> None:
    fit = BatteryFit().update(read(), 0.5, 1.0)
    assert (fit.discharging, fit.ratio, fit.energy_j, fit.lasts_s(0.5)) == (None,) * 4
    plugged = fit.update(read(battery_ratio=0.9, battery_discharging=False, power_mw=0.0), 0.5, 1.0)
    assert plugged.discharging is False
    assert plugged.lasts_s(0.5) is None


def test_a_gauge_that_says_nothing_any_more_is_not_full() -> None:
    fit = lived(2.0, tells_energy=True)
    assert fit.energy_j is not None
    lost = fit.update(read(), 0.5, 600.0)
    assert (lost.discharging, lost.ratio) == (True, fit.ratio)
    assert lost.energy_j == pytest.approx(fit.energy_j - 600.0 * 3.5, rel=0.01)
    empty = fit.update(read(), 0.5, 1e9)
    assert empty.energy_j == 0.0
    assert empty.lasts_s(0.5) == 0.0
    charging = lost.update(read(battery_discharging=False), 0.5, 600.0)
    assert charging.discharging is False
    assert charging.energy_j == lost.energy_j


def test_a_board_that_draws_nothing_tells_no_capacity() -> None:
    fit = BatteryFit()
    for hundredths in range(100, 0, -1):
        reading = read(battery_ratio=hundredths / 100, battery_discharging=True, power_mw=0.0)
        fit = fit.update(reading, 0.0, 60.0)
    assert fit.capacity_j is None
    assert fit.lasts_s(0.0) is None


snapshots = st.builds(
    HealthSnapshot,
    at_s=st.just(0.0),
    battery_ratio=st.none() | st.floats(0, 1),
    battery_discharging=st.none() | st.booleans(),
    battery_energy_j=st.none() | st.floats(0, 1e9),
    battery_capacity_j=st.none() | st.floats(0, 1e9),
    power_mw=st.none() | st.floats(0, 1e6),
)


@given(st.lists(st.tuples(snapshots, st.floats(0, 1), st.floats(0, 1e6)), max_size=40))
def test_whatever_is_read_the_figures_are_numbers(
    shown: list[tuple[HealthSnapshot, float, float]],
) -> None:
    fit = BatteryFit()
    for health, load, period_s in shown:
        fit = fit.update(health, load, period_s)
        for figure in (fit.energy_j, fit.capacity_j, fit.lasts_s(0.0), fit.lasts_s(1.0)):
            assert figure is None or 0.0 <= figure < math.inf
