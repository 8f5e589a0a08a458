"""The heat model: by hand, and against a simulated board that it has never seen the inside of."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.board import Board, Inputs, advance
from agent.replay.controllers import Fan
from agent.replay.plant import ThermalPlant
from agent.select.heat import READING_SIGMA, STEP_S, TIME_CONSTANTS_S, Forecast, HeatFit, Model
from agent.select.kalman import Line

LINE = Line(base=0.2, slope=0.8, base_variance=0.04, slope_variance=0.0)
MODEL = Model(time_constant_s=60.0, steady=LINE, cooled=LINE)
NOW = Forecast(mean=0.4, sigma=0.1)
PLANT = ThermalPlant(resistance_c_per_w=5.0, time_constant_s=60.0, idle_w=1.0, busy_w=6.0)
NOMINAL_C, SEVERE_C, AMBIENT_C = 45.0, 80.0, 30.0
SCALE_C = SEVERE_C - NOMINAL_C

readings = st.none() | st.floats(-3, 4)
loads = st.floats(0, 1)


def headroom(celsius: float, step_c: float = 0.5) -> float:
    return (round(celsius / step_c) * step_c - NOMINAL_C) / SCALE_C


def watched(
    plant: ThermalPlant,
    schedule: list[float],
    fit: HeatFit | None = None,
    celsius: float = 45.0,
    *,
    noise_c: float = 0.0,
) -> tuple[HeatFit, float]:
    """Let a board live through loads of a second each while it is watched."""
    fit, chance = fit or HeatFit(), random.Random(len(schedule))
    for load in schedule:
        celsius = plant.step(celsius, ambient_c=AMBIENT_C, utilization=load, step_s=1.0)
        fit = fit.update(headroom(celsius + chance.gauss(0.0, noise_c)), load, 1.0)
    return fit, celsius


def best(fit: HeatFit) -> Model:
    """Return the model that is believed most."""
    return max(zip(fit.weights, fit.models, strict=True), key=lambda pair: pair[0])[1]


def workday(seconds: int, seed: int = 1) -> list[float]:
    chance, schedule = random.Random(seed), list[float]()
    while len(schedule) < seconds:
        schedule += [chance.random()] * chance.randint(20, 120)
    return schedule[:seconds]


def test_a_forecast_by_hand() -> None:
    mean, sigma = MODEL.forecast(NOW.mean, NOW.sigma, 0.5, 60.0, fan=False)
    share = 1.0 - 1.0 / math.e
    assert mean == pytest.approx(0.4 / math.e + share * 0.6)
    assert sigma == pytest.approx(0.1 / math.e + share * 0.2)
    assert Forecast(mean=mean, sigma=sigma).at_most(2.0) == pytest.approx(mean + 2.0 * sigma)
    assert MODEL.forecast(NOW.mean, NOW.sigma, 0.5, 0.0, fan=False) == (NOW.mean, NOW.sigma)
    assert MODEL.forecast(NOW.mean, NOW.sigma, 0.5, 1e9, fan=False)[0] == pytest.approx(0.6)


@given(st.floats(-1, 2), st.floats(-1, 2), loads)
def test_when_a_headroom_is_reached_it_is_reached(
    headroom_: float, now: float, load: float
) -> None:
    at_s = MODEL.reaches_s(headroom_, now, load)
    if math.isinf(at_s):
        assert LINE.at(load) <= headroom_
    elif at_s == 0.0:
        assert now >= headroom_ - 1e-9
    else:
        there, _ = MODEL.forecast(now, 0.0, load, at_s, fan=False)
        assert there == pytest.approx(headroom_, abs=1e-6)


def test_nothing_is_foreseen_before_the_first_reading() -> None:
    fit = HeatFit().update(None, 1.0, 1.0)
    assert fit.forecast(1.0, 60.0) is None
    first = fit.update(0.3, 0.5, 1.0)
    assert first.now == Forecast(mean=0.3, sigma=READING_SIGMA)
    # Until it is known better the present headroom goes with the present load.
    ahead = first.forecast(0.5, 1e6)
    assert ahead is not None
    assert ahead.mean == pytest.approx(0.3)


@pytest.mark.parametrize("noise_c", [0.0, 0.7])
@pytest.mark.parametrize("time_constant_s", [30.0, 60.0, 120.0, 240.0])
def test_the_time_constant_and_the_slope_of_a_board_are_found(
    time_constant_s: float, noise_c: float
) -> None:
    plant = msgspec.structs.replace(PLANT, time_constant_s=time_constant_s)
    fit, _ = watched(plant, workday(7200), noise_c=noise_c)
    near = TIME_CONSTANTS_S.index(time_constant_s)
    assert best(fit).time_constant_s in TIME_CONSTANTS_S[max(near - 1, 0) : near + 2]
    ahead = fit.forecast(1.0, 600.0)
    assert ahead is not None
    # 5 C/W times the 6 W of full load over the ambient, on a scale of 35 C.
    assert ahead.mean == pytest.approx((AMBIENT_C + 30.0 - 45.0) / 35.0, abs=0.15)
    if not noise_c and time_constant_s <= 120.0:
        assert best(fit).time_constant_s == time_constant_s
        assert best(fit).steady.slope == pytest.approx(25.0 / 35.0, rel=0.05)
        assert best(fit).steady.base == pytest.approx((AMBIENT_C + 5.0 - 45.0) / 35.0, abs=0.03)


@pytest.mark.parametrize("noise_c", [0.0, 0.7])
@pytest.mark.parametrize("time_constant_s", [20.0, 60.0, 150.0, 240.0])
def test_forecasts_of_a_minute_lie_within_their_own_doubt(
    time_constant_s: float, noise_c: float
) -> None:
    plant = msgspec.structs.replace(PLANT, time_constant_s=time_constant_s)
    fit, celsius = watched(plant, workday(1800), noise_c=noise_c)
    errors, far = list[float](), 0
    for load in workday(3600, seed=2)[::60]:
        ahead = fit.forecast(load, 60.0)
        fit, celsius = watched(plant, [load] * 60, fit, celsius, noise_c=noise_c)
        assert ahead is not None
        errors.append(abs(ahead.mean - (celsius - NOMINAL_C) / SCALE_C))
        far += errors[-1] > 3.0 * ahead.sigma
    assert far <= 2, "of sixty"
    assert sum(errors) / len(errors) < 0.03, "one degree"
    assert max(errors) < 0.1


def test_a_warmer_day_is_noticed() -> None:
    fit, celsius = watched(PLANT, workday(1800))
    warmer = msgspec.structs.replace(PLANT, idle_w=3.0, busy_w=8.0)  # as 10 C more around it
    fit, celsius = watched(warmer, workday(1800, seed=3), fit, celsius)
    assert best(fit).steady.at(0.5) == pytest.approx((30.0 + 5.0 * 5.5 - 45.0) / 35.0, abs=0.1)


def test_a_fan_is_learnt_and_foreseen() -> None:
    board = Board(thermal=PLANT, fan=Fan(on_c=60.0, off_c=52.0, resistance_ratio=0.5), start_c=45.0)
    inputs = Inputs(ambient_c=45.0, demand_per_s=1.0)
    fit, state = HeatFit(), board.start()
    for load in [0.9] * 600 + [0.1] * 600 + [0.9] * 600 + [0.1] * 600:
        state = advance(board, state, inputs, work_share=load, period_s=1.0)
        fit = fit.update(headroom(state.temperature_c), load, 1.0, fan=state.fan_step > 0)
    assert not fit.fan
    assert fit.fan_from == pytest.approx((60.0 - 45.0) / 35.0, abs=0.05)
    assert best(fit).cooled.at(0.9) < best(fit).steady.at(0.9) - 0.1
    ahead, alone = fit.forecast(0.9, 600.0), best(fit).steady.at(0.9)
    assert ahead is not None
    assert ahead.mean < alone - 0.1, "the fan will start"
    assert ahead.mean == pytest.approx((45.0 + 0.5 * 5.0 * 5.5 - 45.0) / 35.0, abs=0.1)


def test_doubt_grows_while_the_sensor_says_nothing_and_ends_with_it() -> None:
    fit, _ = watched(PLANT, workday(600))
    doubts = []
    for _ in range(300):
        fit = fit.update(None, 0.5, 1.0)
        assert fit.now is not None
        doubts.append(fit.now.sigma)
    assert all(a < b for a, b in itertools.pairwise(doubts))
    assert doubts[-1] > 0.5
    assert fit.update(0.4, 0.5, 1.0).now == Forecast(mean=0.4, sigma=READING_SIGMA)


def test_what_came_of_work_while_the_sensor_was_lost_is_learnt_when_it_is_back() -> None:
    fit, celsius = watched(PLANT, workday(600))
    # Out of the shade into the sun while nobody looks.
    sunny = msgspec.structs.replace(PLANT, idle_w=3.0, busy_w=8.0)
    for load in [1.0] * 60 + [0.2] * 60:
        celsius = sunny.step(celsius, ambient_c=AMBIENT_C, utilization=load, step_s=1.0)
        fit = fit.update(None, load, 1.0)
    back = fit.update(headroom(celsius), 0.2, 1.0)
    steady = (sunny.steady_c(ambient_c=AMBIENT_C, utilization=0.6) - NOMINAL_C) / SCALE_C
    ahead, before = back.forecast(0.6, 600.0), fit.forecast(0.6, 600.0)
    assert ahead is not None
    assert before is not None
    assert before.mean < steady - 0.2
    assert ahead.mean == pytest.approx(steady, abs=0.07)


def test_a_load_counts_for_as_much_of_it_as_still_shows() -> None:
    # Half a time constant at full load, half without: by hand, and by a lesson that surprises not.
    share = -math.expm1(-0.5)
    response = MODEL.response(MODEL.response(0.0, 1.0, 30.0), 0.0, 30.0)
    assert response == pytest.approx(share * (1.0 - share))
    after = 0.4
    for load in (1.0, 0.0):
        after += share * (LINE.at(load) - after)
    learnt = MODEL.learn(0.4, after, response, 60.0, fan=False, moved_sigma=0.0)
    assert learnt.steady.base == pytest.approx(LINE.base)
    assert learnt.steady.slope == pytest.approx(LINE.slope)
    assert learnt.unexplained == 0.0


def test_models_are_believed_by_what_they_predicted() -> None:
    fit, _ = watched(PLANT, [])
    fit = fit.update(0.4, 0.5, 1.0)
    assert fit.weights == pytest.approx([1.0 / len(TIME_CONSTANTS_S)] * len(TIME_CONSTANTS_S))
    fit, _ = watched(PLANT, workday(3600))
    assert sum(fit.weights) == pytest.approx(1.0)
    assert max(fit.weights) > 0.9


def test_models_that_disagree_make_a_forecast_less_sure() -> None:
    cool = msgspec.structs.replace(MODEL, steady=msgspec.structs.replace(LINE, base=-0.2))
    fit = HeatFit(now=NOW, models=(MODEL, cool), weights=(0.5, 0.5))
    alone = HeatFit(now=NOW, models=(MODEL,), weights=(1.0,))
    one, both = alone.forecast(0.5, 60.0), fit.forecast(0.5, 60.0)
    assert one is not None
    assert both is not None
    apart = (1.0 - 1.0 / math.e) * 0.4
    assert both.mean == pytest.approx(one.mean - apart / 2.0)
    assert both.sigma == pytest.approx(math.hypot(one.sigma, apart / 2.0))


@given(st.lists(st.tuples(readings, loads, st.floats(0, 1e5), st.booleans()), max_size=40), loads)
def test_whatever_is_read_forecasts_are_numbers(
    shown: list[tuple[float | None, float, float, bool]], load: float
) -> None:
    fit = HeatFit()
    for reading, busy, period_s, fan in shown:
        fit = fit.update(reading, busy, period_s, fan=fan)
        assert (fit.now is None) == (not fit.models)
        for after_s in (0.0, 10.0, 600.0, 1e7):
            ahead = fit.forecast(load, after_s)
            if ahead is not None:
                assert math.isfinite(ahead.mean)
                assert 0.0 <= ahead.sigma < math.inf


@given(
    st.lists(st.tuples(st.floats(-0.5, 1.5), loads), min_size=1, max_size=20), loads,
    st.floats(0, 600),
)  # fmt: skip
def test_to_hide_what_was_foreseen_makes_no_forecast_surer(
    shown: list[tuple[float, float]], load: float, after_s: float
) -> None:
    fit = HeatFit()
    for reading, busy in shown:
        fit = fit.update(reading, busy, STEP_S)
    foreseen = fit.forecast(load, 1.0)
    assert foreseen is not None
    read, hidden = fit.update(foreseen.mean, load, 1.0), fit.update(None, load, 1.0)
    for busy in (0.0, load, 1.0):
        known, guessed = read.forecast(busy, after_s), hidden.forecast(busy, after_s)
        assert known is not None
        assert guessed is not None
        assert guessed.at_most(1.0) >= known.at_most(1.0) - 1e-9
