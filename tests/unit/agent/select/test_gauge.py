"""Which readings of a battery's gauge are believed."""

from __future__ import annotations

import pytest

from agent.select.battery import BatteryFit
from agent.select.gauge import BELIEVED, Shown, believed
from wire.health import HealthSnapshot

HALF = Shown(ratio=0.5, energy_j=18_000.0, whole_j=36_000.0)


def read(ratio: float | None = None, energy_j: float | None = None) -> HealthSnapshot:
    return HealthSnapshot(
        at_s=0.0, battery_ratio=ratio, battery_energy_j=energy_j, battery_discharging=True
    )


@pytest.mark.parametrize(
    ("ratio", "energy_j", "period_s", "is_believed"),
    [
        (0.49, 17_700.0, 1.0, True),
        (None, None, 1.0, True),
        (0.0, None, 1.0, False),
        (None, 0.0, 1.0, False),
        (0.49, 0.0, 1.0, False),
        (1.0, None, 1.0, False),
        (0.0, 0.0, 600.0, True),
    ],
)
def test_no_battery_empties_in_a_second(
    ratio: float | None, energy_j: float | None, period_s: float, is_believed: bool
) -> None:
    health, odd = believed(read(ratio, energy_j), HALF, period_s)
    seen = (ratio, energy_j) if is_believed else (None, None)
    assert (health.battery_ratio, health.battery_energy_j) == seen
    assert odd == int(not is_believed)


def test_what_is_said_again_and_again_is_believed() -> None:
    fit = BatteryFit().update(read(0.5), 0.5, 1.0)
    for _ in range(BELIEVED - 1):
        fit = fit.update(read(0.9), 0.5, 1.0)
        assert fit.ratio == 0.5
    assert fit.update(read(0.9), 0.5, 1.0).ratio == 0.9


def test_one_reading_of_zero_changes_nothing_that_was_learnt() -> None:
    fit = BatteryFit()
    for second in range(7200):
        fit = fit.update(read(0.8 - second // 60 * 0.001), 0.5, 1.0)
    assert fit.draw is not None
    odd = fit.update(read(0.0), 0.5, 1.0)
    assert (odd.draw, odd.idle, odd.ratio) == (fit.draw, fit.idle, fit.ratio)
    after = odd.update(read(0.68), 0.5, 1.0)
    assert after.lasts_s(0.5) == pytest.approx(fit.lasts_s(0.5), rel=0.02)
