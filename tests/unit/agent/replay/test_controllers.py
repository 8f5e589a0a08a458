"""Fans with speeds and governors with steps: each has a hysteresis, and moves when it looks."""

from __future__ import annotations

import pytest

from agent.replay.board import Board, BoardState, Inputs, advance
from agent.replay.controllers import Fan, FanStep, Governor
from agent.replay.plant import ThermalPlant

FAN = Fan(
    on_c=50, off_c=45, resistance_ratio=0.8, power_w=0.2,
    faster=(
        FanStep(on_c=60, off_c=55, resistance_ratio=0.6, power_w=0.5),
        FanStep(on_c=70, off_c=65, resistance_ratio=0.4, power_w=1.0),
    ),
)  # fmt: skip
GOVERNOR = Governor(ratios=(1.0, 0.8, 0.6, 0.4), hot_c=80.0, cool_c=75.0, interval_s=2.0)
BUSY = Inputs(ambient_c=25.0, demand_per_s=1.0)


@pytest.mark.parametrize(
    ("celsius", "before", "after"),
    [
        (40, 0, 0), (48, 0, 0), (48, 1, 1), (44, 1, 0), (51, 0, 1), (61, 0, 2), (75, 0, 3),
        (66, 3, 3), (64, 3, 2), (50, 3, 1), (40, 3, 0),
    ],
)  # fmt: skip
def test_each_speed_of_a_fan_has_a_hysteresis(celsius: float, before: int, after: int) -> None:
    assert FAN.step(celsius, before) == after


def test_a_faster_fan_cools_more_and_draws_more() -> None:
    board = Board(fan=FAN)
    states = [
        advance(
            board,
            BoardState(temperature_c=66.0, fan_step=step, draw_w=1.0),
            BUSY,
            work_share=1.0,
            period_s=1.0,
        )
        for step in (2, 3)
    ]
    assert [s.fan_step for s in states] == [2, 3]
    assert states[1].temperature_c < states[0].temperature_c
    assert states[1].draw_w - states[0].draw_w == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("celsius", "before", "after"),
    [(80, 0, 1), (90, 1, 2), (90, 3, 3), (78, 2, 2), (75, 2, 1), (60, 0, 0)],
)
def test_a_governor_moves_one_step_at_a_sampling(celsius: float, before: int, after: int) -> None:
    assert GOVERNOR.step(celsius, before) == after


def test_a_governor_looks_once_in_an_interval() -> None:
    board = Board(thermal=ThermalPlant(time_constant_s=1e5), governor=GOVERNOR, start_c=90.0)
    state, steps, ratios = board.start(), [], []
    for _ in range(8):
        ratios.append(state.frequency_ratio(board))
        state = advance(board, state, BUSY, work_share=0.1, period_s=1.0)
        steps.append(state.governor_step)
    # It looks after two seconds, then every two.
    assert steps == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ratios == [1.0, 1.0, 1.0, 0.8, 0.8, 0.6, 0.6, 0.4]


def test_a_governor_looks_several_times_in_a_long_tick() -> None:
    board = Board(thermal=ThermalPlant(time_constant_s=1e5), governor=GOVERNOR, start_c=90.0)
    state = advance(board, board.start(), BUSY, work_share=0.1, period_s=6.0)
    assert state.governor_step == 2


def test_a_governor_looks_as_often_as_it_should_whatever_the_ticks() -> None:
    many = Governor(ratios=tuple(1.0 - i / 30 for i in range(30)), hot_c=80.0, cool_c=75.0)
    board = Board(thermal=ThermalPlant(time_constant_s=1e6), governor=many, start_c=90.0)
    for period_s in (0.3, 0.7, 1.0, 2.3):
        state = board.start()
        for _ in range(round(20.0 / period_s)):
            state = advance(board, state, BUSY, work_share=0.1, period_s=period_s)
        assert state.governor_step == pytest.approx(20, abs=2)


def test_a_governor_replaces_the_linear_throttling() -> None:
    board = Board(governor=GOVERNOR)
    assert board.frequency_ratio(90.0) == 1.0
    assert Board().frequency_ratio(90.0) == 0.4


def test_between_hot_and_cool_the_board_goes_up_and_down() -> None:
    plant = ThermalPlant(resistance_c_per_w=12.0, time_constant_s=30.0, idle_w=1.0, busy_w=6.0)
    board = Board(thermal=plant, governor=GOVERNOR, start_c=70.0)
    state, seen = board.start(), []
    for _ in range(300):
        state = advance(board, state, BUSY, work_share=0.9, period_s=1.0)
        seen.append((state.governor_step, state.temperature_c))
    late = seen[100:]
    assert len({step for step, _ in late}) > 1
    assert all(70.0 < celsius < 85.0 for _, celsius in late)


def test_a_board_that_is_off_lets_fan_and_governor_rest() -> None:
    board = Board(fan=FAN, governor=GOVERNOR, battery_wh=1.0, start_charge_ratio=0.0)
    hot = BoardState(temperature_c=90.0, charge_ratio=0.0, fan_step=3, governor_step=3, draw_w=6.0)
    state = advance(board, hot, BUSY, work_share=1.0, period_s=1.0)
    assert (state.fan_step, state.governor_step, state.draw_w) == (0, 0, 0.0)
