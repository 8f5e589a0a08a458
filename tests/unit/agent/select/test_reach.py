"""Whether the battery reaches the aim: learnt from readings alone, with and without gauges."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.battery import BatteryFit
from agent.select.reach import budget, need_s, reaches
from wire.durations import DAY_S, HOUR_S
from wire.health import HealthSnapshot
from wire.policy import Objective

WHOLE_J = 40 * HOUR_S
IDLE_W, SLOPE_W = 1.5, 4.0


def lived(
    begin_h: float,
    hours: float,
    *,
    charger_w: Callable[[float], float] = lambda _: 0.0,
    gauges: str = "power energy",
    start: float = 0.9,
    load: Callable[[random.Random], float] = lambda chance: chance.uniform(0.1, 0.6),
) -> BatteryFit:
    """Let a board live, minute by minute; its gauge of charge counts in hundredths."""
    chance, fit, left_j = random.Random(7), BatteryFit(), start * WHOLE_J
    for minute in range(int(hours * 60)):
        at_s = begin_h * HOUR_S + (minute + 1) * 60.0
        busy = load(chance)
        net_w = IDLE_W + SLOPE_W * busy - charger_w(at_s / HOUR_S % 24.0)
        left_j = min(max(left_j - net_w * 60.0, 0.0), WHOLE_J)
        ratio = round(left_j / WHOLE_J, 2)
        fit = fit.update(
            HealthSnapshot(
                at_s=at_s,
                battery_ratio=ratio,
                battery_discharging=net_w > 0.0,
                power_mw=max(net_w, 0.0) * 1000.0 if "power" in gauges else None,
                battery_energy_j=ratio * WHOLE_J if "energy" in gauges else None,
            ),
            busy,
            60.0,
        )
    return fit


def sun(hour: float) -> float:
    return 8.0 * max(math.sin(math.pi * (hour - 6.0) / 12.0), 0.0)


def watts(fit: BatteryFit, load: float) -> float:
    """Return the draw that was learnt, of a board into which nothing comes."""
    assert fit.draw is not None
    assert fit.idle is not None
    return (fit.idle + fit.draw.slope * load) * (WHOLE_J if fit.in_shares else 1.0)


@pytest.mark.parametrize("gauges", ["power energy", "energy", "share"])
def test_the_draw_is_learnt_with_every_gauge(gauges: str) -> None:
    fit = lived(20.0, 6.0, gauges=gauges)
    assert watts(fit, fit.usual.load) == pytest.approx(IDLE_W + SLOPE_W * fit.usual.load, rel=0.1)
    assert fit.in_shares == (gauges == "share")


def test_without_gauges_it_is_known_after_the_first_falls_of_the_charge() -> None:
    early = lived(20.0, 0.1, gauges="share")
    assert reaches(early, 0.3, HOUR_S) is None
    known = lived(20.0, 1.0, gauges="share")
    found = reaches(known, 0.3, 24 * HOUR_S)
    assert found is not None
    assert found.empty_s == pytest.approx(0.85 * WHOLE_J / (IDLE_W + SLOPE_W * 0.3), rel=0.35)


@pytest.mark.parametrize("gauges", ["power energy", "energy", "share"])
def test_the_sun_is_not_taken_for_less_draw(gauges: str) -> None:
    night = lived(0.0, 24.0 + 10.0, charger_w=sun, gauges=gauges, start=0.95)
    # At ten the sun gives 6.9 W, and the board draws about 2.9 W.
    assert watts(night, 0.3) == pytest.approx(IDLE_W + SLOPE_W * 0.3, rel=0.2)


def test_what_comes_in_is_learnt_by_the_time_of_day() -> None:
    # A big load, so that the battery never gets full: what a full one refuses nobody sees.
    fit = lived(
        0.0, 48.0, charger_w=sun, gauges="energy", load=lambda chance: chance.uniform(0.2, 0.4)
    )
    for hour, at_least, at_most in ((2.0, 0.0, 0.6), (9.25, 3.5, 7.5), (22.0, 0.0, 0.6)):
        found = fit.incomes.expected(hour * HOUR_S)
        assert found is not None
        assert at_least <= found[0] <= at_most


def test_a_known_charger_counts_before_it_comes() -> None:
    def evening(hour: float) -> float:
        return 12.0 if hour < 3.0 or hour >= 23.0 else 0.0

    idle = lambda chance: chance.uniform(0.05, 0.15)  # noqa: E731
    known = lived(20.0, 50.0, charger_w=evening, gauges="energy", load=idle)
    unknown = msgspec.structs.replace(known, incomes=BatteryFit().incomes)
    pair = [reaches(fit, 0.3, 9 * HOUR_S) for fit in (known, unknown)]
    assert all(pair)
    assert [found.probability > 0.5 for found in pair if found] == [True, False]


def test_the_aim_comes_nearer() -> None:
    fit = BatteryFit(discharging=True, discharged_s=HOUR_S, local_s=17.5 * HOUR_S)
    assert need_s(Objective(battery_lasts_s=4 * HOUR_S), fit) == 3 * HOUR_S
    assert need_s(Objective(battery_lasts_s=0.5 * HOUR_S), fit) is None
    assert need_s(Objective(battery_lasts_s=0.0), BatteryFit()) is None
    assert need_s(Objective(battery_until="18:00"), fit) == 0.5 * HOUR_S
    assert need_s(Objective(battery_until="17:00"), fit) == 23.5 * HOUR_S


def test_the_clock_starts_with_the_discharge_and_survives_a_short_charge() -> None:
    def read(fit: BatteryFit, minutes: int, *, discharging: bool) -> BatteryFit:
        for _ in range(minutes):
            health = HealthSnapshot(at_s=0.0, battery_ratio=0.6, battery_discharging=discharging)
            fit = fit.update(health, 0.3, 60.0)
        return fit

    fit = read(read(BatteryFit(), 30, discharging=False), 61, discharging=True)
    assert fit.discharged_s == HOUR_S
    assert read(fit, 5, discharging=False).discharged_s == HOUR_S
    assert read(fit, 11, discharging=False).discharged_s == 0.0


def test_local_time_counts_not_utc() -> None:
    health = HealthSnapshot(
        at_s=10 * DAY_S + 15 * HOUR_S, utc_offset_s=2 * HOUR_S, battery_ratio=0.5
    )
    fit = BatteryFit().update(health, 0.0, 0.0)
    assert need_s(Objective(battery_until="18:00"), fit) == HOUR_S


def test_a_board_that_spends_its_budget_reaches_the_aim() -> None:
    fit = lived(20.0, 4.0)
    for hours in (4.0, 8.0, 12.0):
        load = budget(fit, hours * HOUR_S)
        assert load is not None
        if 0.0 < load < 1.0:
            left_j = fit.energy_j or 0.0
            spent_j = (IDLE_W + SLOPE_W * load) * hours * HOUR_S
            assert spent_j == pytest.approx(left_j, rel=0.1)
            assert spent_j < left_j


fits = st.builds(
    lambda begin, hours, start, charger, gauges: lived(
        begin, hours, start=start, charger_w=lambda hour: charger * sun(hour), gauges=gauges
    ),
    st.sampled_from([0.0, 6.0, 12.0, 18.0]),
    st.sampled_from([1.0, 5.0]),
    st.floats(0.05, 1.0),
    st.sampled_from([0.0, 0.5, 1.5]),
    st.sampled_from(["power energy", "energy", "share"]),
)


@given(fits, st.floats(1.0, 2 * DAY_S), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_more_load_never_reaches_further(fit: BatteryFit, for_s: float, loads: list[float]) -> None:
    found = [reaches(fit, load, for_s) for load in sorted(loads)]
    known = [reach for reach in found if reach is not None]
    assert len(known) in {0, len(found)}
    for less, more in itertools.pairwise(known):
        assert more.probability <= less.probability + 1e-9
        assert more.share(for_s) <= less.share(for_s) + 1e-9
        assert 0.0 <= more.probability <= 1.0
